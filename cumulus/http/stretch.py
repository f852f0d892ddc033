"""A stretch of a large body that a thread receives by itself: while bytes come as fast as they are written
there is nothing for the thread of all connections to do.

The thread reads from the connection only while bytes are there, or come within a moment; it gives the
connection back at the end of its budget, of the body, and when the client is slower. While it waits, the
kernel wakes it for `AWAITED` bytes and not for each packet.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from cumulus.http.buffers import Buffers

MOMENT_S: Final = 0.003  # for which a thread waits for the rest of a buffer
AWAITED: Final = 128 << 10  # bytes for which it is woken, if so many are still to come

Answer = TypeVar("Answer")
Write = Callable[[memoryview], Answer | None]
"""Takes bytes. What it says ends the stretch."""
Receive = Callable[[int, memoryview, float], int | Answer]
"""Takes bytes out of a connection, as `cumulus.rest.call.Sink.receive`. What is not a number ends it, too."""


class Stretch:
    """`buffer` holds `fill` bytes to be written first; `previous` may still be hashed until that is done;
    `spare` is free, others come from `buffers` and have `size` bytes. `begun` has come already and goes
    before what is received. `left` bytes are to be received in all, `budget` written, at most.

    Afterwards `buffer` holds the `fill` bytes that came last and are not written (None: none), `previous`
    what was written last, `received` and `written` count what was received and written after the first
    buffer. `torn`: bytes have left the connection that are not counted; what comes next in it is unknown."""

    __slots__ = (
        "_awaited", "begun", "budget", "buffer", "buffers", "fill", "left", "previous", "received", "size",
        "spare", "torn", "written",
    )  # fmt: skip

    def __init__(
        self,
        buffer: bytearray,
        fill: int,
        *,
        left: int,
        budget: int,
        size: int,
        buffers: Buffers,
        previous: bytearray | None = None,
        spare: bytearray | None = None,
        begun: bytes = b"",
    ) -> None:
        self.buffer: bytearray | None = buffer
        self.fill = fill
        self.previous = previous
        self.spare = spare
        self.begun = begun
        self.left = left
        self.budget = budget
        self.size = size
        self.buffers = buffers
        self.torn = False
        self.received = self.written = 0
        self._awaited = 1  # bytes for which the kernel wakes who waits for the connection

    def run_thd(self, fd: int, write: Write[Answer], receive: Receive[Answer] | None = None) -> Answer | None:
        """Write and receive in turn, or have `receive` do both after the first buffer; what these say if they
        say anything. The descriptor of the connection, which does not block, is closed (-1: nothing is
        received). Blocks; raises what they raise."""
        try:
            answer = self._write_thd(write, first=True)
            if receive is not None and fd >= 0:
                return self._take_thd(fd, write, receive) if answer is None else answer
            while answer is None and self._receive_thd(fd):
                if not self.left or self.written + self.fill > self.budget:
                    return None  # the end of the body is for whoever finishes it
                answer = self._write_thd(write)
            return answer
        finally:
            if fd >= 0:
                self._await_thd(fd, 1)
                os.close(fd)

    def _write_thd(self, write: Write[Answer], *, first: bool = False) -> Answer | None:
        buffer, fill = self.buffer, self.fill
        assert buffer is not None
        self.buffer, self.fill = None, 0
        if not first:
            self.written += fill
        answer = write(memoryview(buffer)[:fill])
        self.previous, self.spare = buffer, self.previous or self.spare
        return answer

    def _room(self, size: int) -> bytearray:
        spare, self.spare = self.spare, None
        return spare if spare is not None and len(spare) >= size else self.buffers.take(size)

    def _take_thd(self, fd: int, write: Write[Answer], receive: Receive[Answer]) -> Answer | None:
        """By what receives and writes by itself, a buffer at a time."""
        if self.begun:
            begun, self.begun = memoryview(self.begun), b""
            self.written += len(begun)
            answer = write(begun)
            if answer is not None:
                return answer
        while self.left:
            size = min(self.size, self.left, self.budget - self.written)
            if size <= 0:
                return None
            room = self._room(size)
            count = receive(fd, memoryview(room)[:size], MOMENT_S)
            if not isinstance(count, int):
                self.torn = True
                return count
            self.spare = room
            self.received += count
            self.written += count
            self.left -= count
            if count < size:
                return None
        return None

    def _receive_thd(self, fd: int) -> bool:
        """Fill a buffer; False when less came, which is kept."""
        if fd < 0:
            return False
        size = min(self.size, len(self.begun) + self.left)
        self.buffer = self._room(size)
        view, end = memoryview(self.buffer)[:size], 0.0
        self.fill = len(self.begun)
        view[: self.fill] = self.begun
        self.begun = b""
        ready: select.poll | None = None
        while self.fill < size:
            try:
                count = os.readv(fd, [view[self.fill :]])
            except BlockingIOError:
                if ready is None:
                    ready, end = select.poll(), time.monotonic() + MOMENT_S
                    ready.register(fd, select.POLLIN)
                self._await_thd(fd, AWAITED if self.left >= AWAITED else 1)
                if not ready.poll(max(0, end - time.monotonic()) * 1000):
                    return False
                continue
            except OSError:
                return False  # whoever reads next hears of it
            if not count:
                return False
            self.fill += count
            self.received += count
            self.left -= count
        return True

    def _await_thd(self, fd: int, count: int) -> None:
        """Be woken for `count` bytes. A socket that cannot be told so wakes for less."""
        if count == self._awaited:
            return
        self._awaited = count
        with suppress(OSError):
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            finally:
                connection.detach()
