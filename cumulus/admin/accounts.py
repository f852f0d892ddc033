"""Changes of users, keys, quotas and owners, as the commands and the admin page both make them: what people
typed is checked here. Raise `UsageError` for what is not valid, and what `Admin` and `Index` raise."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec

from cumulus import unix
from cumulus.admin import data
from cumulus.admin.unfinished import part_done
from cumulus.admin.values import (
    check_email,
    check_name,
    parse_count,
    parse_duration,
    parse_expiry,
    parse_size,
    time_text,
)
from cumulus.index.admin_api import Admin, Quota, Scope
from cumulus.index.api import Index, IndexFailure
from cumulus.model import Credential, User
from cumulus.secrets import new_access_key, new_secret, new_user_id
from cumulus.storage.api import FileStore
from cumulus.words import count_text
from sector.errors import UsageError

WEIGHTS = range(1, 1001)
Opened = Callable[[], AbstractContextManager[tuple[Index, FileStore]]]


def add_user(
    admin: Admin,
    *,
    name: str,
    display: str = "",
    email: str = "",
    is_admin: bool = False,
    groups: Iterable[str] = (),
    weight: int = 1,
    unix_user: str = "",
    user_id: str | None = None,
    access_key: str | None = None,
    secret: str | None = None,
    expires: str = "never",
) -> Credential:
    """Add a user with a key, both or neither. What is None is made anew."""
    if user_id is not None and not re.fullmatch("[0-9a-f]{64}", user_id):
        raise UsageError("the id is not valid", hint="64 hex digits, as cumulus user show prints it")
    made = User(
        id=user_id or new_user_id(),
        name=check_name(name),
        display=check_text(display, "full name"),
        email=check_email(email),
        groups=tuple(dict.fromkeys(groups)),
        weight=check_weight(weight),
        admin=is_admin,
        unix_user=check_unix_user(unix_user),
    )
    admin.add_user(made)
    try:
        return add_key(admin, made.id, access_key=access_key, secret=secret, expires=expires)
    except BaseException:
        admin.remove_user(made.id)
        raise


def add_key(
    admin: Admin,
    user: str,
    *,
    access_key: str | None = None,
    secret: str | None = None,
    expires: str = "never",
) -> Credential:
    """A new key for the user (name or id). What is None is made anew."""
    if access_key is not None and not re.fullmatch("[A-Za-z0-9._-]{3,128}", access_key):
        raise UsageError("the access key is not valid", hint="3 to 128 of A-Z a-z 0-9 . _ -")
    now_ns = time.time_ns()
    at_ns = parse_expiry(expires, now_ns)
    if 0 < at_ns <= now_ns:
        hint = "write a later day (it ends as the day begins, UTC), 30d from now, or never"
        raise UsageError(f"the key would have expired already: {time_text(at_ns)}", hint=hint)
    return admin.add_key(user, access_key or new_access_key(), secret or new_secret(), at_ns)


def expire_key(admin: Admin, access_key: str, when: str) -> int:
    """Let a key expire; when it does, in nanoseconds since 1970 (0 = never)."""
    at_ns = parse_expiry(when, time.time_ns())
    admin.expire_key(access_key, at_ns)
    return at_ns


def check_text(text: str, what: str) -> str:
    """Free text as it may stand in lists and lines."""
    if not text.isprintable():
        raise UsageError(f"the {what} has characters that cannot be printed", hint="leave them out")
    return text


def check_weight(weight: int) -> int:
    """A share of the bandwidth."""
    if weight not in WEIGHTS:
        raise UsageError(f"{weight} is no weight", hint=f"{WEIGHTS[0]} to {WEIGHTS[-1]}")
    return weight


def check_unix_user(name: str) -> str:
    """An account of this machine, or ""."""
    if name and unix.account(name) is None:
        raise UsageError(f"there is no account {name} on this machine", hint="getent passwd lists them")
    return name


def change_user(
    admin: Admin,
    name: str,
    *,
    new_name: str | None = None,
    display: str | None = None,
    email: str | None = None,
    is_admin: bool | None = None,
    disabled: bool | None = None,
    weight: int | None = None,
    unix_user: str | None = None,
) -> User:
    """Change what is not None of a user; as he is then."""
    given = {
        "name": None if new_name is None else check_name(new_name),
        "display": None if display is None else check_text(display, "full name"),
        "email": None if email is None else check_email(email),
        "admin": is_admin,
        "disabled": disabled,
        "weight": None if weight is None else check_weight(weight),
        "unix_user": None if unix_user is None else check_text(unix_user, "Unix user"),
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise UsageError("nothing to change", hint="see cumulus user change --help")
    former = admin.user(name)
    if unix_user and unix_user != former.unix_user:
        check_unix_user(unix_user)
    changed = msgspec.structs.replace(former, **changes)
    admin.set_user(changed, changes)
    return changed


def add_group(admin: Admin, name: str, weight: int = 1) -> None:
    """Add a group."""
    admin.add_group(check_name(name, "group name"), check_weight(weight))


def change_group(admin: Admin, name: str, weight: int) -> None:
    """Change a group's weight."""
    admin.set_group(name, check_weight(weight))


