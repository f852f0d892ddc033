"""The namespace's rules: paths, directories, write leases, versions, tombstones (design section 5).

Pure: each rule is a function over a `Tx`, one transaction on whatever holds the rows (`store.py` has SQL). A
rule looks first and changes afterwards, so that a refusal changes nothing. Times are seconds since 1970,
sizes bytes. Versions come from one counter for the whole namespace, hence a later one is newer on every path.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sector.errors import (
    BadPath,
    Conflict,
    Exists,
    IsDirectory,
    LeaseHeld,
    LeaseLost,
    NotDirectory,
    NotEmpty,
    NotFound,
)
from sector.model import FileInfo, SliceMeta, Version, check_path, is_below, parent

FILE, DIR = "file", "dir"
OPEN, PUBLISHED, LOST = "open", "published", "lost"
ZERO = Version(0, 0)
SYSTEM = "system"
FILE_MODE, DIR_MODE = 0o644, 0o755
KEEP_PUBLISHED_S = 86400.0
MAX_PATH_BYTES = 4096
MAX_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory. `copies` is the number of replicas a user asked for, 0 = as configured."""

    path: str
    kind: str
    size: int
    version: Version
    owner: str
    mode: int
    mtime: float
    digest: str
    copies: int = 0

    @property
    def is_dir(self) -> bool:
        return self.kind == DIR


ROOT = Entry("/", DIR, 0, ZERO, SYSTEM, DIR_MODE, 0.0, "")


@dataclass(frozen=True, slots=True)
class Replica:
    """Content on a slave. `version` other than the entry's = an older one. `bad` = found unreadable.
    While the slave has not yet confirmed a rename, it knows the content as `old_path` at `old_version`, or,
    once it was told of it, as `sent_path` at `sent_version`: the present name, or one between the two."""

    node: str
    version: Version
    confirmed: float
    bad: bool = False
    old_path: str = ""
    old_version: Version = ZERO
    sent_path: str = ""
    sent_version: Version = ZERO


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right to publish the next version of a path, from slave `node`. `id` 16 bytes."""

    id: bytes
    path: str
    node: str
    version: Version
    size: int
    user: str
    owner: str
    mode: int
    expires: float
    state: str = OPEN


@dataclass(frozen=True, slots=True)
class Totals:
    """What lies at or below a path; `longest` in bytes of UTF-8."""

    files: int
    bytes: int
    longest: int


class Tx(Protocol):
    """One transaction on the namespace: reads see the writes before them."""

    def entry(self, path: str) -> Entry | None:
        """The row of a path (the root has none)."""

    def tombstone(self, path: str) -> Version | None:
        """Content of this version or older was deleted from the path."""

    def replicas(self, path: str) -> list[Replica]:
        """All replicas of the entry, in order of node."""

    def replicas_of(self, paths: Sequence[str]) -> dict[str, list[Replica]]:
        """The same for many paths; those without replicas may be absent."""

    def moving(self, node: str, path: str, version: Version) -> bool:
        """Whether the slave knows some entry's content still by this name and version."""

    def lease(self, lease_id: bytes) -> Lease | None:
        """A lease in any state."""

    def lease_on(self, path: str) -> Lease | None:
        """The open lease on exactly this path."""

    def leased_below(self, path: str, now: float) -> str | None:
        """A path at or below with an open lease that has not expired."""

    def has_children(self, path: str) -> bool:
        """Whether a directory has entries."""

    def has_files(self, path: str, but: str) -> bool:
        """Whether files are below a directory and not below another one."""

    def totals(self, path: str) -> Totals:
        """Sums over the entry and all below."""

    def listing(self, path: str, recursive: bool, after: str, limit: int) -> list[Entry]:
        """Entries of a directory (or all below it) with a path greater than `after`, in order of path."""

    def draw(self) -> Version:
        """A version newer than all before."""

    def advance(self, version: Version) -> None:
        """From now on versions that are drawn are newer than this one too."""

    def put_entry(self, entry: Entry) -> None:
        """Insert or replace; replicas stay. A tombstone that is older than the entry goes."""

    def forget_entry(self, path: str) -> None:
        """Delete the row and its replica rows, and nothing else."""

    def put_replica(self, path: str, replica: Replica) -> None:
        """Insert or replace the row of (path, replica.node)."""

    def drop_replica(self, path: str, node: str) -> None:
        """Forget that the node holds the path."""

    def put_tombstone(self, path: str, version: Version, at: float, directory: bool) -> None:
        """Insert, or raise the version of the one that is there."""

    def remove_tree(self, path: str, version: Version, at: float) -> None:
        """Delete entry and all below; leave tombstones of `version`; queue the content of every replica
        for deletion on its slave; end leases."""

    def move_tree(self, source: str, target: str, version: Version, at: float) -> None:
        """Rename entry and all below; every row gets `version`; the old names get tombstones of it;
        replicas remember the name their slave knows."""

    def discard(self, path: str, node: str, version: Version, at: float) -> None:
        """Queue content not newer than `version` for removal on the node, without a tombstone."""

    def doomed(self, path: str, node: str, version: Version) -> bool:
        """Whether the node has still to remove content of this version."""

    def put_lease(self, lease: Lease) -> None:
        """Insert or replace by id."""

    def drop_lease(self, lease_id: bytes) -> None:
        """Forget a lease."""

    def set_copies(self, path: str, copies: int) -> None:
        """Set `copies` of every file at or below."""


