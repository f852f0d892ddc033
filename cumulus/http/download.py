"""The body of a download on its way to the client: by sendfile(2), or block by block from threads.

Both hold the last byte back until the stream has said that what was read is what was asked for; if not, the
connection is cut, so that no client takes a mixture for the object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.logger import Logger

from cumulus.http.pace import Transfer
from cumulus.http.pool import Failed, Pool
from cumulus.http.settings import TURN
from cumulus.http.transport import FileJob, S3Server
from cumulus.rest.call import Download

log = Logger()

Done = Callable[[bool], None]


def last_byte_thd(download: Download) -> bytes | None:
    """The last byte, or None when the bytes sent before it are not those of the entry. Blocks."""
    last = download.stream.read_at(download.offset + download.length - 1, 1)
    return last if len(last) == 1 and download.stream.unchanged() else None


def whole_thd(download: Download) -> tuple[bytes, bool]:
    """All of a small one, and whether it is true; closes the stream. Blocks; raises what `read_at` raises."""
    try:
        data = download.stream.read_at(download.offset, download.length)
        return data, len(data) == download.length and download.stream.unchanged()
    finally:
        download.stream.close()


class Sending:
    """One download. `done(whole)` is called once, from the reactor, when the last byte was given to the
    connection or when it must be cut; not after `stop`. The stream is closed once in each case, and the
    transfer ended."""

    def __init__(
        self, download: Download, pool: Pool, transfer: Transfer, write: Callable[[bytes], None], done: Done
    ) -> None:
        self._transfer = transfer
        self._download = download
        self._pool = pool
        self._write = write
        self._done = done
        self._busy = False
        self._over = False
        self.given = 0

    def start(self) -> None:
        """Begin, as soon as it may."""
        rest = self._transfer.took(0)
        if rest > 0:
            self._transfer.after(rest, self._start_unless_over)
        else:
            self._start()

    def _start_unless_over(self) -> None:
        if not self._over:
            self._start()

    def _start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """The client is gone."""
        self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._transfer.end()
            if not self._busy:
                self._close()

    def _close(self) -> None:
        if self._download.stream.close_now():
            return
        self._pool.must(self._download.stream.close, _note_failure)

    def _in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._busy = True
        self._pool.must(work, partial(self._back, then))

    def _back(self, then: Callable[[Any], None], outcome: Any) -> None:
        self._busy = False
        if self._over:
            self._close()
        else:
            then(outcome)

    def _last(self) -> None:
        """Without a change of threads where the byte is at hand."""
        download = self._download
        last = download.stream.read_now(download.offset + download.length - 1, 1)
        if last is not None:
            self._finish(last)
            return
        self._in_thread(partial(last_byte_thd, self._download), self._finish)

    def _finish(self, last: bytes | Failed | None) -> None:
        if isinstance(last, bytes):
            self.given += 1
            self._write(last)
        elif isinstance(last, Failed):
            log.warn("a download is cut: {why}", why=str(last.error))
        self._end()
        self._done(isinstance(last, bytes))


class FileSending(Sending):
    """By sendfile(2) from the stream's descriptor."""

    def __init__(
        self,
        download: Download,
        pool: Pool,
        transfer: Transfer,
        transport: S3Server,
        where: tuple[int, int],
        done: Done,
    ) -> None:
        super().__init__(download, pool, transfer, transport.write, done)
        self._job: FileJob | None = None
        self._transport = transport
        self._where = where

    def _start(self) -> None:
        """Give the file to the connection."""
        fd, begin = self._where
        count = self._download.length - 1
        if not count:
            self._last()
            return
        at, transfer = begin + self._download.offset, self._transfer
        turn = transfer.turn(TURN)
        self._job = FileJob(fd, at, count, self._rest_after, transfer.after, self._sent, turn)
        self._transport.send_file(self._job)

    def _rest_after(self, count: int) -> float:
        self.given += count
        rest = self._transfer.took(count)
        if self._job is not None:
            self._job.turn = self._transfer.turn(TURN)
        return rest

    def _sent(self, whole: bool) -> None:
        if self._over:
            return
        if whole:
            self._last()
        else:
            log.warn("a download is cut: the file became shorter or cannot be read")
            self._end()
            self._done(False)


class BlockSending(Sending):
    """Block by block: one is read in a thread while the one before it is taken by the client. It is the
    producer of the channel, which pauses it when the connection takes no more."""

    def __init__(
        self,
        download: Download,
        pool: Pool,
        transfer: Transfer,
        channel: Any,
        done: Done,
    ) -> None:
        super().__init__(download, pool, transfer, channel.write, done)
        self._channel = channel
        self._producing = False
        self._at = 0
        self._ready: bytes | None = None
        self._paused = False
        self._resting = False

    def _start(self) -> None:
        """Read the first block."""
        self._producing = True
        self._channel.registerProducer(self, True)
        self._read()

    def _read(self) -> None:
        if self._busy or self._ready is not None:
            return
        size = min(self._transfer.buffer(), self._download.length - 1 - self._at)
        if not size:
            if not self._paused and not self._resting:
                self._last()
            return
        read = partial(self._download.stream.read_at, self._download.offset + self._at, size)
        self._in_thread(read, partial(self._block, size))

    def _block(self, size: int, data: bytes | Failed) -> None:
        if isinstance(data, Failed) or len(data) != size:
            why = str(data.error) if isinstance(data, Failed) else "the object became shorter"
            log.warn("a download is cut: {why}", why=why)
            self._end()
            self._done(False)
            return
        self._at += size
        self._ready = data
        self._give()

    def _give(self) -> None:
        if self._paused or self._resting or self._over:
            return
        data, self._ready = self._ready, None
        if data is not None:
            self.given += len(data)
            pause = self._transfer.took(len(data))
            if pause > 0:
                self._resting = True
                self._transfer.after(pause, self._rested)
            self._write(data)
        self._read()

    def _rested(self) -> None:
        self._resting = False
        self._give()

    def pauseProducing(self) -> None:
        """The connection takes no more now."""
        self._paused = True

    def resumeProducing(self) -> None:
        """It takes more."""
        self._paused = False
        self._give()

    def stopProducing(self) -> None:
        """The connection is lost; `stop` comes from the request."""

    def _end(self) -> None:
        if self._producing:
            self._producing = False
            self._channel.unregisterProducer()
        super()._end()


def _note_failure(outcome: Any) -> None:
    if isinstance(outcome, Failed):
        log.warn("a stream could not be closed: {why}", why=str(outcome.error))
