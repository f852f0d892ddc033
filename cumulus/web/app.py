"""The admin page as a function from request to answer: who is let in, which page it is, what a form does.

Blocking; called from several threads. Source: specification Cumulus, `[admin]`; design, section 7.
"""

from __future__ import annotations

import importlib.resources
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote, urlencode

from cumulus.errors import S3Error
from cumulus.index.api import Away, IndexFailure, NoSuch
from cumulus.model import User
from cumulus.storage.api import StorageError
from cumulus.web import changes, guard, pages
from cumulus.web.changes import Changed
from cumulus.web.html import el
from cumulus.web.messages import Answer, Asked, BadForm, cookie, see_other
from cumulus.web.view import Flash, Held, NotHere, View, address, document, link
from sector.errors import SectorError

Show = Callable[..., bytes]
Change = Callable[[View, dict[str, str], str], Changed]

UNSAVED: Final = "Nothing was saved: the session had ended. After the login the form's page comes again."
OTHER_SESSION: Final = "The form is of another session than the one that is open now. Its page has it anew."
KEEP_S: Final = 300  # of style, script and picture, which change with the version only

STATIC: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
PAGES: Final[dict[tuple[str, int], Show]] = {
    ("", 0): pages.overview,
    ("users", 1): pages.users,
    ("users", 2): pages.user,
    ("groups", 1): pages.groups,
    ("groups", 2): pages.group,
    ("buckets", 1): pages.buckets,
    ("buckets", 2): pages.bucket,
    ("usage", 1): pages.usage,
}
CHANGES: Final[dict[tuple[str, str], Change]] = {
    ("users", ""): changes.add_user,
    ("users", "change"): changes.change_user,
    ("users", "state"): changes.change_state,
    ("users", "keys"): changes.add_key,
    ("users", "quota"): changes.user_quota,
    ("users", "remove"): changes.remove_user,
    ("keys", "expire"): changes.expire_key,
    ("keys", "remove"): changes.remove_key,
    ("groups", ""): changes.add_group,
    ("groups", "change"): changes.change_group,
    ("groups", "join"): changes.join,
    ("groups", "leave"): changes.leave,
    ("groups", "quota"): changes.group_quota,
    ("groups", "remove"): changes.remove_group,
    ("buckets", "quota"): changes.bucket_quota,
    ("buckets", "owner"): changes.give_bucket,
}


@dataclass(frozen=True, slots=True)
class _Entered:
    """Somebody who is logged in."""

    user: User
    session: guard.Session


