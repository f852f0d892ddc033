"""The data channel inside one process: same interface and rules (tickets meet by id and key, one use,
start time-out, digest, DONE) with the bytes copied by pread/pwrite. For tests of the layers above."""

from __future__ import annotations

import hashlib
import os
import struct
from typing import Any

from twisted.internet.defer import Deferred, succeed

from sector._udt.data_api import DataTicket, Progress, TransferError, TransferResult
from sector.clock import Clock, Timer

BLOCK = 1 << 20
_POLY = 0x82F63B78
_TABLE = []
for _n in range(256):
    _c = _n
    for _ in range(8):
        _c = (_c >> 1) ^ (_POLY if _c & 1 else 0)
    _TABLE.append(_c)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of `data`, the plain table way."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def content_digest(crcs: list[int], size: int) -> bytes:
    """SHA-256 over the little-endian block CRCs and the size (udt.h)."""
    return hashlib.sha256(b"".join(struct.pack("<I", c) for c in crcs) + struct.pack("<Q", size)).digest()


class MemoryDataNet:
    """Where MemoryDataPorts meet. `broken` ports lose their transfers."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.waiting: dict[bytes, MemoryTransfer] = {}
        self.broken: set[int] = set()
        self._next = 30000

    def port(self, host: str = "127.0.0.1", port: int = 0) -> MemoryDataPort:
        if not port:
            self._next += 1
            port = self._next
        return MemoryDataPort(self, host, port)


class MemoryTransfer:
    """One side of a transfer; implements Sending and Receiving."""

    def __init__(
        self,
        port: MemoryDataPort,
        ticket: DataTicket,
        fd: int,
        sending: bool,
        offset: int,
        length: int,
        start_s: float,
        progress: Progress | None,
    ) -> None:
        self.port, self.ticket, self.fd, self.sending = port, ticket, os.dup(fd), sending
        self.offset, self.length, self.progress = offset, length, progress
        self.fin: Deferred[TransferResult] = Deferred()
        self.done: Deferred[TransferResult] = Deferred()
        self.fin.addErrback(lambda failure: None)
        self.peer: MemoryTransfer | None = None
        self.result: TransferResult | None = None
        self.ended = False
        self._timer: Timer = port.net.clock.callLater(start_s, self.fail, "TIMEOUT", "the peer did not come")

    def fail(self, code: str, text: str, *, remote: int = 0, errno: int = 0) -> None:
        if self.ended:
            return
        self._end()
        self.done.errback(TransferError(code, text, remote=remote, errno=errno))

    def _end(self) -> None:
        self.ended = True
        self.port.net.waiting.pop(self.ticket.id, None)
        self.port.transfers.discard(self)
        if self._timer.active():
            self._timer.cancel()
        os.close(self.fd)

    def meet(self, peer: MemoryTransfer) -> None:
        """Called on the sender's side once both are there: move all bytes."""
        self.peer, peer.peer = peer, self
        for side in (self, peer):
            if side._timer.active():
                side._timer.cancel()
        crcs: list[int] = []
        moved = 0
        while moved < self.length:
            block = os.pread(self.fd, min(BLOCK, self.length - moved), self.offset + moved)
            if not block:
                self.fail("SHORT", "the file is shorter than promised")
                peer.fail("REMOTE", "the peer reported an error", remote=1)
                return
            try:
                if 0 <= peer.length < moved + len(block):
                    raise OSError(27, "more than allowed")
                os.pwrite(peer.fd, block, peer.offset + moved)
            except OSError as error:
                peer.fail("DISKFULL", str(error), errno=error.errno or 0)
                self.fail("REMOTE", "the peer reported an error", remote=1)
                return
            crcs.append(crc32c(block))
            moved += len(block)
        result = TransferResult(
            moved, content_digest(crcs, moved), tuple(crcs), (0, 0), 0, 1000, {"bytes_sent": moved}
        )
        self.result = peer.result = result
        if peer.progress:
            peer.progress(moved)
        peer.fin.callback(result)

    def finish(self, *, version: tuple[int, int] = (0, 0), durable: int = 1, error: int = 0) -> None:
        if self.ended or self.result is None or self.peer is None:
            return
        peer, old = self.peer, self.result
        final = TransferResult(old.moved, old.digest, old.crcs, version, durable, old.us, old.stats)
        self._end()
        self.done.callback(final)
        if error:
            peer.fail("REMOTE", f"the peer reported error {error}", remote=error)
        elif not peer.ended:
            peer._end()
            peer.done.callback(final)

    def cancel(self, code: int = 1) -> None:
        peer = self.peer
        self.fail("CANCELLED", "cancelled")
        if peer is not None:
            peer.fail("REMOTE", "the peer cancelled", remote=code)


class MemoryDataPort:
    """Implements `sector._udt.data_api.Data`."""

    def __init__(self, net: MemoryDataNet, host: str, port: int) -> None:
        self.net = net
        self.address = (host, port)
        self.transfers: set[MemoryTransfer] = set()

    def _start(self, ticket: DataTicket, transfer: MemoryTransfer, to: tuple[str, int] | None) -> None:
        self.transfers.add(transfer)

        def arrive() -> None:
            other = self.net.waiting.get(ticket.id)
            if transfer.ended or self.address[1] in self.net.broken:
                return
            if other is None or other.ticket.key != ticket.key or other.sending == transfer.sending:
                self.net.waiting.setdefault(ticket.id, transfer)
                return
            if other.port.address[1] in self.net.broken:
                return
            del self.net.waiting[ticket.id]
            (transfer if transfer.sending else other).meet(other if transfer.sending else transfer)

        self.net.clock.callLater(0, arrive)

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
    ) -> Any:
        transfer = MemoryTransfer(self, ticket, fd, True, offset, length, start_s, progress)
        self._start(ticket, transfer, to)
        return transfer

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
    ) -> Any:
        transfer = MemoryTransfer(self, ticket, fd, False, offset, limit, start_s, progress)
        self._start(ticket, transfer, to)
        return transfer

    def counters(self) -> dict[str, int]:
        return {"sockets": len(self.transfers)}

    def stop(self) -> Deferred[None]:
        for transfer in list(self.transfers):
            transfer.fail("CLOSED", "the port was closed")
        return succeed(None)
