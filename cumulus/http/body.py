"""A request's body between the connection and the threads that take it: one buffer is being filled while
another is written and the one before may still be hashed; the connection pauses when there is no room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from cumulus.http.buffers import Buffers
from cumulus.http.chunked import ChunkedDecoder
from cumulus.http.settings import BUFFER, FIRST_BUFFER
from cumulus.http.stretch import Stretch

LENT: Final = 512 << 10  # bytes of a buffer, and that may be moved, from which on it is worth lending
FAST: Final = 32 << 10  # bytes that wait in a connection whose client is fast
_NOWHERE = memoryview(b"")
_MANY = 8  # small parts that are put together before they are copied


class Owner(Protocol):
    """The request that a body belongs to."""

    def body_buffer(self, data: memoryview, last: bool) -> None:
        """The next bytes, to be written in a thread; `Intake.free` when that is done. `data` may be empty
        when `last`."""

    def body_over(self, rest: bytes) -> None:
        """All of it was received; `rest` came behind it."""

    def body_pause(self, paused: bool) -> None:
        """Read on, or not, from the connection."""


class Intake:
    """Bytes come by `feed` or, without a copy, by `room` and `filled`. Buffers go to the owner one at a time,
    not before `open`. After `discard` bytes are counted and dropped. `length` None = chunked. `most` says how
    large a buffer may be now; there are up to three."""

    def __init__(
        self, owner: Owner, length: int | None, first: int = FIRST_BUFFER, buffers: Buffers | None = None
    ) -> None:
        self._owner = owner
        self._buffers = buffers or Buffers()
        self._decoder = ChunkedDecoder() if length is None else None
        self._length = length
        self._placed = 0  # bytes that were put into buffers
        self._next_size = first
        self._buffer: bytearray | None = None
        self._fill = 0
        self._spare: bytearray | None = None
        self._spill = bytearray()
        self._held = True  # the owner does not want a buffer now
        self._writing: bytearray | None = None
        self._written: bytearray | None = None  # its taker is done with it when it has had the next one
        self._lent: Stretch | None = None
        self._dropping = False
        self._copying = False
        self._handed_last = False
        self._handed = 0  # bytes of what was handed over
        self.over = False
        self.paused = False
        self.received = 0
        self.most: Callable[[], int] = lambda: BUFFER

    @property
    def direct(self) -> bool:
        """Whether `room` and `filled` may be used."""
        return self._decoder is None and not self._dropping and not self.over

    @property
    def left(self) -> int | None:
        """Bytes that are still to come; None: not known."""
        return None if self._length is None else self._length - self.received

    # bytes in -----------------------------------------------------------------------------------------
    def room(self) -> memoryview:
        """Where the next bytes go; empty when all buffers are in use."""
        if self._spill or not self._make_buffer():
            return _NOWHERE
        assert self._buffer is not None
        return memoryview(self._buffer)[self._fill : self._fill + self._unplaced()]

    def filled(self, count: int) -> None:
        """`count` bytes were put into `room()`."""
        self.received += count
        self._placed += count
        self._fill += count
        self.over = self.received == self._length
        self._after(b"")

    def feed(self, data: bytes) -> None:
        """Bytes of the connection, which may reach beyond the body. Raises `MalformedChunk`."""
        view = memoryview(data)
        if self._decoder is not None:
            parts = self._decoder.feed(view)
            if len(parts) > _MANY:
                parts = [memoryview(b"".join(parts))]
            rest = self._decoder.rest
            self.over = self._decoder.finished
        else:
            assert self._length is not None
            parts = [view[: self._length - self.received]]
            rest = bytes(view[len(parts[0]) :])
            self.over = self.received + len(parts[0]) == self._length
        self.received += sum(len(part) for part in parts)
        if not self._dropping:
            self._copy(parts)
        self._after(rest)

    def _after(self, rest: bytes) -> None:
        if self.over:
            self._owner.body_over(rest)
        self._hand_over()
        self._pause_if_full()

    def _copy(self, parts: list[memoryview]) -> None:
        self._copying = True  # what is handed over meanwhile is not the last
        for part in parts:
            while part and not self._spill:
                if not self._make_buffer():
                    self._hand_over()
                    if not self._make_buffer():
                        break
                assert self._buffer is not None
                piece = part[: len(self._buffer) - self._fill]
                self._buffer[self._fill : self._fill + len(piece)] = piece
                self._fill += len(piece)
                self._placed += len(piece)
                part = part[len(piece) :]
            self._spill += part
        self._copying = False

    def _unplaced(self) -> int:
        """Bytes of the body that may still be put into buffers."""
        return BUFFER if self._length is None else self._length - self._placed

    def _make_buffer(self) -> bool:
        """Whether the buffer that is filled has room, a new one if need be."""
        if self._buffer is not None:
            return self._fill < len(self._buffer)
        if self._dropping or not self._unplaced() or self._handed_last:
            return False
        most = self.most()
        size = min(self._next_size, self._unplaced(), most)
        spare, self._spare = self._spare, None
        if spare is not None and size <= len(spare) <= most:
            self._buffer = spare
        else:
            self._buffer = self._buffers.take(size)
            self._next_size = min(BUFFER, self._next_size * 8)
        self._fill = 0
        return True

    # buffers out --------------------------------------------------------------------------------------
    def open(self) -> None:
        """The owner takes buffers from now on."""
        self._held = False
        self._hand_over()
        self._resume()

    def free(self) -> None:
        """The buffer that was handed over is written, and the one before it is done with."""
        if self._writing is not None:
            self._spare, self._written, self._writing = self._written, self._writing, None
        self._held = False
        self._hand_over()
        self._refill()
        self._resume()

    def lend(self, budget: int, waiting: int) -> Stretch | None:
        """While the owner has a buffer: what a thread needs that writes it and goes on by itself for about
        `budget` bytes, when the body is plain and there is more to come from a fast client: `waiting` bytes
        are there already. The connection is not read until `give_back`."""
        left, buffer, size = self.left, self._writing, self.most()
        if not (self.direct and left and buffer is not None and self._buffer is None):
            return None
        if budget < LENT or size < LENT or waiting < min(left, FAST):
            return None
        if self._copying or len(self._spill) > size:  # the next bytes are in other hands, or too many
            return None
        stretch = Stretch(
            buffer,
            self._handed,
            left=left,
            budget=budget,
            size=size,
            buffers=self._buffers,
            previous=self._written,
            spare=self._spare,
            begun=bytes(self._spill),
        )
        self._spill.clear()
        self._writing = self._written = self._spare = None
        if not self.paused:
            self.paused = True
            self._owner.body_pause(True)
        self._lent = stretch
        return stretch

    def give_back(self) -> Stretch | None:
        """The thread has ended: what it received counts. What it was lent; `free` or `discard` goes on."""
        stretch, self._lent = self._lent, None
        if stretch is None:
            return None
        self.received += stretch.received
        self._placed = self.received - len(stretch.begun)
        if not self._dropping:
            self._spill += stretch.begun
            self._buffer, self._fill = stretch.buffer, stretch.fill
            self._written, self._spare = stretch.previous, stretch.spare
        self.over = self.received == self._length
        if self.over:
            self._owner.body_over(b"")
        return stretch

    def discard(self) -> None:
        """Nobody wants the rest."""
        self._dropping = True
        self.release()
        self._resume()

    def recycle(self) -> None:
        """All was taken, and is no longer read: the next body may have the buffers."""
        for buffer in (self._buffer, self._spare, self._written, self._writing):
            self._buffers.give(buffer)
        self.release()

    def release(self) -> None:
        """No buffer is needed any more: they go now, not when the collector next passes over the cycle of a
        request and its body."""
        self._buffer = self._spare = self._written = self._writing = None
        self._fill = 0
        self._spill.clear()

    def _refill(self) -> None:
        if self._spill:
            spill, self._spill = self._spill, bytearray()
            self._copy([memoryview(spill)])
            self._hand_over()

    def _hand_over(self) -> None:
        if self._held or self._dropping or self._handed_last:
            return
        full = self._buffer is not None and self._fill == len(self._buffer)
        ended = self.over and not self._spill and not self._copying
        if not full and not ended:
            return
        buffer, fill = self._buffer, self._fill
        self._buffer, self._fill = None, 0
        self._writing, self._handed = buffer, fill
        self._held = True
        self._handed_last = ended
        self._owner.body_buffer(memoryview(buffer)[:fill] if buffer is not None else _NOWHERE, ended)

    def _full(self) -> bool:
        return bool(self._spill) or (self._buffer is not None and self._fill == len(self._buffer))

    # the connection -----------------------------------------------------------------------------------
    def _pause_if_full(self) -> None:
        full = self._full()
        if full and not self.paused and not self.over and not self._dropping:
            self.paused = True
            self._owner.body_pause(True)

    def _resume(self) -> None:
        full = self._full()
        if self.paused and not full and self._lent is None:
            self.paused = False
            self._owner.body_pause(False)
