"""What all pages are made of: the frame around them, forms, tables, pagers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

from cumulus.admin.values import duration_text
from cumulus.config import Config
from cumulus.index.admin_api import Admin
from cumulus.index.api import Directory, Index, Usage
from cumulus.model import Credential, User
from cumulus.storage.api import FileStore
from cumulus.web.html import Child, Html, el, join
from cumulus.web.messages import BASE, Asked
from sector import __version__
from sector.cli.render import size_text
from sector.errors import printable

Item = TypeVar("Item")
PAGE: Final = 50
LIMITS: Final = ("hard_bytes", "hard_objects", "soft_bytes", "soft_objects", "grace_s")
NAVIGATION: Final = (
    ("", "Overview"),
    ("users", "Users"),
    ("groups", "Groups"),
    ("buckets", "Buckets"),
    ("usage", "Usage"),
)


@dataclass(frozen=True, slots=True)
class Held:
    """What the pages show and change. `processes` gives (those that serve, those that should); `audit` hears
    (who, address, what). `users_file`: users are in that text file, and they and quotas are only shown."""

    config: Config
    index: Index
    directory: Directory
    store: FileStore
    admin: Admin
    processes: Callable[[], tuple[int, int]]
    audit: Callable[[str, str, str], None]
    users_file: str = ""

    @property
    def users(self) -> Admin:
        """For who changes them. Raises `NotHere` when users are in a text file."""
        if self.users_file:
            raise NotHere
        return self.admin


class NotHere(Exception):
    """There is no such page, or not what it is about."""


@dataclass(frozen=True, slots=True)
class Flash:
    """What a change tells on the next page: a line, and a new key with its secret."""

    text: str
    key: Credential | None = None


@dataclass(frozen=True, slots=True)
class View:
    """One page for one user, who logged in with `access_key`. `error`, `refused` and `typed`: why a form was
    refused before, which one, and what was typed."""

    held: Held
    asked: Asked
    user: User
    access_key: str
    csrf: str = field(repr=False)
    flash: Flash | None = None
    error: str = ""
    refused: str = ""
    typed: dict[str, str] = field(default_factory=dict, repr=False)


def link(path: str, *children: Child, **attributes: object) -> Html:
    """A link to one of our pages."""
    return el("a", *children, href=BASE + path, **attributes)


def address(path: Iterable[str]) -> str:
    """A path as links have it."""
    return "".join(f"/{quote(part, safe='')}" for part in path) or "/"


def named(section: str, name: str) -> str:
    """The path of the page of something."""
    return address((section, name))


# the frame ----------------------------------------------------------------------------------------------
def document(title: str, *body: Child) -> bytes:
    """A whole page."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{title} · Cumulus"),
        el("link", rel="stylesheet", href=f"{BASE}/static/page.css"),
        el("link", rel="icon", href=f"{BASE}/static/icon.svg", type="image/svg+xml"),
        el("script", src=f"{BASE}/static/page.js", defer=True),
    )
    return join(Html("<!DOCTYPE html>\n"), el("html", head, el("body", *body), lang="en")).encode()


def page(view: View, title: str, *body: Child) -> bytes:
    """A page for somebody who is logged in."""
    here = view.asked.path[0] if view.asked.path else ""
    links = [
        el("li", link(f"/{path}", label, aria_current="page" if path == here else None))
        for path, label in NAVIGATION
    ]
    leave = el(
        "form",
        el("span", view.user.name, class_="who"),
        _csrf(view),
        el("button", "Log out", class_="plain"),
        method="post",
        action=f"{BASE}/logout",
    )
    return document(
        title,
        el("a", "To the content", href="#content", class_="skip"),
        el("header", link("/", "Cumulus", class_="brand"), el("nav", el("ul", links)), leave),
        el(
            "main",
            el("p", view.error, class_="error", role="alert") if view.error else None,
            el("p", view.flash.text, class_="done", role="status") if view.flash else None,
            el("h1", title),
            *body,
            id="content",
            tabindex="-1",
        ),
        el("footer", f"Cumulus {__version__}"),
    )


def _csrf(view: View) -> Html:
    return el("input", type="hidden", name="csrf", value=view.csrf)


# forms --------------------------------------------------------------------------------------------------
def form(view: View, action: str, *rows: Child, submit: str, danger: bool = False) -> Html:
    """A form that changes something."""
    button = el("button", submit, class_="danger" if danger else None)
    return el("form", _csrf(view), *rows, button, method="post", action=BASE + action)


def row(
    view: View, action: str, name: str, label: str, value: object = "", note: str = "", **attributes: object
) -> Html:
    """A labelled input of the form `action`; after a refusal it holds what was typed."""
    given = view.typed.get(name, value) if view.refused == action else value
    box = el("input", name=name, value=given, **{"type": "text", "autocomplete": "off", **attributes})
    return el("label", el("span", label), box, el("small", note) if note else None)


def former(name: str, value: object) -> Html:
    """What the page shows of something that its form changes: so the answer to the form knows what was typed
    anew, and whether somebody else changed it since."""
    return el("input", type="hidden", name=f"was_{name}", value=value)


def change_row(
    view: View, action: str, name: str, label: str, now: object, note: str = "", **attributes: object
) -> Html:
    """A `row` that holds what there is; after a refusal, what was typed, unless somebody else changed it."""
    shown = printable(str(now))
    seen = replace(view, refused="") if view.typed.get(f"was_{name}", shown) != shown else view
    return join(former(name, now), row(seen, action, name, label, now, note, **attributes))


def choice(
    view: View, action: str, name: str, label: str, options: Iterable[tuple[str, str]], now: str = ""
) -> Html:
    """A labelled choice among (value, text)."""
    given = view.typed.get(name, now) if view.refused == action else now
    items = [el("option", shown, value=value, selected=value == given) for value, shown in options]
    return el("label", el("span", label), el("select", items, name=name))


