"""The actions of S3 as policies name them, and what each needs besides a policy: one row an action.

Source: Amazon S3 user guide, "Access control list (ACL) overview", mapping of ACL permissions and policy
permissions; service authorization reference, "Actions defined by Amazon S3".
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
