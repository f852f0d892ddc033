"""The table of operations: each S3 operation is one row, found by method, level and sub-resource.

docs/s3-compat.md is made from it.
"""

from __future__ import annotations

from typing import Final

from cumulus.errors import S3Error
from cumulus.rest import (
    acl,
    buckets,
    copies,
    cors,
    forms,
    listing,
    multi,
    multipart,
    objects,
    policies,
    small,
    tags,
)
from cumulus.rest.call import Call
from cumulus.rest.request import Level, Operation
from cumulus.rest.target import Target

Op = Operation
_LOCK: Final = "Object lock is not implemented."
_NEVER: Final = "Not planned: the site's own tools do this."
_ONE_CLASS: Final = "There is one storage class."

SERVICE: Final = [
    Op("ListBuckets", "GET", "service", listing.list_buckets),
]

BUCKETS: Final = [
    Op(
        "CreateBucket",
        "PUT",
        "bucket",
        buckets.create_bucket,
        status="differs",
        note="The location constraint must be the server's region. No object lock; only ObjectWriter. "
        "One's own again is a 409, in us-east-1 too. So is a name under which files are already.",
    ),
    Op(
        "DeleteBucket",
        "DELETE",
        "bucket",
        buckets.delete_bucket,
        "s3:DeleteBucket",
        note="Aborts uploads in progress; 409 OperationAborted while one is being completed.",
    ),
    Op("HeadBucket", "HEAD", "bucket", buckets.head_bucket, "s3:ListBucket"),
    Op("ListObjects", "GET", "bucket", listing.list_objects, "s3:ListBucket", note="Also ListObjectsV2."),
    Op(
        "ListObjectVersions",
        "GET",
        "bucket",
        listing.list_versions,
        "s3:ListBucketVersions",
        "versions",
        note="`NextVersionIdMarker` is a version's id with its place among the others behind it.",
    ),
    Op("DeleteObjects", "POST", "bucket", multi.delete_objects, query="delete"),
    Op("PostObject", "POST", "bucket", forms.post_object, note="Signatures of version 4, or 2 if allowed."),
    Op("GetBucketLocation", "GET", "bucket", buckets.get_location, "s3:GetBucketLocation", "location"),
    Op("GetBucketAcl", "GET", "bucket", acl.get_bucket_acl, "s3:GetBucketAcl", "acl"),
    Op("PutBucketAcl", "PUT", "bucket", acl.put_bucket_acl, "s3:PutBucketAcl", "acl"),
    Op(
        "GetBucketVersioning", "GET", "bucket", buckets.get_versioning, "s3:GetBucketVersioning", "versioning"
    ),
    Op(
        "PutBucketVersioning",
        "PUT",
        "bucket",
        buckets.put_versioning,
        "s3:PutBucketVersioning",
        "versioning",
        status="differs",
        note="No MFA delete. Storage that replaces files needs hard links for it.",
    ),
    Op("GetBucketTagging", "GET", "bucket", tags.get_bucket_tags, "s3:GetBucketTagging", "tagging"),
    Op("PutBucketTagging", "PUT", "bucket", tags.put_bucket_tags, "s3:PutBucketTagging", "tagging"),
    Op("DeleteBucketTagging", "DELETE", "bucket", tags.delete_bucket_tags, "s3:PutBucketTagging", "tagging"),
    Op("GetBucketPolicy", "GET", "bucket", policies.get_policy, "s3:GetBucketPolicy", "policy"),
    Op(
        "PutBucketPolicy",
        "PUT",
        "bucket",
        policies.put_policy,
        "s3:PutBucketPolicy",
        "policy",
        status="differs",
        note="Principals are users and groups of this server. Operators and keys are those that "
        "`guide/cumulus-security.md` lists, without `ForAllValues` and `ForAnyValue`, operators for ARNs, "
        "and keys of tags that a request sets; a policy with others is refused, not half obeyed.",
    ),
    Op("DeleteBucketPolicy", "DELETE", "bucket", policies.delete_policy, "s3:DeleteBucketPolicy", "policy"),
    Op(
        "GetBucketPolicyStatus",
        "GET",
        "bucket",
        policies.get_policy_status,
        "s3:GetBucketPolicyStatus",
        "policyStatus",
    ),
    Op("GetBucketCors", "GET", "bucket", policies.get_cors, "s3:GetBucketCORS", "cors"),
    Op("PutBucketCors", "PUT", "bucket", policies.put_cors, "s3:PutBucketCORS", "cors"),
    Op("DeleteBucketCors", "DELETE", "bucket", policies.delete_cors, "s3:PutBucketCORS", "cors"),
    Op(
        "GetBucketLifecycleConfiguration",
        "GET",
        "bucket",
        policies.get_lifecycle,
        "s3:GetLifecycleConfiguration",
        "lifecycle",
    ),
    Op(
        "PutBucketLifecycleConfiguration",
        "PUT",
        "bucket",
        policies.put_lifecycle,
        "s3:PutLifecycleConfiguration",
        "lifecycle",
        status="differs",
        note="Expiration and abort of uploads; no transitions, since there is one storage class, and no "
        "least size of them but the default.",
    ),
    Op(
        "DeleteBucketLifecycle",
        "DELETE",
        "bucket",
        policies.delete_lifecycle,
        "s3:PutLifecycleConfiguration",
        "lifecycle",
    ),
    Op(
        "ListMultipartUploads",
        "GET",
        "bucket",
        multipart.list_uploads,
        "s3:ListBucketMultipartUploads",
        "uploads",
    ),
    Op(
        "GetBucketOwnershipControls",
        "GET",
        "bucket",
        buckets.get_ownership,
        "s3:GetBucketOwnershipControls",
        "ownershipControls",
        status="differs",
        note="Always ObjectWriter.",
    ),
    Op(
        "PutBucketOwnershipControls",
        "PUT",
        "bucket",
        buckets.put_ownership,
        "s3:PutBucketOwnershipControls",
        "ownershipControls",
        status="differs",
        note="ObjectWriter only.",
    ),
    Op(
        "GetPublicAccessBlock",
        "GET",
        "bucket",
        buckets.absent("NoSuchPublicAccessBlockConfiguration"),
        "s3:GetBucketPublicAccessBlock",
        "publicAccessBlock",
        status="differs",
        note="There is none.",
    ),
    Op(
        "GetBucketEncryption",
        "GET",
        "bucket",
        buckets.absent("ServerSideEncryptionConfigurationNotFoundError"),
        "s3:GetEncryptionConfiguration",
        "encryption",
        status="differs",
        note="There is none: encrypt the file system.",
    ),
    Op(
        "GetBucketRequestPayment",
        "GET",
        "bucket",
        buckets.fixed("RequestPaymentConfiguration", ("Payer", "BucketOwner")),
        "s3:GetBucketRequestPayment",
        "requestPayment",
        status="differs",
        note="Always BucketOwner.",
    ),
    Op(
        "PutBucketRequestPayment",
        "PUT",
        "bucket",
        buckets.put_payment,
        "s3:PutBucketRequestPayment",
        "requestPayment",
        status="differs",
        note="BucketOwner only.",
    ),
    Op(
        "GetBucketLogging",
        "GET",
        "bucket",
        buckets.fixed("BucketLoggingStatus"),
        "s3:GetBucketLogging",
        "logging",
        status="differs",
        note="Never into a bucket: the server has an access log.",
    ),
    Op(
        "GetBucketNotificationConfiguration",
        "GET",
        "bucket",
        buckets.fixed("NotificationConfiguration"),
        "s3:GetBucketNotification",
        "notification",
        status="differs",
        note="There is none.",
    ),
    Op(
        "GetBucketAccelerateConfiguration",
        "GET",
        "bucket",
        buckets.fixed("AccelerateConfiguration"),
        "s3:GetAccelerateConfiguration",
        "accelerate",
        status="differs",
        note="There is none.",
    ),
    Op(
        "GetObjectLockConfiguration",
        "GET",
        "bucket",
        buckets.absent("ObjectLockConfigurationNotFoundError"),
        "s3:GetBucketObjectLockConfiguration",
        "object-lock",
        status="differs",
        note="There is none.",
    ),
    Op(
        "GetBucketWebsite",
        "GET",
        "bucket",
        buckets.absent("NoSuchWebsiteConfiguration"),
        "s3:GetBucketWebsite",
        "website",
        status="differs",
        note="There is none.",
    ),
    Op(
        "GetBucketReplication",
        "GET",
        "bucket",
        buckets.absent("ReplicationConfigurationNotFoundError"),
        "s3:GetReplicationConfiguration",
        "replication",
        status="differs",
        note="There is none.",
    ),
]

