"""Objects in a Sector cloud: `sector:` and the path of a client.toml, as `sector login` writes it.

An object's body is the plain file /s3/BUCKET/NAME, so that people, Sphere jobs and `sector get` read it as
it is. Its meta is a second file, a sidecar in /s3/BUCKET/.cumulus/meta/, whose name holds a digest of the
object's name and the Sector version of the body. The master draws that version with the write lease, before
a byte is sent. So the sidecar is written first, and both appear together when the body is published, which
is one step of the master's and replaces what was there; no temporary name is needed (a move would give the
body another version). A sidecar whose body never came, or has been replaced, belongs to nothing and is
swept. A footer would do with one file, but everybody else would read it as a part of the data.

Conditions of commits and of `set_meta` are checked while the lease is held, so they hold among all processes
and servers; a removal names the version that was looked at. A bucket goes in one step of the master's, if no
file is in it but sidecars and nobody holds a lease there. Stamps are versions: the master has one counter for
all paths. Objects of at most `KEEP` bytes are fetched when they are opened; a reader of a larger one that is
replaced meanwhile gets `Changed`: Sector keeps no old versions.
When a commit's deadline passes it is not known whether the object was published.
"""

from __future__ import annotations

import copy
import hashlib
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from cumulus.backends.sector_link import CALL_S, Link, UserLink
from cumulus.backends.sector_listing import META, ROOT, below, files, name_of, page_of
from cumulus.backends.sector_sidecar import MOST, Cache, Names, Sidecar
from cumulus.backends.sector_streams import KEEP, Reader, Writer
from cumulus.storage.api import (
    ABSENT,
    INTERNAL,
    BadName,
    Capabilities,
    Changed,
    Entry,
    FileStore,
    IfToken,
    Missing,
    NoBucket,
    NotEmptyStore,
    ObjectStream,
    StorageError,
    Token,
    Unavailable,
    check_token,
)
from cumulus.storage.names import check_bucket, check_name
from sector import errors
from sector.client.cloud import CloudClient
from sector.client.deferred import bounded
from sector.clock import pause
from sector.config import Config
from sector.model import FileInfo, Version
from sector.wire.files import LeaseDrop, OpenWrite

T = TypeVar("T")

_PIECE: Final = 1 << 20
_TOKEN: Final = struct.Struct(">QQQQ")
_COUNTED: Final = 1 << 16  # epochs below are no times
_SLOW: Final = 1e6  # bytes per second: a transfer below it is given up
_TRIES: Final = 40
_AT_ONCE: Final = 16
_PATIENCE_S: Final = 5.0  # with who writes to a bucket that is to go
_UNREAD: Final = 20  # records that cannot be read, of those looked at together: else nothing can be read
_FORSAKEN_S: Final = 86400.0  # a sidecar without a body may be that of an upload which goes on for so long


