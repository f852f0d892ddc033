"""A data channel inside one process that takes time: transfers go block by block at a given rate, slaves
can fall silent in the middle of one. For simulated clusters."""

from __future__ import annotations

import os
from typing import Any

from sector._udt.checksum import content_digest, crc32c
from sector._udt.data_api import DataTicket, Progress, TransferError, TransferResult
from sector._udt.data_memory import BLOCK, MemoryDataNet, MemoryDataPort, MemoryTransfer
from sector.clock import Clock

IDLE_S = 10.0


class SimDataNet(MemoryDataNet):
    """Where the ports of a simulated cluster meet. `bytes_per_s` is the rate of each transfer; ports in
    `broken` neither send nor receive; `moved` counts the bytes that each port has sent."""

    def __init__(self, clock: Clock, bytes_per_s: float = 100e6) -> None:
        super().__init__(clock)
        self.bytes_per_s = bytes_per_s
        self.moved: dict[int, int] = {}

    def port(self, host: str = "127.0.0.1", port: int = 0) -> SimDataPort:
        """A new port; 0 picks a free number."""
        if not port:
            self._next += 1
            port = self._next
        return SimDataPort(self, host, port)


class SimTransfer(MemoryTransfer):
    """One side of a transfer that moves a block per turn of the clock."""

    crcs: list[int]
    moved = 0

    def fail(self, code: str, text: str, *, remote: int = 0, errno: int = 0) -> None:
        """End with an error that says how far it got."""
        if self.ended:
            return
        self._end()
        peer = self.peer
        moved = self.moved if self.sending or not isinstance(peer, SimTransfer) else peer.moved
        self.done.errback(TransferError(code, text, remote=remote, errno=errno, bytes=moved))

    def cancel(self, code: int = 1) -> None:
        """Stop; the peer hears of it unless this side was cut off."""
        if self.port.address[1] in self._net().broken:
            self.fail("CANCELLED", "cancelled")
        else:
            super().cancel(code)

    def finish(self, *, version: tuple[int, int] = (0, 0), durable: int = 1, error: int = 0) -> None:
        """The last word, unless this side was cut off."""
        if self.port.address[1] not in self._net().broken:
            super().finish(version=version, durable=durable, error=error)

    def meet(self, peer: MemoryTransfer) -> None:
        """Called on the sender's side once both are there."""
        self.peer, peer.peer = peer, self
        for side in (self, peer):
            if side._timer.active():
                side._timer.cancel()
        self.crcs = []
        self._step()

    def _net(self) -> SimDataNet:
        net = self.port.net
        assert isinstance(net, SimDataNet)
        return net

    def _step(self) -> None:
        peer = self.peer
        net = self._net()
        if peer is None:
            return
        if net.broken & {self.port.address[1], peer.port.address[1]}:
            for side in (self, peer):
                net.clock.callLater(IDLE_S, self._silent, side)
            return
        if self.ended or peer.ended:
            return
        if self.moved >= self.length:
            self._finish_sending(peer)
            return
        block = os.pread(self.fd, min(BLOCK, self.length - self.moved), self.offset + self.moved)
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
        number = self.port.address[1]
        net.moved[number] = net.moved.get(number, 0) + len(block)
        for side in (self, peer):
            if side.progress is not None:
                side.progress(self.moved)
        net.clock.callLater(len(block) / net.bytes_per_s, self._step)

    def _silent(self, side: MemoryTransfer) -> None:
        if side.ended:
            return
        side._end()
        error = TransferError("BROKEN", "connection broken: the peer fell silent", bytes=self.moved)
        side.done.errback(error)

    def _finish_sending(self, peer: MemoryTransfer) -> None:
        digest = content_digest(self.crcs, self.moved)
        result = TransferResult(
            self.moved, digest, tuple(self.crcs), (0, 0), 0, 1000, {"bytes_sent": self.moved}
        )
        self.result = peer.result = result
        self._await_confirmation()
        peer.fin.callback(result)

    def _await_confirmation(self) -> None:
        """All is sent: the receiver's last word may take long, but its silence ends the transfer."""
        peer, net = self.peer, self._net()
        if self.ended or peer is None:
            return
        if net.broken & {self.port.address[1], peer.port.address[1]}:
            net.clock.callLater(IDLE_S, self._silent, self)
        else:
            net.clock.callLater(1.0, self._await_confirmation)


class SimDataPort(MemoryDataPort):
    """Implements `sector._udt.data_api.Data`."""

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
        transfer = SimTransfer(self, ticket, fd, True, offset, length, start_s, progress)
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
        transfer = SimTransfer(self, ticket, fd, False, offset, limit, start_s, progress)
        self._start(ticket, transfer, to)
        return transfer