OBJECTS: Final = [
    Op("GetObject", "GET", "object", objects.get_object),
    Op("HeadObject", "HEAD", "object", objects.head_object),
    Op(
        "PutObject",
        "PUT",
        "object",
        objects.put_object,
        "s3:PutObject",
        joint=small.small_put,
        status="differs",
        note="Up to 5 TiB in one request. One storage class. No server-side encryption, lock or redirect. "
        "`If-None-Match` is `*`, as in S3; an ETag there, or `If-Match` beside it, is a 501.",
    ),
    Op(
        "CopyObject",
        "PUT",
        "object",
        copies.copy_object,
        "s3:PutObject",
        header="x-amz-copy-source",
        status="differs",
        note="Any size. A multipart object's copy keeps its ETag.",
    ),
    Op("DeleteObject", "DELETE", "object", objects.delete_object),
    Op("GetObjectAttributes", "GET", "object", objects.get_attributes, query="attributes"),
    Op("GetObjectAcl", "GET", "object", acl.get_object_acl, query="acl"),
    Op("PutObjectAcl", "PUT", "object", acl.put_object_acl, query="acl"),
    Op("GetObjectTagging", "GET", "object", tags.get_object_tags, query="tagging"),
    Op("PutObjectTagging", "PUT", "object", tags.put_object_tags, query="tagging"),
    Op("DeleteObjectTagging", "DELETE", "object", tags.delete_object_tags, query="tagging"),
    Op("CreateMultipartUpload", "POST", "object", multipart.create_upload, "s3:PutObject", "uploads"),
    Op("UploadPart", "PUT", "object", multipart.upload_part, "s3:PutObject", "uploadId"),
    Op(
        "UploadPartCopy",
        "PUT",
        "object",
        multipart.copy_part,
        "s3:PutObject",
        "uploadId",
        header="x-amz-copy-source",
    ),
    Op("CompleteMultipartUpload", "POST", "object", multipart.complete_upload, "s3:PutObject", "uploadId"),
    Op(
        "AbortMultipartUpload",
        "DELETE",
        "object",
        multipart.abort_upload,
        query="uploadId",
        note="409 OperationAborted while the upload is being completed.",
    ),
    Op("ListParts", "GET", "object", multipart.list_parts, query="uploadId"),
]