class SectorStore(FileStore):
    """`config` is that of a client (`sector.config.load_client`); its user needs the right rw on /s3. With
    `max_users` it also needs the role service, and users of Cumulus act as the Sector users of their names.
    The cloud is asked at the first call, not before."""

    def __init__(self, config: Config, max_users: int = 0) -> None:
        self.capabilities = Capabilities(
            atomic_replace=True, plain_names=True, concat=True, outside=True, users=max_users > 0
        )
        self._link: Link | UserLink = Link(config, max_users)
        self._names = Names()
        self._cache = Cache()

    def for_user(self, user: str) -> SectorStore:
        if not (self.capabilities.users and isinstance(self._link, Link)):
            return self
        store = copy.copy(self)
        store._link = UserLink(self._link, user)
        return store

    # paths

    def _place(self, bucket: str, name: str) -> str:
        segments = check_name(name)
        if segments[0] == INTERNAL and (len(segments) == 1 or segments[1] == "meta"):
            raise BadName(f"{name!r} is the store's own")
        return f"{ROOT}/{check_bucket(bucket)}/{name}"

    # what is there (coroutines for the reactor)

    async def _blob(self, client: CloudClient, path: str) -> tuple[bytes, Version]:
        """A sidecar, and its version; nothing of one that is too long to be ours: users of the cloud may
        write there. Raises NotFound, Conflict."""
        info = await client.stat(path)
        if info.size > MOST:
            return b"", info.version
        blob = self._cache.get((path, info.version))
        if blob is None:
            blob = await _read(client, path, 0, info.size, info.version)
            self._cache.put((path, info.version), blob)
        return blob, info.version

    async def _entry(self, client: CloudClient, bucket: str, name: str, info: FileInfo) -> Entry | None:
        """The entry of a body; None when it has been replaced in the meantime."""
        for _ in range(_TRIES):
            try:
                blob, version = await self._blob(client, _sidecar_path(bucket, name, info.version))
            except errors.NotFound:
                break
            except errors.Conflict:  # another meta came
                continue
            return _entry_of(name, info, Sidecar.decode(blob), version)
        if (now := await _file(client, info.path)) is None or now.version != info.version:
            return None
        return _entry_of(name, info, None, info.version)

    async def _look(self, client: CloudClient, bucket: str, name: str) -> tuple[Entry, FileInfo] | None:
        """What is there under a name; None for nothing, or a directory."""
        for _ in range(_TRIES):
            info = await _file(client, f"{ROOT}/{bucket}/{name}")
            if info is None:
                return None
            entry = await self._entry(client, bucket, name, info)
            if entry is not None:
                return entry, info
        raise errors.Busy(f"{name} is replaced all the time")

    async def _found(self, client: CloudClient, bucket: str, name: str) -> tuple[Entry, FileInfo]:
        found = await self._look(client, bucket, name)
        if found is None:
            raise await self._missing(client, bucket, name)
        return found

    async def _missing(self, client: CloudClient, bucket: str, name: str) -> Missing:
        """What to raise. Raises `NoBucket`: where all of it is away nothing is known of the object."""
        await self._check(client, bucket)
        return Missing(f"no {name!r} in bucket {bucket!r}")

    async def _check(self, client: CloudClient, bucket: str) -> None:
        try:
            await client.stat(f"{ROOT}/{check_bucket(bucket)}/{META}")
        except (errors.NotFound, errors.NotDirectory):
            raise NoBucket(f"no bucket {bucket!r}") from None

    # buckets

    def create_bucket(self, bucket: str, path: str = "") -> None:
        check_bucket(bucket)
        if path:
            raise BadName(f"a bucket in Sector is {ROOT}/{bucket}: move the directory there")
        if isinstance(self._link, UserLink):  # the root of all buckets is no user's
            self._link.link.call(lambda client: client.mkdir(ROOT, parents=True), ROOT)
        self._link.call(lambda client: client.mkdir(f"{ROOT}/{bucket}/{META}", parents=True), bucket)

    def delete_bucket(self, bucket: str) -> None:
        async def work(client: CloudClient) -> None:
            await self._check(client, bucket)
            end = client.clock.seconds() + _PATIENCE_S
            while client.clock.seconds() < end:
                for prefix in ("", f"{INTERNAL}/"):  # soon, while somebody writes; else the master looks
                    if await self._list(client, bucket, "", prefix, 1):
                        raise NotEmptyStore(f"bucket {bucket!r} has objects")
                try:
                    await client.rm_hollow(f"{ROOT}/{bucket}", META)
                    return
                except errors.NotEmpty:  # also files that our account may not read
                    raise NotEmptyStore(f"bucket {bucket!r} has objects") from None
                except errors.LeaseHeld:
                    await pause(client.clock, 0.05)
            raise Unavailable(f"bucket {bucket!r} is written to all the time")

        self._link.call(work, bucket)

    def has_buckets(self) -> bool:
        return any(info.kind == "dir" for info in self._link.call(lambda client: below(client, ROOT), ROOT))

    def has_files(self, bucket: str, prefix: str = "") -> bool:
        async def work(client: CloudClient) -> bool:
            try:
                return bool(await files(client, bucket, "", prefix, 1))
            except (errors.NotFound, errors.NotDirectory):
                return False

        return self._link.call(work, check_bucket(bucket))

    # names

    def names(self, bucket: str, after: str = "", prefix: str = "", limit: int = 1000) -> list[Entry]:
        async def work(client: CloudClient) -> list[Entry]:
            await self._check(client, bucket)
            return await self._list(client, bucket, after, prefix, limit)

        return self._link.call(work, bucket, CALL_S + limit / 20)

    async def _list(
        self, client: CloudClient, bucket: str, after: str, prefix: str, limit: int
    ) -> list[Entry]:
        found: list[Entry] = []
        while (left := limit - len(found)) > 0:
            infos = await files(client, bucket, after, prefix, left)
            works = [self._bind(client, bucket, name_of(bucket, info), info) for info in infos]
            found += [entry for entry in await bounded(_AT_ONCE, works) if entry is not None]
            if len(infos) < left:
                break
            after = name_of(bucket, infos[-1])
        return found

    def walk(self, bucket: str, limit: int = 1000) -> Iterator[list[str]]:
        async def work(client: CloudClient) -> list[str]:
            await self._check(client, bucket)
            return [name_of(bucket, info) for info in await files(client, bucket, after, "", limit)]

        after, more = "", True
        while more:
            found = self._link.call(work, bucket)
            if found:
                yield found
                after = found[-1]
            more = len(found) == limit

    def look(self, bucket: str, names: Sequence[str], known: Mapping[str, Token]) -> dict[str, Entry | None]:
        """Of some whose record cannot be read now (its replicas are on no slave) nothing is said."""
        unread: list[errors.SectorError] = []
        found: dict[str, Entry | None] = {}

        def one(client: CloudClient, name: str) -> Callable[[], Coroutine[Any, Any, None]]:
            async def work() -> None:
                try:
                    there = await self._look(client, bucket, name)
                except errors.Unavailable as error:
                    unread.append(error)
                    if len(unread) > _UNREAD:
                        raise
                    return
                if there is None:
                    found[name] = None
                elif known.get(name) != there[0].token:
                    found[name] = there[0]

            return work

        async def work(client: CloudClient) -> None:
            await bounded(_AT_ONCE, [one(client, name) for name in names])

        for name in names:
            self._place(bucket, name)
        self._link.call(work, bucket, CALL_S + len(names) / 20)
        return found

    def _bind(
        self, client: CloudClient, bucket: str, name: str, info: FileInfo
    ) -> Callable[[], Coroutine[Any, Any, Entry | None]]:
        async def work() -> Entry | None:
            entry = await self._entry(client, bucket, name, info)
            if entry is None and (found := await self._look(client, bucket, name)) is not None:
                return found[0]
            return entry

        return work

    def stat(self, bucket: str, name: str) -> Entry:
        self._place(bucket, name)
        return self._link.call(lambda client: self._found(client, bucket, name), name)[0]

    # changes

    def publish(self, bucket: str, name: str, fd: int, size: int, meta: bytes, if_token: IfToken) -> Entry:
        """Send `size` bytes of the file `fd` with their meta. Raises as `ObjectStream.commit`."""
        path = self._place(bucket, name)
        sidecar = Sidecar(name, time.time_ns(), meta)
        written: list[tuple[str, Version]] = []
        before: list[Version] = []

        async def granted(version: Version) -> None:
            await self._check(client_of[0], bucket)
            old = await self._replaced(client_of[0], bucket, name, if_token)
            before[:] = [old.version] if old else []
            beside = _sidecar_path(bucket, name, version)
            written.append((beside, await self._keep(client_of[0], beside, sidecar)))

        client_of: list[CloudClient] = []

        async def work(client: CloudClient) -> Entry:
            client_of[:] = [client]
            try:
                moved = await _patiently(client, lambda: client.put_fd(fd, size, path, granted=granted))
            except BaseException as error:
                self._forget(client, [one for one, _ in written], error)
                if isinstance(error, Missing):  # the lease made directories of a bucket that is gone
                    await _prune(client, ROOT, path)
                raise
            place = _sidecar_path(bucket, name, moved.version)
            useless = [one for one, _ in written if one != place]
            self._forget(client, useless + [_sidecar_path(bucket, name, one) for one in before])
            info = FileInfo(path, "file", size, moved.version, client.user, 0, 0.0, "")
            return _entry_of(name, info, sidecar, dict(written)[place])

        with self._names.lock(path):
            return self._link.call(work, name, CALL_S + size / _SLOW)

    async def _replaced(
        self, client: CloudClient, bucket: str, name: str, if_token: IfToken
    ) -> FileInfo | None:
        """The body that goes, if there is one. Its record is read only where that may keep it: it may be on
        no slave, and then this is how people get rid of it. Raises `Changed`."""
        if if_token is None or if_token is ABSENT:
            info = await _file(client, f"{ROOT}/{bucket}/{name}")
            check_token(name, None if info is None else b"", if_token)
            return info
        found = await self._look(client, bucket, name)
        check_token(name, None if found is None else found[0].token, if_token)
        return None if found is None else found[1]

    async def _keep(self, client: CloudClient, path: str, sidecar: Sidecar) -> Version:
        """Write a sidecar; its version."""
        blob = sidecar.encode()
        version: Version = (await client.write(path, blob)).version
        self._cache.put((path, version), blob)
        return version

    def _forget(self, client: CloudClient, paths: list[str], why: BaseException | None = None) -> None:
        """Remove sidecars in the background; what stays is swept. After a failure of which it is not known
        whether the body was published they must stay."""
        if why is not None and not isinstance(why, StorageError | errors.NoSpace | errors.Denied):
            return
        for path in paths:
            client.rm(path).addErrback(lambda _: None)

    def delete(self, bucket: str, name: str, if_token: Token | None = None) -> int:
        path = self._place(bucket, name)

        async def there(client: CloudClient) -> FileInfo:
            if if_token is None:  # as in `_replaced`
                info = await _file(client, path)
                if info is None:
                    raise await self._missing(client, bucket, name)
                return info
            entry, info = await self._found(client, bucket, name)
            check_token(name, entry.token, if_token)
            return info

        async def work(client: CloudClient) -> int:
            await there(client)

            async def check() -> tuple[FileInfo, Version]:
                return await there(client), held[0]

            held: list[Version] = []
            while True:
                info, version = await _leased(client, path, held, check)
                remove = partial(_remove, client, path, info.version)
                try:
                    await _patiently(client, remove)
                    break
                except errors.Conflict:  # published since; `check` says whether that may go too
                    continue
            self._forget(client, [_sidecar_path(bucket, name, info.version)])
            await _prune(client, f"{ROOT}/{bucket}", path)
            return _stamp(version)

        with self._names.lock(path):
            return self._link.call(work, name)

    def set_meta(self, bucket: str, name: str, meta: bytes, if_token: Token) -> Entry:
        path = self._place(bucket, name)

        async def work(client: CloudClient) -> Entry:
            await self._found(client, bucket, name)

            async def change() -> Entry:
                entry, info = await self._found(client, bucket, name)
                check_token(name, entry.token, if_token)
                sidecar = Sidecar(name, entry.mtime_ns, bytes(meta))
                beside = _sidecar_path(bucket, name, info.version)
                return _entry_of(name, info, sidecar, await self._keep(client, beside, sidecar))

            return await _leased(client, path, [], change)

        with self._names.lock(path):
            return self._link.call(work, name)

    # streams

    def fetch(self, path: str, offset: int, size: int, version: Version) -> bytes:
        """Bytes of exactly one version. Raises `Changed` when it is gone."""

        async def work(client: CloudClient) -> bytes:
            try:
                return await _read(client, path, offset, size, version)
            except errors.NotFound as gone:
                raise Changed(gone.message) from None

        body = self._link.call(work, path, CALL_S + size / _SLOW)
        if len(body) != size:
            raise Changed(f"{path} was changed while it was read")
        return body

    def open_read(self, bucket: str, name: str, token: Token | None = None) -> ObjectStream:
        path = self._place(bucket, name)
        for _ in range(_TRIES):
            entry, info = self._link.call(lambda client: self._found(client, bucket, name), name)
            if token is not None and token != entry.token:
                raise Changed(f"{name!r} is not what it was")
            try:
                body = self.fetch(path, 0, entry.size, info.version) if 0 < entry.size <= KEEP else b""
            except Changed:
                continue
            return Reader(self, path, entry, info.version, body)
        raise Unavailable(f"{name!r} is replaced all the time")

    def open_write(self, bucket: str, name: str, size_hint: int | None = None) -> ObjectStream:
        self._place(bucket, name)
        self._link.call(lambda client: self._check(client, bucket), bucket)
        return Writer(self, bucket, name)

    # upkeep

    def sweep(self, older_than_s: float) -> int:
        return self.sweep_gently(older_than_s, lambda: False)

    def sweep_gently(self, older_than_s: float, rest: Callable[[], bool]) -> int:
        """Sidecars whose body has been replaced or removed. Of some that cannot be read now nothing is
        said."""
        count, unread = 0, 0
        for bucket in self._link.call(lambda client: below(client, ROOT), ROOT):
            after, more = "", True
            while more:
                page, more = self._link.call(partial(page_of, f"{bucket.path}/{META}", after), bucket.path)
                for info in page:
                    after = info.path
                    if info.kind != "file" or info.mtime >= time.time() - older_than_s:
                        continue
                    try:
                        count += self._sweep_one(bucket.path.rpartition("/")[2], info)
                        unread = 0
                    except Unavailable:
                        unread += 1
                        if unread > _UNREAD:
                            raise
                    if rest():
                        return count
                if rest():
                    return count
        return count

    def _sweep_one(self, bucket: str, info: FileInfo) -> int:
        return self._link.call(lambda client: self._swept(client, bucket, info), info.path)

    async def _swept(self, client: CloudClient, bucket: str, info: FileInfo) -> int:
        """1 if the sidecar belonged to nothing and is gone."""
        try:
            sidecar = Sidecar.decode((await self._blob(client, info.path))[0])
            if sidecar is None:
                return 0
            _, epoch, counter = info.path.rsplit(".", 2)
            version = Version(int(epoch), int(counter))
            body = await _file(client, f"{ROOT}/{bucket}/{sidecar.name}")
            superseded = body is not None and body.version > version
            alone = body is None or body.version < version
            if superseded or (alone and info.mtime < time.time() - _FORSAKEN_S):
                await client.rm(info.path)
                return 1
        except (errors.NotFound, errors.Conflict, errors.LeaseHeld, ValueError):  # it is in use
            pass
        return 0

    def recover(self) -> Iterator[tuple[str, Entry]]:
        return iter(())  # a publication is one step of the master's

    def close(self) -> None:
        self._link.close()


