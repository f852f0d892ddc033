"""The actions of S3 as policies name them, and what each needs besides a policy: one row an action.

Source: Amazon S3 user guide, "Access control list (ACL) overview", mapping of ACL permissions and policy
permissions; service authorization reference, "Actions defined by Amazon S3", with their condition keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from cumulus.model import Permission

# what decides where no policy does: any user; the bucket's owner or ACL; the object's owner or ACL;
# the bucket's owner or the object's
Basis = Literal["user", "bucket", "object", "either"]


@dataclass(frozen=True, slots=True)
class Action:
    """`on` is what a policy's resource has to be: the bucket or an object in it. `permission` is what an ACL
    has to give; None = no ACL gives it, the owner alone may."""

    on: Literal["service", "bucket", "object"]
    basis: Basis
    permission: Permission | None = None


_OF_BUCKETS: Final[dict[Permission | None, str]] = {
    "READ": "ListBucket ListBucketVersions ListBucketMultipartUploads",
    "READ_ACP": "GetBucketAcl",
    "WRITE_ACP": "PutBucketAcl",
    None: """DeleteBucket GetBucketLocation GetBucketPolicy PutBucketPolicy DeleteBucketPolicy
        GetBucketPolicyStatus GetBucketCORS PutBucketCORS GetLifecycleConfiguration PutLifecycleConfiguration
        GetBucketVersioning PutBucketVersioning GetBucketTagging PutBucketTagging
        GetBucketOwnershipControls PutBucketOwnershipControls GetBucketPublicAccessBlock
        PutBucketPublicAccessBlock GetEncryptionConfiguration PutEncryptionConfiguration GetBucketLogging
        PutBucketLogging GetBucketNotification PutBucketNotification GetBucketRequestPayment
        PutBucketRequestPayment GetBucketWebsite PutBucketWebsite DeleteBucketWebsite
        GetReplicationConfiguration PutReplicationConfiguration GetAccelerateConfiguration
        PutAccelerateConfiguration GetBucketObjectLockConfiguration PutBucketObjectLockConfiguration
        GetAnalyticsConfiguration PutAnalyticsConfiguration GetInventoryConfiguration
        PutInventoryConfiguration GetMetricsConfiguration PutMetricsConfiguration
        GetIntelligentTieringConfiguration PutIntelligentTieringConfiguration""",
}
# needs the bucket's ACL: who may write in a bucket may overwrite and delete in it
_IN_BUCKETS: Final[dict[Permission | None, str]] = {
    "WRITE": "PutObject DeleteObject",
    None: "DeleteObjectVersion",
}
_OF_OBJECTS: Final[dict[Permission | None, str]] = {
    "READ": "GetObject GetObjectVersion GetObjectAttributes GetObjectVersionAttributes",
    "READ_ACP": "GetObjectAcl GetObjectVersionAcl",
    "WRITE_ACP": "PutObjectAcl PutObjectVersionAcl",
}
_OF_EITHER: Final = """AbortMultipartUpload ListMultipartUploadParts GetObjectTagging GetObjectVersionTagging
    PutObjectTagging PutObjectVersionTagging DeleteObjectTagging DeleteObjectVersionTagging GetObjectRetention
    PutObjectRetention GetObjectLegalHold PutObjectLegalHold RestoreObject"""


def _table() -> dict[str, Action]:
    rows = {f"s3:{name}": Action("service", "user") for name in ("ListAllMyBuckets", "CreateBucket")}
    for permission, names in _OF_BUCKETS.items():
        rows |= {f"s3:{name}": Action("bucket", "bucket", permission) for name in names.split()}
    for permission, names in _IN_BUCKETS.items():
        rows |= {f"s3:{name}": Action("object", "bucket", permission) for name in names.split()}
    for permission, names in _OF_OBJECTS.items():
        rows |= {f"s3:{name}": Action("object", "object", permission) for name in names.split()}
    rows |= {f"s3:{name}": Action("object", "either") for name in _OF_EITHER.split()}
    return rows


ACTIONS: Final[dict[str, Action]] = _table()
# a bucket's owner is never locked out of these by his own policy
OF_POLICIES: Final = frozenset({"s3:GetBucketPolicy", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy"})

_LISTING: Final = "ListBucket ListBucketVersions"
_OF_ACLS: Final = "PutObject PutObjectAcl PutObjectVersionAcl PutBucketAcl"
TAG: Final = "s3:existingobjecttag/"  # begins the keys that are tags of the object itself
_WITH_TAGS: Final = f"{_OF_OBJECTS['READ']} {_OF_OBJECTS['READ_ACP']} {_OF_OBJECTS['WRITE_ACP']}"
# condition keys that belong to the requests of some actions only: a client may send the same parameter or
# header with others, where nothing looks at it and it would say what pleases him
_KEYS: Final[dict[str, str]] = {
    "s3:prefix": f"{_LISTING} ListBucketMultipartUploads",
    "s3:delimiter": f"{_LISTING} ListBucketMultipartUploads",
    "s3:max-keys": _LISTING,
    "s3:versionid": " ".join(name[3:] for name in ACTIONS if "ObjectVersion" in name),
    "s3:x-amz-copy-source": "PutObject",
    "s3:x-amz-metadata-directive": "PutObject",
    "s3:x-amz-storage-class": "PutObject",
    "s3:if-match": "PutObject",
    "s3:if-none-match": "PutObject",
    "s3:objectcreationoperation": "PutObject",
    "s3:x-amz-acl": _OF_ACLS,
    "s3:x-amz-grant-read": _OF_ACLS,
    "s3:x-amz-grant-write": _OF_ACLS,
    "s3:x-amz-grant-read-acp": _OF_ACLS,
    "s3:x-amz-grant-write-acp": _OF_ACLS,
    "s3:x-amz-grant-full-control": _OF_ACLS,
    # nothing can be kept by its tags from being replaced or deleted
    TAG: f"{_WITH_TAGS} {' '.join(name for name in _OF_EITHER.split() if name.endswith('Tagging'))}",
}
KEYS_OF: Final = {key: frozenset(f"s3:{name}" for name in names.split()) for key, names in _KEYS.items()}


def has_key(action: str, key: str) -> bool:
    """Whether requests for that action have the condition key (lower case), as far as they say it."""
    kind = TAG if key.startswith(TAG) else key
    return kind not in KEYS_OF or action in KEYS_OF[kind]
