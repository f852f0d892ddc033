"""What the forms change, by the functions that the commands use. Each takes the view and the path's variable
part, and returns where to go next and what to tell there; the audit log gets the same line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from cumulus.admin import accounts, data
from cumulus.admin.values import time_text
from cumulus.index.admin_api import Scope
from cumulus.index.api import Index, NoSuch
from cumulus.model import User
from cumulus.storage.api import FileStore
from cumulus.web.view import Flash, Held, View, named
from sector.errors import UsageError


class Changed(NamedTuple):
    """Where to go, and what is told there."""

    where: str
    flash: Flash


def _own(view: View, user_id: str, name: str) -> None:
    if user_id == view.user.id:
        raise UsageError(
            f"you are logged in as {name}", hint="another administrator can do it, or the cumulus command"
        )


def _confirmed(form: dict[str, str]) -> None:
    if form.get("confirm") != "yes":
        raise UsageError("nothing was removed", hint="tick the box first")


def _weight(form: dict[str, str]) -> int:
    weight = form.get("weight", "1").strip()
    if not (weight.isascii() and weight.isdecimal() and len(weight) < 6):
        raise UsageError(f"{weight!r} is no weight", hint="1 to 1000")
    return int(weight)


# users --------------------------------------------------------------------------------------------------
def add_user(view: View, form: dict[str, str], _name: str) -> Changed:
    """A new user with a key."""
    group = form.get("group", "")
    made = accounts.add_user(
        view.held.users,
        name=form.get("name", "").strip(),
        display=form.get("display", "").strip()[:256],
        email=form.get("email", "")[:256],
        is_admin=form.get("admin") == "yes",
        groups=[group] if group else [],
        expires=form.get("expires", "").strip() or "never",
    )
    one = made.user
    what = f"user {one.name} added" + (" as administrator" if one.admin else "")
    return Changed(named("users", one.id), Flash(f"{what}, with the key {made.access_key}", made))


def change_user(view: View, form: dict[str, str], user: str) -> Changed:
    """Names, address, weight."""
    changed = accounts.change_user(
        view.held.users,
        user,
        new_name=form.get("name", "").strip(),
        display=form.get("display", "").strip()[:256],
        email=form.get("email", "")[:256],
        weight=_weight(form),
        unix_user=form.get("unix_user", "").strip()[:64],
    )
    return Changed(named("users", changed.id), Flash(f"user {changed.name} changed"))


def change_state(view: View, form: dict[str, str], user: str) -> Changed:
    """Disabled or not, administrator or not."""
    admin = view.held.users
    one = admin.user(user)
    _own(view, one.id, one.name)
    told = {"yes": True, "no": False}
    disabled, is_admin = told.get(form.get("disabled", "")), told.get(form.get("admin", ""))
    one = accounts.change_user(admin, one.id, disabled=disabled, is_admin=is_admin)
    words = {True: "disabled", False: "enabled"} if disabled is not None else {}
    roles = {True: "an administrator", False: "an ordinary user"}
    what = words[disabled] if disabled is not None else roles[bool(is_admin)]
    return Changed(named("users", one.id), Flash(f"user {one.name} is {what} now"))


def remove_user(view: View, form: dict[str, str], user: str) -> Changed:
    """With keys; buckets go to somebody."""
    held = view.held
    one = held.users.user(user)
    _own(view, one.id, one.name)
    _confirmed(form)

    @contextmanager
    def opened() -> Iterator[tuple[Index, FileStore]]:
        yield held.index, held.store

    gone = accounts.remove_user(held.users, one.id, opened, give_to=form.get("give_to", "").strip())
    heir = f"; {gone.heir.name} got his buckets: {gone.buckets}" if gone.heir else ""
    return Changed("/users", Flash(f"user {one.name} removed{heir}"))


# keys ---------------------------------------------------------------------------------------------------
def add_key(view: View, form: dict[str, str], user: str) -> Changed:
    """Another key for a user."""
    made = accounts.add_key(view.held.users, user, expires=form.get("expires", "").strip() or "never")
    what = f"key {made.access_key} for {made.user.name} made; it expires: {time_text(made.expires_ns)}"
    return Changed(named("users", made.user.id), Flash(what, made))


def user_of_key(held: Held, access_key: str) -> User | None:
    """Whose key it is; None if there is none of that name."""
    found = next((one for one in held.admin.keys("") if one.access_key == access_key), None)
    return held.admin.user(found.user) if found else None


def _other_key(view: View, access_key: str) -> str:
    """The path of its user's page. Raises `UsageError` for the key of this session, `NoSuch`."""
    if access_key == view.access_key:
        raise UsageError("you are logged in with this key", hint="log in with another one first")
    one = user_of_key(view.held, access_key)
    if one is None:
        raise NoSuch(f"there is no key {access_key}: it may have been removed meanwhile")
    return named("users", one.id)