# looking ----------------------------------------------------------------------------------------------
def find(tx: Tx, path: str) -> Entry | None:
    """The entry of a canonical path; the root always exists."""
    return ROOT if path == "/" else tx.entry(path)


def get(tx: Tx, path: str) -> Entry:
    """The entry of a path. Raises `NotFound`, or `NotDirectory` when a file is in the way."""
    entry = find(tx, path)
    if entry is None:
        above = find(tx, parent(path))
        if above is not None and not above.is_dir:
            raise NotDirectory(f"{above.path} is a file")
        raise NotFound(f"{path} does not exist")
    return entry


def info_of(entry: Entry, replicas: Sequence[Replica] = ()) -> FileInfo:
    """What users see of an entry; replicas of older versions and bad ones do not count."""
    nodes = [r.node for r in replicas if r.version == entry.version and not r.bad][:MAX_REPLICAS]
    return FileInfo(
        entry.path,
        entry.kind,
        entry.size,
        entry.version,
        entry.owner,
        entry.mode,
        entry.mtime,
        entry.digest,
        nodes,
    )


def meta_of(entry: Entry) -> SliceMeta:
    """What a slave keeps beside the file. A directory has the digest "dir"."""
    digest = DIR if entry.is_dir else entry.digest
    return SliceMeta(entry.path, entry.version, entry.size, entry.owner, entry.mode, entry.mtime, digest)


def stat(tx: Tx, path: str) -> tuple[Entry, list[Replica]]:
    """Entry and replicas. Raises `NotFound`, `BadPath`."""
    entry = get(tx, check_path(path))
    return entry, [] if entry.is_dir else tx.replicas(entry.path)


def list_entries(tx: Tx, path: str, recursive: bool, after: str, limit: int) -> tuple[list[FileInfo], bool]:
    """A page of a directory, and whether there is more; a file lists itself. Raises `NotFound`."""
    entry = get(tx, check_path(path))
    if not entry.is_dir:
        return ([] if after >= entry.path else [info_of(entry, tx.replicas(entry.path))]), False
    page = tx.listing(entry.path, recursive, after, limit + 1)
    more = len(page) > limit
    held = tx.replicas_of([e.path for e in page[:limit] if not e.is_dir])
    return [info_of(e, held.get(e.path, [])) for e in page[:limit]], more


# directories ------------------------------------------------------------------------------------------
def _missing(tx: Tx, path: str) -> list[str]:
    """Directories of the chain up to `path` that do not exist, upmost first. Raises `NotDirectory`."""
    missing = []
    while (entry := find(tx, path)) is None:
        missing.append(path)
        path = parent(path)
    if not entry.is_dir:
        raise NotDirectory(f"{entry.path} is a file")
    return missing[::-1]


