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

from cumulus.http.settings import BUFFER

MOMENT_S: Final = 0.003  # for which a thread waits for the rest of a buffer
AWAITED: Final = 128 << 10  # bytes for which it is woken, if so many are still to come

Answer = TypeVar("Answer")


class Stretch:
    """`buffer` holds `fill` bytes to be written first; `previous` may still be hashed until that is done;
    `spare` is free. `left` bytes are to be received in all, `budget` written, at most. Afterwards `buffer`
    holds the `fill` bytes that came last and are not written (None: none), `previous` what was written last,
    `received` and `written` count what was received and written after the first buffer."""

    __slots__ = ("_awaited", "budget", "buffer", "fill", "left", "previous", "received", "spare", "written")

    def __init__(
        self,
        buffer: bytearray,
        fill: int,
        previous: bytearray | None,
        spare: bytearray | None,
        left: int,
        budget: int,
    ) -> None:
        self.buffer: bytearray | None = buffer
        self.fill = fill
        self.previous = previous
        self.spare = spare
        self.left = left
        self.budget = budget
        self.received = self.written = 0
        self._awaited = 1  # bytes for which the kernel wakes who waits for the connection

    def run_thd(self, fd: int, write: Callable[[memoryview], Answer | None]) -> Answer | None:
        """Write and receive in turn; what `write` says if it says anything. The descriptor of the connection,
        which does not block, is closed (-1: nothing is received). Blocks; raises what `write` raises."""
        try:
            first = True
            while True:
                answer = self._write_thd(write, first)
                first = False
                if answer is not None or not self._receive_thd(fd) or not self.left:
                    return answer
                if self.written + self.fill > self.budget:
                    return None
        finally:
            if fd >= 0:
                self._await_thd(fd, 1)
                os.close(fd)

    def _write_thd(self, write: Callable[[memoryview], Answer | None], first: bool) -> Answer | None:
        buffer, fill = self.buffer, self.fill
        assert buffer is not None
        self.buffer, self.fill = None, 0
        if not first:
            self.written += fill
        answer = write(memoryview(buffer)[:fill])
        self.previous, self.spare = buffer, self.previous or self.spare
        return answer

    def _receive_thd(self, fd: int) -> bool:
        """Fill a buffer; False when less came, which is kept."""
        size = min(BUFFER, self.left)
        spare, self.spare = self.spare, None
        self.buffer = spare if spare is not None and len(spare) >= size else bytearray(size)
        view, end = memoryview(self.buffer)[:size], 0.0
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
