"""The same cloud with await: `cloud = await sector.aio.connect(...)`, then `await cloud.put(...)`.

Names and arguments are those of the blocking face. The reactor runs in its own thread, so that any asyncio
loop will do; cancelling a task cancels what it waits for.

>>> async def main():                                               # doctest: +SKIP
...     async with await connect() as cloud:
...         await cloud.put("sdss1.dat", "/sdss/")
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.python.failure import Failure

from sector import errors
from sector.client.bars import bar
from sector.client.blocking import ReactorThread, when_forgotten
from sector.client.cloud import CloudClient
from sector.client.connect import open_client, settings
from sector.client.file import Ranges
from sector.client.progress import Moved, Progress, Summary
from sector.config import Config
from sector.model import FileInfo
from sector.wire.admin import NodeInfo, StatusInfo
from sector.wire.base import Request
from sector.wire.files import Removed, Replicas

if TYPE_CHECKING:
    from sector._udt.trace import Trace

__all__ = ["AsyncReader", "Cloud", "connect"]


async def _wait(thread: ReactorThread, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function in the reactor thread; the running asyncio loop waits for its result."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    running: list[Deferred[Any]] = []

    def settle(result: Any) -> None:
        if outcome.done():
            return
        if not isinstance(result, Failure):
            outcome.set_result(result)
        elif result.check(CancelledError):
            outcome.set_exception(errors.Cancelled("cancelled"))
        else:
            error = result.value
            assert isinstance(error, BaseException)
            outcome.set_exception(error)

    def ended(result: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result)

    def begin() -> None:
        work = maybeDeferred(function, *args, **kwargs)
        running.append(work)
        work.addBoth(ended)

    def cancel() -> None:
        for work in running:
            work.cancel()

    thread.reactor.callFromThread(begin)
    try:
        return await outcome
    except asyncio.CancelledError:
        thread.reactor.callFromThread(cancel)
        raise


async def connect(
    url: str | None = None,
    password: str | None = None,
    *,
    user: str | None = None,
    ca: str | None = None,
    config: Config | None = None,
) -> Cloud:
    """Connect to a cloud; arguments and errors as of `sector.connect`."""
    thread = await asyncio.to_thread(ReactorThread.get)
    chosen = settings(url, user=user, ca=ca, config=config)
    client: CloudClient = await _wait(thread, open_client, thread.reactor, chosen, password=password)
    return Cloud(client, thread)


class Cloud:
    """A connection to a cloud as one user; every method is awaited. See `sector.Cloud`."""

    def __init__(self, client: CloudClient, thread: ReactorThread) -> None:
        self.client = client
        self._thread = thread
        self._closed = False
        self._forgotten = when_forgotten(self, client, thread)

    def __reduce__(self) -> Any:
        raise TypeError("a connection to a cloud cannot be pickled: connect where it is used")

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<{self.client!r}, asyncio{state}>"

    async def __aenter__(self) -> Cloud:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function` in the reactor thread and return its result (or that of its Deferred)."""
        if self._thread.pid != os.getpid():
            raise errors.UsageError(
                "this connection belongs to the parent of a forked process", hint="connect in the child"
            )
        if self._closed:
            raise errors.UsageError("this connection is closed", hint="connect again")
        return await _wait(self._thread, function, *args, **kwargs)

    async def call(self, request: Request, *, deadline_s: float = 10.0, patience_s: float = 0.0) -> Any:
        """Send any request to the master and return its reply."""
        return await self.wait(self.client.call, request, deadline_s=deadline_s, patience_s=patience_s)

    async def close(self) -> None:
        """Close the connection; idempotent."""
        if not self._closed and self._thread.pid == os.getpid():
            await self.wait(self.client.close)
        self._closed = True
        self._forgotten.detach()

    @property
    def user(self) -> str:
        """Name of the user."""
        return self.client.user

    async def stat(self, path: str) -> FileInfo:
        """What the cloud knows of a path."""
        info: FileInfo = await self.wait(self.client.stat, path)
        return info

    async def exists(self, path: str) -> bool:
        """Whether the path is a file or directory."""
        return bool(await self.wait(self.client.exists, path))

    async def ls(self, path: str = "/", *, recursive: bool = False) -> list[FileInfo]:
        """Entries of a directory in order of path."""
        found: list[FileInfo] = await self.wait(self.client.ls, path, recursive=recursive)
        return found

    async def mkdir(self, path: str, *, parents: bool = False) -> None:
        """Make a directory."""
        await self.wait(self.client.mkdir, path, parents=parents)

    async def mv(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename a file or directory."""
        await self.wait(self.client.mv, source, target, overwrite=overwrite)

    async def rm(self, path: str, *, recursive: bool = False) -> Removed:
        """Remove a file or directory."""
        removed: Removed = await self.wait(self.client.rm, path, recursive=recursive)
        return removed

    async def replicate(
        self,
        path: str,
        *,
        copies: int = 0,
        wait: bool = False,
        timeout_s: float | None = None,
        progress: Callable[[Replicas], None] | None = None,
    ) -> Replicas:
        """Bring a file to `copies` replicas."""
        state: Replicas = await self.wait(
            self.client.replicate, path, copies=copies, wait=wait, timeout_s=timeout_s, progress=progress
        )
        return state

    async def trace(self, records: int = 4096) -> Trace:
        """Record what the transport does in transfers that start from now on: the last `records` events.
        `write(FILE)` of the result, at the end, writes qlog-like JSON."""
        found: Trace = await self.wait(self.client.trace, records)
        return found

    async def running(self) -> dict[int, dict[str, int]]:
        """What the connections of running transfers have counted so far, by transfer."""
        found: dict[int, dict[str, int]] = await self.wait(self.client.running)
        return found

    async def status(self) -> StatusInfo:
        """State of the cluster."""
        state: StatusInfo = await self.wait(self.client.status)
        return state

    async def nodes(self) -> list[NodeInfo]:
        """All slaves that the master knows."""
        found: list[NodeInfo] = await self.wait(self.client.nodes)
        return found

    async def put(
        self,
        local: str | os.PathLike[str] | list[str],
        remote: str,
        *,
        recursive: bool = False,
        create: str = "any",
        follow: bool = False,
        parallel: int | None = None,
        limit: int = 0,
        progress: Progress | bool | None = None,
    ) -> Summary:
        """Store local files. A `progress` given is told in the reactor thread."""
        with bar("put", progress) as shown:
            summary: Summary = await self.wait(
                self.client.put,
                local,
                remote,
                recursive=recursive,
                create=create,
                follow=follow,
                parallel=parallel,
                limit=limit,
                progress=shown,
            )
        return summary

    async def get(
        self,
        remote: str | list[str],
        local: str | os.PathLike[str] = ".",
        *,
        recursive: bool = False,
        overwrite: bool = True,
        parallel: int | None = None,
        limit: int = 0,
        progress: Progress | bool | None = None,
    ) -> Summary:
        """Fetch files. A `progress` given is told in the reactor thread."""
        with bar("get", progress) as shown:
            summary: Summary = await self.wait(
                self.client.get,
                remote,
                local,
                recursive=recursive,
                overwrite=overwrite,
                parallel=parallel,
                limit=limit,
                progress=shown,
            )
        return summary

    async def read(self, path: str) -> bytes:
        """A whole file (up to 1 GiB) as bytes, verified."""
        body: bytes = await self.wait(self.client.read, path)
        return body

    async def read_at(self, path: str, offset: int, length: int) -> bytes:
        """At most `length` bytes of a file from `offset`; fewer at its end, none beyond."""
        body: bytes = await self.wait(self.client.read_at, path, offset, length)
        return body

    async def write(self, path: str, content: bytes, *, create: str = "any") -> Moved:
        """Store bytes as a whole file."""
        moved: Moved = await self.wait(self.client.write, path, content, create=create)
        return moved

    async def open(self, path: str) -> AsyncReader:
        """A file for reading at offsets, one version, with read-ahead."""
        info = await self.stat(path)
        if info.kind != "file":
            raise errors.IsDirectory(f"{path} is a directory")
        return AsyncReader(self, Ranges(self.client, info))


class AsyncReader:
    """One version of a file, read with await."""

    def __init__(self, cloud: Cloud, ranges: Ranges) -> None:
        self.info = ranges.info
        self._cloud = cloud
        self._ranges = ranges
        self._at = 0

    def __repr__(self) -> str:
        return f"<cloud file {self.info.path!r}, {self.info.size} bytes, at {self._at}>"

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer at the end."""
        body: bytes = await self._cloud.wait(self._ranges.read_at, offset, length)
        return body

    async def read(self, length: int = -1) -> bytes:
        """The next bytes, to the end of the file if `length` is negative."""
        size = self.info.size - self._at if length < 0 else length
        body = await self.read_at(self._at, size)
        self._at += len(body)
        return body

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._cloud.wait(self._ranges.close)