def _make(tx: Tx, paths: Sequence[str], owner: str, now: float) -> None:
    for path in paths:
        tx.put_entry(Entry(path, DIR, 0, tx.draw(), owner, DIR_MODE, now, ""))


def _not_written(tx: Tx, paths: Sequence[str], now: float) -> None:
    """Raises `LeaseHeld` if a name that is to become a directory is being written. Late leases go."""
    leases = [lease for path in paths if (lease := tx.lease_on(path)) is not None]
    for lease in leases:
        if lease.expires > now:
            raise LeaseHeld(f"{lease.path} is being written")
    for lease in leases:
        tx.drop_lease(lease.id)


def _no_lease(tx: Tx, path: str, now: float) -> None:
    held = tx.leased_below(path, now)
    if held is not None:
        raise LeaseHeld(f"{held} is being written")


def make_directory(tx: Tx, path: str, parents: bool, owner: str, now: float) -> None:
    """mkdir. With `parents` an existing directory is fine. Raises `Exists`, `NotFound`, `NotDirectory`,
    `LeaseHeld`."""
    path = check_path(path)
    entry = find(tx, path)
    if entry is not None:
        if parents and entry.is_dir:
            return
        raise Exists(f"{path} exists")
    missing = _missing(tx, path)
    if len(missing) > 1 and not parents:
        raise NotFound(f"{parent(path)} does not exist", hint="mkdir -p makes the directories above too")
    _not_written(tx, missing, now)
    _make(tx, missing, owner, now)


# writing ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class WriteRequest:
    """What open_write needs: `id` the lease to make; `resume` b"" or the lease to continue; `version`
    is drawn here, the slave `node` was chosen before ("" = that of the lease to continue)."""

    path: str
    size: int
    user: str
    node: str
    id: bytes
    lease_s: float
    create: str = "any"
    resume: bytes = b""
    parents: bool = False
    mode: int = FILE_MODE


def _resumed(tx: Tx, want: WriteRequest, path: str) -> Lease:
    lease = tx.lease(want.resume)
    if lease is None or lease.path != path or lease.user != want.user:
        raise LeaseLost(f"the lease on {path} has ended")
    if lease.state == PUBLISHED:
        raise Conflict(
            f"{path} was published as version {lease.version.epoch}.{lease.version.counter}",
            hint="the file is complete; nothing needs to be sent again",
        )
    return lease


def open_write(tx: Tx, want: WriteRequest, now: float) -> Lease:
    """Take (or continue) the exclusive lease on a path for a new version.

    Raises `Exists`, `IsDirectory`, `NotFound` (parent), `NotDirectory`, `LeaseHeld`, `LeaseLost`,
    `Conflict` (continued, but published meanwhile: names the version)."""
    path = check_path(want.path)
    entry = find(tx, path)
    if entry is not None and entry.is_dir:
        raise IsDirectory(f"{path} is a directory")
    lease_id, node = want.id, want.node
    if want.resume:
        known = _resumed(tx, want, path)
        lease_id, node = known.id, node or known.node
    elif entry is not None and want.create == "new":
        raise Exists(f"{path} exists")
    other = tx.lease_on(path)
    if other is not None and other.id != lease_id and other.expires > now:
        raise LeaseHeld(f"{path} is being written by {other.user}")
    missing = _missing(tx, parent(path))
    if missing and not want.parents:
        raise NotFound(f"{parent(path)} does not exist", hint="make the directory first: sector mkdir -p")
    _not_written(tx, missing, now)
    if other is not None and other.id != lease_id:
        tx.drop_lease(other.id)
    _make(tx, missing, want.user, now)
    owner, mode = (entry.owner, entry.mode) if entry else (want.user, want.mode)
    lease = Lease(lease_id, path, node, tx.draw(), want.size, want.user, owner, mode, now + want.lease_s)
    tx.put_lease(lease)
    return lease


def keep_lease(tx: Tx, path: str, lease_id: bytes, user: str, now: float, lease_s: float) -> Lease | None:
    """Renew an open lease; the lease as it is now, None when it is lost."""
    lease = tx.lease(lease_id)
    if lease is None or lease.path != check_path(path) or lease.user != user:
        return None
    if lease.state == OPEN:
        lease = replace(lease, expires=now + lease_s)
        tx.put_lease(lease)
    return lease


