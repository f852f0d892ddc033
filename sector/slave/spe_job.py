"""One Sphere job on this slave: its record, who may ask for it, its code, its results on disk.

Pure bookkeeping and the blocking file work (functions in `_thd`) of a job's folder
`DATA_DIR/.sector/sphere/JOB`: `blobs/`, `out/` (results of segments), `stageN/` (buckets).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from twisted.internet.defer import DeferredLock

from sector.errors import Conflict, Damaged, Denied, LocalIO, NoSpace, Protocol, SectorError
from sector.model import check_path
from sector.rights import allowed
from sector.rpc import Caller
from sector.slave.spe_buckets import BucketStore
from sector.sphere.tasks import Done
from sector.wire.sphere import JobRecord, SpePeer


@dataclass(slots=True)
class Result:
    """What a segment returned, in a local file: `bytes` of data, then `table` int64 lengths.
    `starts` = int64[buckets+1] where each bucket begins, for bucket output."""

    segment: int
    file: str
    done: Done
    bytes_in: int
    moved_in: int
    starts: NDArray[np.int64] | None = None
    users: int = 0


@dataclass
class SpeJob:
    """State of a job. `heard` = when its client last asked, here or the master for us (monotonic seconds);
    `sealing`: a client that lost an answer asks again while the first request still writes the same files."""

    record: JobRecord
    folder: str
    heard: float
    results: dict[int, Result] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    stores: dict[int, BucketStore] = field(default_factory=dict)
    sealed: dict[int, tuple[str, int]] = field(default_factory=dict)
    ended: str = ""
    active: int = 0
    sealing: DeferredLock = field(default_factory=DeferredLock)

    @property
    def principal(self) -> str:
        """As whom the slave publishes for this job."""
        return f"job:{self.record.job}/{self.record.user}"

    def peer(self, node: str) -> SpePeer | None:
        """Another slave of the job."""
        return next((peer for peer in self.record.peers if peer.node == node), None)

    def check_client(self, caller: Caller) -> None:
        """Raises `Denied` unless the job's own driver asks."""
        if caller.principal != self.record.client:
            raise Denied(f"job {self.record.job} belongs to somebody else")

    def check_slave(self, caller: Caller) -> SpePeer:
        """The peer that asks. Raises `Denied` for others."""
        kind, _, node = caller.principal.partition(":")
        peer = self.peer(node) if kind == "slave" else None
        if peer is None:
            raise Denied(f"{caller.principal} takes no part in job {self.record.job}")
        return peer

    def check_read(self, path: str) -> None:
        """Raises `Denied` unless the job's user may read `path` and run functions there."""
        if check_path(path) != path:
            raise Protocol(f"path {path!r} is not canonical")
        if not allowed(self.record.rights, path, "rx"):
            raise Denied(f"user {self.record.user} may not run functions on {path}")

    def check_stage(self, stage: int) -> None:
        """Raises `Conflict` for any stage but the job's own: each has a folder and a ledger."""
        if stage != self.record.stage:
            raise Conflict(f"job {self.record.job} is at stage {self.record.stage}")

    def blob_file(self, sha256: bytes) -> str:
        """Where a blob lies. Raises `Denied` for one that the record does not name."""
        if all(blob.sha256 != sha256 for blob in self.record.blobs):
            raise Denied(f"job {self.record.job} has no such blob")
        return os.path.join(self.folder, "blobs", sha256.hex())

    def out_file(self, segment: int, attempt: int) -> str:
        """A new result's file."""
        return os.path.join(self.folder, "out", f"{segment}.{attempt}")

    def store(self, stage: int) -> BucketStore:
        """The buckets of a stage."""
        found = self.stores.get(stage)
        if found is None:
            folder = os.path.join(self.folder, f"stage{stage}")
            found = self.stores[stage] = BucketStore(folder)
        return found


def open_folder_thd(folder: str) -> None:
    """Make the folders of a job; what it left before a restart stays, but for results of segments."""
    os.makedirs(os.path.join(folder, "blobs"), mode=0o700, exist_ok=True)
    shutil.rmtree(os.path.join(folder, "out"), ignore_errors=True)
    os.makedirs(os.path.join(folder, "out"), mode=0o700)


def remove_folder_thd(folder: str) -> None:
    """Remove all that a job left."""
    shutil.rmtree(folder, ignore_errors=True)


def forget_old_thd(root: str, keep: Collection[str], age_s: float) -> None:
    """Remove folders of jobs, but for those of `keep`, that nobody has touched for `age_s`."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    for entry in os.scandir(root):
        with contextlib.suppress(OSError):
            if entry.name not in keep and time.time() - entry.stat().st_mtime > age_s:
                shutil.rmtree(entry.path, ignore_errors=True)


def save_blob_thd(path: str, sha256: bytes, data: bytes) -> None:
    """Write a blob under its name. Raises `Damaged` when it is not what its name says."""
    if hashlib.sha256(data).digest() != sha256:
        raise Damaged("a blob arrived damaged")
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
    os.rename(temporary, path)


def blob_is_there_thd(path: str, size: int, sha256: bytes) -> bool:
    """Whether a blob is complete (its content is checked: it is code)."""
    try:
        with open(path, "rb") as file:
            data = file.read(size + 1)
    except OSError:
        return False
    return len(data) == size and hashlib.sha256(data).digest() == sha256


def create_output_thd(path: str) -> int:
    """A descriptor of a new result file."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def check_output_thd(fd: int, done: Done, buckets: int) -> NDArray[np.int64] | None:
    """Check the file that a worker wrote against what it said; for buckets where each begins.
    Raises `Damaged`: the worker belongs to a stranger."""
    size = os.fstat(fd).st_size
    if min(done.bytes, done.table, done.pieces, done.row_bytes) < 0 or size != done.bytes + 8 * done.table:
        raise Damaged("the worker's output is not what it said")
    if not buckets:
        if done.kind not in ("none", "bytes", "array") or done.table not in (0, done.pieces):
            raise Damaged("the worker's output is of an unknown kind")
        return None
    if done.kind != "buckets" or done.table != buckets:
        raise Damaged("the worker's output has the wrong number of buckets")
    raw = b""
    while len(raw) < 8 * buckets:
        part = os.pread(fd, 8 * buckets - len(raw), done.bytes + len(raw))
        if not part:
            raise Damaged("the worker's output is shorter than it said")
        raw += part
    lengths = np.frombuffer(raw, dtype="<i8")
    if bool(np.any(lengths < 0)) or int(lengths.sum()) != done.bytes or int(lengths.max()) > done.bytes:
        raise Damaged("the worker's table of buckets is wrong")
    starts = np.zeros(buckets + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def read_thd(path: str, size: int) -> bytes:
    """The first `size` bytes of a file."""
    with open(path, "rb") as file:
        return file.read(size)


def cut_thd(path: str, size: int) -> None:
    """Take the table off the data."""
    os.truncate(path, size)


def unlink_thd(path: str) -> None:
    """Remove a file that may be gone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def os_error(error: OSError, node: str) -> SectorError:
    """An error of the local disk as the caller hears it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "its disk is full" if error.errno == errno.ENOSPC else "the quota of its user is used up"
        return NoSpace(f"slave {node}: {what}" + (f" ({error.filename})" if error.filename else ""))
    return LocalIO(f"slave {node}: {error.strerror or error}")
