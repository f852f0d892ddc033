"""Policies of POST forms: who signed the form, and whether its fields are those that were signed. Pure.

Source: Amazon S3 API reference, "Creating a POST policy", "Authenticating requests in browser-based uploads
using POST (AWS Signature Version 4)"; S3 developer guide, "Browser uploads (AWS Signature Version 2)".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from cumulus.auth import sigv2, sigv4, times
from cumulus.auth.body import BodyRule
from cumulus.auth.claims import AuthSettings, allowed, check_region, check_skew, known, mismatch, parse_claim
from cumulus.auth.verify import Authenticated
from cumulus.errors import S3Error
from cumulus.index.api import Directory
from cumulus.model import Identity

# fields that no condition has to name
_FREE: Final = frozenset({"policy", "signature", "x-amz-signature", "awsaccesskeyid", "file"})
_IGNORED: Final = "x-ignore-"
_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on a field (lower case): equal to, or beginning with."""

    how: Literal["eq", "starts-with"]
    name: str
    value: str

    def holds(self, actual: str) -> bool:
        """Of a field's value."""
        return actual == self.value if self.how == "eq" else actual.startswith(self.value)

    def __str__(self) -> str:
        return json.dumps([self.how, f"${self.name}", self.value])


@dataclass(frozen=True, slots=True)
class PostPolicy:
    """What a signed form may be. `smallest` and `largest` bound the file's size in bytes, None = no bound."""

    expires_ns: int
    conditions: tuple[Condition, ...]
    smallest: int | None = None
    largest: int | None = None

    def check(self, fields: Mapping[str, str], bucket: str, now_ns: int) -> None:
        """Before the file. `fields` are the form's, expanded. Raises `S3Error` AccessDenied."""
        if now_ns >= self.expires_ns:
            raise _denied("Policy expired.")
        values = {**fields, "bucket": bucket}
        for condition in self.conditions:
            if not condition.holds(values.get(condition.name, "")):
                raise _denied(f"Policy Condition failed: {condition}")
        named = {condition.name for condition in self.conditions}
        # the bucket is no field of the form, but is to be named as one: else it could go into any other
        extra = sorted(name for name in values if name not in named | _FREE and not name.startswith(_IGNORED))
        if extra:
            raise _denied(f"Extra input fields: {', '.join(extra)[:256]}")

    def check_size(self, size: int) -> None:
        """Of the whole file, or of what has come of it (too large is too large at once). Raises `S3Error`
        EntityTooLarge, EntityTooSmall."""
        if self.largest is not None and size > self.largest:
            fields = {"ProposedSize": str(size), "MaxSizeAllowed": str(self.largest)}
            raise S3Error(
                "EntityTooLarge", "Your proposed upload exceeds the maximum allowed size", fields=fields
            )
        if self.smallest is not None and size < self.smallest:
            fields = {"ProposedSize": str(size), "MinSizeAllowed": str(self.smallest)}
            message = "Your proposed upload is smaller than the minimum allowed size"
            raise S3Error("EntityTooSmall", message, fields=fields)


def _denied(why: str) -> S3Error:
    return S3Error("AccessDenied", f"Invalid according to Policy: {why}")


def needs_field(name: str) -> str:
    """What a form is told that lacks a field; what comes behind the file does not count."""
    order = "If it is specified, please check the order of the fields."
    return f"Bucket POST must contain a field named '{name}'. {order}"


def authenticate_form(
    fields: Mapping[str, str], directory: Directory, settings: AuthSettings, peer: str, now_ns: int
) -> tuple[Authenticated, PostPolicy | None]:
    """Who signed the form's policy, and the policy; anonymous and None without one. Raises `S3Error`; the
    policy's own conditions are not checked yet."""
    text = fields.get("policy", "")
    signed = "x-amz-signature" in fields or "signature" in fields
    if not text:
        if signed:
            raise S3Error("AccessDenied", "A signed form needs a policy.")
        return Authenticated(Identity(peer=peer), BodyRule()), None
    if "x-amz-signature" in fields:
        identity = _version4(fields, text, directory, settings, peer, now_ns)
    elif "signature" in fields:
        identity = _version2(fields, text, directory, settings, peer, now_ns)
    else:
        name = "X-Amz-Signature" if "x-amz-algorithm" in fields else "Signature"
        raise S3Error(
            "InvalidArgument", needs_field(name), fields={"ArgumentName": name, "ArgumentValue": ""}
        )
    return Authenticated(identity, BodyRule(), "form"), parse_post_policy(text)