async def _file(client: CloudClient, path: str) -> FileInfo | None:
    """The file at a path; None for nothing, or a directory."""
    try:
        info = await client.stat(path)
    except (errors.NotFound, errors.NotDirectory):
        return None
    return info if info.kind == "file" else None


async def _read(client: CloudClient, path: str, offset: int, size: int, version: Version) -> bytes:
    """Bytes of one version. While a slave gives a new one its name, neither can be read there: then the read
    is tried again. Raises NotFound, Conflict."""
    for _ in range(_TRIES):
        try:
            return await client.read_at(path, offset, size, version=version)
        except errors.Unavailable as error:
            now = (await client.stat(path)).version
            if now != version:
                raise errors.Conflict(f"{path} was replaced") from None
            trouble = error
        await pause(client.clock, 0.05)
    raise trouble


async def _patiently(client: CloudClient, ask: Callable[[], Awaitable[T]]) -> T:
    """Again while another writer holds the path, or a removal took the directory that was just made; the
    caller's deadline ends it."""
    wait_s, gone = 0.02, 0
    while True:
        try:
            return await ask()
        except errors.LeaseHeld:
            pass
        except errors.NotFound:
            gone += 1
            if gone == 5:
                raise
        await pause(client.clock, wait_s)
        wait_s = min(0.5, wait_s * 1.5)