def _no(name: str, method: str, level: str, query: str, note: str) -> Operation:
    return Op(name, method, "bucket" if level == "bucket" else "object", query=query, status="no", note=note)


LACKING: Final = [
    _no("PutPublicAccessBlock", "PUT", "bucket", "publicAccessBlock", "ACLs and policies decide."),
    _no("DeletePublicAccessBlock", "DELETE", "bucket", "publicAccessBlock", "ACLs and policies decide."),
    _no("DeleteBucketOwnershipControls", "DELETE", "bucket", "ownershipControls", "Always ObjectWriter."),
    _no("PutBucketEncryption", "PUT", "bucket", "encryption", "Encrypt the file system."),
    _no("DeleteBucketEncryption", "DELETE", "bucket", "encryption", "Encrypt the file system."),
    _no("PutBucketLogging", "PUT", "bucket", "logging", "The server has an access log."),
    _no("PutBucketNotificationConfiguration", "PUT", "bucket", "notification", "No events."),
    _no("ListenBucketNotification", "GET", "bucket", "events", "No events. (MinIO's, not S3's.)"),
    _no("PutBucketAccelerateConfiguration", "PUT", "bucket", "accelerate", _NEVER),
    _no("PutObjectLockConfiguration", "PUT", "bucket", "object-lock", _LOCK),
    _no("PutBucketWebsite", "PUT", "bucket", "website", "No web sites."),
    _no("DeleteBucketWebsite", "DELETE", "bucket", "website", "No web sites."),
    _no("PutBucketReplication", "PUT", "bucket", "replication", "No replication between buckets."),
    _no("DeleteBucketReplication", "DELETE", "bucket", "replication", "No replication between buckets."),
    _no("GetBucketAnalyticsConfiguration", "GET", "bucket", "analytics", _NEVER),
    _no("PutBucketAnalyticsConfiguration", "PUT", "bucket", "analytics", _NEVER),
    _no("GetBucketInventoryConfiguration", "GET", "bucket", "inventory", _NEVER),
    _no("PutBucketInventoryConfiguration", "PUT", "bucket", "inventory", _NEVER),
    _no("GetBucketMetricsConfiguration", "GET", "bucket", "metrics", _NEVER),
    _no("PutBucketMetricsConfiguration", "PUT", "bucket", "metrics", _NEVER),
    _no("GetBucketIntelligentTieringConfiguration", "GET", "bucket", "intelligent-tiering", _ONE_CLASS),
    _no("PutBucketIntelligentTieringConfiguration", "PUT", "bucket", "intelligent-tiering", _ONE_CLASS),
    _no("DeleteBucketAnalyticsConfiguration", "DELETE", "bucket", "analytics", _NEVER),
    _no("DeleteBucketInventoryConfiguration", "DELETE", "bucket", "inventory", _NEVER),
    _no("DeleteBucketMetricsConfiguration", "DELETE", "bucket", "metrics", _NEVER),
    _no("DeleteBucketIntelligentTieringConfiguration", "DELETE", "bucket", "intelligent-tiering", _ONE_CLASS),
    _no("CreateBucketMetadataTableConfiguration", "POST", "bucket", "metadataTable", _NEVER),
    _no("GetBucketMetadataTableConfiguration", "GET", "bucket", "metadataTable", _NEVER),
    _no("DeleteBucketMetadataTableConfiguration", "DELETE", "bucket", "metadataTable", _NEVER),
    _no("CreateBucketMetadataConfiguration", "POST", "bucket", "metadataConfiguration", _NEVER),
    _no("GetBucketMetadataConfiguration", "GET", "bucket", "metadataConfiguration", _NEVER),
    _no("DeleteBucketMetadataConfiguration", "DELETE", "bucket", "metadataConfiguration", _NEVER),
    _no("UpdateBucketMetadataInventoryTableConfiguration", "PUT", "bucket", "metadataInventoryTable", _NEVER),
    _no("UpdateBucketMetadataJournalTableConfiguration", "PUT", "bucket", "metadataJournalTable", _NEVER),
    _no(
        "UpdateBucketMetadataAnnotationTableConfiguration", "PUT", "bucket", "metadataAnnotationTable", _NEVER
    ),
    _no("GetBucketAbac", "GET", "bucket", "abac", "ACLs and policies decide."),
    _no("PutBucketAbac", "PUT", "bucket", "abac", "ACLs and policies decide."),
    _no("GetObjectAnnotation", "GET", "object", "annotation", _NEVER),
    _no("PutObjectAnnotation", "PUT", "object", "annotation", _NEVER),
    _no("DeleteObjectAnnotation", "DELETE", "object", "annotation", _NEVER),
    _no("UpdateObjectEncryption", "PUT", "object", "encryption", "Encrypt the file system."),
    _no("CreateSession", "GET", "bucket", "session", "No directory buckets."),
    _no("GetObjectRetention", "GET", "object", "retention", _LOCK),
    _no("PutObjectRetention", "PUT", "object", "retention", _LOCK),
    _no("GetObjectLegalHold", "GET", "object", "legal-hold", _LOCK),
    _no("PutObjectLegalHold", "PUT", "object", "legal-hold", _LOCK),
    _no("GetObjectTorrent", "GET", "object", "torrent", _NEVER),
    _no("RestoreObject", "POST", "object", "restore", _ONE_CLASS),
    _no("SelectObjectContent", "POST", "object", "select", _NEVER),
    _no("RenameObject", "PUT", "object", "renameObject", "No directory buckets."),
]

