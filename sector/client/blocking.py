"""The plain face of the cloud: calls that block, for scripts and notebooks.

The Twisted reactor runs in one daemon thread, started at the first `connect` with signals off. Ctrl-C in a
call cancels what runs and raises KeyboardInterrupt. After a fork a `Cloud` of the parent raises; `connect`
in the child starts anew.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.python.failure import Failure

from sector import errors
from sector.client.bars import bar
from sector.client.cloud import CloudClient
from sector.client.connect import open_client, settings
from sector.client.file import CloudReader, CloudWriter, Ranges, TextWriter, check_mode
from sector.client.progress import Moved, Progress, Summary
from sector.clock import steady
from sector.config import Config
from sector.model import FileInfo, check_path
from sector.threads import start_deaf
from sector.wire.admin import NodeInfo, StatusInfo
from sector.wire.base import Request
from sector.wire.files import Removed, Replicas

if TYPE_CHECKING:
    from sector._udt.trace import Trace


class ReactorThread:
    """The reactor of this process in a thread of its own."""

    _current: ReactorThread | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.reactor = _fresh_reactor()
        started = threading.Event()
        self.reactor.callWhenRunning(started.set)
        self.thread = threading.Thread(
            target=self.reactor.run,
            kwargs={"installSignalHandlers": False},
            name="sector-reactor",
            daemon=True,
        )
        start_deaf(self.thread)
        started.wait()

    @classmethod
    def get(cls) -> ReactorThread:
        """The running one of this process; started when there is none."""
        with cls._lock:
            if cls._current is None or cls._current.pid != os.getpid():
                cls._current = cls()
            return cls._current

    def wait(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a function in the reactor thread and wait for its result (or that of its Deferred or
        coroutine). KeyboardInterrupt cancels it first."""
        if threading.get_ident() == self.thread.ident:
            raise RuntimeError("a blocking call inside the reactor thread would wait for itself")
        if sys.is_finalizing():  # the thread has ended, and nobody would answer
            raise errors.UsageError("Python is ending: no call is answered any more", hint="call it before")
        outcome: Future[Any] = Future()
        running: list[Deferred[Any]] = []

        def begin() -> None:
            work = maybeDeferred(function, *args, **kwargs)
            running.append(work)
            work.addCallbacks(outcome.set_result, failed)

        def failed(failure: Failure) -> None:
            error = failure.value
            if isinstance(error, CancelledError):
                error = errors.Cancelled("cancelled")
            assert isinstance(error, BaseException)
            outcome.set_exception(error)

        def cancel() -> None:
            for work in running:
                work.cancel()
            if not running:  # the interruption came before it was begun
                outcome.cancel()

        try:
            self.reactor.callFromThread(begin)
            return outcome.result()
        except KeyboardInterrupt:
            self.reactor.callFromThread(cancel)
            with suppress(TimeoutError, KeyboardInterrupt, FutureCancelled):
                outcome.exception(timeout=5.0)
            raise


def _fresh_reactor() -> Any:
    """The process's reactor; in a forked child, whose parent ran one, a new one takes its place."""
    known = sys.modules.get("twisted.internet.reactor")
    if known is not None and getattr(known, "_started", False):
        owner = ReactorThread._current
        if owner is None or owner.pid == os.getpid():
            raise errors.UsageError(
                "a Twisted reactor runs in this process already",
                hint="use sector.client.connect.open_client with that reactor",
            )
        from twisted.internet import epollreactor, main

        del sys.modules["twisted.internet.reactor"]
        main.installReactor(epollreactor.EPollReactor())
    from twisted.internet import reactor

    return steady(reactor)


def connect(
    url: str | None = None,
    password: str | None = None,
    *,
    user: str | None = None,
    ca: str | None = None,
    config: Config | None = None,
) -> Cloud:
    """Connect to a cloud.

    `url` is "sector://USER@HOST:PORT"; without it the settings that `sector login` or `sector up` wrote
    count. `password` begins a new session; without it the stored session or the password file is used.
    `ca` names the cluster's CA certificate (PEM), if it is not in the settings. Raises LoginRefused,
    SessionExpired, Unreachable, BadConfig.

    >>> cloud = sector.connect()                                     # doctest: +SKIP
    >>> cloud.put("sdss1.dat", "/sdss/")                             # doctest: +SKIP
    """
    thread = ReactorThread.get()
    chosen = settings(url, user=user, ca=ca, config=config)
    client: CloudClient = thread.wait(open_client, thread.reactor, chosen, password=password)
    return Cloud(client, thread)


