"""The head's side of the index for worker processes: a Unix socket that only its owner may open.

A connection has a thread that reads and one that sends. What is answered from memory or by one look-up is
answered at once, by the thread that reads; changes go to the writer without a thread waiting for them, and
all answers that are ready go out in one write. What a worker only tells is not answered but counted (decision
0132). What a worker has reserved ends with its connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from cumulus.index import wire
from cumulus.index.api import Away, Directory, IndexFailure, NoSuch, Put, Reservation, reserve_each
from cumulus.index.sqlite import SqliteIndex

_log: Final = logging.getLogger(__name__)
_WAITING: Final = 1024  # calls of one connection at work; beyond it nothing more is read from it
_UNSENT: Final = 256 * 2**20  # bytes of answers that a worker has not read; beyond it the connection ends
_THREADS: Final = 16
PAUSE_S: Final = 0.1  # after which a connection that could not be taken is tried again


class IndexServer:
    """Serves until `close`. `path` is made anew; a socket that was left there is removed."""

    def __init__(self, index: SqliteIndex, directory: Directory, path: Path) -> None:
        """Raises `Away` when the socket cannot be made."""
        self.path = path
        self.index = index
        self.directory = directory
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="cumulus-index")
        self._sessions: set[_Session] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._complaint = ""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            index.share(wire.counters(path))
            self._listener.bind(str(path))  # nobody can connect before listen()
            path.chmod(0o600)
            self._listener.listen(256)
            self.pool.submit(int)  # one thread is there from now on, so that what waits is done by and by
        except (OSError, RuntimeError) as bad:
            self._listener.close()
            self.pool.shutdown()
            raise Away(f"{path}: {getattr(bad, 'strerror', None) or bad}") from None
        self._thread = threading.Thread(target=self._accept, name="cumulus-index", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as bad:  # too many files are open, say: a worker waits until there are fewer
                if not self._closed:
                    self._complain(f"{self.path}: {bad.strerror or bad}")
                    time.sleep(PAUSE_S)
                continue
            with self._lock:
                session = _Session(self, connection)
                if self._closed or not self._begin(session):
                    connection.close()
                    continue
                self._sessions.add(session)
                self._complaint = ""

    def _begin(self, session: _Session) -> bool:
        try:
            session.start()
        except RuntimeError as bad:  # there are too many threads
            session.end()
            self._complain(f"{self.path}: {bad}")
            return False
        return True

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            _log.error("a worker cannot be let in: %s; it is tried again", text)
        self._complaint = text

    def ended(self, session: _Session) -> None:
        """A session tells that it is over."""
        with self._lock:
            self._sessions.discard(session)

    def close(self) -> None:
        """End all connections; what they have reserved is given back. The index stays open."""
        with self._lock:
            self._closed = True
            sessions = list(self._sessions)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for session in sessions:
            session.end()
        for session in sessions:
            session.join()
        self.pool.shutdown()
        for path in (self.path, wire.counters(self.path)):
            with contextlib.suppress(OSError):
                os.unlink(path)


class _Session:
    """One connection of a worker process."""

    def __init__(self, server: IndexServer, connection: socket.socket) -> None:
        self._server = server
        self._index = server.index
        self._connection = connection
        self._reserved: dict[int, Reservation] = {}
        self._claimed: dict[str, str] = {}  # upload -> claimant
        self._slot: int | None = None  # of the counters
        self._taken = 0  # changes that were told and taken in
        self._slots = threading.Semaphore(_WAITING)
        self._outbox: list[bytes] = []
        self._unsent = 0
        self._ready = threading.Condition()
        self._sending = False  # somebody is at it, and will look again
        self._over = False
        self._threads = [
            threading.Thread(target=target, name="cumulus-index", daemon=True)
            for target in (self._send, self._read)
        ]

    def start(self) -> None:
        """Begin to serve."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Cut the connection."""
        with self._ready:
            self._over = True
            self._ready.notify_all()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait for its threads."""
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        frames = wire.Frames()
        try:
            while data := self._connection.recv(1 << 18):
                told: list[Put] = []
                for number, name, arguments in frames.feed(data):
                    if name == wire.TELL:
                        told.append(_told(arguments))
                        continue
                    self._tell(told)
                    told = []
                    self._call(number, name, arguments)
                self._tell(told)
                self._send_now()
        except (OSError, IndexFailure):
            pass
        self.end()
        self._threads[0].join()
        for _ in range(_WAITING):  # what is at work settles its own reservations
            self._slots.acquire()
        for reservation in list(self._reserved.values()):
            self._index.release(reservation)
        for upload, claimant in list(self._claimed.items()):
            with contextlib.suppress(IndexFailure):  # it has ended, or its claim ends by itself
                self._index.claim_upload(upload, claimant, 0.0)
        if self._slot is not None:
            self._index.tide.leave(self._slot)
        self._connection.close()
        self._server.ended(self)

    def _send(self) -> None:
        while True:
            with self._ready:
                while (self._sending or not self._outbox) and not self._over:
                    self._ready.wait()
                if self._over:
                    return
                data = b"".join(self._outbox)
                self._outbox.clear()
                self._sending = True
            try:
                self._connection.sendall(data)
            except OSError:
                self.end()
                return
            with self._ready:
                self._sending = False
                self._unsent -= len(data)

    def _send_now(self) -> None:
        """Send what is ready without another thread, unless one is at it; what the socket does not take at
        once is left to that thread."""
        with self._ready:
            if self._sending or self._over or not self._outbox:
                return
            data = b"".join(self._outbox)
            self._outbox.clear()
            self._sending = True
        try:
            sent = self._connection.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.end()
            return
        with self._ready:
            self._sending = False
            self._unsent -= sent
            if sent < len(data):
                self._outbox.insert(0, data[sent:])
            if self._outbox:
                self._ready.notify()

    def _answer(self, number: int, kind: str, value: Any, *, wake: bool = True) -> None:
        """Have it sent; without `wake` the caller sends."""
        try:
            data = wire.frame(number, kind, value)
        except IndexFailure as bad:
            data = wire.frame(number, *wire.error_value(bad))
        with self._ready:
            if self._over:
                return
            self._outbox.append(data)
            self._unsent += len(data)
            full = self._unsent > _UNSENT
            if wake:
                self._ready.notify()
        if full:
            self.end()

    def _failed(self, number: int, bad: BaseException, *, wake: bool = True) -> None:
        self._answer(number, *wire.error_value(bad), wake=wake)

    def _call(self, number: int, name: str, raw: msgspec.Raw) -> None:
        method = wire.METHODS.get(name)
        if method is None:
            raise IndexFailure(f"the index has no method {name}")
        try:
            arguments = wire.ARGUMENTS[name].decode(raw)
        except (msgspec.DecodeError, ValueError) as bad:
            raise IndexFailure(f"{name}: {bad}") from None
        if method.how == "now":
            self._run(number, name, arguments, wake=False)
            return
        self._slots.acquire()
        if method.how == "commit":
            self._apply(number, *arguments)
        else:
            with contextlib.suppress(RuntimeError):  # no further thread; it waits for those there are
                self._server.pool.submit(self._run_in_pool, number, name, arguments)

    def _tell(self, puts: list[Put]) -> None:
        """Have them taken in, in this order; nobody is told. Raises `Away`."""
        if not puts:
            return
        self._slots.acquire()
        try:
            self._take_in(puts)
        except IndexFailure:
            self._slots.release()
            raise

    def _take_in(self, puts: list[Put], last: bool = True) -> None:
        """`last`: nothing of the same message comes behind them. Raises `Away`."""

        def taken(bad: BaseException | None) -> None:
            if bad is not None and len(puts) > 1:
                with contextlib.suppress(Away):  # the head ends
                    for place, put in enumerate(puts, 1):  # one of them spoiled it for all
                        self._take_in([put], place == len(puts))
                    return
            if bad is not None and not isinstance(bad, NoSuch):  # else it went with its bucket
                _log.error("the index cannot take in an object: %s", bad)
            for put in puts:
                if bad is not None and put.reservation is not None:
                    self._index.release(put.reservation)  # no commit ends it
                self._settled(put.reservation)
            self._taken += len(puts)
            if self._slot is not None:
                self._index.tide.take(self._slot, self._taken)
            if last:
                self._slots.release()

        self._index.submit(puts, taken, soon=True, lazy=True)

    def _apply(self, number: int, altered: list[wire.Altered], soon: bool) -> None:
        def told(bad: BaseException | None) -> None:
            self._slots.release()
            if bad is not None:
                self._failed(number, bad)
                return
            for one in altered:
                self._settled(one.put.reservation if one.put else None)
            self._answer(number, "", None)

        try:
            self._index.submit([wire.change(one) for one in altered], told, soon=soon)
        except IndexFailure as bad:
            told(bad)

    def _run_in_pool(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._run(number, name, arguments)
        finally:
            self._slots.release()

    def _run(self, number: int, name: str, arguments: tuple[Any, ...], *, wake: bool = True) -> None:
        try:
            result = self._do(name, arguments)
        except Exception as bad:
            self._failed(number, bad, wake=wake)
        else:
            self._answer(number, "", result, wake=wake)

    def _do(self, name: str, arguments: tuple[Any, ...]) -> Any:
        index = self._index
        if wire.METHODS[name].directory:
            return getattr(self._server.directory, name)(*arguments)
        if name == "join":
            self._slot = index.tide.join()
            return self._slot
        if name in ("reserve", "reserve_all", "grow", "release", "put_part", "drop_upload"):
            return self._ledger(name, arguments)
        if name == "claim_upload":
            return self._claim(*arguments)
        return getattr(index, name)(*arguments)

    def _claim(self, upload: str, claimant: str, life_s: float) -> bool:
        """A claim ends with the worker that has it."""
        done = self._index.claim_upload(upload, claimant, life_s)
        if done and life_s:
            self._claimed[upload] = claimant
        elif self._claimed.get(upload) == claimant:
            del self._claimed[upload]
        return done

    def _ledger(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Calls after which a reservation begins or ends."""
        index = self._index
        if name == "reserve":
            made = index.reserve_now(*arguments)
            self._reserved[made.id] = made
            return made
        if name == "reserve_all":
            found = reserve_each(index.reserve_now, index.release, *arguments)
            self._reserved |= {one.id: one for one in found if isinstance(one, Reservation)}
            return [wire.to_held(one) for one in found]
        if name == "grow":
            index.grow_now(*arguments)
            return arguments[0]
        result = getattr(index, name)(*arguments)
        if name == "release":
            self._settled(arguments[0])
        elif name == "put_part":
            self._settled(arguments[2])
        elif name == "drop_upload" and result:
            self._claimed.pop(arguments[0], None)
            self._settled(arguments[1].reservation if arguments[1] is not None else None)
        return result

    def _settled(self, reservation: Reservation | None) -> None:
        if reservation is not None:
            self._reserved.pop(reservation.id, None)


def _told(raw: msgspec.Raw) -> Put:
    """Raises `IndexFailure`."""
    try:
        return wire.TOLD.decode(raw)[0]
    except (msgspec.DecodeError, ValueError) as bad:
        raise IndexFailure(f"{wire.TELL}: {bad}") from None