def kept(view: View) -> Html | None:
    """Where users are changed, if that is not here."""
    where = view.held.users_file
    text = f"Users, keys and groups are kept in the file {where} and changed there; here they are only shown."
    return el("p", text, class_="none") if where else None


def tick(view: View, action: str, label: str, name: str = "confirm", **attributes: object) -> Html:
    """A box to tick of the form `action`; after a refusal it is as it was sent."""
    ticked = view.refused == action and view.typed.get(name) == "yes"
    box = el("input", type="checkbox", name=name, value="yes", checked=ticked, **attributes)
    return el("label", box, el("span", label), class_="tick")


def fold(title: str, *body: Child, open_: bool = False) -> Html:
    """What is shown when its title is pressed."""
    return el("details", el("summary", title), *body, open=open_)


def card(title: str, *body: Child) -> Html:
    """A part of a page with a head of its own."""
    return el("section", el("h2", title), *body)


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Names and values."""
    return el("dl", [join(el("dt", name), el("dd", value)) for name, value in pairs])


# tables -------------------------------------------------------------------------------------------------
def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Child]],
    right: Iterable[int] = (),
    below: Html | None = None,
) -> Html:
    """Columns under heads; `right` are the indexes of those aligned to the right, `below` is the line that
    `pick` gives, which also says that there is nothing."""
    if not rows:
        return below or el("p", "None.", class_="none")
    kinds = ["n" if number in set(right) else None for number in range(len(heads))]
    head = [el("th", one, scope="col", class_=kind) for one, kind in zip(heads, kinds, strict=True)]
    body = [
        el("tr", [el("td", cell, class_=kind) for cell, kind in zip(cells, kinds, strict=True)])
        for cells in rows
    ]
    return join(el("div", el("table", el("thead", el("tr", head)), el("tbody", body)), class_="wide"), below)


def search(view: View, label: str, **kept: str) -> Html:
    """The box that looks for names; `kept` are parameters that stay."""
    box = el(
        "input", type="search", name="q", value=view.asked.parameters().get("q", ""), aria_label=label,
        placeholder=label,
    )  # fmt: skip
    hidden = [el("input", type="hidden", name=name, value=value) for name, value in kept.items()]
    return el("form", hidden, box, el("button", "Search", class_="plain"), class_="search")


def pick(view: View, items: Sequence[Item], words: Callable[[Item], str]) -> tuple[Sequence[Item], Html]:
    """The page of the items that was asked for (`q`, `page`), and the line below that leads to others."""
    asked = view.asked.parameters()
    wanted = asked.get("q", "").strip().casefold()
    found = [one for one in items if wanted in words(one).casefold()] if wanted else items
    last = max(1, -(-len(found) // PAGE))
    number = asked.get("page", "1")
    valid = number.isascii() and number.isdecimal() and len(number) < 10
    at = min(max(int(number), 1), last) if valid else 1

    def to(there: int, label: str) -> Child:
        if not 1 <= there <= last:
            return None
        return el("a", label, href="?" + urlencode({**asked, "page": there}))

    if not found:
        return found, el("p", "nothing found" if wanted else "None.", class_="none")
    begin = (at - 1) * PAGE
    shown = found[begin : begin + PAGE]
    count = f"{begin + 1} to {begin + len(shown)} of {len(found)}"
    return shown, el("p", to(at - 1, "← before"), el("span", count), to(at + 1, "next →"), class_="pager")


# quotas -------------------------------------------------------------------------------------------------
def used(one: Usage) -> Html:
    """What is used of a limit in bytes, with a bar."""
    shown = size_text(one.bytes + one.reserved_bytes)
    limit = one.hard_bytes or one.soft_bytes
    if not limit:
        return join(shown)
    bar = el(
        "meter", value=min(one.bytes + one.reserved_bytes, limit), max=limit, high=limit * 9 // 10,
        aria_label="used",
    )  # fmt: skip
    return el("span", f"{shown} of {size_text(limit)}", " ", bar, class_="used")


def counted(one: Usage) -> str:
    """What is used of a limit in objects."""
    limit = one.hard_objects or one.soft_objects
    return f"{one.objects} of {limit}" if limit else str(one.objects)


def quota_card(view: View, one: Usage, path: str) -> Html:
    """What something holds and may hold, and the form that changes it."""
    action = f"{path}/quota"
    numbers = [
        ("Bytes", used(one)),
        ("Objects", counted(one)),
        ("Soft limit", _soft(one)),
    ]
    if view.held.users_file:
        note = el("p", "The command cumulus quota changes limits.", class_="none")
        return card("Usage and quota", facts(numbers), note)
    kinds = (("hard", "hard: never exceeded"), ("soft", "soft: exceeded for the grace time"))
    change = form(
        view,
        action,
        [former(name, getattr(one, name)) for name in LIMITS],
        choice(view, action, "kind", "Limit", kinds),
        row(view, action, "size", "Bytes", note="10G, 512MiB, none; empty: as it is"),
        row(view, action, "objects", "Objects", note="100000, 100k, none; empty: as it is"),
        row(view, action, "grace", "Grace time", note="of a soft limit: 7d, 12h"),
        submit="Set quota",
    )
    return card("Usage and quota", facts(numbers), fold("Change", change, open_=view.refused == action))


def _soft(one: Usage) -> str:
    limits = [size_text(one.soft_bytes)] * bool(one.soft_bytes) + [f"{one.soft_objects} objects"] * bool(
        one.soft_objects
    )
    return f"{', '.join(limits)}; {duration_text(one.grace_s)} grace" if limits else "none"
