"""What the data channel offers to the layers above: files to tickets and tickets to files.

`data.DataPort` implements it over the C core; the bytes never pass through Python. Simulated clusters have
one of their own (sector.testing). Source: spec/security.md, "Tickets and the data channel";
csrc/include/udt.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from twisted.internet.defer import Deferred

from sector._udt.paths import Way


@dataclass(frozen=True, slots=True)
class DataTicket:
    """The part of a ticket that the core needs: id (16 bytes), key (32), rendezvous tag, encryption; `limit`
    bytes per second that its sender may use, 0 = no cap."""

    id: bytes
    key: bytes = field(repr=False)
    tag: int
    encrypt: bool = True
    limit: int = 0


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Outcome of a transfer. `moved` payload bytes; `digest` 32 raw bytes (udt.h); `crcs` CRC32C per 1 MiB
    block; `version` and `durable` as the receiver's DONE said (sender side). Times in microseconds."""

    moved: int
    digest: bytes
    crcs: tuple[int, ...]
    version: tuple[int, int]
    durable: int
    us: int
    stats: dict[str, int]
    way: Way = Way()


OWN_DISK = ("DISKFULL", "DISKWRITE", "DISKSYNC")
"""Codes of a `TransferError` at a receiver whose own disk does not take what comes."""


class TransferError(Exception):
    """A transfer failed. `code` is the core's error name without prefix, such as "TIMEOUT", "BROKEN",
    "DISKFULL", "DIGEST", "REMOTE" (then `remote` has the peer's code), "CANCELLED"; `bytes` moved."""

    def __init__(self, code: str, text: str, *, errno: int = 0, remote: int = 0, bytes: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.errno = errno
        self.remote = remote
        self.bytes = bytes


class Sending(Protocol):
    """A transfer from a file to the peer."""

    @property
    def done(self) -> Deferred[TransferResult]:
        """Fires when the receiver confirmed (DONE), or errbacks with TransferError."""

    def cancel(self, code: int = 1) -> None:
        """Stop; the peer hears ERROR(code), `done` errbacks with CANCELLED."""


class Receiving(Protocol):
    """A transfer from the peer to a file."""

    @property
    def fin(self) -> Deferred[TransferResult]:
        """Fires when all bytes are in the file, verified, and fsynced if asked."""

    @property
    def done(self) -> Deferred[TransferResult]:
        """Fires when finish() was delivered, or errbacks with TransferError (also before fin)."""

    def finish(self, *, version: tuple[int, int] = (0, 0), durable: int = 1, error: int = 0) -> None:
        """Confirm to the sender (DONE) or refuse with error != 0. Once, after fin."""

    def cancel(self, code: int = 1) -> None:
        """Stop; the peer hears ERROR(code)."""


def arrival(receiving: Receiving) -> Deferred[TransferResult]:
    """Fires when all bytes are in the file, as `fin`; errbacks with what ends the transfer before. What comes
    after the bytes is for who watches `done`; its failure is no unhandled one."""
    arrived: Deferred[TransferResult] = Deferred()
    receiving.done.addErrback(lambda bad: None if arrived.called else arrived.errback(bad))
    receiving.fin.addCallback(lambda good: None if arrived.called else arrived.callback(good))
    return arrived


Progress = Callable[[int], None]
OnWay = Callable[[Way, str], None]
"""Told when the peer was met: the way, and a line for the user if it is not UDP (else "")."""


class Data(Protocol):
    """One data port. `to` None = wait for whoever proves the ticket (the slave's side); else this end
    starts (`to` is (host, port) of the other data port). The descriptor is duplicated at once.
    `progress(bytes)` at most 4 times a second."""

    @property
    def address(self) -> tuple[str, int]:
        """Local (host, port)."""

    def send_file(
        self,
        ticket: DataTicket,
        fd: int,
        *,
        offset: int = 0,
        length: int,
        to: tuple[str, int] | None = None,
        start_s: float = 60.0,
        progress: Progress | None = None,
        on_way: OnWay | None = None,
    ) -> Sending:
        """Send `length` bytes of the file from `offset`."""

    def receive_file(
        self,
        ticket: DataTicket,
        fd: int,
        *,
        offset: int = 0,
        limit: int = -1,
        to: tuple[str, int] | None = None,
        start_s: float = 60.0,
        fsync: bool = True,
        progress: Progress | None = None,
        on_way: OnWay | None = None,
    ) -> Receiving:
        """Write what comes into the file from `offset` on, at most `limit` bytes (-1 = any)."""

    def counters(self) -> dict[str, int]:
        """Current sockets, half_open, tombstones, dropped datagrams, bytes in and out."""

    def refused(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Refused datagrams: (host, (under a wrong key, replayed, for tickets that are over)), sums first."""

    def traffic(self) -> dict[str, int]:
        """What transfers moved since the port was opened and move now; names in `sector._udt.traffic`."""

    def stop(self) -> Deferred[None]:
        """Close the port; transfers errback with CLOSED."""
