"""The data channel inside one process, for simulated clusters: same interface and rules as the real one
(tickets meet by id and key, one use, start time-out, digest, DONE). Transfers take time, block by block at a
given rate, and slaves can fall silent in the middle of one."""

from __future__ import annotations

import os

from twisted.internet.defer import Deferred, succeed

from sector._udt.checksum import content_digest, crc32c
from sector._udt.data_api import DataTicket, OnWay, Progress, TransferError, TransferResult
from sector.clock import Clock, Timer
from sector.model import BLOCK_BYTES

IDLE_S = 10.0


class SimDataNet:
    """Where the ports of a simulated cluster meet. `bytes_per_s` is the rate of each transfer; ports in
    `broken` neither send nor receive; `moved` counts the bytes that each port has sent; `waiting` has the
    side of each ticket that came first."""

    def __init__(self, clock: Clock, bytes_per_s: float = 100e6) -> None:
        self.clock = clock
        self.bytes_per_s = bytes_per_s
        self.waiting: dict[bytes, SimTransfer] = {}
        self.broken: set[int] = set()
        self.moved: dict[int, int] = {}
        self._next = 30000

    def port(self, host: str = "127.0.0.1", port: int = 0) -> SimDataPort:
        """A new port; 0 picks a free number."""
        if not port:
            self._next += 1
            port = self._next
        return SimDataPort(self, host, port)


class SimTransfer:
    """One side of a transfer, which moves a block per turn of the clock; implements Sending and Receiving."""

    def __init__(
        self,
        port: SimDataPort,
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
        self.peer: SimTransfer | None = None
        self.result: TransferResult | None = None
        self.ended = False
        self.crcs: list[int] = []
        self.moved = 0
        self._net = port.net
        self._timer: Timer = port.net.clock.callLater(start_s, self.fail, "TIMEOUT", "the peer did not come")

    @property
    def cut_off(self) -> bool:
        """Nothing gets in or out."""
        return self.port.number in self._net.broken

    # ------------------------------------------------------------------------------------------- ends
    def _end(self) -> None:
        self.ended = True
        if self._net.waiting.get(self.ticket.id) is self:
            del self._net.waiting[self.ticket.id]
        self.port.transfers.discard(self)
        if self._timer.active():
            self._timer.cancel()
        os.close(self.fd)

    def fail(self, code: str, text: str, *, remote: int = 0, errno: int = 0) -> None:
        """End with an error that says how far it got."""
        if self.ended:
            return
        self._end()
        peer = self.peer
        moved = self.moved if self.sending or peer is None else peer.moved
        self.done.errback(TransferError(code, text, remote=remote, errno=errno, bytes=moved))

    def cancel(self, code: int = 1) -> None:
        """Stop; the peer hears of it unless this side was cut off."""
        peer = self.peer
        self.fail("CANCELLED", "cancelled")
        if peer is not None and not self.cut_off:
            peer.fail("REMOTE", "the peer cancelled", remote=code)

    def finish(self, *, version: tuple[int, int] = (0, 0), durable: int = 1, error: int = 0) -> None:
        """The last word, unless this side was cut off."""
        if self.cut_off or self.ended or self.result is None or self.peer is None:
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

    # ---------------------------------------------------------------------------------------- sending
    def meet(self, peer: SimTransfer) -> None:
        """Called on the sender's side once both are there."""
        self.peer, peer.peer = peer, self
        for side in (self, peer):
            if side._timer.active():
                side._timer.cancel()
        self._step()

    def _step(self) -> None:
        peer = self.peer
        net = self._net
        if peer is None:
            return
        if self.cut_off or peer.cut_off:
            for side in (self, peer):
                net.clock.callLater(IDLE_S, self._silent, side)
            return
        if self.ended or peer.ended:
            return
        if self.moved >= self.length:
            self._finish_sending(peer)
            return
        block = os.pread(self.fd, min(BLOCK_BYTES, self.length - self.moved), self.offset + self.moved)
        if not block:
            self.fail("SHORT", "the file is shorter than promised")
            peer.fail("REMOTE", "the peer reported an error", remote=1)
            return
        try:
            if 0 <= peer.length < self.moved + len(block):
                raise OSError(27, "more than allowed")
            os.pwrite(peer.fd, block, peer.offset + self.moved)
        except OSError as error:
            peer.fail("DISKFULL", str(error), errno=error.errno or 0)
            self.fail("REMOTE", "the peer reported an error", remote=1)
            return
        self.crcs.append(crc32c(block))
        self.moved += len(block)
        number = self.port.number
        net.moved[number] = net.moved.get(number, 0) + len(block)
        for side in (self, peer):
            if side.progress is not None:
                side.progress(self.moved)
        net.clock.callLater(len(block) / net.bytes_per_s, self._step)

    def _silent(self, side: SimTransfer) -> None:
        if side.ended:
            return
        side._end()
        error = TransferError("BROKEN", "connection broken: the peer fell silent", bytes=self.moved)
        side.done.errback(error)

    def _finish_sending(self, peer: SimTransfer) -> None:
        digest = content_digest(self.crcs, self.moved)
        result = TransferResult(
            self.moved, digest, tuple(self.crcs), (0, 0), 0, 1000, {"bytes_sent": self.moved}
        )
        self.result = peer.result = result
        self._await_confirmation()
        peer.fin.callback(result)

    def _await_confirmation(self) -> None:
        """All is sent: the receiver's last word may take long, but its silence ends the transfer."""
        peer, net = self.peer, self._net
        if self.ended or peer is None:
            return
        if self.cut_off or peer.cut_off:
            net.clock.callLater(IDLE_S, self._silent, self)
        else:
            net.clock.callLater(1.0, self._await_confirmation)


class SimDataPort:
    """Implements `sector._udt.data_api.Data`; which side calls the other makes no difference here."""

    def __init__(self, net: SimDataNet, host: str, port: int) -> None:
        self.net = net
        self.address = (host, port)
        self.number = port
        self.transfers: set[SimTransfer] = set()

    def _start(self, ticket: DataTicket, transfer: SimTransfer) -> None:
        self.transfers.add(transfer)

        def arrive() -> None:
            other = self.net.waiting.get(ticket.id)
            if transfer.ended or transfer.cut_off:
                return
            if other is None or other.ticket.key != ticket.key or other.sending == transfer.sending:
                self.net.waiting.setdefault(ticket.id, transfer)
                return
            if other.cut_off:
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
        on_way: OnWay | None = None,
    ) -> SimTransfer:
        transfer = SimTransfer(self, ticket, fd, True, offset, length, start_s, progress)
        self._start(ticket, transfer)
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
        on_way: OnWay | None = None,
    ) -> SimTransfer:
        transfer = SimTransfer(self, ticket, fd, False, offset, limit, start_s, progress)
        self._start(ticket, transfer)
        return transfer

    def counters(self) -> dict[str, int]:
        """Transfers under way."""
        return {"sockets": len(self.transfers)}

    def refused(self) -> list[tuple[str, tuple[int, int, int]]]:
        """A network inside one process refuses nothing."""
        return [("", (0, 0, 0))]

    def traffic(self) -> dict[str, int]:
        """Transfers under way."""
        return {"transfers_now": len(self.transfers)}

    def stop(self) -> Deferred[None]:
        """Close the port; transfers errback with CLOSED."""
        for transfer in list(self.transfers):
            transfer.fail("CLOSED", "the port was closed")
        return succeed(None)
