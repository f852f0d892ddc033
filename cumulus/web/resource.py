"""The admin page in twisted.web: requests become values, a bounded pool of threads answers them."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from cumulus.audit import note
from cumulus.config import Config
from cumulus.http.pool import Failed, Pool
from cumulus.opening import open_admin
from cumulus.ops.site import Site
from cumulus.proxies import Networks, behind
from cumulus.web.app import App
from cumulus.web.messages import BODY_MOST, HEADERS, Answer, Asked, cookie_name
from cumulus.web.view import Held
from sector.errors import LocalIO

log = Logger()
audit_log = Logger(namespace="cumulus.audit")

THREADS: Final = 2
QUEUE: Final = 32


def is_wanted(config: Config) -> bool:
    """Whether the page is there: as `[admin] page` says, and if that is auto, on addresses that only this
    machine or a private network reaches."""
    if config.admin.page != "auto":
        return config.admin.page == "on"
    host = config.admin.host.partition("%")[0]
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_private and not address.is_unspecified


def page_url(config: Config) -> str:
    """Where a browser on this machine finds the page."""
    host = config.admin.host
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if config.admin.cert else 'http'}://{host}:{config.admin.port}/"


def audit(path: Path | None, who: str, peer: str, what: str) -> None:
    """A line of the service's log for a login, a refusal, a change, and of the audit log at `path`."""
    audit_log.info("{who} at {peer}: {what}", who=who or "nobody", peer=peer, what=what)
    if path is not None:
        try:
            note(path, who, peer, what)
        except LocalIO as bad:
            log.error("a line is missing in {why}", why=bad.message)


class Answers(Protocol):
    """Who answers requests, blocking, in any of several threads."""

    def handle(self, asked: Asked) -> Answer:
        """What the browser gets."""


class LateApp:
    """The page, made when somebody asks for it: what changes users takes 11 MB of memory, which a service
    whose page nobody looks at has no use for."""

    def __init__(self, make: Callable[[], tuple[App, Callable[[], None]]]) -> None:
        self._make = make
        self._made: tuple[App, Callable[[], None]] | None = None
        self._lock = threading.Lock()

    def handle(self, asked: Asked) -> Answer:
        """As `App.handle`. Raises also `SectorError`, `IndexFailure` while it cannot be made."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            app = self._made[0]
        return app.handle(asked)

    def close(self) -> None:
        """Give back what was opened, if it was."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made[1]()


class AdminPage(Resource):
    """All below one path of the admin port."""

    isLeaf = True

    def __init__(self, app: Answers, reactor: Any, close: Callable[[], None], proxies: Networks = ()) -> None:
        """Of what comes from `proxies` headers say who the browser is."""
        super().__init__()
        self._app = app
        self._proxies = proxies
        self._pool = Pool(reactor, THREADS, QUEUE, "cumulus-page")
        self._close = close

    def render(self, request: Request) -> int:
        """All methods."""
        gone: list[Any] = []
        request.notifyFinish().addErrback(gone.append)
        try:
            asked = _asked(request, self._proxies)
        except ValueError:
            _send(request, Answer(400, b"The URL is not UTF-8.\n", "text/plain"), gone)
            return NOT_DONE_YET
        done = partial(self._done, request, gone)
        if not self._pool.submit(partial(self._app.handle, asked), done):
            busy = Answer(503, b"Too much is under way.\n", "text/plain", (("Retry-After", "1"),))
            _send(request, busy, gone)
        return NOT_DONE_YET

    def _done(self, request: Request, gone: list[Any], outcome: Any) -> None:
        if isinstance(outcome, Failed):
            error = outcome.error
            log.error("the admin page failed: {kind}: {why}", kind=type(error).__name__, why=str(error))
            outcome = Answer(500, b"This failed; the log of the service says why.\n", "text/plain")
        _send(request, outcome, gone)

    async def stop(self) -> None:
        """End what is under way and give back the database."""
        await self._pool.when_idle()
        await deferToThread(self._pool.stop)
        await deferToThread(self._close)


def _asked(request: Request, proxies: Networks) -> Asked:
    def header(name: str) -> str:
        return (request.getHeader(name.encode()) or b"").decode("latin-1")

    url = request.uri.decode("ascii", "strict")
    path, _, query = url.partition("?")
    parts = [unquote(part, errors="strict") for part in path.split("/")[2:]]
    host = header("host")
    client = str(getattr(request.getClientAddress(), "host", ""))
    peer, secure = behind(client, bool(request.isSecure()), header, proxies)
    content: Any = request.content
    content.seek(0)
    return Asked(
        method="GET" if request.method == b"HEAD" else request.method.decode("latin-1"),
        path=tuple(parts if parts != [""] else []),
        query=query,
        host=host,
        origin=header("origin"),
        fetch_site=header("sec-fetch-site"),
        content_type=header("content-type"),
        token=(request.getCookie(cookie_name(host).encode()) or b"").decode("latin-1"),
        peer=peer,
        secure=secure,
        body=content.read(BODY_MOST),
    )


def _send(request: Request, answer: Answer, gone: list[Any]) -> None:
    if gone:
        return
    request.setResponseCode(answer.status)
    kept = f"private, max-age={answer.keep_s}" if answer.keep_s else "no-store"
    for name, value in (
        *HEADERS,
        ("Content-Type", answer.kind),
        ("Cache-Control", kept),
        ("Content-Length", str(len(answer.body))),
        *answer.headers,
    ):
        request.responseHeaders.addRawHeader(name, value)
    if request.method != b"HEAD":
        request.write(answer.body)
    request.finish()


def make_page(
    config: Config, site: Site, processes: Callable[[], tuple[int, int]], reactor: Any
) -> AdminPage:
    """The page over the parts of a service; `processes` gives (those that serve, those that should)."""

    def make() -> tuple[App, Callable[[], None]]:
        admin = open_admin(config)
        users_file = str(config.file(config.auth.file)) if config.auth.source == "file" else ""
        told = partial(audit, config.file(config.log.audit) if config.log.audit else None)
        held = Held(config, site.index, site.directory, site.store, admin, processes, told, users_file)
        return App(held), admin.close

    late = LateApp(make)
    return AdminPage(late, reactor, late.close, config.proxies)
