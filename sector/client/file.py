"""Binary file objects over the cloud: reading ranges of one version with read-ahead, writing whole files.

`Ranges` is the part on Deferreds; `CloudReader` and `CloudWriter` are ordinary Python file objects over a
function that waits for a Deferred.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from sector import errors
from sector.client.cloud import CloudClient
from sector.client.deferred import deferred
from sector.client.progress import FileProgress, Moved, Progress
from sector.model import BLOCK_BYTES, FileInfo

CACHE_BYTES = 64 << 20
MOST_AHEAD = 16 << 20

Wait = Callable[..., Any]


class Ranges:
    """Reads one version of a file in aligned windows that grow while reading goes on in order.

    At most 64 MiB are kept, and one window more is under way. `limit` bytes per second (0 = no cap) hold for
    who reads in order; `progress` is told how far that is.
    """

    def __init__(
        self, client: CloudClient, info: FileInfo, limit: int = 0, progress: Progress | None = None
    ) -> None:
        self.client = client
        self.info = info
        self._limit = limit
        self._progress = progress or Progress()
        self._progress.files_total += 1
        self._progress.bytes_total += info.size
        self._part = FileProgress(self._progress, info.path, info.size)
        self._told = -1
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._coming: dict[int, Deferred[bytes]] = {}
        self._window = BLOCK_BYTES
        self._next = 0

    @deferred
    async def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer at the end of the file."""
        end = min(self.info.size, offset + max(0, length))
        if offset >= end:
            self._tell(min(offset, end))
            return b""
        in_order = offset == self._next
        self._next = end
        self._window = min(MOST_AHEAD, self._window * 2) if in_order else BLOCK_BYTES
        parts: list[bytes] = []
        here = offset
        while here < end:
            start, body = await self._piece(here, end)
            parts.append(body[here - start : end - start])
            here = min(end, start + len(body))
        if in_order and end < self.info.size:
            self._fetch_ahead(end)
        self._tell(end)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _tell(self, end: int) -> None:
        if end <= self._told:
            return
        self._told = end
        if end == self.info.size:
            self._part.finish()
        else:
            self._part.at(end)

    def _ask(self, start: int, size: int) -> Deferred[bytes]:
        path, version = self.info.path, self.info.version
        limit, progress = self._limit, self._progress
        return self.client.read_at(path, start, size, version=version, limit=limit, progress=progress)

    def _find(self, at: int) -> int | None:
        for start, body in self._cache.items():
            if start <= at < start + len(body):
                return start
        return None

    async def _piece(self, at: int, end: int) -> tuple[int, bytes]:
        """A cached window that holds byte `at`."""
        start = self._find(at)
        if start is None and self._coming:
            first, coming = next(iter(self._coming.items()))
            if first <= at < first + MOST_AHEAD:
                await _after(coming)
                start = self._find(at)
        if start is not None:
            self._cache.move_to_end(start)
            return start, self._cache[start]
        start = at - at % BLOCK_BYTES
        wanted = max(self._window, -(-(end - start) // BLOCK_BYTES) * BLOCK_BYTES)
        size = min(wanted, 8 * MOST_AHEAD, self.info.size - start)
        body = await self._ask(start, size)
        if len(body) != size:
            raise errors.Conflict(f"{self.info.path} is shorter than {self.info.size} bytes")
        self._keep(start, body)
        return start, body

    def _keep(self, start: int, body: bytes) -> None:
        self._cache[start] = body
        held = sum(len(kept) for kept in self._cache.values())
        while held > CACHE_BYTES and len(self._cache) > 1:
            held -= len(self._cache.popitem(last=False)[1])

    def _fetch_ahead(self, at: int) -> None:
        found = self._find(at)
        if found is not None:
            at = found + len(self._cache[found])
        if (
            self._coming
            or at >= self.info.size
            or at > self._next + self._window
            or self._find(at) is not None
        ):
            return
        start = at - at % BLOCK_BYTES
        size = min(self._window, self.info.size - start)
        coming = self._ask(start, size)
        self._coming[start] = coming

        def arrived(body: bytes) -> None:
            if len(body) == size:
                self._keep(start, body)

        def ended(_: Any) -> None:
            self._coming.pop(start, None)

        coming.addCallback(arrived).addErrback(lambda _: None).addBoth(ended)

    def close(self) -> None:
        """Stop reading ahead, drop what is cached."""
        for coming in list(self._coming.values()):
            coming.cancel()
        self._cache.clear()


def _after(event: Deferred[Any]) -> Deferred[None]:
    """Fires when `event` has, whatever came; leaves its result alone."""
    turn: Deferred[None] = Deferred()

    def pass_on(result: Any) -> Any:
        if not turn.called:
            turn.callback(None)
        return result

    event.addBoth(pass_on)
    return turn


class CloudReader(io.RawIOBase):
    """A file of the cloud opened for reading: one version, whatever happens to the name meanwhile."""

    def __init__(self, ranges: Ranges, wait: Wait) -> None:
        """`wait(function, *args)` runs a function that returns a Deferred and waits for it."""
        super().__init__()
        self.name = ranges.info.path
        self.mode = "rb"
        self.info = ranges.info
        self._ranges = ranges
        self._wait = wait
        self._at = 0

    def __repr__(self) -> str:
        return f"<cloud file {self.name!r}, {self.info.size} bytes, at {self._at}>"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.info.size}.get(whence)
        if base is None:
            raise ValueError(f"whence {whence} is not 0, 1 or 2")
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._at = base + offset
        return self._at

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, without moving the position."""
        self._check()
        body: bytes = self._wait(self._ranges.read_at, offset, length)
        return body

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        body = self.read_at(self._at, len(view))
        view[: len(body)] = body
        self._at += len(body)
        return len(body)

    def readall(self) -> bytes:
        parts = []
        while part := self.read_at(self._at, 8 << 20):
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def close(self) -> None:
        if not self.closed:
            self._ranges.close()
        super().close()


class CloudWriter(io.RawIOBase):
    """A new version of a file: bytes collect in a local temporary file and are published by `close()`.

    Leaving a `with` block by an exception, or `discard()`, publishes nothing. `limit` and `progress` are as
    for a put, and count for `close()`.
    """

    def __init__(
        self,
        client: CloudClient,
        path: str,
        create: str,
        wait: Wait,
        *,
        limit: int = 0,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.name = path
        self.mode = "wb"
        self.limit = limit
        self.progress = progress
        self.published: Moved | None = None
        self._client = client
        self._create = create
        self._wait = wait
        self._spool = tempfile.TemporaryFile(prefix="sector-")  # noqa: SIM115
        self._discarded = False
        self._failed: OSError | None = None

    def __repr__(self) -> str:
        return f"<cloud file {self.name!r}, writing>"

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._spool.seek(offset, whence)

    def tell(self) -> int:
        return self._spool.tell()

    def write(self, body: Any, /) -> int:
        """As any file's. Once it failed, here or in a buffer above, nothing is published any more."""
        try:
            return self._spool.write(body)
        except OSError as error:
            self._failed = error
            raise

    def truncate(self, size: int | None = None, /) -> int:
        return self._spool.truncate(size)

    def drop(self) -> None:
        """Publish nothing at `close()`."""
        self._discarded = True

    def discard(self) -> None:
        """Publish nothing; close."""
        self.drop()
        self.close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.discard()
        super().__exit__(kind, error, trace)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if not self._discarded:
                if self._failed is not None:
                    why = self._failed.strerror or self._failed
                    raise errors.LocalIO(f"{self.name} was not published: its temporary file: {why}")
                self._spool.flush()
                size = self._spool.seek(0, os.SEEK_END)
                self.published = self._wait(self._put, self._spool.fileno(), size)
        finally:
            self._spool.close()
            super().close()

    def _put(self, fd: int, size: int) -> Deferred[Moved]:
        progress = self.progress or Progress()
        progress.files_total += 1
        progress.bytes_total += size
        return self._client.put_fd(
            fd, size, self.name, create=self._create, limit=self.limit, progress=progress
        )

    def __del__(self) -> None:
        # a forgotten writer must not publish half of a file at some later time
        self._discarded = True
        self._spool.close()


class _Buffer(io.BufferedWriter):
    """Collects small writes to a `CloudWriter`; if it is forgotten, nothing is published."""

    def __init__(self, writer: CloudWriter) -> None:
        self._writer = writer
        super().__init__(writer, 1 << 20)

    def __del__(self) -> None:
        self._writer.drop()
        with contextlib.suppress(OSError, ValueError):  # the writer may have gone before
            self.close()


class TextWriter(io.TextIOWrapper):
    """Text over a `CloudWriter`; left by an exception in its `with`, or forgotten, it publishes nothing."""

    def __init__(self, writer: CloudWriter, encoding: str, errors: str | None, newline: str | None) -> None:
        self._writer = writer
        super().__init__(_Buffer(writer), encoding, errors, newline)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._writer.drop()
        super().__exit__(kind, error, trace)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self.buffer is not None:  # ValueError: detached, it belongs to somebody else
                self._writer.drop()
                self.close()


def check_mode(mode: str) -> tuple[str, bool]:
    """("r" | "any" | "new", text?) for an open mode. Raises UsageError for others."""
    text = "b" not in mode
    kind = mode.replace("b", "").replace("t", "")
    what = {"r": "r", "w": "any", "x": "new"}.get(kind)
    if what is None:
        raise errors.UsageError(f"mode {mode!r} is not possible", hint="use r, w or x, with b for bytes")
    return what, text