class Removed(NamedTuple):
    """A user who is gone, who got his buckets (None: nobody), how many there were, and what is to be said of
    objects in them."""

    user: User
    heir: User | None
    buckets: int
    notes: Sequence[str] = ()


def remove_user(
    admin: Admin, name: str, opened: Opened, *, give_to: str = "", delete_data: bool = False
) -> Removed:
    """Remove a user with all keys. His buckets go to another user, or are deleted; with neither, `StillUsed`
    is raised if he has some. `opened` gives index and storage. All buckets are looked at before the first is
    changed; where one fails all the same, he stays as he was, and `Unfinished` is raised if others were done.
    """
    if give_to and delete_data:
        raise UsageError("--give-to and --delete-data exclude each other", hint="give one of them")
    gone = admin.user(name)
    heir = admin.user(give_to) if give_to else None
    if heir is not None and heir.id == gone.id:
        raise UsageError(f"{gone.name} is the user to be removed", hint="give another one")
    if heir is not None or delete_data:
        with opened() as (index, store):
            for bucket in index.buckets(gone.id):
                if heir is not None:
                    store.check_bucket(bucket.name)
                else:
                    data.check_deletable(store, bucket.name)
            admin.set_user(msgspec.structs.replace(gone, disabled=True), ["disabled"])
            done: list[str] = []
            notes: list[str] = []
            try:
                with part_done(lambda: "; ".join(done)):
                    _give_up(index, store, gone, heir, done, notes)
                    admin.remove_user(gone.id)
            except BaseException:
                with contextlib.suppress(IndexFailure):  # then he stays disabled
                    admin.set_user(gone, ["disabled"])
                raise
            return Removed(gone, heir, len(done), notes)
    admin.remove_user(gone.id)
    return Removed(gone, heir, 0)


def _give_up(
    index: Index, store: FileStore, gone: User, heir: User | None, done: list[str], notes: list[str]
) -> None:
    """All buckets of a user; `done` gets a line for each, `notes` what is to be said of objects."""
    for bucket in index.buckets(gone.id):
        if heir is not None:
            unread: list[str] = []
            objects = count_text(data.give(index, store, bucket, heir, unread), "object")
            if unread:
                notes.append(data.unread_text(bucket.name, heir.name, gone.id, unread))
            done.append(f"bucket {bucket.name} given to {heir.name} with {objects}")
        else:
            objects = count_text(data.delete(index, store, bucket.name), "object")
            done.append(f"bucket {bucket.name} deleted with {objects}")


def quota_of(admin: Admin, scope: Scope, name: str) -> Quota:
    """The limits as they are; all 0 when there are none. Names of users may be their ids."""
    named = admin.user(name).name if scope == "user" else name
    known = (one for one in admin.quotas() if (one.scope, one.name) == (scope, named))
    return next(known, Quota(scope=scope, name=named))


def set_limits(
    admin: Admin,
    scope: Scope,
    name: str,
    *,
    size: str | None = None,
    objects: str | None = None,
    soft: bool = False,
    grace: str | None = None,
) -> Quota:
    """Set the hard limits, or the soft ones with their grace time (7d at first); "none" takes one away, None
    leaves it as it is. The grace time may be set alone where there is a soft limit."""
    known = quota_of(admin, scope, name)
    kind = "soft" if soft else "hard"
    limits: dict[str, int] = {}
    if size is None and objects is None:
        if not grace:
            raise UsageError("no limit is given", hint="say how many bytes or objects")
        soft = True
    if grace and not soft:
        raise UsageError(
            "a grace time belongs to a soft limit", hint="set the soft limit with it, or it alone"
        )
    if size is not None:
        limits[f"{kind}_bytes"] = parse_size(size)
    if objects is not None:
        limits[f"{kind}_objects"] = parse_count(objects)
    if soft and (grace or not known.grace_s):
        limits["grace_s"] = parse_duration(grace or "7d")
    changed = msgspec.structs.replace(known, **limits)
    if grace and not (changed.soft_bytes or changed.soft_objects):
        raise UsageError(f"{scope} {name} has no soft limit", hint="set one with the grace time")
    admin.set_quota(changed, limits)
    return changed


def limits_text(quota: Quota) -> str:
    """One line, as it is told and recorded."""
    limits = [
        f"{kind} {count_text(number, unit)}"
        for kind, unit, number in (
            ("hard", "byte", quota.hard_bytes),
            ("hard", "object", quota.hard_objects),
            ("soft", "byte", quota.soft_bytes),
            ("soft", "object", quota.soft_objects),
        )
        if number
    ]
    return f"quota of {quota.scope} {quota.name}: {', '.join(limits) or 'none'}"
