"""S3's errors: a table of code, HTTP status and message, and the one exception that carries them.

Source: Amazon S3 API reference, "Error responses"; our additions: specification Cumulus, errors.
"""

from __future__ import annotations

from typing import Final

_TABLE: Final[dict[str, tuple[int, str]]] = {
    "AccessDenied": (403, "Access Denied."),
    "AccessForbidden": (403, "CORSResponse: This CORS request is not allowed."),
    "AccessControlListNotSupported": (400, "The bucket does not allow ACLs."),
    "AuthorizationHeaderMalformed": (400, "The authorization header is malformed."),
    "AuthorizationQueryParametersError": (400, "The query parameters for authorization are wrong."),
    "BadRequest": (400, "Bad request."),
    "BadDigest": (400, "The checksum you sent does not fit what was received."),
    "BucketAlreadyExists": (409, "The bucket name is taken."),
    "BucketAlreadyOwnedByYou": (409, "You own that bucket already."),
    "BucketNotEmpty": (409, "The bucket is not empty."),
    "EntityTooLarge": (400, "The upload is larger than allowed."),
    "EntityTooSmall": (400, "A part other than the last is smaller than 5 MiB."),
    "ExpiredToken": (400, "The key has expired."),
    "IllegalLocationConstraintException": (400, "The location constraint is not this server's region."),
    "IllegalVersioningConfigurationException": (400, "The versioning configuration is not valid."),
    "IncompleteBody": (400, "Fewer bytes came than Content-Length says."),
    "InternalError": (500, "Something failed here. Try again."),
    "InvalidAccessKeyId": (403, "There is no such access key."),
    "InvalidArgument": (400, "Invalid argument."),
    "InvalidBucketName": (400, "The bucket name is not valid."),
    "InvalidBucketState": (409, "The bucket's state does not allow this."),
    "InvalidChunkSizeError": (403, "A chunk does not fit x-amz-decoded-content-length."),
    "InvalidDigest": (400, "Content-MD5 or a checksum is not valid."),
    "InvalidPart": (400, "A part is not there, or its ETag does not fit."),
    "InvalidPartOrder": (400, "The parts are not in ascending order."),
    "InvalidPolicyDocument": (400, "The form's policy document is not valid."),
    "InvalidPartNumber": (416, "The object has no part of that number."),
    "InvalidRange": (416, "The range does not lie within the object."),
    "InvalidRequest": (400, "Invalid request."),
    "InvalidStorageClass": (400, "There is no such storage class."),
    "InvalidTag": (400, "A tag is not valid."),
    "InvalidToken": (400, "Session tokens are not known here."),
    "InvalidURI": (400, "The URI cannot be read."),
    "KeyTooLongError": (400, "The key is longer than 1,024 bytes."),
    "MalformedACLError": (400, "The ACL is not valid."),
    "MalformedPolicy": (400, "The policy is not valid."),
    "MalformedPOSTRequest": (400, "The form is not valid multipart/form-data."),
    "MalformedTrailerError": (400, "The headers after the body are not well formed or not those announced."),
    "MalformedXML": (400, "The XML is not what this request needs."),
    "MaxMessageLengthExceeded": (400, "The request is too long."),
    "MaxPostPreDataLengthExceeded": (400, "The form's fields before the file are too large."),
    "MetadataTooLarge": (400, "User metadata is larger than 2 KB."),
    "MethodNotAllowed": (405, "This method is not allowed on this resource."),
    "MissingContentLength": (411, "Content-Length is missing."),
    "MissingRequestBodyError": (400, "The request needs a body."),
    "MissingSecurityHeader": (400, "A header that this request needs is missing."),
    "NoSuchBucket": (404, "There is no such bucket."),
    "NoSuchBucketPolicy": (404, "The bucket has no policy."),
    "NoSuchCORSConfiguration": (404, "The bucket has no CORS configuration."),
    "NoSuchKey": (404, "There is no such key."),
    "NoSuchLifecycleConfiguration": (404, "The bucket has no lifecycle configuration."),
    "NoSuchTagSet": (404, "There are no tags."),
    "NoSuchUpload": (404, "There is no such upload; it may have been completed or aborted."),
    "NoSuchVersion": (404, "There is no such version."),
    "NotImplemented": (501, "This is not implemented."),
    "NotModified": (304, "Not modified."),
    "OwnershipControlsNotFoundError": (404, "The bucket has no ownership controls."),
    "NoSuchConfiguration": (404, "There is no such configuration."),
    "NoSuchObjectLockConfiguration": (404, "The object has no lock."),
    "NoSuchPublicAccessBlockConfiguration": (404, "The bucket has no public access block."),
    "NoSuchWebsiteConfiguration": (404, "The bucket has no website configuration."),
    "ObjectLockConfigurationNotFoundError": (404, "The bucket has no object lock configuration."),
    "OperationAborted": (409, "Another operation on this resource is under way. Try again."),
    "ConditionalRequestConflict": (409, "A concurrent request changed the object. Try again."),
    "PreconditionFailed": (412, "A condition of the request does not hold."),
    "QuotaExceeded": (403, "The quota is reached."),
    "ReadOnlyStorage": (405, "The storage is read-only."),
    "ReplicationConfigurationNotFoundError": (404, "The bucket has no replication configuration."),
    "RequestHeaderSectionTooLarge": (400, "The request's headers are too long."),
    "RequestTimeTooSkewed": (403, "The request's time differs from the server's by over 15 minutes."),
    "RequestTimeout": (400, "The body did not arrive in time."),
    "ServiceUnavailable": (503, "The service is not available now. Try again."),
    "ServerSideEncryptionConfigurationNotFoundError": (404, "The bucket has no default encryption."),
    "SignatureDoesNotMatch": (403, "The signature does not fit. Check the secret key."),
    "SlowDown": (503, "Too many requests. Slow down."),
    "StorageFull": (507, "The storage is full."),
    "TemporaryRedirect": (307, "Send the request again, to the server that Location and Endpoint name."),
    "TooManyBuckets": (400, "You have as many buckets as you may."),
    "UnresolvableGrantByEmailAddress": (400, "There is no user with that e-mail address."),
    "UserKeyMustBeSpecified": (400, "The form has no field named key."),
    "XAmzContentChecksumMismatch": (400, "The checksum you sent does not fit what was received."),
    "XAmzContentSHA256Mismatch": (400, "The body does not fit x-amz-content-sha256."),
}


class S3Error(Exception):
    """A refusal as S3 clients know it. `fields` become elements of the XML document; `headers` are added to
    the reply."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        fields: dict[str, str] | None = None,
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        self.code = code
        self.status, standard = _TABLE[code]
        self.message = message or standard
        self.fields = fields or {}
        self.headers = headers or []
        super().__init__(f"{code}: {self.message}")


def codes() -> dict[str, tuple[int, str]]:
    """All codes with status and standard message."""
    return dict(_TABLE)