PREFLIGHT: Final = Op("OptionsPreflight", "OPTIONS", "service", cors.preflight, note="CORS preflight.")
OPERATIONS: Final = [*SERVICE, *BUCKETS, *OBJECTS, PREFLIGHT, *LACKING]
_REPLACING: Final = frozenset({"PutObject", "CopyObject", "CompleteMultipartUpload"})
# S3 answers these for the bucket whatever key stands before them, or refuses them; all others it ignores
_OF_BUCKETS: Final = frozenset(
    {
        "accelerate",
        "cors",
        "inventory",
        "lifecycle",
        "location",
        "logging",
        "notification",
        "policy",
        "replication",
        "requestPayment",
        "versioning",
        "versions",
        "website",
    }
)
_ROWS: Final = {(row.method, row.level, row.query, row.header): row for row in OPERATIONS}


def _queries() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {"service": {}, "bucket": {}, "object": {}}
    for row in OPERATIONS:
        if row.query:
            found[row.level][row.query] = None
    return {level: tuple(names) for level, names in found.items()}


_QUERIES: Final = _queries()


def select(call: Call, where: Target) -> Operation:
    """The operation that a request asks for. Raises `S3Error` MethodNotAllowed: there is no such method on
    what it names, and nothing else is done instead; as `_sub_resource`."""
    level: Level = "object" if where.key else "bucket" if where.bucket else "service"
    query = _sub_resource(level, where) if where.query else ""
    header = "x-amz-copy-source" if "x-amz-copy-source" in call.headers else ""
    if header and call.method != "PUT" and (call.method != "POST" or query == "uploadId"):
        why = "You can only specify a copy source header for copy requests."
        raise S3Error("InvalidArgument", why, fields={"ArgumentName": header})
    row = _ROWS.get((call.method, level, query, header)) or _ROWS.get((call.method, level, query, ""))
    if row is None:
        there = sorted({row.method for row in OPERATIONS if row.level == level and row.query == query})
        raise S3Error(
            "MethodNotAllowed",
            fields={"Method": call.method[:32], "ResourceType": (query or level).upper()},
            headers=[("Allow", ", ".join(there))],
        )
    if row.name in _REPLACING:
        _check_replaces(row, where)
    return row


