"""Contents at rest, read from the disk itself and compared with what their records say.

All methods ending in `_thd` block; they run in the scrub's own thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from sector._udt import checksum
from sector.model import BLOCK_BYTES, digest_text
from sector.slave import beneath
from sector.slave.catalog import Found, Record
from sector.slave.disk import Disk
from sector.slave.scrub_core import FORMAT, Progress

_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
_AWAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "s390x": 282, "riscv64": 30}
_IDLE = 3 << 13  # class "idle" of ioprio_set(2)

Kind = Literal["good", "bad", "unreadable", "changed", "missing", "moved", "later"]


@dataclass(frozen=True, slots=True)
class Look:
    """What a part of a content, or its record, was found to be.

    `good`; `bad` (`blocks` do not fit their checksums; of a record: it is damaged or gone); `unreadable` (in
    `blocks`); `changed` (the file is another one than the record's); `missing` (there is no file); `moved`
    (the system has renamed, replaced or removed the content meanwhile); `later` (this process lacks
    descriptors or memory). `crcs` of the blocks that were read, `why` for people.
    """

    kind: Kind
    why: str = ""
    blocks: tuple[int, ...] = ()
    crcs: bytes = b""


class ScrubbedDisk(Disk):
    """A data directory whose contents can be looked at for rot."""

    def progress_thd(self) -> Progress:
        """What an earlier process kept of its scrub; the beginning if that is damaged or newer."""
        try:
            with open(self._inner("scrub.json"), "rb") as file:
                kept = msgspec.json.decode(file.read(), type=Progress)
        except FileNotFoundError:
            return Progress()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self.warnings.append(f"the state of the scrub cannot be read, it begins anew: {error}")
            return Progress()
        return kept if kept.format <= FORMAT else Progress()

    def keep_progress_thd(self, body: bytes) -> None:
        """Make the state of the scrub durable. Raises LocalIO, NoSpace."""
        if self._lock_fd < 0:
            return  # the directory was given up
        try:
            self._write_file(self._inner("scrub.json"), body)
        except OSError as error:
            raise beneath.explain(error, "the state of the scrub", self.where) from None

    def sums_thd(self) -> tuple[int, int]:
        """Files and bytes of all contents."""
        sizes = [record.size for record in list(self.entries.values())]
        return len(sizes), sum(sizes)

    def order_thd(self, after: int) -> tuple[list[Record], int]:
        """All contents whose inode is above `after`, in the order of their inodes, which stays the same when
        files are renamed; and how many bytes they have. Sorted without holding up other threads."""
        records = [record for record in list(self.entries.values()) if record.inode > after]
        inodes = np.fromiter((record.inode for record in records), np.uint64, len(records))
        places = np.argsort(inodes, kind="stable")
        return [records[place] for place in places], sum(record.size for record in records)

    def named_thd(self, inodes: list[int]) -> list[Record]:
        """The contents with these inodes, whatever their names are now."""
        wanted = set(inodes)
        return [record for record in list(self.entries.values()) if record.inode in wanted]

    def whole_thd(self, record: Record) -> tuple[Look, Record]:
        """Read the record of a content from its file; `good` comes with it, block checksums included."""
        with self._lock(record.path):
            if self.entries.get(record.path) is not record:
                return Look("moved"), record
            try:
                whole = self._whole(record)
                crcs = whole.crcs()
            except FileNotFoundError:
                return Look("bad", "its record is missing"), record
            except OSError as error:
                if error.errno in _OURS:
                    return Look("later", str(error.strerror)), record
                why = error.strerror or str(error)
                return Look("bad", f"its record cannot be read: {why}"), record
            except struct.error:
                return Look("bad", "its record is damaged"), record
        digest = digest_text(checksum.content_digest(crcs, whole.size))
        if whole.lean() != record or digest != record.digest:
            return Look("bad", "its record is damaged"), record
        return Look("good"), whole

    def look_thd(self, record: Record, offset: int, length: int, expected: bytes | None) -> Look:
        """Read `length` bytes from `offset` (of a block) from the disk, not from memory, and compare the
        blocks with `expected`, their CRC32C as little-endian u32; None = only compute them."""
        if not self._is_here(record):
            return Look("moved")
        fd = -1
        try:
            fd = beneath.open_beneath(self._files, record.path, os.O_RDONLY | os.O_NONBLOCK)
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return Look("missing", "no regular file has its name")
            if not Found(record.path, info.st_ino, info.st_size, info.st_mtime_ns).matches(record):
                if info.st_size != record.size:
                    return Look("changed", f"it has {info.st_size} bytes, its record says {record.size}")
                return Look("changed", "it was changed outside of the system")
            return self._compare(fd, offset, length, expected)
        except OSError as error:
            if error.errno in _AWAY:
                return Look("missing", "its file is gone")
            kind: Kind = "later" if error.errno in _OURS else "unreadable"
            return Look(kind, f"it cannot be read: {error.strerror}", (offset // BLOCK_BYTES,))
        finally:
            if fd >= 0:
                os.close(fd)

    def _compare(self, fd: int, offset: int, length: int, expected: bytes | None) -> Look:
        bad, crcs, why = [], bytearray(), ""
        kind: Kind = "good"
        _drop_cached(fd, offset, length)
        for at in range(offset, offset + length, BLOCK_BYTES):
            first = (at - offset) // BLOCK_BYTES * 4
            try:
                (crc,) = checksum.block_crcs(fd, at, min(BLOCK_BYTES, offset + length - at))
            except OSError as error:
                if error.errno in _OURS:
                    raise
                bad.append(at // BLOCK_BYTES)
                kind, why = "unreadable", f"block {bad[0]} cannot be read: {error.strerror}"
                continue
            except EOFError:
                return Look("changed", "it has become shorter")
            crcs += struct.pack("<I", crc)
            if expected is not None and expected[first : first + 4] != crcs[-4:]:
                bad.append(at // BLOCK_BYTES)
                if kind == "good":
                    kind, why = "bad", f"block {bad[0]} does not fit its checksum"
        _drop_cached(fd, offset, length)
        return Look(kind, why, tuple(bad), bytes(crcs))

    def _is_here(self, record: Record) -> bool:
        """Whether the content still has this name and version."""
        now = self.entries.get(record.path)
        return now is not None and (now.inode, now.version) == (record.inode, record.version)

    def mend_thd(self, record: Record, crcs: bytes) -> Look:
        """Write the record of a content anew whose blocks have these checksums; `bad` if they are not those
        of what was published. Raises LocalIO, NoSpace."""
        values = struct.unpack(f"<{len(crcs) // 4}I", crcs)
        if digest_text(checksum.content_digest(values, record.size)) != record.digest:
            return Look("bad", "its record is damaged, and its content is not what was published")
        with self._lock(record.path):
            if self.entries.get(record.path) is not record:
                return Look("moved")
            try:
                info = self._stat(record.path)
                found = Found(record.path, info.st_ino, info.st_size, info.st_mtime_ns)
                if not found.matches(record):
                    return Look("changed", "it was changed outside of the system")
                fresh = msgspec.structs.replace(record, blocks=crcs)
                self._write_record(fresh)
            except OSError as error:
                raise beneath.explain(error, record.path, self.where) from None
            self.entries[record.path] = fresh.lean()
        return Look("good")

    def changed_thd(self, record: Record, stop: Callable[[], bool] = lambda: False) -> bool:
        """Look into a file that is another one than its record's; False if it is not the content any more and
        was set aside. Raises LocalIO."""
        try:
            info = self._stat(record.path)
        except FileNotFoundError:
            return not self.lost_thd(record.path, record.version)
        except OSError as error:
            raise beneath.explain(error, record.path, self.where) from None
        if info.st_size != record.size:
            why = f"it has {info.st_size} bytes, its record says {record.size}"
            return not self.set_aside_thd(record.path, record.version, why)
        found = Found(record.path, info.st_ino, info.st_size, info.st_mtime_ns)
        return self.verify_thd(found, record, stop) or record.path in self.entries


def _drop_cached(fd: int, offset: int, length: int) -> None:
    """Have the kernel forget these bytes of a file: what it remembers says nothing of the disk, and what is
    read once in days is not worth remembering."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)


def be_idle_thd() -> bool:
    """Give this thread's reads the disk only when nobody else wants it, where the system can (ioprio_set(2));
    True if so."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    who_thread, this_one = 1, 0
    return bool(libc.syscall(number, who_thread, this_one, _IDLE) == 0)
