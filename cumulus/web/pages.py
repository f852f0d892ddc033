"""The pages: overview, users, groups, buckets, usage."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from cumulus.admin.clients import FORMS, endpoint
from cumulus.admin.values import time_text
from cumulus.index.admin_api import Group, KeyInfo, Scope
from cumulus.index.api import NoSuch, Usage
from cumulus.model import ALL_USERS, Bucket, Credential, User
from cumulus.storage.names import without_secret
from cumulus.web.html import Child, Html, el, join
from cumulus.web.messages import BASE, Asked
from cumulus.web.view import (
    Flash,
    NotHere,
    View,
    card,
    change_row,
    choice,
    counted,
    document,
    facts,
    fold,
    form,
    former,
    kept,
    link,
    named,
    page,
    pick,
    quota_card,
    row,
    search,
    table,
    tick,
    used,
)
from sector.cli.render import size_text

SHOWN: Final = 50  # buckets on the page of their owner
CLEAR: Final = "This connection is not encrypted: others on its way can read what you type."


# login --------------------------------------------------------------------------------------------------
def login(asked: Asked, error: str = "", access_key: str = "", back: str = "") -> bytes:
    """The page for those who are not logged in; `back` is the page that comes then."""
    clear = not asked.https and asked.peer not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")
    return document(
        "Log in",
        el(
            "main",
            el("h1", "Cumulus"),
            el("p", error, class_="error", role="alert") if error else None,
            el("p", CLEAR, class_="error") if clear else None,
            el(
                "form",
                el(
                    "label",
                    el("span", "Access key"),
                    el("input", name="access_key", value=access_key, autocomplete="username", required=True,
                       autofocus=not error, maxlength=128),
                ),
                el(
                    "label",
                    el("span", "Secret key"),
                    el("input", name="secret", type="password", autocomplete="current-password",
                       required=True, maxlength=1024),
                ),
                _hidden("back", back) if back else None,
                el("button", "Log in"),
                method="post",
                action=f"{BASE}/login",
            ),
            el("p", "For administrators, with a key of their own.", class_="none"),
            class_="login",
        ),
    )  # fmt: skip


# overview -----------------------------------------------------------------------------------------------
def overview(view: View) -> bytes:
    """How much there is, and whether all of it runs."""
    held = view.held
    where, secure = endpoint(held.config)
    serving, wanted = held.processes()
    usages = list(_usages(view, "bucket", (one.name for one in held.index.buckets())))
    sums: list[tuple[str, Child]] = [
        ("Users", link("/users", len(held.admin.users()))),
        ("Groups", link("/groups", len(held.admin.groups()))),
        ("Buckets", link("/buckets", len(usages))),
        ("Objects", sum(one.objects for one in usages)),
        ("Data", size_text(sum(one.bytes for one in usages))),
    ]
    service: list[tuple[str, Child]] = [
        ("S3 address", f"{'https' if secure else 'http'}://{where}"),
        ("Region", held.config.server.region),
        ("Processes", f"{serving} of {wanted} serve"),
        ("Storage", without_secret(held.config.storage.backend)),
        ("Free space", _free(view)),
        ("Users are in", f"the file {held.users_file}" if held.users_file else "the database"),
    ]
    return page(view, "Overview", card("What it holds", facts(sums)), card("Service", facts(service)))


def _free(view: View) -> str:
    kind, _, path = view.held.config.store_url.partition(":")
    if kind != "posix":
        return "not known"
    try:
        disk = shutil.disk_usage(path)
    except OSError as bad:
        return f"not known: {bad.strerror}"
    return f"{size_text(disk.free)} of {size_text(disk.total)}"


def _usages(view: View, scope: Scope, names: Iterable[str]) -> Iterable[Usage]:
    for name in names:
        try:
            yield view.held.index.usage(scope, name)
        except NoSuch:
            continue  # removed meanwhile


# users --------------------------------------------------------------------------------------------------
def users(view: View) -> bytes:
    """All users, a page at a time, and the form for a new one."""
    admin = view.held.admin
    keys = Counter(one.user for one in admin.keys(""))
    shown, pager = pick(view, admin.users(), lambda one: " ".join((one.name, one.display, one.email)))
    rows = [
        (
            link(named("users", one.id), one.name),
            one.display,
            one.email,
            ", ".join(one.groups),
            keys[one.name],
            used(held),
            states(one),
        )
        for one in shown
        for held in _usages(view, "user", [one.id])
    ]
    heads = ["Name", "Full name", "E-mail", "Groups", "Keys", "Used", "State"]
    action = "/users"
    add = form(
        view,
        action,
        row(view, action, "name", "Name", required=True, maxlength=64),
        row(view, action, "display", "Full name", maxlength=256),
        row(view, action, "email", "E-mail", note="ACLs may name the user by it", maxlength=256),
        choice(view, action, "group", "Group", [("", "none"), *((g.name, g.name) for g in admin.groups())]),
        row(view, action, "expires", "Key expires", "never", note="2027-01-31, 90d, never"),
        tick(view, action, "Administrator: may do everything, also here", "admin"),
        submit="Add user",
    )
    return page(
        view,
        "Users",
        kept(view) or fold("Add a user", add, open_=view.refused == action),
        search(view, "Name or e-mail"),
        table(heads, rows, right=[4, 5], below=pager),
    )


def states(one: User) -> Child:
    """What sets a user apart."""
    shown = [("admin", "Administrator")] * one.admin + [("off", "Disabled")] * one.disabled
    return [el("span", label, class_=f"state {kind}") for kind, label in shown]


def user(view: View, user_id: str) -> bytes:
    """One user."""
    held, admin = view.held, view.held.admin
    one = admin.user(user_id)
    if one.id != user_id:
        raise NotHere
    path = named("users", one.id)
    buckets = held.index.buckets(one.id)
    about = facts(
        [
            ("Full name", one.display or "—"),
            ("E-mail", one.email or "—"),
            ("Groups", [join(link(named("groups", name), name), " ") for name in one.groups] or "—"),
            ("Weight", one.weight),
            ("Unix user", one.unix_user or "—"),
            ("State", states(one) or "active"),
            ("Canonical id", el("code", one.id)),
            ("Buckets", _some([bucket.name for bucket in buckets])),
        ]
    )
    change = fold("Change", _change(view, one, path), open_=view.refused == f"{path}/change")
    return page(
        view,
        f"User {one.name}",
        _new_key(view) if view.flash and view.flash.key else None,
        card("About", about, kept(view) or change),
        card("Keys", _keys(view, admin.keys(one.id), one.id)),
        quota_card(view, held.index.usage("user", one.id), path),
        None if held.users_file else card("Access", *_access(view, one, path, bool(buckets))),
    )


def _some(names: list[str]) -> list[Child]:
    """Links to buckets, not more than can be looked through."""
    shown: list[Child] = [join(link(named("buckets", name), name), " ") for name in names[:SHOWN]]
    more = len(names) - SHOWN
    return [shown, f"and {more} more" if more > 0 else None] if names else ["—"]


def _new_key(view: View) -> Html | None:
    key = view.flash.key if isinstance(view.flash, Flash) else None
    if key is None:
        return None
    shown = [
        ("Access key", _copied("new-access-key", key.access_key)),
        ("Secret key", _copied("new-secret-key", key.secret)),
    ]
    return card(
        "New key",
        el("p", "The secret key is shown this once; it cannot be read back.", class_="warn"),
        facts(shown),
        [fold(f"As settings of {name}", _settings(view, key, name)) for name in FORMS],
    )


def _settings(view: View, key: Credential, name: str) -> Html:
    lines = FORMS[name](view.held.config, key).splitlines()
    return el("pre", [join(line, Html("\n")) for line in lines])


def _copied(name: str, value: str) -> Html:
    button = el("button", "Copy", type="button", class_="plain copy", data_copy=name, hidden=True)
    return join(el("code", value, id=name), " ", button)


def _change(view: View, one: User, path: str) -> Html:
    action = f"{path}/change"
    return form(
        view,
        action,
        change_row(view, action, "name", "Name", one.name, required=True, maxlength=64),
        change_row(view, action, "display", "Full name", one.display, maxlength=256),
        change_row(view, action, "email", "E-mail", one.email, maxlength=256),
        _weight(view, action, one.weight),
        change_row(view, action, "unix_user", "Unix user", one.unix_user, "owner of new files", maxlength=64),
        submit="Save",
    )  # fmt: skip


def _weight(view: View, action: str, now: int) -> Html:
    note = "share of the bandwidth"
    return change_row(view, action, "weight", "Weight", now, note, type="number", min=1, max=1000)


def _keys(view: View, keys: list[KeyInfo], user_id: str) -> Html:
    path, whose = named("users", user_id), _hidden("of", user_id)
    now_ns = time.time_ns()
    rows: list[tuple[Child, ...]] = []
    for one in keys:
        over = 0 < one.expires_ns <= now_ns
        at = named("keys", one.access_key)
        yes = tick(view, f"{at}/remove", "Yes", required=True)
        remove = form(view, f"{at}/remove", whose, yes, submit="Remove", danger=True)
        expire = form(
            view,
            f"{at}/expire",
            whose,
            former("when", one.expires_ns),
            row(view, f"{at}/expire", "when", "Expires", note="now, 2027-01-31, 30d, never", required=True),
            submit="Set",
        )
        expires = join(time_text(one.expires_ns), el("span", "over", class_="state off") if over else None)
        if view.held.users_file:
            rows.append((el("code", one.access_key), expires))
            continue
        change = join(
            fold("Expire", expire, open_=view.refused == f"{at}/expire"),
            fold("Remove", remove, open_=view.refused == f"{at}/remove"),
        )
        rows.append((el("code", one.access_key), time_text(one.created_ns), expires, change))
    if view.held.users_file:  # when they were made is not known
        return table(["Access key", "Expires"], rows)
    action = f"{path}/keys"
    add = form(
        view,
        action,
        row(view, action, "expires", "Expires", "never", note="2027-01-31, 90d, never"),
        submit="Make key",
    )
    heads = ["Access key", "Created", "Expires", "Change"]
    return join(table(heads, rows), fold("New key", add, open_=view.refused == action))


def _access(view: View, one: User, path: str, owner: bool) -> list[Child]:
    if one.id == view.user.id:
        return [el("p", "You are logged in as this user, who therefore cannot be changed here.")]
    state = f"{path}/state"
    flip = [
        form(view, state, _hidden("disabled", "no" if one.disabled else "yes"),
             submit="Enable" if one.disabled else "Disable"),
        form(view, state, _hidden("admin", "no" if one.admin else "yes"),
             submit="Make an ordinary user" if one.admin else "Make an administrator"),
    ]  # fmt: skip
    remove = f"{path}/remove"
    heir = row(view, remove, "give_to", "Buckets go to", note="name of a user", required=True)
    parts = [
        heir if owner else None,
        tick(view, remove, f"Yes, remove {one.name} with all keys", required=True),
    ]
    gone = form(view, remove, *parts, submit="Remove user", danger=True)
    note = "To delete the buckets with all data: cumulus user remove NAME --delete-data." if owner else ""
    return [
        el("div", flip, class_="row"),
        fold("Remove", gone, el("p", note, class_="none") if note else None, open_=view.refused == remove),
    ]


def _hidden(name: str, value: str) -> Html:
    return el("input", type="hidden", name=name, value=value)


# groups -------------------------------------------------------------------------------------------------
def groups(view: View) -> bytes:
    """All groups."""
    shown, pager = pick(view, view.held.admin.groups(), lambda one: one.name)
    rows = [
        (link(named("groups", one.name), one.name), len(one.members), one.weight, used(held), counted(held))
        for one in shown
        for held in _usages(view, "group", [one.name])
    ]
    action = "/groups"
    add = form(
        view,
        action,
        row(view, action, "name", "Name", required=True, maxlength=64),
        _weight(view, action, 1),
        submit="Add group",
    )
    return page(
        view,
        "Groups",
        kept(view) or fold("Add a group", add, open_=view.refused == action),
        search(view, "Name"),
        table(["Name", "Members", "Weight", "Used", "Objects"], rows, right=[1, 2, 3, 4], below=pager),
    )


def group(view: View, name: str) -> bytes:
    """One group."""
    found = next((one for one in view.held.admin.groups() if one.name == name), None)
    if found is None:
        raise NotHere
    path = named("groups", name)
    if view.held.users_file:
        return _group_shown(view, found, path)
    leave, join_in, gone = f"{path}/leave", f"{path}/join", f"{path}/remove"
    shown, pager = pick(view, found.members, str)
    rows = [(one, form(view, leave, _hidden("user", one), submit="Take out")) for one in shown]
    add = form(view, join_in, row(view, join_in, "user", "User", required=True), submit="Put in")
    about, set_to = facts([("Weight", found.weight)]), f"{path}/change"
    change = form(view, set_to, _weight(view, set_to, found.weight), submit="Save")
    yes = tick(view, gone, f"Yes, remove {name} with its quota", required=True)
    remove = form(view, gone, yes, submit="Remove", danger=True)
    return page(
        view,
        f"Group {name}",
        card("About", about, fold("Change", change, open_=view.refused == set_to)),
        card("Members", table(["User", ""], rows, below=pager), fold("Put a user in", add, open_=True)),
        quota_card(view, view.held.index.usage("group", name), path),
        card("Remove", fold("Remove this group; its members stay", remove, open_=view.refused == gone)),
    )


def _group_shown(view: View, found: Group, path: str) -> bytes:
    """The same where nothing is changed."""
    shown, pager = pick(view, found.members, str)
    return page(
        view,
        f"Group {found.name}",
        card("About", facts([("Weight", found.weight)]), kept(view)),
        card("Members", table(["User"], [(one,) for one in shown], below=pager)),
        quota_card(view, view.held.index.usage("group", found.name), path),
    )


# buckets ------------------------------------------------------------------------------------------------
def _owner(view: View, one: Bucket) -> Html:
    found = view.held.directory.user(one.owner)
    label = found.name if found else one.owner[:12]
    return link(named("users", one.owner), label) if found else join(label)


def buckets(view: View) -> bytes:
    """All buckets."""
    shown, pager = pick(view, view.held.index.buckets(), lambda one: one.name)
    rows = [
        (link(named("buckets", one.name), one.name), _owner(view, one), used(held), counted(held), one.path)
        for one in shown
        for held in _usages(view, "bucket", [one.name])
    ]
    heads = ["Name", "Owner", "Used", "Objects", "Directory of its own"]
    body = [search(view, "Name"), table(heads, rows, right=[2, 3], below=pager)]
    note = "S3 clients make buckets; cumulus bucket add serves a directory that is there already."
    return page(view, "Buckets", *body, el("p", note, class_="none"))


def bucket(view: View, name: str) -> bytes:
    """One bucket."""
    one = view.held.index.bucket(name)
    if one is None:
        raise NotHere
    path = named("buckets", name)
    about = facts(
        [
            ("Owner", _owner(view, one)),
            ("Created", time_text(one.created_ns)),
            ("Directory of its own", one.path or "—"),
            ("Public", ", ".join(g.permission for g in one.acl.grants if g.grantee == ALL_USERS) or "no"),
            ("Versioning", one.versioning.value or "off"),
            ("Policy", "yes" if one.policy else "—"),
            ("CORS", "yes" if one.cors else "—"),
            ("Lifecycle", "yes" if one.lifecycle else "—"),
        ]
    )
    action = f"{path}/owner"
    give = form(
        view,
        action,
        former("owner", one.owner),
        row(view, action, "user", "New owner", required=True, note="gets the objects of the former one too"),
        submit="Give away",
    )
    return page(
        view,
        f"Bucket {name}",
        card("About", about, fold("Change the owner", give, open_=view.refused == action)),
        quota_card(view, view.held.index.usage("bucket", name), path),
    )


# usage --------------------------------------------------------------------------------------------------
def usage(view: View) -> bytes:
    """What users, groups or buckets hold, the largest first."""
    held = view.held
    scope: Scope = "bucket"
    wanted = view.asked.parameters().get("of", "user")
    names: Iterable[tuple[str, str]] = [(one.name, one.name) for one in held.index.buckets()]
    if wanted == "user":
        scope, names = "user", [(one.id, one.name) for one in held.admin.users()]
    elif wanted == "group":
        scope, names = "group", [(one.name, one.name) for one in held.admin.groups()]
    known = [(key, one) for key, _ in names for one in _usages(view, scope, [key])]
    known.sort(key=lambda pair: (-pair[1].bytes, pair[1].name))
    shown, pager = pick(view, known, lambda pair: pair[1].name)
    rows = [
        (
            link(named(f"{scope}s", key), one.name),
            used(one),
            counted(one),
            size_text(one.reserved_bytes),
            time_text(one.over_soft_since_ns) if one.over_soft_since_ns else "—",
        )
        for key, one in shown
    ]
    kinds = ("user", "group", "bucket")
    tabs = [
        el(
            "li",
            link(f"/usage?of={one}", f"{one.capitalize()}s", aria_current="true" if one == scope else None),
        )
        for one in kinds
    ]
    heads = ["Name", "Used", "Objects", "Uploads", "Over its soft limit since"]
    return page(
        view,
        "Usage",
        el("ul", tabs, class_="tabs"),
        search(view, "Name", of=scope),
        table(heads, rows, right=[1, 2, 3], below=pager),
    )
