"""Access control lists: canned ones, those of x-amz-grant- headers, and what a list allows. Pure.

An owner may do everything with what is his own, whatever the list says; in S3 he can take reading from
himself and give it back. Our own groups have URIs of the form urn:cumulus:group:NAME; what is granted is
bound to the group's id, so that it does not pass to another one that gets the name.
Source: Amazon S3 user guide, "Access control list (ACL) overview".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cumulus.errors import S3Error
from cumulus.index.api import Directory
from cumulus.model import ALL_USERS, AUTHENTICATED, Acl, Grant, Identity, Permission

if TYPE_CHECKING:
    from cumulus.rest.call import Headers

ALL_USERS_URI: Final = "http://acs.amazonaws.com/groups/global/AllUsers"
AUTHENTICATED_URI: Final = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
_GROUP_URI: Final = "urn:cumulus:group:"
MAX_GRANTS: Final = 100
CANNED: Final = (
    "private",
    "public-read",
    "public-read-write",
    "authenticated-read",
    "bucket-owner-read",
    "bucket-owner-full-control",
)
_HEADERS: Final[dict[str, Permission]] = {
    "x-amz-grant-read": "READ",
    "x-amz-grant-write": "WRITE",
    "x-amz-grant-read-acp": "READ_ACP",
    "x-amz-grant-write-acp": "WRITE_ACP",
    "x-amz-grant-full-control": "FULL_CONTROL",
}
_GRANTEE: Final = re.compile(
    r'\s*(id|uri|emailAddress)\s*=\s*(?:"([^"]*)"|([^",\s]+))\s*(?:,|$)', re.IGNORECASE
)


def canned(name: str, owner: str, bucket_owner: str = "") -> Acl:
    """The list of a canned ACL for something that belongs to `owner`. `bucket_owner` matters to objects only,
    "" for buckets. Raises `S3Error` InvalidArgument for a name that S3 or we do not have."""
    if name not in CANNED:
        raise _invalid("x-amz-acl", name)
    extra: list[Grant] = []
    if name in ("public-read", "public-read-write"):
        extra.append(Grant(grantee=ALL_USERS, permission="READ"))
    if name == "public-read-write":
        extra.append(Grant(grantee=ALL_USERS, permission="WRITE"))
    if name == "authenticated-read":
        extra.append(Grant(grantee=AUTHENTICATED, permission="READ"))
    if name.startswith("bucket-owner-") and bucket_owner not in ("", owner):
        right: Permission = "READ" if name == "bucket-owner-read" else "FULL_CONTROL"
        extra.append(Grant(grantee=f"user:{bucket_owner}", permission=right))
    own = (Grant(grantee=f"user:{owner}", permission="FULL_CONTROL"),) if owner else ()
    return Acl(owner=owner, grants=(*own, *extra))


def from_headers(headers: Headers, directory: Directory, owner: str, bucket_owner: str = "") -> Acl | None:
    """The list that x-amz-acl or x-amz-grant- headers ask for; None when there are none of them. Raises
    `S3Error`: both kinds at once, unknown names, grantees or addresses."""
    name = headers.get("x-amz-acl")
    given = [header for header in _HEADERS if header in headers]
    if name and given:
        raise S3Error("InvalidRequest", "Specifying both Canned ACLs and Header Grants is not allowed")
    if name:
        return canned(name, owner, bucket_owner)
    if not given:
        return None
    grants = [
        Grant(grantee=grantee, permission=_HEADERS[header])
        for header in given
        for grantee in _grantees(header, headers.get(header), directory)
    ]
    return checked(Acl(owner=owner, grants=tuple(grants)))


def checked(acl: Acl) -> Acl:
    """The list without repetitions. Raises `S3Error` MalformedACLError when it is too long."""
    grants = tuple(dict.fromkeys(acl.grants))
    check_number(len(grants))
    return Acl(owner=acl.owner, grants=grants)


def check_number(grants: int) -> None:
    """Before somebody is looked up for each. Raises `S3Error` MalformedACLError for too many."""
    if grants > MAX_GRANTS:
        raise S3Error("MalformedACLError", f"An ACL has at most {MAX_GRANTS} grants.")


def _invalid(name: str, value: str, message: str = "") -> S3Error:
    return S3Error("InvalidArgument", message, fields={"ArgumentName": name, "ArgumentValue": value[:256]})


def _grantees(header: str, text: str, directory: Directory) -> list[str]:
    """Of one header: id="…", uri="…", emailAddress="…", separated by commas."""
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _GRANTEE.match(text, at)
        if match is None:
            raise _invalid(header, text, f'{header} must be a list of id="…", uri="…" or emailAddress="…".')
        check_number(len(found) + 1)
        kind, value = match[1].lower(), match[2] if match[2] is not None else match[3]
        found.append(_GRANTEES[kind](value, directory))
        at = match.end()
    return found


def grantee_of_id(user_id: str, directory: Directory) -> str:
    """Raises `S3Error` InvalidArgument when there is no such user."""
    user = directory.user(user_id)
    if user is None or user.id != user_id:
        raise _invalid("CanonicalUser/ID", user_id, "Invalid id")
    return f"user:{user.id}"


def grantee_of_email(email: str, directory: Directory) -> str:
    """Raises `S3Error` UnresolvableGrantByEmailAddress."""
    user = directory.by_email(email) if email else None
    if user is None:
        raise S3Error("UnresolvableGrantByEmailAddress", fields={"EmailAddress": email[:256]})
    return f"user:{user.id}"


def grantee_of_uri(uri: str, directory: Directory) -> str:
    """Everybody, everybody with a key, or a group of ours. Raises `S3Error` InvalidArgument when there is no
    such group."""
    if uri in (ALL_USERS_URI, AUTHENTICATED_URI):
        return ALL_USERS if uri == ALL_USERS_URI else AUTHENTICATED
    group = uri.removeprefix(_GROUP_URI)
    found = directory.group_id(group) if group not in ("", uri) else None
    if found is None:
        raise _invalid("uri", uri, "Invalid group uri")
    return f"group:{found}"


def uri_of(grantee: str, directory: Directory) -> str | None:
    """Inverse of `grantee_of_uri`; None for a user. Of a group that has gone it is no group's name."""
    if grantee == ALL_USERS:
        return ALL_USERS_URI
    if grantee == AUTHENTICATED:
        return AUTHENTICATED_URI
    if not grantee.startswith("group:"):
        return None
    return _GROUP_URI + group_name(grantee.removeprefix("group:"), directory)