def _malformed(what: str) -> S3Error:
    return S3Error("InvalidArgument", f"The form's signature: {what}")


def _version4(
    fields: Mapping[str, str], text: str, directory: Directory, settings: AuthSettings, peer: str, now_ns: int
) -> Identity:
    if fields.get("x-amz-algorithm") != sigv4.ALGORITHM:
        raise _malformed(f"x-amz-algorithm must be {sigv4.ALGORITHM}.")
    if "x-amz-security-token" in fields:
        raise S3Error("InvalidToken")
    timestamp = fields.get("x-amz-date", "")
    try:
        at_ns = times.parse_basic(timestamp)
    except ValueError:
        raise _malformed("x-amz-date must be in the form yyyyMMddTHHmmssZ.") from None
    claim = parse_claim(
        fields.get("x-amz-credential", ""), "host", fields["x-amz-signature"], timestamp, _malformed
    )
    check_region(claim.scope, settings, "InvalidArgument", "The form's signature: ")
    # how long the form is good its policy says; only one from the future is wrong
    check_skew(max(at_ns, now_ns), now_ns, timestamp)
    credential = known(directory, claim.access_key)
    key = sigv4.signing_key(credential.secret, claim.scope)
    expected = hmac.digest(key, text.encode(), "sha256").hex()
    if not sigv4.same(expected, claim.signature):
        raise mismatch(claim.access_key, claim.signature, _ascii(text))
    return allowed(credential, peer, now_ns)


def _version2(
    fields: Mapping[str, str], text: str, directory: Directory, settings: AuthSettings, peer: str, now_ns: int
) -> Identity:
    if not settings.allow_sigv2:
        raise S3Error(
            "InvalidRequest",
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        )
    credential = known(directory, fields.get("awsaccesskeyid", ""))
    signature = fields["signature"]
    if not sigv4.same(sigv2.sign(credential.secret, _ascii(text)), signature):
        raise mismatch(credential.access_key, signature, _ascii(text))
    return allowed(credential, peer, now_ns)


def _ascii(text: str) -> str:
    """A policy as it is signed is base64; anything else fits no signature."""
    return text.encode("ascii", "replace").decode()


# reading


def _refuse(what: str) -> NoReturn:
    raise S3Error("InvalidPolicyDocument", f"Invalid Policy: {what}")


def parse_post_policy(text: str) -> PostPolicy:
    """A policy in base64 as the form has it. Raises `S3Error` InvalidPolicyDocument."""
    try:
        document = json.loads(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError, RecursionError):
        _refuse("the policy is not JSON in base64.")
    if not isinstance(document, dict) or document.keys() - {"expiration", "conditions"}:
        _refuse("the policy must be an object with expiration and conditions.")
    try:
        expires_ns = times.parse_iso(document.get("expiration", ""))
    except (ValueError, TypeError):
        _refuse("expiration must be a time in ISO 8601 form.")
    items = document.get("conditions")
    if not isinstance(items, list):
        _refuse("conditions must be a list.")
    conditions: list[Condition] = []
    smallest, largest = 0, _LIMIT
    bounded = False
    for item in items:
        if isinstance(item, list) and item[:1] == ["content-length-range"]:
            low, high = _range(item)
            smallest, largest, bounded = max(smallest, low), min(largest, high), True
        else:
            conditions += _conditions(item)
    return PostPolicy(
        expires_ns, tuple(conditions), smallest if bounded else None, largest if bounded else None
    )


def _range(item: list[object]) -> tuple[int, int]:
    numbers = [
        int(str(value)) if re.fullmatch(r"\d{1,18}", str(value), re.ASCII) else None for value in item[1:]
    ]
    low, high = numbers if len(numbers) == 2 else (None, None)
    if low is None or high is None:
        _refuse("content-length-range needs two numbers.")
    return low, high


def _conditions(item: object) -> list[Condition]:
    if isinstance(item, dict):
        if not item or not all(isinstance(value, str) for value in item.values()):
            _refuse("a condition's value must be text.")
        return [Condition("eq", name.lower(), value) for name, value in item.items()]
    if not isinstance(item, list) or len(item) != 3 or not all(isinstance(word, str) for word in item):
        _refuse("a condition must be an object or a list of operator, field and value.")
    how, name, value = item
    if how.lower() not in ("eq", "starts-with") or not name.startswith("$"):
        _refuse(f"unknown condition {str(how)[:32]} {str(name)[:64]}.")
    return [Condition("eq" if how.lower() == "eq" else "starts-with", name[1:].lower(), value)]