def keep_at_work(tx: Tx, node: str, leases: Sequence[bytes], until: float) -> None:
    """Content is coming in on `node` under these leases: those that are open and its own hold until then."""
    for lease_id in leases:
        lease = tx.lease(lease_id)
        if lease is not None and lease.state == OPEN and lease.node == node and lease.expires < until:
            tx.put_lease(replace(lease, expires=until))


def move_lease(tx: Tx, lease_id: bytes, node: str) -> None:
    """Another slave than first chosen will publish. Raises `LeaseLost`."""
    lease = tx.lease(lease_id)
    if lease is None or lease.state != OPEN:
        raise LeaseLost("the lease has ended")
    tx.put_lease(replace(lease, node=node))


def end_lease(tx: Tx, path: str, lease_id: bytes, user: str) -> None:
    """Give an open lease up; one that is published or gone stays as it is."""
    lease = tx.lease(lease_id)
    if lease and lease.state == OPEN and lease.path == check_path(path) and lease.user == user:
        tx.drop_lease(lease_id)


def publish(tx: Tx, node: str, lease_id: bytes, meta: SliceMeta, now: float) -> Version:
    """Make the content that `node` holds durable the current version of its path. Repeating it gives the
    same answer. Raises `LeaseLost`, `Conflict`: then the slave discards what it has."""
    lease = tx.lease(lease_id)
    lost = LeaseLost(f"the lease on {meta.path} has ended")
    if lease is None or lease.node != node or lease.path != meta.path or lease.version != meta.version:
        raise lost
    entry = find(tx, lease.path)
    if lease.state == PUBLISHED:
        current = entry is not None and entry.version == lease.version
        if current and all(
            r.node != node for r in tx.replicas(lease.path)
        ):  # it was taken for lost meanwhile
            tx.put_replica(lease.path, Replica(node, lease.version, now))
        return lease.version
    above = find(tx, parent(lease.path))
    if above is None or not above.is_dir:
        raise lost
    if entry is not None and (entry.is_dir or entry.version >= lease.version):
        raise Conflict(f"{lease.path} changed while it was written")
    if meta.size > lease.size:
        raise Conflict(f"{lease.path} has {meta.size} bytes, {lease.size} were announced")
    copies = entry.copies if entry else 0
    tx.put_entry(
        Entry(
            lease.path,
            FILE,
            meta.size,
            lease.version,
            lease.owner,
            lease.mode,
            meta.mtime,
            meta.digest,
            copies,
        )
    )
    tx.put_replica(lease.path, Replica(node, lease.version, now))
    tx.put_lease(replace(lease, state=PUBLISHED, expires=now + KEEP_PUBLISHED_S))
    return lease.version


# removing and moving ----------------------------------------------------------------------------------
def remove(tx: Tx, path: str, recursive: bool, now: float) -> Totals:
    """Delete a file or directory; tombstones stay. Raises `NotFound`, `NotEmpty`, `LeaseHeld`."""
    path = check_path(path)
    if path == "/":
        raise BadPath("the root directory cannot be removed")
    entry = get(tx, path)
    if entry.is_dir and not recursive and tx.has_children(path):
        raise NotEmpty(f"{path} is not empty")
    _no_lease(tx, path, now)
    totals = tx.totals(path)
    tx.remove_tree(path, tx.draw(), now)
    return totals


def remove_hollow(tx: Tx, path: str, scraps: str, now: float) -> Totals:
    """Delete a directory in which all files are below its directory `scraps`. Raises `NotFound`,
    `NotDirectory`, `NotEmpty`, `LeaseHeld`."""
    path = check_path(path)
    if not get(tx, path).is_dir:
        raise NotDirectory(f"{path} is a file")
    if tx.has_files(path, check_path(f"{path}/{scraps}")):
        raise NotEmpty(f"{path} has files")
    return remove(tx, path, True, now)


