"""What the forms change, by the functions that the commands use. Each takes the view and the path's variable
part, and returns where to go next and what to tell there; the audit log gets the same line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from cumulus.admin import accounts, data
from cumulus.admin.values import duration_text, time_text
from cumulus.index.admin_api import KeyInfo, Quota, Scope
from cumulus.index.api import Index, NoSuch
from cumulus.model import User
from cumulus.storage.api import FileStore
from cumulus.web.view import Flash, Held, View, named
from cumulus.words import count_text
from sector.cli.render import size_text
from sector.errors import UsageError, printable

LABELS: Final = {  # of what a form shows and changes
    "name": "name",
    "display": "full name",
    "email": "e-mail address",
    "weight": "weight",
    "unix_user": "Unix user",
}


class Changed(NamedTuple):
    """Where to go, what is told there, and whether it is to be recorded: not when nothing was changed."""

    where: str
    flash: Flash
    recorded: bool = True


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


def _anew(form: dict[str, str], now: dict[str, object]) -> dict[str, str]:
    """The fields that were changed in a form, as typed; the others are left alone, whatever they are by now.
    Raises `UsageError` if somebody else changed one of them, too."""
    anew: dict[str, str] = {}
    lost: dict[str, object] = {}
    for name, value in now.items():
        shown = printable(str(value))
        typed, was = form.get(name, shown), form.get(f"was_{name}")
        if typed in (was, shown):
            continue
        if was is not None and was != shown:
            lost[LABELS[name]] = value
        anew[name] = typed
    _still(lost)
    return anew


def _still(lost: dict[str, object]) -> None:
    """Raises `UsageError` if something is not any more what the page showed; `lost` says what it is now."""
    if lost:
        now = ", ".join(
            f"the {label} is {'empty' if value == '' else value}" for label, value in lost.items()
        )
        raise UsageError(f"the page was out of date: {now} now", hint="nothing was saved")


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
    admin = view.held.users
    one = admin.user(user)
    anew = _anew(form, {name: getattr(one, name) for name in LABELS})
    if not anew:
        return Changed(named("users", one.id), Flash(f"user {one.name} is as before"), recorded=False)
    typed = {name: text.strip() for name, text in anew.items()}
    changed = accounts.change_user(
        admin,
        one.id,
        new_name=typed.get("name"),
        display=typed["display"][:256] if "display" in typed else None,
        email=typed["email"][:256] if "email" in typed else None,
        weight=_weight(typed) if "weight" in typed else None,
        unix_user=typed["unix_user"][:64] if "unix_user" in typed else None,
    )
    what = ", ".join(LABELS[name] for name in typed)
    return Changed(named("users", changed.id), Flash(f"user {changed.name} changed: {what}"))


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
    return Changed("/users", Flash("; ".join([f"user {one.name} removed{heir}", *gone.notes])))


# keys ---------------------------------------------------------------------------------------------------
def add_key(view: View, form: dict[str, str], user: str) -> Changed:
    """Another key for a user."""
    made = accounts.add_key(view.held.users, user, expires=form.get("expires", "").strip() or "never")
    what = f"key {made.access_key} for {made.user.name} made; it expires: {time_text(made.expires_ns)}"
    return Changed(named("users", made.user.id), Flash(what, made))


def _key(held: Held, access_key: str) -> KeyInfo | None:
    return next((one for one in held.admin.keys("") if one.access_key == access_key), None)


def user_of_key(held: Held, access_key: str) -> User | None:
    """Whose key it is; None if there is none of that name."""
    found = _key(held, access_key)
    return held.admin.user(found.user) if found else None


def _other_key(view: View, access_key: str) -> tuple[str, KeyInfo]:
    """The path of its user's page, and the key. Raises `UsageError` for that of this session, `NoSuch`."""
    if access_key == view.access_key:
        raise UsageError("you are logged in with this key", hint="log in with another one first")
    found = _key(view.held, access_key)
    if found is None:
        raise NoSuch(f"there is no key {access_key}: it may have been removed meanwhile")
    return named("users", view.held.admin.user(found.user).id), found


def expire_key(view: View, form: dict[str, str], access_key: str) -> Changed:
    """Let a key expire."""
    admin = view.held.users
    where, key = _other_key(view, access_key)
    if form.get("was_when", str(key.expires_ns)) != str(key.expires_ns):
        _still({f"end of the key {access_key}": time_text(key.expires_ns)})
    at_ns = accounts.expire_key(admin, access_key, form.get("when", "").strip())
    return Changed(where, Flash(f"key {access_key} expires: {time_text(at_ns)}"))


def remove_key(view: View, form: dict[str, str], access_key: str) -> Changed:
    """Take a key away."""
    admin = view.held.users
    where, _ = _other_key(view, access_key)
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
    admin = view.held.users
    now = next((one for one in admin.groups() if one.name == group), None)
    if now is None:
        raise NoSuch(f"there is no group {group}")
    anew = _anew(form, {"weight": now.weight})
    weight = _weight(anew) if anew else now.weight
    if anew:
        accounts.change_group(admin, group, weight)
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
    grace = form.get("grace", "").strip()
    if not size and not objects and not grace:
        raise UsageError("no limit is given", hint="fill in bytes or objects")
    admin = view.held.users
    _limits_still(form, accounts.quota_of(admin, scope, name))
    changed = accounts.set_limits(
        admin,
        scope,
        name,
        size=size or None,
        objects=objects or None,
        soft=soft == "soft",
        grace=grace or None,
    )
    return accounts.limits_text(changed)


def _limits_still(form: dict[str, str], now: Quota) -> None:
    """Raises `UsageError` if a limit that is to be set is not any more what the page showed."""
    alone = not any(form.get(name, "").strip() for name in ("size", "objects"))  # the grace time
    kind = "soft" if alone or form.get("kind") == "soft" else "hard"
    size: int = getattr(now, f"{kind}_bytes")
    objects: int = getattr(now, f"{kind}_objects")
    told = {
        "size": (f"{kind}_bytes", size, f"{kind} limit of bytes", size_text(size) if size else "none"),
        "objects": (f"{kind}_objects", objects, f"{kind} limit of objects", objects or "none"),
    }
    if kind == "soft":
        told["grace"] = (
            "grace_s",
            now.grace_s,
            "grace time",
            duration_text(now.grace_s) if now.grace_s else "none",
        )
    _still(
        {
            label: text
            for name, (field, value, label, text) in told.items()
            if form.get(name, "").strip() and form.get(f"was_{field}", str(value)) != str(value)
        }
    )


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
    if form.get("was_owner", bucket.owner) != bucket.owner != to.id:
        owner = next((one.name for one in held.admin.users() if one.id == bucket.owner), bucket.owner)
        _still({f"owner of {name}": owner})
    unread: list[str] = []
    count = data.give(held.index, held.store, bucket, to, unread)
    said = [f"bucket {name} is {to.name}'s now, with {count_text(count, 'object')}"]
    if unread:
        owner = next((one.name for one in held.admin.users() if one.id == bucket.owner), bucket.owner)
        said.append(data.unread_text(name, to.name, owner, unread))
    return Changed(named("buckets", name), Flash("; ".join(said)))
