"""The TCP connection below a channel: it reads a body straight into the buffer that will be written, and
sends files by sendfile(2), each connection a turn of bounded size.

Subclasses of Twisted's own port and server transport; with TLS above it they behave as those do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import termios
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from twisted.internet import main, tcp

from cumulus.http.door import LOOK_S, YIELD_S, Door
from cumulus.http.listening import RestingPort
from cumulus.http.pool import Failed
from cumulus.http.settings import TURN

_WARM = 256 * 1024


class Taker(Protocol):
    """Who wants the bytes of a connection in a buffer of its own."""

    def room(self) -> memoryview:
        """Where the next bytes go; empty: nowhere now, reading pauses."""

    def filled(self, count: int) -> None:
        """So many were put there."""


class FileJob:
    """`left` bytes of `fd` from `offset`. `rest(sent)` says how long to wait after a turn, the last one too,
    `after` does the waiting; `done(whole)` is called once: False when the file was shorter or could not be
    read. A turn is at most `turn` bytes."""

    __slots__ = ("_byte", "_known", "after", "done", "fd", "left", "offset", "rest", "resting", "turn")

    def __init__(
        self,
        fd: int,
        offset: int,
        left: int,
        rest: Callable[[int], float],
        after: Callable[[float, Callable[[], Any]], None],
        done: Callable[[bool], None],
        turn: int = TURN,
    ) -> None:
        self.fd = fd
        self.offset = offset
        self.left = left
        self.rest = rest
        self.after = after
        self.resting = False
        self.done = done
        self.turn = turn
        self._known = offset
        self._byte = bytearray(1)

    def cached(self) -> bool:
        """Whether the next pages are in memory, as far as the first and the last byte of the longest turn
        tell, once for all shorter ones in it; file systems that cannot tell count as such."""
        if self.offset < self._known:
            return True
        end = self.offset + min(self.left, TURN)
        byte = self._byte
        try:
            os.preadv(self.fd, [byte], self.offset, os.RWF_NOWAIT)
            os.preadv(self.fd, [byte], end - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            self._known = self.offset + self.left
            return True
        self._known = end
        return True

    def warm_thd(self) -> None:
        """Bring the pages of the longest turn into memory and have those behind them fetched; blocks."""
        end = self.offset + min(self.left, TURN)
        os.posix_fadvise(self.fd, end, 4 * TURN, os.POSIX_FADV_WILLNEED)
        scratch = bytearray(_WARM)
        for at in range(self.offset, end, _WARM):
            if not os.preadv(self.fd, [scratch], at):
                break
        self._known = end


class S3Server(tcp.Server):
    """A server connection. `sent` counts the bytes that the kernel has taken. What is written goes out at
    once when nothing waits before it: a small reply needs no turn of the reactor."""

    taker: Taker | None = None
    sent: int = 0
    halted: bool = False  # nothing is read
    _job: FileJob | None = None
    # how a blocking function is run, given by the factory of the port: run(work, done)
    in_thread: Callable[[Callable[[], Any], Callable[[Any], None]], None]

    @property
    def unsent(self) -> bool:
        """Whether something waits for the client to take it."""
        job = self._job
        return bool((job and not job.resting) or self.dataBuffer or self._tempDataBuffer)

    def taken(self) -> int:
        """How many bytes the client's side has taken: `sent` without what waits in the kernel, which holds
        megabytes for a slow reader and asks for more only when a third of them is gone (tcp(7), SIOCOUTQ)."""
        waiting = bytearray(4)
        try:
            fcntl.ioctl(self.socket, termios.TIOCOUTQ, waiting)
        except OSError:  # the connection is over
            return self.sent
        return self.sent - int.from_bytes(waiting, sys.byteorder)

    def waiting(self) -> int:
        """How many bytes the kernel has for us."""
        count = bytearray(4)
        try:
            fcntl.ioctl(self.socket, termios.FIONREAD, count)
        except OSError:  # the connection is over
            return 0
        return int.from_bytes(count, sys.byteorder)

    # reading
    def doRead(self) -> Any:
        """Into the taker's buffer when there is one."""
        taker = self.taker
        if taker is None:
            return super().doRead()
        room = taker.room()
        if not room:
            self.stopReading()
            return None
        try:
            count = self.socket.recv_into(room)
        except BlockingIOError:
            return None
        except OSError:
            return main.CONNECTION_LOST
        if not count:
            return main.CONNECTION_DONE
        taker.filled(count)
        return None

    def stopReading(self) -> None:
        """As the parent, noted."""
        self.halted = True
        super().stopReading()

    def startReading(self) -> None:
        """As the parent, noted."""
        self.halted = False
        super().startReading()

    # writing
    def write(self, data: bytes) -> None:
        """As the parent; what the kernel takes at once is not buffered. An error shows at the next turn."""
        waits = self.dataBuffer or self._tempDataBuffer or self._job
        if self.connected and not (waits or self._writeDisconnected or self.disconnected):
            try:
                count = self.socket.send(data)
            except OSError:
                count = 0
            self.sent += count
            if count == len(data):
                return
            data = data[count:]
        super().write(data)

    def writeSomeData(self, data: bytes) -> Any:
        """As the parent, counted."""
        count = super().writeSomeData(data)
        if isinstance(count, int):
            self.sent += count
        return count

    def send_file(self, job: FileJob) -> None:
        """Send it after what was written before; the first turn is now if nothing waits, and an error in it
        shows at the next. Nothing else is written until it is done."""
        self._job = job
        self.startWriting()
        if self.connected and not (self.dataBuffer or self._tempDataBuffer):
            self._turn(job)

    def doWrite(self) -> Any:
        """What was written first, then the file."""
        if self._job is None:
            return super().doWrite()
        if self.dataBuffer or self._tempDataBuffer:
            failed = super().doWrite()
            if failed is not None:
                return failed
            if self.dataBuffer or self._tempDataBuffer:
                return None
            self.startWriting()
        return self._turn(self._job)

    def _turn(self, job: FileJob) -> Any:
        if job.resting:
            self.stopWriting()
            return None
        if not job.cached():
            self.stopWriting()
            self.in_thread(job.warm_thd, partial(self._warmed, job))
            return None
        try:
            count = os.sendfile(self.fileno(), job.fd, job.offset, min(job.left, job.turn))
        except BlockingIOError:
            return None
        except OSError as failure:
            if failure.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ETIMEDOUT):
                return main.CONNECTION_LOST
            count = 0
        self.sent += count
        job.offset += count
        job.left -= count
        if not count:
            self._end(job, whole=False)
            return None
        pause = job.rest(count)
        if pause > 0:
            self.stopWriting()
            job.resting = True
            job.after(pause, partial(self._go_on, job))
        elif not job.left:
            self._end(job, whole=True)
        return None

    def _end(self, job: FileJob, *, whole: bool) -> None:
        self._job = None
        self.stopWriting()
        job.done(whole)

    def _warmed(self, job: FileJob, outcome: Any) -> None:
        if isinstance(outcome, Failed) and self._job is job and self.connected:
            self._end(job, whole=False)  # to read it once more might take as long, and block
        else:
            self._go_on(job)

    def _go_on(self, job: FileJob) -> None:
        job.resting = False
        if self._job is not job or not self.connected:
            return
        if job.left:
            self.startWriting()
        else:
            self._end(job, whole=True)

    def connectionLost(self, reason: Any) -> None:
        """As the parent; a file under way is forgotten (its owner hears of the loss by the protocol)."""
        self._job = None
        self.taker = None
        super().connectionLost(reason)


