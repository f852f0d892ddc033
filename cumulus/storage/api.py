"""The storage API: two abstract classes that a backend implements (specification: Cumulus, storage API).

A backend keeps named bytes in buckets, with a small record (`meta`) that changes in the same step as the
bytes. It knows nothing of S3: keys that no file system can name, versions, parts, rights and quotas are
above it, and reach it as plain names ("a/b.txt", ".cumulus/odd/<sha256>", ".cumulus/parts/<id>/1").

All methods block and are called from several worker threads at once. Names are relative, "/"-separated,
of non-empty segments other than "." and ".."; each segment at most 255 bytes of UTF-8. Errors are the
classes here; `permanent` says whether trying again can help.

With the capability `directories` a name may end in "/" where something is committed, copied, linked, read
and removed (not opened for writing): it has no bytes, and `BadName` is raised for a body with some.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

import msgspec

INTERNAL: Final = ".cumulus"  # first segment of names that are ours; never listed as keys
TOGETHER_MOST: Final = 64 << 10  # bytes of an object that is published with others
PIECE: Final = 1 << 20  # bytes that are held while one object is read into another
LATEST_NS: Final = (1 << 63) - (1 << 55)  # in 2261: indexes keep 64 bits, and later stamps are to be larger


def kept_time(ns: int) -> int:
    """A time of a file that others made, as entries have it: anybody may set it to the year 2446."""
    return min(max(ns, -LATEST_NS), LATEST_NS)


class StorageError(Exception):
    """A backend could not do what was asked; the message says what and where."""

    permanent: ClassVar[bool] = True


class Missing(StorageError):
    """No such bucket or name."""


class NoBucket(Missing):
    """No such bucket, also where a name in it is asked for. To who knows of one all the same this says
    nothing of what is in it."""


class Taken(StorageError):
    """The name cannot be used: a directory is where a file should be, or a file where a directory should."""


class Changed(StorageError):
    """`if_token` does not fit what is there (any more), or it changed while it was read."""


class NotEmptyStore(StorageError):
    """The bucket still has names."""


class BadName(StorageError):
    """This backend cannot hold that name."""


class NoSpace(StorageError):
    """Disk or quota of the storage below is full."""


class Forbidden(StorageError):
    """The storage below denies it (EACCES, EPERM)."""


class ReadOnly(StorageError):
    """The storage below is read-only."""


class Unavailable(StorageError):
    """The storage below does not answer, or failed in a way that may pass (EIO, a server away)."""

    permanent = False


class Absent:
    """Type of `ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent()  # as `if_token`: only if the name is free
Token = bytes
IfToken = Token | Absent | None  # None: whatever is there


def check_token(name: str, now: Token | None, if_token: IfToken) -> None:
    """Raises `Changed` if `if_token` does not fit `now`: the token of what is there, None if nothing is."""
    if if_token is None or now == if_token or (if_token is ABSENT and now is None):
        return
    raise Changed(f"{name!r} is there already" if if_token is ABSENT else f"{name!r} is not what it was")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored under a name.

    `token` changes whenever bytes or meta change, whoever changes them (a POSIX file: device, inode, size,
    mtime, ctime). `stamp` orders what was published under one name: a later one is larger. `meta` is the
    record given at the last commit, or None when the bytes were made or changed by someone else.
    """

    name: str
    size: int
    mtime_ns: int
    token: Token
    stamp: int
    meta: bytes | None = None


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do. Without `atomic_replace` the floor above gives each body a name of its own;
    without `plain_names` people do not see keys as names below; `outside` says that others may change
    files behind our back (then listings are renewed by scans); `offsets`, that `open_range` and `join` are
    there; `owners`, that `own_by` is; `together`, that `put_all` and `delete_all` cost less than one by one;
    `directories`, that a name like "a/" is the directory below, with a record, beside names in it; `users`,
    that `for_user` matters. Without `compares` an `if_token` holds within one process only, and the floor
    above sees to it that one at a time changes a name; without `lasts` nothing outlives the process."""

    atomic_replace: bool
    plain_names: bool
    meta: bool = True
    hardlink: bool = False
    concat: bool = False
    ranges: bool = True
    outside: bool = False
    offsets: bool = False
    owners: bool = False
    together: bool = False
    directories: bool = False
    users: bool = False
    compares: bool = True
    lasts: bool = True


class Whole(NamedTuple):
    """A small object to be published, with all its bytes, at most `TOGETHER_MOST`."""

    bucket: str
    name: str
    body: bytes | memoryview
    meta: bytes


class Piece(NamedTuple):
    """Some bytes of what has a name."""

    name: str
    offset: int
    size: int


class Sums(Protocol):
    """Checksums that take bytes on their way into a file (`sector._udt.md5.Md5`)."""

    def take(self, connection: int, file: int, room: memoryview, moment_s: float) -> int:
        """Receive from a connection, through `room`, and write at the file's position; how many bytes came.
        Raises `OSError` of the file."""


class RangeStream(ABC):
    """Bytes on their way into one range of a file that others fill beside it (`FileStore.open_range`). The
    range is this stream's until `close`, in all processes and servers. Not for several threads at once."""

    receives: bool = False  # whether `receive` may be called

    @abstractmethod
    def write(self, data: memoryview) -> None:
        """The next bytes of the range. Raises `NoSpace`, `Unavailable`, and `StorageError` beyond its end."""

    def receive(self, connection: int, sums: Sums, room: memoryview, moment_s: float) -> int:
        """As `write` of what `sums` take from a connection; how many bytes came."""
        raise NotImplementedError

    @abstractmethod
    def sync(self) -> None:
        """Return when all that was written, and the file's name, survive a power cut. Raises as `write`."""

    @abstractmethod
    def close(self) -> None:
        """Let the range go. What was not synced may or may not be there, but should take no room; then what
        the range had before is gone, too. May be called twice."""

    @abstractmethod
    def leave(self) -> None:
        """Let the range go, in which nothing was written, with what is there. May be called twice."""


class ObjectStream(ABC):
    """One open object. For reading: `read_at`, `sendable`, `close`. For writing: `write` any number of
    times, then `commit` or `abort`. Not for several threads at once; `close` and `abort` may be called
    twice."""

    entry: Entry  # of a stream opened for reading: what will be read, fixed at the time of opening

    @abstractmethod
    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes (fewer only at the end). Raises `Changed` when the bytes are no longer those
        of `entry`, which a replacement by rename never causes: readers finish on the old ones."""

    def read_now(self, offset: int, size: int) -> bytes | None:
        """`size` bytes, few, without waiting for a disk or a server, and the bytes read so far are those of
        `entry`; None: ask `read_at`, which also says what is wrong."""
        return None

    def sendable(self) -> tuple[int, int] | None:
        """(file descriptor, offset of the object in it) for sendfile(2), or None. Valid until `close`."""
        return None

    def unchanged(self) -> bool:
        """Whether the bytes read so far were those of `entry` (a file may be rewritten in place by others).
        Asked once after the last byte was sent."""
        return True

    receives: bool = False  # of a stream opened for writing: whether `receive` may be called

    @abstractmethod
    def write(self, data: memoryview) -> None:
        """Append. Raises `NoSpace`, `Unavailable`; the caller then aborts."""

    def receive(self, connection: int, sums: Sums, room: memoryview, moment_s: float) -> int:
        """Append what `sums` take from a connection; how many bytes came. Raises as `write`."""
        raise NotImplementedError

    @abstractmethod
    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        """Publish bytes and meta under the name in one step, replacing what is there, durably: when this
        returns, they survive a power cut. `name` instead of the one given at opening, in the same bucket.
        Raises `Changed` (if_token), `Taken`, `NoSpace`; nothing has changed then, and after `Changed` and
        `Taken` the stream can be committed again (under another name)."""

    @abstractmethod
    def abort(self) -> None:
        """Forget what was written."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds; an uncommitted write is aborted."""

    def close_now(self) -> bool:
        """Close a stream that was read, if nothing has to be waited for; False: nothing is done, `close`
        it."""
        return False


class ReadStream(ObjectStream):
    """One that is open for reading: a backend adds `read_at` and `close`."""

    def write(self, data: memoryview) -> None:
        raise StorageError("the stream is open for reading")

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        raise StorageError("the stream is open for reading")

    def abort(self) -> None:
        self.close()


class WriteStream(ObjectStream):
    """One that is open for writing: a backend adds `write`, `commit` and `abort`, which may be called after
    `commit`."""

    def read_at(self, offset: int, size: int) -> bytes:
        raise StorageError("the stream is open for writing")

    def close(self) -> None:
        self.abort()


class FileStore(ABC):
    """Named bytes in buckets."""

    capabilities: Capabilities

    @abstractmethod
    def create_bucket(self, bucket: str, path: str = "") -> None:
        """Make room for a bucket, durably; `path` adopts that directory with what is in it (backends without
        plain names raise `BadName`). No error when it is there already."""

    @abstractmethod
    def delete_bucket(self, bucket: str) -> None:
        """Remove a bucket in which nothing has a name, internal ones too. What is published beside it either
        keeps the bucket or fails with `Missing`. Raises `NotEmptyStore`, `Missing`, `Unavailable` (it is
        written to all the time)."""

    def has_buckets(self) -> bool | None:
        """Whether there are buckets; None: that is not known. An empty database beside some has been lost and
        is not made anew by itself, nor beside a backend that does not say."""
        return None

    def has_files(self, bucket: str, prefix: str = "") -> bool:
        """Whether there are names that begin with that, as `names` has them. A store that knows buckets by a
        mark of its own looks without it: others may have put a directory there."""
        with contextlib.suppress(Missing):
            return bool(self.names(bucket, prefix=prefix, limit=1))
        return False

    def check_bucket(self, bucket: str) -> None:  # noqa: B027 a backend need not know
        """Quickly, that the place of a bucket can be reached. Raises `NoBucket`, `Unavailable` if not."""

    def can_link(self, bucket: str) -> bool:
        """Whether `link` works there, which may be a matter of the bucket's disk. Raises `StorageError` where
        that cannot be tried."""
        return self.capabilities.hardlink

    def obstacle(self, bucket: str) -> str:
        """Something in the bucket that is no object and keeps it from being removed, as a path in it; "" if
        there is nothing. Raises `Missing`, `Unavailable`."""
        return ""

    def remove_hollow(self, bucket: str) -> None:  # noqa: B027 most have no directories
        """Remove directories in the bucket that others made and that have nothing in them. Raises `Missing`,
        `Unavailable`."""

    def forget_bucket(self, bucket: str) -> None:  # noqa: B027 most have nothing of that kind
        """Let go of the directory that a bucket has adopted, which may be gone, and leave it as it is.
        Nothing for other buckets."""

    @abstractmethod
    def names(self, bucket: str, after: str = "", prefix: str = "", limit: int = 1000) -> list[Entry]:
        """Names greater than `after` that begin with `prefix`, in order of their UTF-8 bytes, at most
        `limit`; internal names (first segment `INTERNAL`) only where `prefix` names them. Memory is bounded
        by `limit` and the largest directory's names."""

    def entries(self, bucket: str, prefix: str = "", limit: int = 1000) -> Iterator[list[Entry]]:
        """All that `names` gives, in order, at most `limit` at a time. What comes and goes meanwhile may be
        among them or not. Raises `Missing`, also while it is read. Here page by page; a store that lists
        whole directories should list each once."""
        after = ""
        while True:
            found = self.names(bucket, after, prefix, limit)
            if found:
                yield found
            if len(found) < limit:
                return
            after = found[-1].name

    def walk(self, bucket: str, limit: int = 1000) -> Iterator[list[str]]:
        """The names of all `entries`. A store whose files others change should do it in one pass."""
        for found in self.entries(bucket, limit=limit):
            yield [entry.name for entry in found]

    def look(self, bucket: str, names: Sequence[str], known: Mapping[str, Token]) -> dict[str, Entry | None]:
        """Of these names those whose token is not the one in `known`, None for what is not there (any
        more)."""
        found: dict[str, Entry | None] = {}
        for name in names:
            try:
                entry = self.stat(bucket, name)
            except Missing:
                found[name] = None
                continue
            if known.get(name) != entry.token:
                found[name] = entry
        return found

    @abstractmethod
    def stat(self, bucket: str, name: str) -> Entry:
        """Raises `Missing`."""

    @abstractmethod
    def delete(self, bucket: str, name: str, if_token: Token | None = None) -> int:
        """Remove, durably, and directories that this leaves empty and that we made; also when there is no
        room, by what `keep_room` has set aside. Returns the stamp of the removal (larger than that of what
        was there). Raises `Missing`, `Changed`."""

    def delete_all(self, bucket: str, names: Sequence[tuple[str, Token]]) -> list[int | StorageError]:
        """Remove different names, each only if it is still that: as `delete`, for each, in their order, the
        stamp of its removal or why it is there (nothing has changed then). Here one by one; a store that
        syncs should do it once for all. Raises `StorageError` where it is that of all of them."""
        found: list[int | StorageError] = []
        for name, token in names:
            try:
                found.append(self.delete(bucket, name, token))
            except StorageError as bad:
                found.append(bad)
        return found

    @abstractmethod
    def set_meta(self, bucket: str, name: str, meta: bytes, if_token: Token) -> Entry:
        """Replace the record alone, durably. Raises `Missing`, `Changed`."""

    def copy(
        self,
        source: ObjectStream,
        bucket: str,
        name: str,
        meta: bytes,
        if_token: IfToken = None,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> Entry:
        """Publish the bytes of an open stream of this store under another name, atomic and durable as
        `ObjectStream.commit`. `check` as in `join`. Here piece by piece; a store that shares blocks, or
        copies in the kernel, has its own."""
        writer = self.open_write(bucket, name, source.entry.size)
        try:
            pour(source, writer)
            check()
            return writer.commit(meta, if_token)
        finally:
            writer.close()

    def link(self, bucket: str, name: str, to: str) -> Entry:
        """A second name for the same bytes and meta, made durable with the next commit under `name`, whatever
        has had and lost that name before; where `capabilities.hardlink` is false, raises `BadName`."""
        raise BadName(f"this store cannot give {name!r} a second name")

    def concat(
        self,
        bucket: str,
        parts: Sequence[str],
        name: str,
        meta: bytes,
        if_token: IfToken = None,
        *,
        check: Callable[[], None] = lambda: None,
        size: int | None = None,
    ) -> Entry:
        """Publish the parts (names in this bucket) one after another under `name`, atomic and durable as
        `ObjectStream.commit`. The parts stay as they are: the floor above removes them once the index knows
        of the object. `check` as in `join`; `size` of them all, given where it is taken. Here piece by piece,
        as `copy`."""
        writer = self.open_write(bucket, name, size)
        try:
            for part in parts:
                source = self.open_read(bucket, part)
                try:
                    pour(source, writer)
                finally:
                    source.close()
            check()
            return writer.commit(meta, if_token)
        finally:
            writer.close()

    def open_range(
        self, bucket: str, name: str, offset: int, size: int, *, create: bool = True
    ) -> RangeStream | None:
        """Write bytes of a file at their place; `create`: it is made when it is not there. It is no object,
        and what is outside the ranges that were synced is undefined. None: somebody else writes there, or the
        file is being published, or is not there and not to be made, or the store has no `offsets`."""
        return None

    def join(
        self,
        bucket: str,
        pieces: Sequence[Piece],
        name: str,
        meta: bytes,
        if_token: IfToken = None,
        *,
        base: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> Entry:
        """Publish the pieces one after another under `name`, atomic and durable as `ObjectStream.commit`.
        `base`: a file of `open_range` of which only these pieces are needed; it may itself become the
        object. `check` is asked when the bytes are in place, before anybody sees them; what it raises ends
        it. A failure leaves all pieces as they were; else those outside `base` are still there afterwards.
        Raises `Missing` for a piece that is not there. Only with `offsets`."""
        raise BadName("this store has no ranges")

    @abstractmethod
    def open_read(self, bucket: str, name: str, token: Token | None = None) -> ObjectStream:
        """Raises `Missing`, or `Changed` when `token` is given and does not fit."""

    def open_now(self, bucket: str, name: str) -> ObjectStream | None:
        """The same without waiting for a disk, a lock or a server; None: ask `open_read`. Called in the
        thread that serves all connections."""
        return None

    @abstractmethod
    def open_write(self, bucket: str, name: str, size_hint: int | None = None) -> ObjectStream:
        """A stream whose bytes are seen by nobody until `commit`. `size_hint` is the size if it is known;
        space may be reserved by it."""

    def put_all(self, wholes: Sequence[Whole]) -> list[Entry | StorageError]:
        """Publish small objects under different names, each atomic and durable as `ObjectStream.commit`
        without a condition; for each, in their order, its entry or why it is not there (nothing has changed
        then). Here one by one; with `capabilities.together` at less cost than that."""
        return [self._put_whole(whole) for whole in wholes]

    def _put_whole(self, whole: Whole) -> Entry | StorageError:
        try:
            writer = self.open_write(whole.bucket, whole.name, len(whole.body))
            try:
                writer.write(memoryview(whole.body))
                return writer.commit(whole.meta)
            finally:
                writer.close()
        except StorageError as bad:
            return bad

    @abstractmethod
    def sweep(self, older_than_s: float) -> int:
        """Remove what broken writes left that is older than this; how many."""

    def sweep_gently(self, older_than_s: float, rest: Callable[[], bool]) -> int:
        """The same, while `rest` is called every few requests to what is below: others have their turn then.
        It ends when that returns True. Here without rests."""
        return self.sweep(older_than_s)

    @abstractmethod
    def recover(self) -> Iterator[tuple[str, Entry]]:
        """Called once at start, before anything else: finish or undo what a crash interrupted. Yields
        (bucket, entry) of everything published that the floor above may not have heard of; it may say too
        much. Until `recovered` is called the next start says all of it again."""

    def recover_beside(self) -> Iterator[tuple[str, Entry]]:
        """The same while this store and others serve, after another process of the server has died. What can
        only be told at a start is left to that."""
        return iter(())

    def recovered(self) -> None:
        """The floor above has all that `recover` said, durably."""
        return None

    def own_by(self, owner_of: Callable[[bytes], tuple[int, int] | None]) -> None:
        """`owner_of` says from a record to whom (uid, gid) the file of a new object belongs; None: to this
        process's account. One that replaces another keeps its owner. Only with `owners`."""
        return None

    def for_user(self, user: str) -> FileStore:
        """This store as far as that user of Cumulus ("" = nobody known) may use what is below: with `users`
        it acts there in his name, and raises `Forbidden` where he may not. To be closed is the first one."""
        return self

    def mark(self) -> int | None:
        """What is published from now on `recover` will tell after a crash, as long as `remembers(mark)`; so
        the floor above need not have it on disk. None: this store remembers nothing."""
        return None

    def remembers(self, mark: int) -> bool:
        """Whether what was published since that mark would still be told."""
        return False

    def before_forgetting(self, settle: Callable[[], None]) -> None:
        """`settle` is to be called before anything is forgotten that was published until then; if it raises
        a `StorageError`, all is remembered."""
        return None

    def keep_room(self) -> None:
        """Have a little room set aside, if there is some, for removals when there is none; called every
        second or so, and quick when it is there."""
        return None

    def make_room(self) -> bool:
        """After `NoSpace`, for what removes something: let go of a piece of that. False: nothing is left."""
        return False

    def close(self) -> None:
        """Make all that is left durable and give back what it holds."""
        return None


def pour(source: ObjectStream, writer: ObjectStream) -> None:
    """Write all of an open object into another stream. Raises `Changed` when it is not what it was, and what
    reading and writing raise."""
    offset, size = 0, source.entry.size
    while offset < size:
        data = source.read_at(offset, min(PIECE, size - offset))
        if not data:
            break
        writer.write(memoryview(data))
        offset += len(data)
    if offset < size or not source.unchanged():
        raise Changed(f"{source.entry.name!r} was changed while it was copied")