def when_forgotten(cloud: Any, client: CloudClient, thread: ReactorThread) -> weakref.finalize[Any, Any]:
    """Closes the ports of a connection that was dropped without `close`, as in a notebook's cell that runs
    again; `detach()` when it was closed."""
    forgotten = weakref.finalize(cloud, _drop, client, thread, os.getpid())
    forgotten.atexit = False
    return forgotten


def _drop(client: CloudClient, thread: ReactorThread, pid: int) -> None:
    if pid == os.getpid() and not sys.is_finalizing():
        thread.reactor.callFromThread(lambda: maybeDeferred(client.close).addErrback(lambda _: None))


class Cloud:
    """A connection to a cloud as one user. Made by `sector.connect`; use it in a `with` block or close it.

    Paths are absolute cloud paths ("/a/b.dat"); all errors are `sector.SectorError`s.
    """

    def __init__(self, client: CloudClient, thread: ReactorThread) -> None:
        self.client = client
        self._thread = thread
        self._closed = False
        self._forgotten = when_forgotten(self, client, thread)

    def __reduce__(self) -> Any:
        raise TypeError("a connection to a cloud cannot be pickled: call sector.connect() where it is used")

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<{self.client!r}{state}>"

    def __enter__(self) -> Cloud:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `function` in the reactor thread, wait for its result (or that of its Deferred or
        coroutine), and return it. What Sphere and the command line build on."""
        if self._thread.pid != os.getpid():
            raise errors.UsageError(
                "this connection belongs to the parent of a forked process",
                hint="call sector.connect() in the child",
            )
        if self._closed:
            raise errors.UsageError("this connection is closed", hint="call sector.connect() again")
        return self._thread.wait(function, *args, **kwargs)

    def call(self, request: Request, *, deadline_s: float = 10.0, patience_s: float = 0.0) -> Any:
        """Send any request to the master and return its reply."""
        return self.wait(self.client.call, request, deadline_s=deadline_s, patience_s=patience_s)

    def trace(self, records: int = 4096) -> Trace:
        """Record what the transport does in transfers that start from now on: the last `records` events.
        `trace().write(FILE)` at the end writes qlog-like JSON."""
        found: Trace = self.wait(self.client.trace, records)
        return found

    def running(self) -> dict[int, dict[str, int]]:
        """What the connections of running transfers have counted so far, by transfer."""
        return self.client.running()

    def close(self) -> None:
        """Close the connection; idempotent. The session stays valid."""
        if not self._closed and self._thread.pid == os.getpid() and not sys.is_finalizing():
            self.wait(self.client.close)
        self._closed = True
        self._forgotten.detach()

    @property
    def user(self) -> str:
        """Name of the user."""
        return self.client.user

    # ------------------------------------------------------------------------------------ name space
    def stat(self, path: str) -> FileInfo:
        """What the cloud knows of a path. Raises NotFound, Denied, BadPath."""
        info: FileInfo = self.wait(self.client.stat, path)
        return info

    def exists(self, path: str) -> bool:
        """Whether the path is a file or directory."""
        return bool(self.wait(self.client.exists, path))

    def ls(self, path: str = "/", *, recursive: bool = False) -> list[FileInfo]:
        """Entries of a directory (all below it if `recursive`) in order of path; a file lists itself."""
        found: list[FileInfo] = self.wait(self.client.ls, path, recursive=recursive)
        return found

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        """Make a directory; `parents`: and those above, and it may exist. Raises Exists, NotFound."""
        self.wait(self.client.mkdir, path, parents=parents)

    def mv(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename a file or directory; into `target` if that is a directory. Raises NotFound, Exists."""
        self.wait(self.client.mv, source, target, overwrite=overwrite)

    def rm(self, path: str, *, recursive: bool = False) -> Removed:
        """Remove a file or directory. Raises NotFound, NotEmpty (a directory, not recursive)."""
        removed: Removed = self.wait(self.client.rm, path, recursive=recursive)
        return removed

    def replicate(
        self,
        path: str,
        *,
        copies: int = 0,
        wait: bool = False,
        timeout_s: float | None = None,
        progress: Callable[[Replicas], None] | None = None,
    ) -> Replicas:
        """Bring a file, or all files of a directory, to `copies` replicas (0 = the configured minimum);
        with `wait` return when they are there. Raises NotFound, TimedOut."""
        state: Replicas = self.wait(
            self.client.replicate, path, copies=copies, wait=wait, timeout_s=timeout_s, progress=progress
        )
        return state

    def status(self) -> StatusInfo:
        """State of the cluster."""
        state: StatusInfo = self.wait(self.client.status)
        return state

    def nodes(self) -> list[NodeInfo]:
        """All slaves that the master knows."""
        found: list[NodeInfo] = self.wait(self.client.nodes)
        return found

    # ------------------------------------------------------------------------------------- transfers
    def put(
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
        """Store local files. A `remote` that is a directory or ends with "/" takes them by name, else it
        names the one file. `recursive` = directories with all below; `create` "new" = never replace; `follow`
        = take what symbolic links in directories lead to, else they are left out and a note of the summary
        says so; `parallel` files at once (None: 4, of those up to 1 MiB 32); `limit` bytes per second that
        this client sends meanwhile, all together (0 = no cap). `progress`: False = no bar (None = on a
        terminal or in a notebook), or a `Progress` to be told. Raises LocalIO, Exists, NoSpace, Denied,
        LeaseHeld, LeaseLost, Unavailable, Unreachable, UsageError (two files for one path)."""
        with bar("put", progress) as shown:
            summary: Summary = self.wait(
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

    def get(
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
        """Fetch files. A `local` that is a directory takes them by name, else it names the one file. Each
        appears complete and verified, or not at all. `limit` bytes per second, 0 = no cap. Raises
        NotFound, IsDirectory, Exists, Unavailable, Damaged, LocalIO, NoSpace."""
        with bar("get", progress) as shown:
            summary: Summary = self.wait(
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

    def read(self, path: str) -> bytes:
        """A whole file (up to 1 GiB) as bytes, verified."""
        body: bytes = self.wait(self.client.read, path)
        return body

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        """At most `length` bytes of a file from `offset`; fewer at its end, none beyond."""
        body: bytes = self.wait(self.client.read_at, path, offset, length)
        return body

    def write(self, path: str, content: bytes, *, create: str = "any") -> Moved:
        """Store bytes as a whole file. `create` "new" = never replace (Exists)."""
        moved: Moved = self.wait(self.client.write, path, content, create=create)
        return moved

    def open(
        self,
        path: str,
        mode: str = "rb",
        *,
        buffering: int = 1 << 20,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        limit: int = 0,
        progress: Progress | None = None,
    ) -> IO[Any]:
        """A file object: "rb" (one version, seekable, with read-ahead), "wb" (new version, published by
        close), "xb" (only if it does not exist); without "b" as text. `limit` bytes per second (0 = no cap)
        and `progress` as for `get` and `put`. Raises NotFound, IsDirectory."""
        kind, text = check_mode(mode)
        if kind == "r":
            info = self.stat(path)
            if info.kind != "file":
                raise _is_directory(path)
            reader = CloudReader(Ranges(self.client, info, limit, progress), self.wait)
            binary = io.BufferedReader(reader, max(buffering, 8192))
            return io.TextIOWrapper(binary, encoding or "utf-8", errors, newline) if text else binary
        if kind == "new" and self.exists(path):
            raise _exists(path)
        place = check_path(path)
        writer = CloudWriter(self.client, place, kind, self.wait, limit=limit, progress=progress)
        return cast("IO[Any]", TextWriter(writer, encoding or "utf-8", errors, newline) if text else writer)


def _is_directory(path: str) -> errors.SectorError:
    return errors.IsDirectory(f"{path} is a directory")


def _exists(path: str) -> errors.SectorError:
    return errors.Exists(f"{path} exists")


@contextmanager
def connected(
    config: Config, password: str | None = None, on_note: Callable[[str], None] | None = None
) -> Iterator[Cloud]:
    """A connection for the time of a `with` block (commands of the command line). `on_note` is told when
    messages leave UDP."""
    cloud = connect(config=config, password=password)
    cloud.client.link.session.on_note = on_note
    try:
        yield cloud
    finally:
        cloud.close()