class App:
    """`clock` gives seconds for sessions and tries, `now_ns` the time that keys expire by."""

    def __init__(
        self,
        held: Held,
        clock: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._held = held
        self._now_ns = now_ns
        self.sessions = guard.Sessions(clock)
        self._attempts = guard.Attempts(clock)
        files = importlib.resources.files("cumulus.web") / "static"
        self._static = {name: (files / name).read_bytes() for name in STATIC}

    def handle(self, asked: Asked) -> Answer:
        """Answer one request; errors become pages."""
        try:
            return self._route(asked)
        except (NotHere, NoSuch):
            return _plain(404, "There is no such page", "What it was about may have been removed.")
        except BadForm as bad:
            return _plain(400, "The form was not taken", str(bad))
        except Away as bad:
            return _plain(503, "The database does not answer", str(bad))
        except (SectorError, IndexFailure, StorageError, S3Error) as bad:
            return _plain(500, "This failed", str(bad))

    def _route(self, asked: Asked) -> Answer:
        if asked.method == "GET" and len(asked.path) == 2 and asked.path[0] == "static":
            return self._file(asked.path[1])
        if asked.method == "POST":
            if not asked.same_origin():
                self._held.audit("", asked.peer, "a form from another origin was refused")
                return _plain(403, "The form was not taken", "It was not sent by a page of this service.")
            if asked.path == ("login",):
                return self._login(asked)
        elif asked.method == "GET" and asked.path == ("login",):
            back = _page_at(asked.parameters().get("unsaved", ""))
            return Answer(200, pages.login(asked, UNSAVED if back else "", back=back))
        elif asked.method != "GET":
            return replace(_plain(405, "Not allowed", "GET and POST are."), headers=(("Allow", "GET, POST"),))
        entered = self._entered(asked)
        if entered is None:
            where = _login_page(asked)
            return see_other(where, cookie(asked, "", 0)) if asked.token else see_other(where)
        return self._show(asked, entered) if asked.method == "GET" else self._change(asked, entered)

    def _file(self, name: str) -> Answer:
        if name not in STATIC:
            raise NotHere
        return Answer(200, self._static[name], STATIC[name], keep_s=KEEP_S)

    # who is let in
    def _login(self, asked: Asked) -> Answer:
        form = asked.form()
        back = _page_at(form.get("back", ""))
        wait = self._attempts.take(asked.peer)
        if wait:
            self._held.audit("", asked.peer, "a login was refused: too many tries")
            shown = pages.login(asked, f"Too many tries. Wait {wait:.0f} s.", back=back)
            return Answer(429, shown, headers=(("Retry-After", f"{wait + 1:.0f}"),))
        access_key = form.get("access_key", "").strip()[: guard.ACCESS_KEY_MOST]
        found = self._held.directory.credential(access_key) if access_key else None
        user = guard.check_login(found, form.get("secret", "")[: guard.SECRET_MOST], self._now_ns())
        if user is None or found is None:
            # what is no key of ours may be a secret that was typed into the wrong box
            of = f"with the key {found.access_key} of {found.user.name}" if found else "with an unknown key"
            self._held.audit("", asked.peer, f"a login {of} was refused")
            told = "Not let in: access key and secret key must fit, and be those of an administrator."
            return Answer(403, pages.login(asked, told, access_key if found else "", back))
        self._attempts.give_back(asked.peer)
        if asked.token:
            self.sessions.close(asked.token)
        token = self.sessions.open(found)
        self._held.audit(user.name, asked.peer, f"logged in with the key {found.access_key}")
        return see_other(back or "/", cookie(asked, token, int(guard.LONGEST_S)))

    def _entered(self, asked: Asked) -> _Entered | None:
        """The session, as long as its key is good and its user an administrator."""
        session = self.sessions.find(asked.token) if asked.token else None
        if session is None:
            return None
        found = self._held.directory.credential(session.access_key)
        user = guard.may_administer(found, self._now_ns())
        if user is None or not guard.is_of(session, found):
            self.sessions.close(asked.token)
            return None
        return _Entered(user, session)

    def _logout(self, asked: Asked, entered: _Entered) -> Answer:
        self.sessions.close(asked.token)
        self._held.audit(entered.user.name, asked.peer, "logged out")
        return see_other("/login", cookie(asked, "", 0))

    # pages and changes
    def _show(self, asked: Asked, entered: _Entered) -> Answer:
        if len(asked.path) != 2 and _is_form(asked.path):  # where only forms are sent to: a refusal leaves
            shown = _page_of(asked.path, self._whose(asked.path))  # its address in the browser
            if shown != asked.path:
                return see_other(address(shown))
        session, here = entered.session, address(asked.path)
        told = self.sessions.hear(session, here)
        flash = told if isinstance(told, Flash) else None
        view = View(self._held, asked, entered.user, session.access_key, session.csrf, flash)
        try:
            return Answer(200, self._page(view))
        except BaseException:
            if flash is not None:  # nobody has seen it
                self.sessions.tell(session, here, flash)
            raise

    def _page(self, view: View) -> bytes:
        path = view.asked.path
        show = PAGES.get((path[0] if path else "", len(path)))
        if show is None:
            raise NotHere
        return show(view, *path[1:])

    def _change(self, asked: Asked, entered: _Entered) -> Answer:
        form = asked.form()
        if not guard.fits(entered.session, form.get("csrf", "")):
            self._held.audit(entered.user.name, asked.peer, "a form without the session's token was refused")
            back = _form_page(asked.path, form)
            return _plain(403, "Nothing was saved", OTHER_SESSION, back or "/")
        if asked.path == ("logout",):
            return self._logout(asked, entered)
        if not _is_form(asked.path):
            raise NotHere
        section, name, what = (*asked.path, "", "")[:3]
        change = CHANGES[section, what]
        view = View(self._held, asked, entered.user, entered.session.access_key, entered.session.csrf)
        try:
            done = change(view, form, name)
        except NoSuch as bad:
            return self._refused(view, form, str(bad))
        except (SectorError, S3Error, IndexFailure, StorageError) as bad:
            if isinstance(bad, Away):
                raise
            hint = getattr(bad, "hint", "")
            return self._refused(view, form, f"{bad} ({hint})" if hint else str(bad))
        if done.recorded:
            self._held.audit(entered.user.name, asked.peer, done.flash.text)
        self.sessions.tell(entered.session, done.where, done.flash)
        return see_other(done.where)

    def _whose(self, path: tuple[str, ...]) -> str:
        """The user's id, if the form that is sent to `path` is about a key."""
        of = changes.user_of_key(self._held, path[1]) if path[0] == "keys" else None
        return of.id if of else ""

    def _refused(self, view: View, form: dict[str, str], why: str) -> Answer:
        """The page that the form was on, with the reason and what was typed: 400; 404 when what it was about
        has gone, and then it is the nearest page that is there."""
        self._held.audit(view.user.name, view.asked.peer, f"refused: {'/'.join(view.asked.path)}: {why}")
        path = view.asked.path
        of = self._whose(path)
        here = _page_of(path, of or form.get("of", ""))
        status = 404 if path[0] == "keys" and not of else 400
        again = replace(view, error=why, refused=address(path), typed=form)
        while True:
            try:
                shown = self._page(replace(again, asked=replace(view.asked, path=here, query="")))
            except (NotHere, NoSuch):
                if len(here) < 2:
                    raise
                status, here = 404, here[:-1]
            else:
                return Answer(status, shown)


def _is_form(path: tuple[str, ...]) -> bool:
    """Whether a form is sent there."""
    section, _, what = (*path, "", "", "")[:3]
    return path == ("logout",) or (len(path) in (1, 3) and (section, what) in CHANGES)


def _page_of(path: tuple[str, ...], user: str) -> tuple[str, ...]:
    """The path of the page that has the form which is sent to `path`; the forms of keys are on that of
    their `user`."""
    if path[0] == "keys":
        return ("users", user) if user else ("users",)
    return () if path == ("logout",) else path[:2] if len(path) == 3 else path


def _form_page(path: tuple[str, ...], form: dict[str, str]) -> str:
    """The address of the page that a form came from, as it says itself; "" if none of ours has it."""
    shown = address(_page_of(path, form.get("of", ""))) if _is_form(path) else ""
    return _page_at(shown)


def _page_at(where: str) -> str:
    """`where`, if it is the address of one of the pages, as links have it; else ""."""
    path = tuple(unquote(part) for part in where.split("/")[1:])
    return where if path and (path[0], len(path)) in PAGES and address(path) == where else ""


def _login_page(asked: Asked) -> str:
    """The address of the login; it knows the page of a form that was sent when the session was over."""
    if asked.method == "POST":
        try:
            form = asked.form()
        except BadForm:
            return "/login"
        if form.get("csrf") and (back := _form_page(asked.path, form)):
            return "/login?" + urlencode({"unsaved": back})
    return "/login"


def _plain(status: int, title: str, why: str, where: str = "/") -> Answer:
    body = document(
        title, el("main", el("h1", title), el("p", why), el("p", link(where, "Go on")), class_="login")
    )
    return Answer(status, body)
