"""The cloud as seen by one user: one implementation on Deferreds below the blocking and the awaiting face.

Every public method returns a Deferred that can be cancelled and errbacks with a SectorError. Paths are
absolute cloud paths ("/a/b"); times are seconds, sizes bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredSemaphore, ensureDeferred

from sector import errors
from sector._udt.data_api import Data
from sector.client.deferred import Work, bounded_by, deferred, uncut
from sector.client.local import make_folders_thd, read_all_thd, write_all_thd
from sector.client.progress import Moved, Progress, Summary
from sector.client.sending import Put
from sector.client.session import ClientSession
from sector.client.transfer import PATIENCE_S, Get, Granted, Link, Run, open_local_thd, part_at
from sector.client.tree import check_distinct, plan_tree_thd
from sector.client.unfinished import Unfinished
from sector.clock import pause
from sector.model import SMALL_BYTES, FileInfo, Version, check_path
from sector.wire.admin import NodeInfo, NodeList, Status, StatusInfo
from sector.wire.base import Request
from sector.wire.files import (
    List,
    Listing,
    Mkdir,
    Move,
    Remove,
    Removed,
    RemoveHollow,
    RemoveVersion,
    Replicas,
    Replicate,
    Stat,
)

if TYPE_CHECKING:
    from sector._udt.trace import Trace

PARALLEL = 4
SMALL_PARALLEL = 32
"""Files at once unless the caller says; those of at most SMALL_BYTES wait for disks, not for the line."""
MAX_READ = 1 << 30
TREE_S = 600.0
"""Deadline of calls that touch every file of a directory; a master that is away is noticed sooner."""


async def _at_once(parallel: int | None, works: list[tuple[int, Work[Moved]]]) -> list[Moved]:
    """Run works, each with the size of its file: `parallel` at once, or as many as fits their sizes."""
    large = DeferredSemaphore(parallel or PARALLEL)
    small = large if parallel else DeferredSemaphore(SMALL_PARALLEL)
    return await bounded_by((small if size <= SMALL_BYTES else large, work) for size, work in works)


def join(folder: str, name: str) -> str:
    """The cloud path of `name` in `folder`."""
    return f"{folder.rstrip('/')}/{name}"


class CloudClient:
    """Operations on the cloud over an open session.

    `session` calls the master, `data` is the data port, `run(function, *args)` runs a blocking function in
    a thread pool, `clock` the reactor; `unfinished` remembers puts that are killed. Sphere and the command
    line build on these.
    """

    def __init__(
        self, session: ClientSession, data: Data, run: Run, unfinished: Unfinished | None = None
    ) -> None:
        self.session = session
        self.data = data
        self.run = run
        self.clock = session.clock
        self.rpc = session.rpc
        self.gmp = session.gmp
        self.link = Link(session, data, run, unfinished=unfinished)
        self._on_close: list[Callable[[], Deferred[Any] | None]] = []
        self._after_close: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def __repr__(self) -> str:
        return f"Cloud({self.session.user}@{self.session.section.gmp})"

    @property
    def user(self) -> str:
        """Name of the user."""
        return self.session.user

    def on_close(self, function: Callable[[], Deferred[Any] | None]) -> None:
        """Call `function` when the client is closed."""
        self._on_close.append(function)

    def after_close(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `function` when both ports are closed."""
        self._after_close.append(function)

    def trace(self, records: int = 4096) -> Trace:
        """Record what the transport does in transfers that start from now on (over UDP): the last `records`
        events. See `Trace.write`. Raises UsageError on a transport without packets."""
        from sector._udt.data import DataPort
        from sector._udt.trace import Trace

        if not isinstance(self.data, DataPort):
            raise errors.UsageError("this transport has no packets to record")
        self.data.trace = Trace(records)
        return self.data.trace

    def running(self) -> dict[int, dict[str, int]]:
        """What the connections of running transfers have counted so far, by transfer."""
        from sector._udt.data import DataPort

        return self.data.running() if isinstance(self.data, DataPort) else {}

    @deferred
    async def close(self) -> None:
        """End transfers and close both ports. A session that is kept stays valid for later connections."""
        for function in self._on_close:
            ended = function()
            if ended is not None:
                await ended
        for _ in range(20):
            if not self.link.ending:
                break
            await pause(self.clock, 0.05)
        self.session.close()
        await self.data.stop()
        await self.gmp.stop()
        await self.session.end()
        for finish in self._after_close:
            await finish()

    @deferred
    async def call(self, request: Request, *, deadline_s: float = 10.0, patience_s: float = 0.0) -> Any:
        """Any request to the master; fires with its reply."""
        return await self.session.call(request, deadline_s=deadline_s, patience_s=patience_s)

    # ------------------------------------------------------------------------------------ name space
    @deferred
    async def stat(self, path: str) -> FileInfo:
        """What the cloud knows of a path. Errors: NotFound, Denied, BadPath."""
        reply = await self.session.call(Stat(check_path(path)))
        info: FileInfo = reply.info
        return info

    @deferred
    async def exists(self, path: str) -> bool:
        """Whether the path is a file or directory."""
        try:
            await self.session.call(Stat(check_path(path)))
        except errors.NotFound:
            return False
        return True

    @deferred
    async def ls(
        self, path: str = "/", *, recursive: bool = False, patience_s: float = 0.0
    ) -> list[FileInfo]:
        """Entries of a directory (all below it if `recursive`) in order of path; a file lists itself. Each
        page waits up to `patience_s` for a master that is away."""
        path = check_path(path)
        entries: list[FileInfo] = []
        after = ""
        while True:
            page: Listing = await self.session.call(List(path, recursive, after, 5000), patience_s=patience_s)
            entries.extend(page.entries)
            if not page.more or not page.entries:
                return entries
            after = page.entries[-1].path

    @deferred
    async def mkdir(self, path: str, *, parents: bool = False) -> None:
        """Make a directory; `parents`: and those above, and it may exist. Errors: Exists, NotFound."""
        await self._mkdir(check_path(path), parents)

    async def _mkdir(self, path: str, parents: bool, patience_s: float = 0.0) -> None:
        if path == "/":
            if parents:
                return
            raise errors.Exists("/ exists")
        try:
            await self.session.call(Mkdir(path, parents), patience_s=patience_s, repeat=parents)
        except errors.Exists:
            if not parents:
                raise
            there = await self.session.call(Stat(path), patience_s=patience_s)
            if there.info.kind != "dir":
                raise

    @deferred
    async def mv(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename a file or directory; into `target` if that is a directory. Errors: NotFound, Exists."""
        source, target, inside = check_path(source), check_path(target), target.endswith("/")
        if not inside:
            try:
                inside = (await self.session.call(Stat(target))).info.kind == "dir"
            except errors.NotFound:
                inside = False
        if inside:
            target = join(target, source.rsplit("/", 1)[1])
        await self.session.call(Move(source, target, overwrite), deadline_s=TREE_S)

    @deferred
    async def rm(self, path: str, *, recursive: bool = False) -> Removed:
        """Remove a file or directory. Errors: NotFound, NotEmpty (a directory, not recursive)."""
        removed: Removed = await self.session.call(Remove(check_path(path), recursive), deadline_s=TREE_S)
        return removed

    @deferred
    async def rm_hollow(self, path: str, scraps: str) -> Removed:
        """Remove a directory whose files are all in its directory `scraps`, in one step. Errors: NotFound,
        NotDirectory, NotEmpty, LeaseHeld."""
        removed: Removed = await self.session.call(RemoveHollow(check_path(path), scraps), deadline_s=TREE_S)
        return removed

    @deferred
    async def rm_version(self, path: str, version: Version) -> Removed:
        """Remove a file if that is its version. Errors: NotFound, IsDirectory, Conflict, LeaseHeld."""
        removed: Removed = await self.session.call(RemoveVersion(check_path(path), version))
        return removed

    @deferred
    async def replicate(
        self,
        path: str,
        *,
        copies: int = 0,
        wait: bool = False,
        timeout_s: float | None = None,
        progress: Callable[[Replicas], None] | None = None,
    ) -> Replicas:
        """Bring a file, or all files of a directory, to `copies` replicas (0 = the configured minimum)
        now; with `wait` fire when they are there, or errback with TimedOut after `timeout_s` seconds."""
        _check_number("copies", copies, 0)
        request = Replicate(check_path(path), copies)
        begin = self.clock.seconds()
        delay = 0.1
        while True:
            state: Replicas = await self.session.call(
                request, deadline_s=TREE_S, patience_s=60.0 if wait else 0.0
            )
            if progress is not None:
                progress(state)
            if not wait or state.have >= state.wanted:
                return state
            if timeout_s is not None and self.clock.seconds() - begin > timeout_s:
                raise errors.TimedOut(
                    f"{path} has {state.have} of {state.wanted} replicas after {timeout_s:g} s",
                    hint="copies go on in the background",
                )
            await pause(self.clock, delay)
            delay = min(1.0, delay * 1.5)

    @deferred
    async def status(self) -> StatusInfo:
        """State of the cluster."""
        state: StatusInfo = await self.session.call(Status())
        return state

    @deferred
    async def nodes(self) -> list[NodeInfo]:
        """All slaves that the master knows."""
        reply = await self.session.call(NodeList())
        found: list[NodeInfo] = reply.nodes
        return found

    # ------------------------------------------------------------------------------------- transfers
    @deferred
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
        progress: Progress | None = None,
    ) -> Summary:
        """Store local files. A `remote` that is a directory or ends with "/" takes them by name, else names
        the one file; missing directories are made. `recursive` = directories with all below; `create` "new" =
        never replace; `follow` = take what symbolic links in directories lead to, else they are left out and
        a note says so; `parallel` files at once (None: 4, of those up to 1 MiB 32); `limit` bytes per second
        that this client sends meanwhile, all together (0 = no cap). A file that was written to meanwhile is
        stored all the same, with a note and `changed` set in its part of the summary. Errors: LocalIO,
        Exists, NoSpace, Denied, LeaseHeld, LeaseLost, Unavailable, Unreachable."""
        if create not in ("any", "new"):
            raise errors.UsageError(f"create={create!r} is not possible", hint="use any or new")
        _check_number("parallel", 1 if parallel is None else parallel, 1)
        _check_number("limit", limit, 0)
        progress = progress or Progress()
        begin = self.clock.seconds()
        sources = [os.fspath(one) for one in local] if isinstance(local, list) else [os.fspath(local)]
        target, into = check_path(remote), remote.endswith("/")
        if len(sources) == 1 and not into and not recursive:
            alone = await self._put_alone(sources[0], target, create, progress, limit)
            if alone is not None:
                return self._summary([alone], begin, progress)
        try:
            into = (await self.session.call(Stat(target), patience_s=PATIENCE_S)).info.kind == "dir" or into
        except errors.NotFound:
            if into:
                await self._mkdir(target, True, PATIENCE_S)
        except errors.Denied:  # who may write but not read is believed; the master decides when it is opened
            pass
        if len(sources) > 1 and not into:
            raise errors.NotDirectory(f"{target} is no directory", hint="sector mkdir makes it")
        plan: list[tuple[str, str, int]] = []
        folders: list[str] = []
        for source in sources:
            found = await self.run(plan_tree_thd, source, recursive, follow)
            base = check_path(join(target, _name_of(source))) if into else target
            if found is None:
                size = (await self.run(os.stat, source)).st_size
                plan.append((source, base, size))
                continue
            for note in found.notes(source):
                progress.note(note)
            folders.append(base)
            for folder in found.folders:
                folders.append(check_path(join(base, folder)))
            for inner, size in found.files:
                plan.append((os.path.join(source, inner), check_path(join(base, inner)), size))
        check_distinct([(source, path) for source, path, _ in plan])
        for folder in folders:
            await self._mkdir(folder, True, PATIENCE_S)
        progress.files_total += len(plan)
        progress.bytes_total += sum(size for _, _, size in plan)
        progress.tell()
        free = self._limit(limit)
        try:
            moved = await _at_once(
                parallel,
                [(size, _bind(self._put_one, source, path, create, progress)) for source, path, size in plan],
            )
        finally:
            free()
        return self._summary(moved, begin, progress)

    def _limit(self, rate: int) -> Callable[[], None]:
        from sector._udt.data import DataPort

        if rate and isinstance(self.data, DataPort):
            return self.data.limit(rate)
        return lambda: None

    async def _put_alone(
        self, source: str, path: str, create: str, progress: Progress, limit: int
    ) -> Moved | None:
        """One file to a path that may turn out to be a directory (then None): no question before the lease,
        which saves a round trip."""
        size = (await self.run(os.stat, source)).st_size if await self.run(os.path.isfile, source) else -1
        if size < 0:
            return None
        progress.files_total += 1
        progress.bytes_total += size
        free = self._limit(limit)
        try:
            return await self._put_one(source, path, create, progress)
        except errors.IsDirectory:
            progress.files_total -= 1
            progress.bytes_total -= size
            return None
        finally:
            free()

    async def _put_one(self, source: str, path: str, create: str, progress: Progress) -> Moved:
        opening = self.run(open_local_thd, source)
        fd, size = await uncut(opening, lambda opened: os.close(opened[0]))
        try:
            before = await self.run(os.fstat, fd)
            moved = await Put(self.link, source, path, progress, resumable=True).run(fd, size, create)
            after = await self.run(os.fstat, fd)
            if (size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
                return moved
            progress.note(
                f"{source} changed while it was read: {path} may be part old, part new; put it again"
            )
            return replace(moved, changed=True)
        finally:
            os.close(fd)

    def _summary(self, moved: list[Moved], begin: float, progress: Progress) -> Summary:
        total = sum(one.size for one in moved)
        return Summary(moved, total, self.clock.seconds() - begin, progress.notes, progress.way)

    @deferred
    async def get(
        self,
        remote: str | list[str],
        local: str | os.PathLike[str] = ".",
        *,
        recursive: bool = False,
        overwrite: bool = True,
        parallel: int | None = None,
        limit: int = 0,
        progress: Progress | None = None,
    ) -> Summary:
        """Fetch files to this machine. A `local` that is a directory (or ends with "/") takes them by
        name, else it names the one file. Each file appears complete and verified, or not at all. `limit`
        bytes per second (0 = no cap): slaves send each of the files under way an equal part. Errors:
        NotFound, IsDirectory (not recursive), Exists, Unavailable, Damaged, LocalIO, NoSpace."""
        _check_number("parallel", 1 if parallel is None else parallel, 1)
        _check_number("limit", limit, 0)
        progress = progress or Progress()
        begin = self.clock.seconds()
        paths = [check_path(one) for one in ([remote] if isinstance(remote, str) else remote)]
        target = os.fspath(local)
        into = target.endswith(os.sep) or await self.run(os.path.isdir, target)
        if len(paths) > 1 and not into:
            raise errors.NotDirectory(f"{target} is no directory on this machine", hint="make it first")
        if len(paths) == 1 and not recursive:
            alone = await self._get_alone(paths[0], target, into, overwrite, progress, limit)
            return self._summary([alone], begin, progress)
        plan: list[tuple[FileInfo, str]] = []
        folders: list[str] = [target] if target.endswith(os.sep) else []
        for path in paths:
            info: FileInfo = (await self.session.call(Stat(path), patience_s=PATIENCE_S)).info
            base = os.path.join(target, path.rsplit("/", 1)[1]) if into else target
            if info.kind == "file":
                plan.append((info, base))
                continue
            if not recursive:
                raise _needs_r(path)
            folders.append(base)
            for entry in await self.ls(path, recursive=True, patience_s=PATIENCE_S):
                inner = entry.path[len(path.rstrip("/")) + 1 :]
                if entry.kind == "dir":
                    folders.append(os.path.join(base, inner))
                else:
                    plan.append((entry, os.path.join(base, inner)))
        check_distinct([(info.path, place) for info, place in plan])
        await self.run(make_folders_thd, folders)
        progress.files_total += len(plan)
        progress.bytes_total += sum(info.size for info, _ in plan)
        progress.tell()
        part = -(-limit // max(1, min(parallel or PARALLEL, len(plan)))) if limit else 0
        moved = await _at_once(
            parallel or (PARALLEL if limit else None),
            [
                (info.size, _bind(self._get_one, info.path, place, overwrite, progress, part))
                for info, place in plan
            ],
        )
        return self._summary(moved, begin, progress)

    async def _get_one(self, path: str, place: str, overwrite: bool, progress: Progress, limit: int) -> Moved:
        return await Get(self.link, path, place, progress, limit).to_file(place, overwrite=overwrite)

    async def _get_alone(
        self, path: str, target: str, into: bool, overwrite: bool, progress: Progress, limit: int
    ) -> Moved:
        """One file: its replica is asked for at once, which saves a round trip."""
        place = os.path.join(target, path.rsplit("/", 1)[1]) if into else target
        getting = Get(self.link, path, place, progress, limit)
        try:
            grant = await getting.open()
        except errors.IsDirectory:
            raise _needs_r(path) from None
        await self.run(make_folders_thd, [target] if target.endswith(os.sep) else [])
        progress.files_total += 1
        progress.bytes_total += grant.info.size
        progress.tell()
        return await getting.to_file(place, overwrite=overwrite, grant=grant)

    @deferred
    async def read_at(
        self,
        path: str,
        offset: int,
        length: int,
        *,
        version: Version = Version(0, 0),
        limit: int = 0,
        progress: Progress | None = None,
    ) -> bytes:
        """At most `length` bytes (up to 1 GiB) of a file from `offset`; fewer at its end, none beyond.
        `version` other than (0, 0): exactly that one, else Conflict. Goes on with another replica when a
        slave fails, with a note to `progress`. `limit` bytes per second (0 = no cap)."""
        _check_number("offset", offset, 0)
        _check_number("length", length, 0)
        _check_number("limit", limit, 0)
        if length > MAX_READ:
            raise errors.UsageError(f"{length} bytes at once are more than {MAX_READ}")
        get = Get(self.link, check_path(path), "memory", progress or Progress(), limit)
        return await self._read_range(get, offset, length, version)

    async def _read_range(self, get: Get, offset: int, length: int, version: Version) -> bytes:
        if length <= 0:
            await get.open(0, 1, version)
            return b""
        try:
            grant = await get.open(offset, min(length, part_at(offset)), version)
        except errors.BadPath:  # so the master says that `offset` is beyond the end
            info = (await get.open(0, 1, version)).info
            if offset < info.size:
                raise
            return b""
        size = max(0, min(length, grant.info.size - offset))
        if size == 0:
            return b""
        fd = os.memfd_create("sector-read", os.MFD_CLOEXEC)
        try:
            await get.parts(fd, grant, offset, size)
            body: bytes = await uncut(self.run(read_all_thd, fd, size))
            return body
        finally:
            os.close(fd)

    @deferred
    async def read(self, path: str) -> bytes:
        """A whole file (up to 1 GiB) as bytes, verified against its digest."""
        get = Get(self.link, check_path(path), "memory", Progress())
        grant = await get.open()
        if grant.info.size > MAX_READ:
            raise errors.UsageError(f"{path} is too large to be read at once", hint="use open or get")
        fd = os.memfd_create("sector-read", os.MFD_CLOEXEC)
        try:
            await get.whole(fd, grant)
            body: bytes = await uncut(self.run(read_all_thd, fd, grant.info.size))
            return body
        finally:
            os.close(fd)

    @deferred
    async def write(self, path: str, content: bytes, *, create: str = "any") -> Moved:
        """Store bytes as a whole file. `create` "new" = never replace (Exists)."""
        fd = os.memfd_create("sector-write", os.MFD_CLOEXEC)
        try:
            await uncut(self.run(write_all_thd, fd, content))  # a thread knows only the number
            return await self.put_fd(fd, len(content), path, create=create)
        finally:
            os.close(fd)

    def put_fd(
        self,
        fd: int,
        size: int,
        path: str,
        *,
        create: str = "any",
        limit: int = 0,
        progress: Progress | None = None,
        granted: Granted | None = None,
    ) -> Deferred[Moved]:
        """Store `size` bytes of an open local file, from its beginning, as `path`; `limit` as for `put`.
        `granted(version)` is awaited while the lease on the path is held and nothing is sent yet (again with
        each new lease); what it raises ends the put, and nothing has changed."""
        _check_number("limit", limit, 0)
        put = Put(self.link, path, check_path(path), progress or Progress(), granted)
        free = self._limit(limit)

        async def work() -> Moved:
            try:
                return await put.run(fd, size, create)
            finally:
                free()

        return ensureDeferred(work())


def _name_of(source: str) -> str:
    return os.path.basename(os.path.abspath(source))


def _bind(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: function(*args)


def _check_number(name: str, value: int, least: int) -> None:
    """Raises UsageError for an argument that is too small."""
    if value < least:
        raise errors.UsageError(f"{name}={value} is not possible", hint=f"{least} or more")


def _needs_r(path: str) -> errors.IsDirectory:
    return errors.IsDirectory(f"{path} is a directory", hint="use -r to get all that is in it")
