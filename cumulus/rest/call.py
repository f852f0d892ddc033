"""One S3 request and its answer as values, without sockets: what the HTTP floor hands down and gets back.

The HTTP floor (`cumulus.http`) parses a head into a `Call` and asks `Gateway.start` in a worker thread. It
gets a `Reply`, which it sends, or a `Sink`, into which it writes the body as it arrives, buffer by buffer in
worker threads, one call at a time, then `finish`, which gives the Reply. `100 Continue` is sent only when
there is a Sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cumulus.fair.limits import Seat
from cumulus.storage.api import ObjectStream


class Headers:
    """Headers in order; names are compared without case. Values are text as latin-1."""

    __slots__ = ("_pairs", "pairs")

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs: list[tuple[str, str]] = [(name.lower(), value.strip(" \t")) for name, value in pairs]
        self._pairs: dict[str, str] = {}
        for name, value in self.pairs:
            self._pairs[name] = f"{self._pairs[name]},{value}" if name in self._pairs else value

    @classmethod
    def of(cls, pairs: list[tuple[str, str]], joined: dict[str, str]) -> Headers:
        """From what was parsed already: `pairs` with names in lower case and values without blanks around
        them, `joined` the same by name."""
        made = cls.__new__(cls)
        made.pairs, made._pairs = pairs, joined
        return made

    def get(self, name: str, default: str = "") -> str:
        """The value; several of one name are joined by commas."""
        return self._pairs.get(name.lower(), default)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._pairs

    def items(self) -> Iterable[tuple[str, str]]:
        """(lower name, joined value) of each name."""
        return self._pairs.items()


@dataclass(slots=True)
class Call:
    """A request head. `target` is path and query as they stood on the wire; `length` the declared
    Content-Length (None with chunked transfer encoding or without a body that was declared; `chunked` tells
    them apart); `at_ns` the time when the head was complete."""

    id: str
    method: str
    target: str
    headers: Headers
    peer: str
    secure: bool
    at_ns: int
    length: int | None = None
    chunked: bool = False
    # for the access log, filled in on the way: user, key_id, bucket, key, operation ("GetObject"),
    # error (the S3 code); never a secret
    notes: dict[str, str] = field(default_factory=dict)
    # its connection, which is told whose request it is and may refuse it; None: there are no limits
    seat: Seat | None = None


@dataclass(slots=True)
class Download:
    """`length` bytes of a stream from `offset`. Whoever sends it closes the stream; if `unchanged()` is
    false at the end, the connection is cut before the last byte."""

    stream: ObjectStream
    offset: int
    length: int


@dataclass(slots=True)
class Reply:
    """`headers` without Content-Length, Date and Server, which the HTTP floor adds. `close` ends the
    connection after it. `length` overrides the body's (HEAD)."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | Download = b""
    close: bool = False
    length: int | None = None


class Sink(ABC):
    """Takes a request's body. All methods block (worker threads)."""

    @abstractmethod
    def write(self, data: memoryview) -> Reply | None:
        """Next bytes of the body as they stood on the wire after transfer decoding; the buffer is the
        caller's again when the next call of `write`, `finish` or `abort` has returned. A Reply
        refuses it: the HTTP floor sends that, and the sink is done (neither `finish` nor `abort` follows)."""

    @property
    def receives(self) -> bool:
        """Whether `receive` may be called instead of `write` now."""
        return False

    def receive(self, connection: int, room: memoryview, moment_s: float) -> int | Reply:
        """Receive the next bytes of the body from a connection's descriptor, through `room` (writable, and no
        more than are to come), and take them: until `room` is full, nothing came for `moment_s` in all, or
        the connection is at its end. How many came, or a Reply as of `write`."""
        raise NotImplementedError

    @abstractmethod
    def finish(self) -> Reply:
        """The body is complete."""

    @abstractmethod
    def abort(self) -> None:
        """The connection broke, or the body was too short; what was written is forgotten. May be called at
        any time, also after the end, then without effect."""


class Joint:
    """A request that has been judged and is best done together with others (`Gateway.finish_all`)."""

    __slots__ = ()


class Gateway(Protocol):
    """The S3 service behind the HTTP floor."""

    def start(self, call: Call) -> Reply | Sink:
        """Authenticate, authorize, route, do. Never raises: failures are S3 error Replies."""

    def start_now(
        self, call: Call, body: memoryview | None = None
    ) -> Reply | Joint | Callable[[], Reply | Sink]:
        """The same for a request whose `body` is there whole (None: it has none), as far as it needs no
        waiting: the Reply, or what is to be called in a worker thread instead of `start`, or a Joint, which
        has the body (it must stay as it is)."""

    def finish_all(self, joints: Sequence[Joint]) -> list[Reply]:
        """Do them, in a worker thread; a Reply for each, in their order. Never raises."""
