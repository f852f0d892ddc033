"""Whether somebody may do something: one function over owner, ACL, policy and the administrators. Pure.

Administrators may do everything. A policy's Deny counts for everybody else, its Allow for the bucket and for
objects that belong to the bucket's owner. Where no policy decides: a bucket's owner may do everything with
the bucket and delete what is in it; who owns an object decides, with its ACL, who reads it and its ACL,
also against the bucket's owner. Who is anonymous comes in through ACLs and policies alone.
Source: Amazon S3 user guide, "How Amazon S3 authorizes a request".
"""

from __future__ import annotations

from cumulus.auth.acl import acl_allows, granted, is_owner
from cumulus.auth.actions import ACTIONS, OF_POLICIES, TAG, Action, has_key
from cumulus.auth.conditions import RequestContext, values_of
from cumulus.auth.policy import Verdict, parse_policy
from cumulus.errors import S3Error
from cumulus.model import Bucket, Identity, ObjectMeta


def decide(
    identity: Identity, action: str, bucket: Bucket | None, meta: ObjectMeta | None, context: RequestContext
) -> None:
    """Raises `S3Error` AccessDenied. `action` is one of `actions.ACTIONS` ("s3:GetObject"); `bucket` is None
    for the service's own; `meta` is the object's (for an upload's actions the upload's), None if there is
    none: reading what is not there needs the right to list, and passes then."""
    if not allows(identity, action, bucket, meta, context):
        raise S3Error("AccessDenied")


def allows(
    identity: Identity, action: str, bucket: Bucket | None, meta: ObjectMeta | None, context: RequestContext
) -> bool:
    """The same as an answer. Raises `KeyError` for an action that there is not."""
    rule = ACTIONS[action]
    if rule.basis == "user" or bucket is None:
        return identity.user is not None
    if identity.user is not None and identity.user.admin:
        return True
    verdict = _policy_says(identity, action, rule, bucket, meta, context)
    if verdict == "deny":
        return action in OF_POLICIES and is_owner(bucket.owner, identity)
    if rule.basis == "object" and meta is None:
        return allows(identity, "s3:ListBucket", bucket, None, context)
    if verdict == "allow" and (meta is None or meta.acl.owner == bucket.owner):
        return True
    return _ownership_allows(identity, rule, bucket, meta)


def _policy_says(
    identity: Identity,
    action: str,
    rule: Action,
    bucket: Bucket,
    meta: ObjectMeta | None,
    context: RequestContext,
) -> Verdict:
    if not bucket.policy:
        return ""
    resource = bucket.name if rule.on == "bucket" else f"{bucket.name}/{context.key}"
    try:
        policy = parse_policy(bucket.policy, bucket.name)
    except S3Error:
        return "deny"  # it was valid for another version of this program; nobody comes in by accident
    values = values_of(context, identity, meta if has_key(action, TAG) else None)
    return policy.evaluate(identity, action, resource, values, bucket.principals)


def _ownership_allows(identity: Identity, rule: Action, bucket: Bucket, meta: ObjectMeta | None) -> bool:
    """What owners and ACLs give."""
    if rule.basis == "object":
        return meta is not None and acl_allows(meta.acl, identity, rule.permission or "FULL_CONTROL")
    if is_owner(bucket.owner, identity):
        return True
    if rule.basis == "either":
        return meta is not None and is_owner(meta.acl.owner, identity)
    return rule.permission is not None and granted(bucket.acl, identity, rule.permission)