async def _remove(client: CloudClient, path: str, version: Version) -> None:
    """Remove one version of a body. Raises NotFound, Conflict."""
    try:
        await client.rm_version(path, version)
    except errors.Protocol:  # a master that is older than this request
        await client.rm(path)


async def _leased(
    client: CloudClient, path: str, version: list[Version], work: Callable[[], Awaitable[T]]
) -> T:
    """Do the work while no one else can write, move or remove the path; `version` gets its next version."""
    grant = await _patiently(client, lambda: client.call(OpenWrite(path, 0)))
    version[:] = [grant.version]
    try:
        return await work()
    finally:
        await client.call(LeaseDrop(path, grant.lease))


async def _prune(client: CloudClient, root: str, path: str) -> None:
    """Remove the directories of our own that are empty now."""
    while (path := path.rpartition("/")[0]) not in (root, f"{root}/{INTERNAL}"):
        try:
            if (await client.stat(path)).owner != client.user:
                return
            await client.rm(path)
        except errors.SectorError:  # not empty, or in use
            return


def _sidecar_path(bucket: str, name: str, version: Version) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{ROOT}/{bucket}/{META}/{digest[:2]}/{digest}.{version.epoch}.{version.counter}"


def _stamp(version: Version) -> int:
    """In the order of versions, in 63 bits. Epochs are seconds of the clock (until 2106), and a counter of
    more than 31 bits is no matter, since it grows with them; small ones are of masters that counted their
    starts."""
    if version.epoch < _COUNTED:
        return version.epoch << 42 | version.counter
    return (version.epoch << 31) + version.counter


def _entry_of(name: str, info: FileInfo, sidecar: Sidecar | None, beside: Version) -> Entry:
    """`beside`: version of the sidecar, drawn after that of the body."""
    return Entry(
        name=name,
        size=info.size,
        mtime_ns=int(info.mtime * 1e9) if sidecar is None else sidecar.mtime_ns,
        token=_TOKEN.pack(info.version.epoch, info.version.counter, beside.epoch, beside.counter),
        stamp=_stamp(max(info.version, beside)),
        meta=None if sidecar is None else sidecar.meta,
    )