def group_name(group_id: str, directory: Directory) -> str:
    """The name of the group with that id; of one that has gone something with a #, which no name has."""
    name, mark, _ = group_id.partition("#")
    if directory.group_id(name) == group_id:
        return name
    return group_id if mark else f"{name}#removed"


_GRANTEES: Final[dict[str, Callable[[str, Directory], str]]] = {
    "id": grantee_of_id,
    "emailaddress": grantee_of_email,
    "uri": grantee_of_uri,
}


def granted(acl: Acl, identity: Identity, permission: Permission) -> bool:
    """Whether a grant gives it; who owns what does not count here."""
    return any(
        grant.permission in (permission, "FULL_CONTROL") and _meant(grant.grantee, identity)
        for grant in acl.grants
    )


def acl_allows(acl: Acl, identity: Identity, permission: Permission) -> bool:
    """Whether owner or grants give it."""
    return is_owner(acl.owner, identity) or granted(acl, identity, permission)


def is_owner(owner: str, identity: Identity) -> bool:
    """Nobody who is anonymous owns anything."""
    return bool(owner) and identity.id == owner


def _meant(grantee: str, identity: Identity) -> bool:
    if grantee == ALL_USERS:
        return True
    if identity.user is None:
        return False
    if grantee == AUTHENTICATED:
        return True
    kind, _, name = grantee.partition(":")
    return name == identity.id if kind == "user" else kind == "group" and name in identity.user.rights_of
