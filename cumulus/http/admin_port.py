"""The admin port: /metrics for Prometheus, /health for a load balancer, /load for other servers, all without
a login, since it listens on a private address; and a place for the admin page."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.internet.defer import ensureDeferred
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.web.http import HTTPChannel
from twisted.web.pages import notFound
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site
from twisted.web.util import Redirect

from cumulus.http.metrics import Sample, prometheus, total

log = Logger()

PAGE: Final = b"ui"  # below it is the admin page
BODY_MOST: Final = 64 * 1024
OPEN_MOST: Final = 256  # connections
_LOAD: Final = (
    "connections",
    "requests_in_flight",
    "jobs_waiting",
    "received_bytes_total",
    "sent_bytes_total",
)

Samples = Callable[[], Awaitable[list[Sample]]]


class _Page(Resource):
    """Renders what a coroutine gives: status, content type, text."""

    isLeaf = True

    def __init__(self, make: Callable[[], Awaitable[tuple[int, str, str]]]) -> None:
        super().__init__()
        self._make = make

    def render_GET(self, request: Request) -> int:
        """GET and HEAD."""
        gone: list[Any] = []
        request.notifyFinish().addErrback(gone.append)

        async def work() -> None:
            status, kind, text = await self._make()
            if gone:
                return
            request.setResponseCode(status)
            request.setHeader(b"content-type", kind.encode())
            request.setHeader(b"cache-control", b"no-store")
            data = text.encode()
            request.setHeader(b"content-length", b"%d" % len(data))
            request.write(data)
            request.finish()

        ensureDeferred(work()).addErrback(lambda failure: log.failure("an admin page failed", failure))
        return NOT_DONE_YET


class _Channel(HTTPChannel):
    """A connection to the admin port, known to its site."""

    site: _Quiet

    @property
    def at_work(self) -> bool:
        """Whether a whole request has come that is not answered."""
        return bool(self._handlingRequest)

    def connectionMade(self) -> None:
        """It takes its place."""
        super().connectionMade()
        self.site.opened(self)

    def connectionLost(self, reason: Any = connectionDone) -> None:
        """And gives it back."""
        self.site.closed(self)
        super().connectionLost(reason)


class _Quiet(Site):
    noisy = False
    protocol: Any = _Channel

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self._open: dict[Any, None] = {}  # in the order in which they came

    def opened(self, channel: Any) -> None:
        """Beyond OPEN_MOST the one goes that has been there for the longest time without a whole request:
        descriptors of the process are for others, too."""
        self._open[channel] = None
        if len(self._open) > OPEN_MOST:
            idle = next((one for one in self._open if not one.at_work), channel)
            self.closed(idle)
            idle.transport.abortConnection()

    def closed(self, channel: Any) -> None:
        """It is gone."""
        self._open.pop(channel, None)

    def log(self, request: Any) -> None:
        """Those who look every second do not fill the log."""


class Bounded(Request):
    """Takes no body that is larger than a form's."""

    too_large = False

    def gotLength(self, length: int | None) -> None:
        """When the head is complete. None: in chunks, which no browser's form has."""
        self.too_large = length is None or length > BODY_MOST
        super().gotLength(0 if self.too_large else length)
        if self.too_large:
            self.channel.write(
                b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            self.channel.loseConnection()

    def handleContentChunk(self, data: bytes) -> None:
        """A piece of the body."""
        if not self.too_large:
            super().handleContentChunk(data)

    def process(self) -> None:
        """When the body is complete."""
        if not self.too_large:
            super().process()

    def render(self, resrc: Any) -> None:
        """The answer of a page. What software serves it, and of what age, is no matter of whoever asks."""
        self.responseHeaders.removeHeader(b"server")
        super().render(resrc)


class _Root(Resource):
    def getChild(self, path: bytes, request: Request) -> Any:
        """No other page is there."""
        return notFound()


def admin_site(
    samples: Samples,
    expected: Callable[[], tuple[int, int]],
    reactor: Any,
    page: Resource | None = None,
    away: Callable[[], bool] = lambda: False,
    counted: Samples | None = None,
) -> Site:
    """The pages over `samples` of all processes that answer; `counted` gives also what those have counted
    that do not, or have ended. `expected()` is (processes that serve, that should) and `away()` whether the
    database does not answer. `page` is what is below PAGE."""
    counted = counted or samples

    async def metrics() -> tuple[int, str, str]:
        up, _all = expected()
        text = prometheus(total(await counted()))
        text += "# HELP cumulus_workers Processes that serve.\n# TYPE cumulus_workers gauge\n"
        text += f"cumulus_workers {up}\n"
        return 200, "text/plain; version=0.0.4; charset=utf-8", text

    async def health() -> tuple[int, str, str]:
        up, wanted = expected()
        whole = len(await samples()) == wanted == up
        lost = away()
        status = "down" if lost or not up else "ok" if whole else "degraded"
        body = {"status": status, "workers": up, "wanted": wanted} | ({"database": "away"} if lost else {})
        return 503 if status == "down" else 200, "application/json", json.dumps(body) + "\n"

    async def load() -> tuple[int, str, str]:
        plain = total(await counted()).plain
        body = {name: int(plain.get(name, 0)) for name in _LOAD}
        # who refuses all at once has little to do: other servers would send him everything
        return 503 if away() else 200, "application/json", json.dumps(body) + "\n"

    root: Any = _Root()
    root.putChild(b"metrics", _Page(metrics))
    root.putChild(b"health", _Page(health))
    root.putChild(b"load", _Page(load))
    if page is not None:
        root.putChild(b"", Redirect(b"/" + PAGE + b"/"))
        root.putChild(PAGE, page)
    site = _Quiet(root, Bounded, timeout=30, reactor=reactor)
    site.displayTracebacks = False
    return site
