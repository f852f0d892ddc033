"""The worker's end of the connection to the head: many threads, one socket, no thread of its own.

Calls that are made at the same time go out in one write. One of the threads that wait reads for all; when it
has its own answer, another one goes on reading.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cumulus.index import wire
from cumulus.index.api import Away, IndexFailure, Put
from cumulus.index.tide import open_tide

_PATIENCE_S: Final = 120.0  # without a byte from the head while an answer is awaited


class _Call:
    __slots__ = ("answer", "error", "wake")

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.answer: tuple[str, msgspec.Raw] | None = None
        self.error: IndexFailure | None = None

    def rouse(self) -> None:
        """Let its thread go on; called with the channel's lock held."""
        if self.wake.locked():
            self.wake.release()

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None


class Channel:
    """One connection; broken for good after an error."""

    def __init__(self, path: Path) -> None:
        """Raises `Away`."""
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(_PATIENCE_S)
        try:
            self._socket.connect(str(path))
            self.tide = open_tide(wire.counters(path))
        except OSError as bad:
            self._socket.close()
            raise Away(f"{path}: {bad.strerror or bad}") from None
        self._lock = threading.Lock()
        self._out = threading.Lock()  # held while something is sent
        self._told = 0
        self._calls: dict[int, _Call] = {}
        self._outbox: list[bytes] = []
        self._number = 0
        self._reading = False
        self._frames = wire.Frames()
        self.broken: IndexFailure | None = None
        self._slot: int | None = self.call("join", ())

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Ask and wait. Raises `Away` when the head goes, and the errors of the index."""
        mine = _Call()
        with self._lock:
            if self.broken is not None:
                raise self.broken
            self._number += 1
            number = self._number
            self._outbox.append(wire.frame(number, name, arguments))
            self._calls[number] = mine
        self._send()
        with self._lock:
            read = not self._reading and not mine.done
            self._reading = self._reading or read
        if not read:
            mine.wake.acquire()
        if not mine.done:
            self._read(mine)
        if mine.error is not None:
            raise mine.error
        assert mine.answer is not None
        kind, value = mine.answer
        if kind:
            raise wire.error(kind, value)
        return wire.RESULTS[name].decode(value)

    def tell(self, puts: Sequence[Put]) -> bool:
        """Have the head take them in, without an answer; when this returns, whoever looks at the counters
        knows that they are on their way. False: this connection has no counters. Raises `Away`; they may have
        been told nevertheless."""
        if self._slot is None:
            return False
        frames = [wire.frame(0, wire.TELL, (put,)) for put in puts]
        with self._lock:
            if self.broken is not None:
                raise self.broken
            self._told += len(frames)
            number = self._told
            self._outbox += frames
        self._send()
        with self._lock:
            if self.broken is not None:
                raise self.broken
            self.tide.tell(self._slot, number)
        return True

    def _send(self) -> None:
        """Return when all that is in the outbox now has gone out, by this thread or by another one."""
        with self._out:
            with self._lock:
                data = b"".join(self._outbox)
                self._outbox.clear()
            if not data:
                return
            try:
                self._socket.sendall(data)
            except OSError as bad:
                self._break(str(bad.strerror or bad))

    def _read(self, mine: _Call) -> None:
        """Read for all until `mine` is answered; then another one reads."""
        while not mine.done:
            try:
                data = self._socket.recv(1 << 18)
                if not data:
                    raise IndexFailure("the head has closed the connection")
                for number, kind, value in self._frames.feed(data):
                    with self._lock:
                        call = self._calls.pop(number, None)
                        if call is not None:
                            call.answer = (kind, value)
                            call.rouse()
            except OSError as bad:
                self._break(str(bad.strerror or bad))
            except IndexFailure as bad:
                self._break(str(bad))
        with self._lock:
            heir = next(iter(self._calls.values()), None)
            if heir is None:
                self._reading = False
            else:
                heir.rouse()

    def _break(self, why: str) -> None:
        """All that wait are told that the head is away."""
        with self._lock:
            if self.broken is None:
                self.broken = Away(f"{self._path}: {why}")
            self._outbox.clear()
            calls = list(self._calls.values())
            self._calls.clear()
            for call in calls:
                call.error = self.broken
                call.rouse()
        self._socket.close()

    def close(self) -> None:
        """Break it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._break("the connection is closed")