class S3Port(RestingPort):
    """A listening port whose connections are `S3Server`s. With a `door` it takes connections in turn with the
    other processes that wait for the same socket."""

    transport = S3Server
    door: Door | None = None
    _insists = False
    _until = 0.0
    _timer: Any = None

    def doRead(self) -> None:
        """Take a few; or none for now, if another process is to have them."""
        door = self.door
        room = 1 if door is None else door.room(self._insists)
        if room:
            self.numberAccepts = room
            self._insists = False
            super().doRead()
        elif door is not None:
            self.stopReading()
            self._until = self.reactor.seconds() + YIELD_S
            self._timer = self.reactor.callLater(LOOK_S, self._look, door)
            door.wait(self._come_back)

    def _look(self, door: Door) -> None:
        """What nobody has taken for long enough is taken here, if there is something and it may be."""
        late = self.reactor.seconds() >= self._until
        if not (late or door.room()):
            self._timer = self.reactor.callLater(LOOK_S, self._look, door)
            return
        if self._come_back() and late:
            self._insists = True
            self.reactor.callLater(YIELD_S / 10, self._yield)

    def _come_back(self) -> bool:
        """Look at the socket again; whether it is still open."""
        if self.door is not None:
            self.door.wait(None)
        if self._timer.active():
            self._timer.cancel()
        here = bool(self.connected and not self.disconnecting)
        if here:
            self.startReading()
        return here

    def _yield(self) -> None:
        self._insists = False