def _sub_resource(level: Level, where: Target) -> str:
    """The one that the query names, or "". Raises `S3Error` for several, and for one of buckets asked of a
    key or the reverse: what would be done instead would be done to another thing."""
    misplaced = _OF_BUCKETS & where.query.keys() if level == "object" else ()
    if misplaced:
        name = min(misplaced)
        raise S3Error("InvalidRequest", f"There is no such thing as the ?{name} sub-resource for a key")
    if level == "bucket" and "uploadId" in where.query:
        raise S3Error("InvalidRequest", "A key must be specified")
    names = sorted(name for name in _QUERIES[level] if name in where.query)
    if len(names) > 1:
        why = f"Conflicting query string parameters: {', '.join(names)}"
        fields = {"ArgumentName": "ResourceType", "ArgumentValue": names[0]}
        raise S3Error("InvalidArgument", why, fields=fields)
    return names[0] if names else ""


def _check_replaces(row: Operation, where: Target) -> None:
    """Raises `S3Error` InvalidArgument for what asks for a version or a part: done to the current object, it
    would replace it."""
    if "versionId" in where.query:
        wrong, name = "This operation does not accept a version-id.", "versionId"
    elif "partNumber" in where.query and row.query != "uploadId":
        wrong, name = "A part number needs an uploadId.", "partNumber"
    else:
        return
    fields = {"ArgumentName": name, "ArgumentValue": where.query[name][:100]}
    raise S3Error("InvalidArgument", wrong, fields=fields)


def makes_bucket(operation: Operation) -> bool:
    """Whether it is the one on a bucket that is not there yet."""
    return operation.name == "CreateBucket"
