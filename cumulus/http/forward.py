"""A server that passes requests on (`[redirect] mode = "proxy"`), for clients that follow no redirection.

A request goes to the chosen server as it came, with the Host that was signed and a header that says who the
client is (`cumulus.auth.hop`); bodies pass both ways in buffers, and whoever is slower sets the pace. Until
the first byte of the body a server that cannot be reached is replaced by another one.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from cumulus.auth import hop
from cumulus.auth.host import host_bucket
from cumulus.errors import S3Error
from cumulus.http.alive import END
from cumulus.http.body import Intake
from cumulus.http.pace import OUT, Transfer
from cumulus.http.pool import Failed
from cumulus.http.refuse import refusal
from cumulus.http.reply import Ready
from cumulus.http.request import S3Request
from cumulus.http.settings import BODILESS, DRAINED, FIRST_BUFFER
from cumulus.http.trust import Trust
from cumulus.http.upstream import Pairs, Upstream, Upstreams
from cumulus.redirect import HostsFile, NoServer, Server, Spread
from cumulus.rest.call import Call, Reply

if TYPE_CHECKING:
    from cumulus.http.site import Site

log = Logger()

LOOK_S: Final = 0.5  # how often the files of servers and of keys are thought of, in a thread
CHECK_S: Final = 3.0  # how often connections to them are looked at
UNAVAILABLE: Final = 503
OPERATION: Final = "Forwarded"  # in the log and the metrics; the server that serves tells the real one
RETRY_AFTER: Final = [("Retry-After", "1")]
_AGAIN: Final = frozenset(("GET", "HEAD", "OPTIONS"))  # what may be asked twice
# what is between two neighbours only (RFC 9110, section 7.6.1)
_HOP_BY_HOP: Final = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        hop.HEADER,
    )
)
# what the reply gets here, with the same id
_OURS: Final = frozenset(("date", "server", "x-amz-id-2", "x-amz-request-id", "keep-alive"))


class Forwarder:
    """Which server a request is passed on to, and the connections there. `keys` gives the keys for
    `hop.header`, the newest first, and `look_at_keys` sees in a thread whether others have come; `trust` says
    whose certificates count at servers with https."""

    def __init__(
        self,
        reactor: Any,
        hosts: HostsFile,
        keys: Callable[[], list[bytes]],
        *,
        domain: str = "",
        point: bool = False,
        trust: Trust | None = None,
        look_at_keys: Callable[[], None] | None = None,
    ) -> None:
        self._reactor = reactor
        self._hosts = hosts
        self._keys = keys
        self._look_at_keys = look_at_keys
        self._domain = domain
        self._spread = Spread(hosts.servers(), random.SystemRandom(), point=point)
        self.upstreams = Upstreams(reactor, trust)
        self._loops = [(LoopingCall(self._look), LOOK_S), (LoopingCall(self.upstreams.check), CHECK_S)]
        for loop, _ in self._loops:
            loop.clock = reactor
        self._site: Site | None = None

    def start(self, site: Site) -> None:
        """Begin to follow the files of servers and of keys."""
        self._site = site
        for loop, every_s in self._loops:
            loop.start(every_s, now=False)

    def stop(self) -> None:
        """End, with all connections."""
        for loop, _ in self._loops:
            if loop.running:
                loop.stop()
        self.upstreams.close()

    def _look(self) -> None:
        assert self._site is not None
        self._site.pool.submit(self._look_thd, self._looked)

    def _look_thd(self) -> tuple[Server, ...]:
        if self._look_at_keys is not None:
            self._look_at_keys()
        return self._hosts.servers()

    def _looked(self, outcome: tuple[Server, ...] | Failed) -> None:
        if not isinstance(outcome, Failed):
            self._spread.servers = outcome

    def choose(self, call: Call, tried: set[str]) -> Server | None:
        """A server not among `tried`; None = the request is served here: it was addressed to this server, or
        another one has passed it on. Raises `NoServer`."""
        if hop.HEADER in call.headers:
            return None
        host = call.headers.get("host")
        bucket = host_bucket(host, self._domain)
        host = host[len(bucket) + 1 :] if bucket else host
        return self._spread.choose(host, secure=call.secure, tried=tried, now_s=self._reactor.seconds())

    def head(self, call: Call) -> bytes:
        """The request's head for the server."""
        lines = [f"{call.method} {call.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in call.headers.pairs if name not in _HOP_BY_HOP]
        if "host" not in call.headers:  # HTTP/1.0
            lines.append("host:")
        if call.chunked:
            lines.append("transfer-encoding: chunked")
        lines.append(f"{hop.HEADER}: {hop.header(call, self._keys()[0], int(time.time()))}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def begun(self, server: Server) -> None:
        """A request was given to it."""
        self._spread.begun(server)

    def ended(self, server: Server) -> None:
        """And is over."""
        self._spread.ended(server)

    def refused(self, server: Server) -> None:
        """It answered 503, or none."""
        self._spread.refused(server, self._reactor.seconds())

    def failed(self, server: Server, why: str) -> None:
        """It could not be reached."""
        if self._spread.failed(server, self._reactor.seconds()):
            log.warn("the server {server} cannot be reached: {why}", server=server.url, why=why)

    def reached(self, server: Server) -> None:
        """It could."""
        if self._spread.reached(server):
            log.info("the server {server} is reached again", server=server.url)


class Passing:
    """One request on its way to a server, and its reply on the way back."""

    def __init__(self, request: ForwardingRequest, forwarder: Forwarder, server: Server) -> None:
        self._request = request
        self._forwarder = forwarder
        self._server = server
        self._tried = {server.netloc}
        self._upstream: Upstream | None = None
        self._fresh = False  # the connection was made for this request
        self._over = False
        self._waiting = False  # a buffer is being written
        self._replying = False
        self._download: Transfer | None = None
        self._full = False  # the client takes no more now
        self._pieces: deque[bytes] = deque()  # of the reply, not given to the client yet
        self._complete = False  # nothing more comes

    def start(self) -> None:
        """Ask the server, or the next one."""
        self._forwarder.begun(self._server)
        kept = self._forwarder.upstreams.kept(self._server)
        if kept is not None:
            self._connected(kept, fresh=False)
        else:
            self._connect()

    def _connect(self) -> None:
        self._forwarder.upstreams.connect(self._server).addCallbacks(
            self._connected, self._unreachable, callbackKeywords={"fresh": True}
        )

    def _connected(self, upstream: Upstream, *, fresh: bool) -> None:
        if fresh:
            self._forwarder.reached(self._server)
        if self._over:
            self._forwarder.ended(self._server)
            upstream.abandon()
            return
        request, self._upstream, self._fresh = self._request, upstream, fresh
        upstream.begin(self, request.call.method, self._forwarder.head(request.call))
        if request.intake is None:
            upstream.complete()
        elif not request.awaits_continue:
            request.take_body()

    def _unreachable(self, failure: Failure) -> None:
        why = failure.getErrorMessage() or failure.type.__name__ if failure.type else "no reason is known"
        self._forwarder.failed(self._server, why)
        self._forwarder.ended(self._server)
        if self._over:
            return
        try:
            server = self._forwarder.choose(self._request.call, self._tried)
        except NoServer:
            server = None
        if server is None:
            self._over = True
            self._request.no_server()
            return
        self._server = server
        self._tried.add(server.netloc)
        self.start()

    def stop(self) -> None:
        """The client is gone, or nobody wants the reply."""
        if self._end() and self._upstream is not None:
            self._upstream.abandon()

    def _end(self) -> bool:
        if self._over:
            return False
        self._over = True
        if self._upstream is not None:
            self._forwarder.ended(self._server)
        if self._replying:
            self._request.channel.unregisterProducer()
        if self._download is not None:
            self._download.end()
        return True

    # the body on its way to the server
    def write(self, data: memoryview, last: bool) -> None:
        """A buffer of the client's body; the request hears `body_left` when another one may come."""
        upstream = self._upstream
        if upstream is None or self._over:
            return
        self._waiting = True
        pieces: list[bytes | memoryview] = [data]
        if self._request.call.chunked:
            pieces = [b"%x\r\n" % len(data), data, b"\r\n"] if data else []
            pieces += [b"0\r\n\r\n"] if last else []
        drained = upstream.send(*[bytes(piece) for piece in pieces])
        if last:
            upstream.complete()
        if drained:
            self.up_drained()

    def up_continue(self) -> None:
        """The server wants the body."""
        self._request.take_body()

    def up_drained(self) -> None:
        """The buffer has left."""
        if self._waiting and not self._over:
            self._waiting = False
            self._request.body_left()

    # the reply on its way to the client
    def up_head(self, status: int, headers: Pairs, length: int) -> None:
        """Begin the reply to the client."""
        self._replying = True
        if status == UNAVAILABLE:
            self._forwarder.refused(self._server)
        bodiless = self._request.call.method == "HEAD" or status in BODILESS
        told = length if self._request.call.method == "HEAD" else None
        kept = [pair for pair in headers if pair[0].lower() not in _OURS]
        self._request.pass_reply(Reply(status, kept, length=told), 0 if bodiless and told is None else length)
        if not self._over and self._upstream is not None:
            self._request.channel.registerProducer(self, True)
            if not bodiless:
                self._download = self._request.download()

    def up_data(self, data: bytes) -> None:
        """Bytes of the reply."""
        if self._over:
            return
        self._pieces.append(data)
        if self._download is None or not self._download.resting:
            self._give()

    def _give(self) -> None:
        """Each piece after the rest that it costs by a limit or a share; then the reply's end."""
        while self._pieces:
            pause = 0.0 if self._download is None else self._download.took(len(self._pieces[0]))
            if pause > 0 and self._download is not None:
                self._read_on(False)
                self._download.after(pause, self._rested)
                return
            self._request.pass_data(self._pieces.popleft())
        if self._complete and self._end():
            self._request.reply_passed()

    def _rested(self) -> None:
        if self._over:
            return
        self._request.pass_data(self._pieces.popleft())
        self._give()
        self._read_on(not (self._full or self._pieces))

    def up_end(self) -> None:
        """The reply has come whole."""
        upstream, self._upstream = self._upstream, None
        if upstream is None or self._over:
            return
        self._forwarder.ended(self._server)
        self._forwarder.upstreams.give_back(self._server, upstream)
        self._complete = True
        if not self._pieces:
            self._give()

    def up_lost(self, why: str) -> None:
        """The server has gone away in the middle."""
        request, replying = self._request, self._replying
        if not self._fresh and not replying and request.intake is None and request.call.method in _AGAIN:
            self._upstream = None
            self._connect()  # a kept connection had just ended
            return
        if self._end():
            self._forwarder.refused(self._server)
            log.warn("request {id}: {server}: {why}", id=request.call.id, server=self._server.url, why=why)
            request.reply_lost(replying)

    # as the producer of the client's connection
    def pauseProducing(self) -> None:
        """The client takes no more now."""
        self._full = True
        self._read_on(False)

    def resumeProducing(self) -> None:
        """It takes more."""
        self._full = False
        self._read_on(self._download is None or not self._download.resting)

    def _read_on(self, on: bool) -> None:
        if self._upstream is None or self._over:
            return
        if on:
            self._upstream.resumeProducing()
        else:
            self._upstream.pauseProducing()

    def stopProducing(self) -> None:
        """The connection is lost; `stop` comes from the request."""


class ForwardingRequest(S3Request):
    """A request that is passed on, unless it is for this server itself."""

    _passing: Passing | None = None

    @property
    def awaits_continue(self) -> bool:
        """Whether the client sends its body only when it is asked to."""
        return self._expects and not self._continued

    def _begin(self) -> None:
        """Choose a server and ask it, before the body is read."""
        forwarder = self.site.forwarder
        if forwarder is None or self._limited is not None:
            super()._begin()
            return
        try:
            server = forwarder.choose(self.call, set())
        except NoServer:
            self._prepare()
            self.no_server()
            return
        if server is None:
            super()._begin()
            return
        self.call.notes["operation"] = OPERATION
        self._prepare()
        self._passing = Passing(self, forwarder, server)
        self._passing.start()

    def _prepare(self) -> None:
        length = self.head.length
        self._expects = self.call.headers.get("expect").lower() == "100-continue" and self.head.continues
        if length == 0:
            return
        self.intake = Intake(self, length, min(length or FIRST_BUFFER, FIRST_BUFFER))

    def request_received(self) -> None:
        """All of the request is there."""
        if self._passing is None and not self._answering:
            super().request_received()
            return
        self._body_at = self.site.now()
        if self.intake is None:
            self._body_done = True
            self._end_if_done()

    def take_body(self) -> None:
        """The server takes the body, or has nothing against an empty one."""
        if self._lost or self._answering or self._whole:
            return
        if self.intake is None:
            self._continue()
            return
        self._whole = True  # from now on the client has to send it
        self._take_body()

    def body_buffer(self, data: memoryview, last: bool) -> None:
        """On to the server."""
        if self._passing is None:
            super().body_buffer(data, last)
            return
        if self._upload is None:  # the reply has begun: the client is to wait with the rest
            return
        pause = self._upload.took(len(data))
        if last:
            self._end_upload()
        if pause > 0 and not last:
            self._upload.after(pause, partial(self._passing.write, data, last))
        else:
            self._passing.write(data, last)

    def body_left(self) -> None:
        """A buffer is with the server: the next one."""
        self._free()

    def refuse_body(self, error: S3Error) -> None:
        """The body is malformed or too slow."""
        if self._passing is not None and not self._answering:
            self._passing.stop()
            self._whole = True
        super().refuse_body(error)

    # the reply
    def no_server(self) -> None:
        """None can be reached."""
        self.call.notes["error"] = "ServiceUnavailable"
        self._answer_early(Ready(self._unavailable()))

    def _unavailable(self, *, close: bool = False) -> Reply:
        return refusal(S3Error("ServiceUnavailable", headers=RETRY_AFTER), self.call.id, close=close)

    def pass_reply(self, reply: Reply, length: int) -> None:
        """The server's reply begins: its head, before `length` bytes."""
        intake = self.intake
        if intake is not None and not intake.over and not self._lost:
            left = intake.left
            self.channel.set_taker(None)
            if self.awaits_continue or left is None or left > DRAINED:
                reply.close = True
            if not reply.close and self.channel.persistent:
                intake.discard()
        self._answering = True
        self._end_upload()
        self._word_for_nothing(reply)
        channel = self.channel
        close = reply.close or not channel.persistent or self.site.stopping
        if close:
            channel.persistent = False
        self._status = reply.status
        self._turn_s = self.site.now() - (self._body_at if self._body_done else self.site.now())
        if self._signs is None or not self._signs.begun:
            channel.write(self.site.heads.head(reply, self.call.id, length, close=close))

    def download(self) -> Transfer:
        """Of the reply's body, for limits and shares."""
        return Transfer(self.site.pacer, OUT, self._seat, self.channel.flows)

    def pass_data(self, data: bytes) -> None:
        """Bytes of it."""
        if not self._lost:
            if self._signs is not None and self._signs.begun:
                data = self._signs.piece(data)
            self._bytes_out += len(data)
            self.channel.write(data)

    def reply_passed(self) -> None:
        """It is complete."""
        if not self._lost:
            if self._signs is not None and self._signs.begun:
                self.channel.write(END)
            self._all_given()

    def reply_lost(self, begun: bool) -> None:
        """The server is gone: the reply, if it has `begun`, is cut; else the client may try again."""
        if self._lost:
            return
        self.call.notes["error"] = "ServiceUnavailable"
        if begun:
            self._account()
            self.replied = True
            self.channel.cut()
        else:
            self._answer_early(Ready(self._unavailable(close=self.intake is not None)))

    def connection_lost(self) -> None:
        """The client is gone: so is its request at the server."""
        if self._passing is not None:
            self._passing.stop()
        super().connection_lost()
