"""The HTTP floor with a gateway that records: a server in a thread of this process, and raw clients."""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.error import ConnectionAborted
from twisted.python.failure import Failure

from cumulus.http.settings import HttpSettings
from cumulus.http.site import Site
from cumulus.http.tls import TlsFactory
from cumulus.http.transport import S3Port
from cumulus.rest.call import Call, Gateway, Joint, Reply, Sink
from cumulus.storage.api import Entry, ObjectStream

DEADLINE_S = 10.0


def until(condition: Callable[[], Any], what: str = "condition") -> Any:
    """Wait for it; fails after the deadline."""
    end = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        pause.wait(0.005)
    raise AssertionError(f"not in {DEADLINE_S} s: {what}")


class Stream(ObjectStream):
    """An object of a file; what is asked of it is counted, faults are switched on."""

    def __init__(self, path: Path, *, sendable: bool = True) -> None:
        self.file = path.open("rb")
        size = path.stat().st_size
        self.entry = Entry(name="x", size=size, mtime_ns=0, token=b"t", stamp=1)
        self.can_send = sendable
        self.closed = 0
        self.true = True
        self.fail_at = -1
        self.reads: list[tuple[int, int]] = []
        self.largest = 0

    def read_at(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        if 0 <= self.fail_at <= offset:
            raise OSError("the disk is gone")
        self.file.seek(offset)
        return self.file.read(size)

    def sendable(self) -> tuple[int, int] | None:
        return (self.file.fileno(), 0) if self.can_send else None

    def unchanged(self) -> bool:
        return self.true

    def write(self, data: memoryview) -> None:
        raise NotImplementedError

    def commit(self, meta: bytes, if_token: Any = None) -> Entry:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1
        self.file.close()


class Recorder(Sink):
    """A sink that keeps what comes. `refuse_after` bytes it refuses; `hold` makes each write wait."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.gateway = gateway
        self.data = bytearray()
        self.writes: list[int] = []
        self.finished = 0
        self.aborted = 0
        self.inside = 0
        self.together = 0

    def write(self, data: memoryview) -> Reply | None:
        self.inside += 1
        self.together = max(self.together, self.inside)
        self.gateway.hold.wait(DEADLINE_S)
        if self.gateway.raise_in_write:
            raise RuntimeError("a fault of ours")
        self.writes.append(len(data))
        self.data += data
        self.inside -= 1
        if 0 <= self.gateway.refuse_after <= len(self.data):
            return Reply(403, [("content-type", "application/xml")], b"<Error/>")
        return None

    def finish(self) -> Reply:
        self.finished += 1
        return Reply(200, [("etag", '"done"')], b"stored %d" % len(self.data))

    def abort(self) -> None:
        self.aborted += 1


class FakeGateway:
    """`replies` by target; anything else with a body is a Recorder, the rest is 200 with the target."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.sinks: list[Recorder] = []
        self.replies: dict[str, Callable[[Call], Reply]] = {}
        self.threads: set[str] = set()
        self.hold = threading.Event()
        self.hold.set()
        self.start_hold = threading.Event()
        self.start_hold.set()
        self.refuse_after = -1
        self.at_once: Callable[[Call], Reply] | None = None
        self.raise_in_write = False

    def start_now(
        self, call: Call, body: memoryview | None = None
    ) -> Reply | Joint | Callable[[], Reply | Sink]:
        return partial(self.start, call) if self.at_once is None else self.at_once(call)

    def finish_all(self, joints: Sequence[Joint]) -> list[Reply]:
        raise NotImplementedError

    def start(self, call: Call) -> Reply | Sink:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)
        call.notes["operation"] = "Fake" + call.method.title()
        self.start_hold.wait(DEADLINE_S)
        make = self.replies.get(call.target.split("?")[0])
        if make is not None:
            return make(call)
        if call.length is not None or call.chunked:
            self.sinks.append(Recorder(self))
            return self.sinks[-1]
        return Reply(200, [("content-type", "text/plain")], call.target.encode())