def remove_version(tx: Tx, path: str, version: Version, now: float) -> Totals:
    """Delete a file that has this version. Raises `NotFound`, `IsDirectory`, `Conflict`, `LeaseHeld`."""
    entry = get(tx, check_path(path))
    if entry.is_dir:
        raise IsDirectory(f"{path} is a directory")
    if entry.version != version:
        raise Conflict(f"{path} has another version by now")
    return remove(tx, path, False, now)


def move(tx: Tx, source: str, target: str, overwrite: bool, now: float) -> Totals:
    """Rename a file, or a directory with all below. Raises `NotFound`, `Exists`, `IsDirectory`,
    `NotDirectory`, `LeaseHeld`, `BadPath`."""
    source, target = check_path(source), check_path(target)
    if source == "/" or target == "/":
        raise BadPath("the root directory cannot be moved")
    entry = get(tx, source)
    if source == target:
        return Totals(0, 0, 0)
    if is_below(target, source):
        raise BadPath(f"{source} cannot be moved into itself")
    there = find(tx, target)
    if there is not None and (there.is_dir or entry.is_dir or not overwrite):
        raise Exists(f"{target} exists")
    above = find(tx, parent(target))
    if above is None:
        raise NotFound(f"{parent(target)} does not exist")
    if not above.is_dir:
        raise NotDirectory(f"{above.path} is a file")
    _no_lease(tx, source, now)
    _no_lease(tx, target, now)
    totals = tx.totals(source)
    if totals.longest - len(source.encode()) + len(target.encode()) > MAX_PATH_BYTES:
        raise BadPath(f"below {target} a path would be longer than {MAX_PATH_BYTES} bytes")
    late = tx.lease_on(target)
    if late is not None:
        tx.drop_lease(late.id)
    if there is not None:
        tx.remove_tree(target, tx.draw(), now)
    tx.move_tree(source, target, tx.draw(), now)
    return totals


# replicas ---------------------------------------------------------------------------------------------
def replica_arrived(tx: Tx, node: str, path: str, version: Version, now: float) -> bool:
    """A copy is complete on `node`. False when the path has another version by now: it is discarded."""
    entry = tx.entry(path)
    if entry is not None and not entry.is_dir and entry.version == version:
        tx.put_replica(path, Replica(node, version, now))
        return True
    if entry is None or entry.version > version:
        tx.discard(path, node, version, now)
    return False


def replica_gone(tx: Tx, node: str, path: str, version: Version) -> None:
    """The node says that it does not have this version."""
    if any(r.node == node and r.version == version for r in tx.replicas(path)):
        tx.drop_replica(path, node)


def replica_missed(tx: Tx, node: str, path: str, version: Version) -> bool:
    """The node did not find this version when it was asked for it: the replica does not count any more. One
    that has a rename to come stays (False): the node may have it under the name it knows, and tells when it
    is asked to rename what it does not have."""
    if any(r.node == node and r.version == version and r.old_path for r in tx.replicas(path)):
        return False
    replica_gone(tx, node, path, version)
    return True


def replica_bad(tx: Tx, node: str, path: str, version: Version) -> bool:
    """The replica was found unreadable: it no longer counts. True when it did count."""
    for found in tx.replicas(path):
        if found.node == node and found.version == version:
            tx.put_replica(path, replace(found, bad=True))
            return not found.bad
    return False


def replica_surplus(tx: Tx, node: str, path: str, version: Version, now: float) -> None:
    """Have the node drop its replica of exactly this version, if it still has it, by every name that it may
    have there."""
    for found in tx.replicas(path):
        if found.node == node and found.version == version:
            tx.drop_replica(path, node)
            tx.discard(path, node, version, now)
            if found.old_path:
                tx.discard(found.old_path, node, found.old_version, now)
            if found.sent_path:
                tx.discard(found.sent_path, node, found.sent_version, now)


def replica_needed(tx: Tx, node: str, path: str, version: Version, safe: Collection[str]) -> bool:
    """Whether what `node` was told to drop is current, and no slave of `safe` has it too any more."""
    entry = tx.entry(path)
    if entry is None or entry.is_dir or entry.version != version:
        return False
    return not any(
        r.node != node and r.node in safe and r.version == version and not r.bad for r in tx.replicas(path)
    )