def expire_key(view: View, form: dict[str, str], access_key: str) -> Changed:
    """Let a key expire."""
    admin, where = view.held.users, _other_key(view, access_key)
    at_ns = accounts.expire_key(admin, access_key, form.get("when", "").strip())
    return Changed(where, Flash(f"key {access_key} expires: {time_text(at_ns)}"))


def remove_key(view: View, form: dict[str, str], access_key: str) -> Changed:
    """Take a key away."""
    admin, where = view.held.users, _other_key(view, access_key)
    _confirmed(form)
    admin.remove_key(access_key)
    return Changed(where, Flash(f"key {access_key} removed"))


# groups -------------------------------------------------------------------------------------------------
def add_group(view: View, form: dict[str, str], _name: str) -> Changed:
    """A new group."""
    name = form.get("name", "").strip()
    accounts.add_group(view.held.users, name, _weight(form))
    return Changed(named("groups", name), Flash(f"group {name} added"))


def change_group(view: View, form: dict[str, str], group: str) -> Changed:
    """Its weight."""
    weight = _weight(form)
    accounts.change_group(view.held.users, group, weight)
    return Changed(named("groups", group), Flash(f"group {group} has the weight {weight} now"))


def join(view: View, form: dict[str, str], group: str) -> Changed:
    """Put a user into a group."""
    user = form.get("user", "").strip()
    view.held.users.join(group, user)
    return Changed(named("groups", group), Flash(f"user {user} is in group {group} now"))


def leave(view: View, form: dict[str, str], group: str) -> Changed:
    """Take a user out of a group."""
    user = form.get("user", "")
    view.held.users.leave(group, user)
    return Changed(named("groups", group), Flash(f"user {user} is not in group {group} any more"))


def remove_group(view: View, form: dict[str, str], group: str) -> Changed:
    """With its quota."""
    _confirmed(form)
    view.held.users.remove_group(group)
    return Changed("/groups", Flash(f"group {group} removed"))


# quotas -------------------------------------------------------------------------------------------------
def _limits(view: View, form: dict[str, str], scope: Scope, name: str) -> str:
    size, objects, soft = form.get("size", "").strip(), form.get("objects", "").strip(), form.get("kind")
    if not size and not objects:
        raise UsageError("no limit is given", hint="fill in bytes or objects")
    changed = accounts.set_limits(
        view.held.users,
        scope,
        name,
        size=size or None,
        objects=objects or None,
        soft=soft == "soft",
        grace=form.get("grace", "").strip() or None,
    )
    return accounts.limits_text(changed)


def user_quota(view: View, form: dict[str, str], user: str) -> Changed:
    """Limits of a user."""
    return Changed(named("users", user), Flash(_limits(view, form, "user", user)))


def group_quota(view: View, form: dict[str, str], group: str) -> Changed:
    """Limits of a group."""
    return Changed(named("groups", group), Flash(_limits(view, form, "group", group)))


def bucket_quota(view: View, form: dict[str, str], bucket: str) -> Changed:
    """Limits of a bucket."""
    return Changed(named("buckets", bucket), Flash(_limits(view, form, "bucket", bucket)))


# buckets ------------------------------------------------------------------------------------------------
def give_bucket(view: View, form: dict[str, str], name: str) -> Changed:
    """Another owner, for the objects too."""
    held = view.held
    bucket = held.index.bucket(name)
    if bucket is None:
        raise NoSuch(f"there is no bucket {name}")
    to = held.admin.user(form.get("user", "").strip())  # as he is now, not half a second ago
    count = data.give(held.index, held.store, bucket, to)
    return Changed(named("buckets", name), Flash(f"bucket {name} is {to.name}'s now, with {count} objects"))