class Floor:
    """A running HTTP floor."""

    def __init__(self, site: Site, gateway: FakeGateway, port: int, reactor: Any, log: Path) -> None:
        self.site = site
        self.gateway = gateway
        self.port = port
        self.reactor = reactor
        self.log = log

    def call(self, work: Callable[[], Any]) -> Any:
        """Run it in the reactor's thread. Raises what it raises."""
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        self.reactor.callFromThread(run)
        return done.result(DEADLINE_S)

    def until_held_back(self) -> None:
        """Until a body is not read any more, since its bytes are not taken."""
        until(lambda: self.call(lambda: any(r.intake.paused for c in self.site.channels for r in c.requests)))

    def connect(self, source: str = "127.0.0.1") -> Wire:
        """A raw connection from that address."""
        return Wire(socket.create_connection(("127.0.0.1", self.port), DEADLINE_S, (source, 0)))

    def log_lines(self) -> list[bytes]:
        """Lines of the access log that are complete."""
        return self.log.read_bytes().splitlines()


class Answer:
    """A reply as it came."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Wire:
    """One client connection, byte by byte; closed when nobody has it any more, if not before."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        weakref.finalize(self, sock.close)
        self.sock.settimeout(DEADLINE_S)
        self.buffer = b""

    def send(self, *data: bytes) -> Wire:
        for part in data:
            self.sock.sendall(part)
        return self

    def _more(self) -> bool:
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionResetError:
            return False
        self.buffer += data
        return bool(data)

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next reply."""
        while b"\r\n\r\n" not in self.buffer:
            assert self._more(), f"closed in the head: {self.buffer!r}"
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        return int(first.split()[1]), headers

    def answer(self, method: str = "GET") -> Answer:
        """The next reply whole."""
        status, headers = self.head()
        if status == 100 or method == "HEAD":
            return Answer(status, headers, b"")
        length = int(headers.get("content-length", "0"))
        while len(self.buffer) < length:
            assert self._more(), f"closed in the body after {len(self.buffer)} of {length}"
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return Answer(status, headers, body)

    def rest(self) -> bytes:
        """All until the end of the connection."""
        while self._more():
            pass
        data, self.buffer = self.buffer, b""
        return data

    def rest_of(self, count: int) -> bytes:
        """The next `count` bytes."""
        parts, have = [self.buffer], len(self.buffer)
        while have < count and (data := self.sock.recv(1 << 20)):
            parts.append(data)
            have += len(data)
        self.buffer = b""
        return b"".join(parts)

    def ended(self) -> bool:
        """Whether the server has ended it with nothing more said."""
        return self.rest() == b""

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """End it as a crash would."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()


def request(target: str = "/b/k", method: str = "GET", *headers: str, body: bytes = b"") -> bytes:
    """A request's bytes; Content-Length is added for a body."""
    lines = [f"{method} {target} HTTP/1.1", "Host: s3", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@contextmanager
def floor(
    tls: Any = None,
    prepare: Callable[[Site], None] = lambda _site: None,
    real: Gateway | None = None,
    **settings: Any,
) -> Iterator[Floor]:
    """A server with those settings; `tls` is a context factory, `prepare` sees the site before it starts,
    `real` is asked instead of the gateway that records.
    Fails when it leaves a stream, a request or a thread behind."""
    reactor = EPollReactor()
    gateway = FakeGateway()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "access.log"
        site = Site(real or gateway, HttpSettings(**settings), reactor, str(log), "host")
        factory = site if tls is None else TlsFactory(tls, site, reactor)
        port = S3Port(0, factory, interface="127.0.0.1", reactor=reactor)
        prepare(site)
        site.start()
        port.startListening()
        thread = threading.Thread(target=reactor.run, kwargs={"installSignalHandlers": False})
        thread.start()
        running = Floor(site, gateway, port.getHost().port, reactor, log)
        try:
            yield running
        finally:
            gateway.hold.set()
            gateway.start_hold.set()

            def stop() -> None:
                port.stopListening()
                site.drain(0.0).addBoth(lambda _done: reactor.stop())

            reactor.callFromThread(stop)
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), "the floor did not stop"
            for _ in range(2):  # connections that were tried or given up in its last moment
                reactor.runUntilCurrent()
                for begun in reactor.removeAll():
                    begun.connectionLost(Failure(ConnectionAborted()))
        for sink in gateway.sinks:
            assert sink.together <= 1, "two writes at a time"
            assert (sink.finished, sink.aborted) in {(1, 0), (0, 1), (0, 0)}, "ended twice"


def client_tls() -> ssl.SSLContext:
    """Trusts anyone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
