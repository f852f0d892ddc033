"""The contents of a slave: native files, a record beside each, atomic publish, deletion, renames.

All methods ending in `_thd` block; they run in the slave's disk pool and may run side by side.
Source: design.md, sections 5 and 12.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable

import msgspec

from sector import errors
from sector._udt import checksum
from sector.model import BLOCK_BYTES, SliceMeta, Tombstone, Version
from sector.slave import beneath
from sector.slave.aside import RECORD, Aside
from sector.slave.catalog import (
    Catalogue,
    Found,
    Record,
    path_key,
    reconcile,
    record_of,
)
from sector.slave.mirror import Part
from sector.slave.room import Temp
from sector.slave.seen import Seen


def _is_within(one: str, other: str) -> bool:
    """Whether one of two different paths is a directory of the other."""
    return one != other and (one + "/").startswith(other + "/") != (other + "/").startswith(one + "/")


class _Newer(Exception):
    """A name is taken by content that is newer than what is to have it."""


class Disk(Seen):
    """One data directory, owned by one slave process at a time."""

    def __init__(
        self,
        root: str,
        slave_id: str,
        *,
        owner: str = "admin",
        keep_free_bytes: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`owner` of adopted files; `keep_free_bytes`, but at most a twentieth of the disk, are never
        filled; `now` gives seconds since 1970."""
        super().__init__(root, slave_id, owner, keep_free_bytes, now)
        self.prepared: dict[bytes, Record] = {}
        self._aside = Aside(self._inner("attic"))
        self._used, self._used_until = 0, 0.0

    # ------------------------------------------------------------------------- start and recovery
    def open_thd(self) -> Catalogue:
        """Take the directory, recover from any crash, and say what is in it.

        Stale records and unfinished data are removed, conflicts set aside; `adopt` and `verify` of the
        answer are left to `adopt_thd` and `verify_thd`. What is to be verified counts as here, with the stamp
        that its file has now: each block is compared when it is read. Raises Busy (another process has it),
        BadConfig (it belongs to another slave), LocalIO.
        """
        try:
            self._take()
            self.mirror.load_thd()
            self._aside.load()
            return self._recover()
        except OSError as error:
            self.close_thd()
            raise self._unreadable(error) from None
        except errors.SectorError:
            self.close_thd()
            raise

    def _recover(self) -> Catalogue:
        temps = self._temps()
        result = reconcile(self._walk(), self._records(), temps, self.mirror.tombstones)
        for record in result.doubles:
            self.warnings.append(f"{record.path} has more than one record of {record.version}; one is used")
        buried = {path: self._body(record) for path, record in result.buried.items()}
        for record in result.stale:
            self._forget(record)
        for name in self._sort_parts({name: temps[name].mtime_ns for name in result.temps}):
            os.unlink(name, dir_fd=self._tmp)
        for path, why in result.attic:
            body = buried.get(path)
            box = self._to_attic(path, why, None, {RECORD: body} if body else {})
            if body:  # its deletion, or a rename that comes after its tombstone, fetches it from there
                self._aside.add(result.buried[path], box)
        self.entries = {path: record.lean() for path, record in result.current.items()}
        for found, record in result.verify:  # believed until it was looked into: told of, moved and read
            self.entries[found.path] = found.stamp(record).lean()
        self.prepared = {lease: record.lean() for lease, record in result.prepared.items()}
        return result

    def _body(self, record: Record) -> bytes:
        """A record as it is kept; b"" if it cannot be read."""
        try:
            return msgspec.json.encode(self._read_record(record))
        except OSError:
            return b""

    # --------------------------------------------------------------------------------------- space
    def space_thd(self) -> tuple[int, int]:
        """(free, used) bytes: what may still be written; what our contents take (of many files some seconds
        ago: each heartbeat asks, and a sum over a million takes 70 ms of all threads)."""
        info = os.fstatvfs(self._tmp)
        began = time.monotonic()
        if began >= self._used_until:
            self._used = sum(record.size for record in list(self.entries.values()))
            self._used_until = time.monotonic() + 100 * (time.monotonic() - began)
        return self._free(info), self._used

    # ------------------------------------------------------------------------------------- publish
    def seal_thd(self, temp: Temp, meta: SliceMeta, crcs: tuple[int, ...], lease: bytes = b"") -> Record:
        """Make received data durable together with its record; still invisible. `temp.fd` stays open.

        With a lease the content survives a restart as prepared, until `publish_thd` or `discard_thd`.
        Raises Conflict (this very version is visible here), Damaged, NoSpace, LocalIO.
        """
        try:
            stamp = int(meta.mtime * 1_000_000_000)
            os.fchmod(temp.fd, (meta.mode & 0o777) | 0o600)
            os.utime(temp.fd, ns=(stamp, stamp))
            os.fsync(temp.fd)
            info = os.fstat(temp.fd)
            if info.st_size != meta.size:
                raise errors.Damaged(
                    f"{self.where}: {meta.path} has {info.st_size} bytes, {meta.size} were expected"
                )
            os.fsync(self._tmp)
            found = Found(meta.path, info.st_ino, info.st_size, info.st_mtime_ns)
            record = record_of(meta, found, crcs, lease=lease, temp=temp.name)
            with self._lock(meta.path):
                known = self.entries.get(meta.path)
                if known is not None and known.version == meta.version:
                    # its record has the same name: it must not be replaced
                    raise errors.Conflict(f"{self.where} has {meta.path} in this version already")
                self._write_record(record)
        except OSError as error:
            raise beneath.explain(error, meta.path, self.where) from None
        if lease:
            before = self.prepared.get(lease)
            self.prepared[lease] = record.lean()
            if before is not None and before.version != record.version:  # nobody will publish that any more
                self._forget(before)
                self._unlink_temp(before.temp)
        return record.lean()

    def publish_thd(self, record: Record, version: Version | None = None) -> Record:
        """Rename sealed data into the visible tree; afterwards all of it is durable. Repeating is harmless.

        `version` = what the master gave, if not that of the record. Raises Conflict (newer content or a
        tombstone is here; the sealed data is dropped), LocalIO and NoSpace (it is kept).
        """
        with self._lock(record.path):
            known = self.entries.get(record.path)
            lease = bytes.fromhex(record.lease)
            if known is not None and known.inode == record.inode and known.digest == record.digest:
                if lease in self.prepared:  # it came here, but was not yet known to be durable
                    self._sync(known)
                self.prepared.pop(lease, None)
                return known
            final = (
                record
                if version is None
                else msgspec.structs.replace(record, epoch=version.epoch, counter=version.counter)
            )
            if known is not None and known.version >= final.version:
                self._discard(record)
                raise errors.Conflict(f"{self.where} has a newer version of {record.path}")
            if self.mirror.buried(record.path, final.version):
                self._discard(record)
                raise errors.Conflict(f"{record.path} was deleted in between")
            try:
                if final.version != record.version:
                    full = self._read_record(record)
                    self._write_record(
                        msgspec.structs.replace(full, epoch=final.epoch, counter=final.counter)
                    )
                    self._forget(record)
                self._move_in(final)
            except OSError as error:
                if self._lies(final):  # what is visible is ours, whatever became of the sync
                    self.entries[record.path] = final
                raise beneath.explain(error, record.path, self.where) from None
            self.entries[record.path] = final
            self.prepared.pop(lease, None)
            if known is not None:
                self._forget(known)
            return final

    def _move_in(self, record: Record) -> None:
        folder, name = beneath.split(record.path)
        for attempt in range(4):
            try:
                with beneath.directory(self._files, folder, create=True) as fd:
                    self._spare(fd, record.path, record)
                    os.rename(record.temp, name, src_dir_fd=self._tmp, dst_dir_fd=fd)
                    os.fsync(fd)
                    return
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                if attempt == 3:
                    raise
                if not isinstance(error, FileNotFoundError):
                    self._clear_way(record.path)
                elif self._lies(record):
                    return self._sync(record)

    def _spare(self, folder: int, path: str, mine: Record) -> None:
        """Set aside a file that others put at `path`, in the directory `folder`, or edited there since
        the last scan: its name is needed. The files of `mine` and of what is known at `path` are none of
        these."""
        try:
            info = os.stat(beneath.split(path)[1], dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        found = Found(path, info.st_ino, info.st_size, info.st_mtime_ns)
        known = self.entries.get(path)
        if stat.S_ISDIR(info.st_mode) or found.matches(mine) or (known is not None and found.matches(known)):
            return
        self._to_attic(path, "it was put there or edited outside of the system, and its name is needed", None)

    def _lies(self, record: Record) -> bool:
        """Whether the file of this content has its name."""
        try:
            info = self._stat(record.path)
        except OSError:
            return False
        return Found(record.path, info.st_ino, info.st_size, info.st_mtime_ns).matches(record)

    def _sync(self, record: Record) -> None:
        """Make the name of a content durable. Raises LocalIO."""
        try:
            with beneath.directory(self._files, beneath.split(record.path)[0]) as fd:
                os.fsync(fd)
        except OSError as error:
            raise beneath.explain(error, record.path, self.where) from None

    def _clear_way(self, path: str, version: Version | None = None) -> None:
        """The namespace says `path` is a file: a file on one of its directories, or a directory on itself,
        is a remainder of older times and is set aside. Raises _Newer for content that is newer than
        `version`."""
        names = path.strip("/").split("/")
        for count in range(1, len(names) + 1):
            part = "/" + "/".join(names[:count])
            try:
                info = self._stat(part)
            except OSError:
                return
            last = count == len(names)
            if stat.S_ISDIR(info.st_mode) and not last:
                continue
            if last and not stat.S_ISDIR(info.st_mode):
                return
            inside = part + "/"
            there = [r for r in list(self.entries.values()) if r.path == part or r.path.startswith(inside)]
            if version is not None and any(known.version > version for known in there):
                raise _Newer
            for known in there:
                self._set_by(known)
                self._prune(beneath.split(known.path)[0])
            with contextlib.suppress(FileNotFoundError):
                self._stat(part)
                self._to_attic(part, "in the way of a newer file", None)
            return

    def discard_thd(self, record: Record, back: str = "") -> None:
        """Drop sealed data that is not to be published, or move it to the local file `back`."""
        with self._lock(record.path):
            if back and record.temp:
                with contextlib.suppress(OSError):
                    os.rename(record.temp, back, src_dir_fd=self._tmp)
            self._discard(record)

    def _discard(self, record: Record) -> None:
        lease = bytes.fromhex(record.lease)
        sealed = self.prepared.get(lease)
        if sealed is not None and sealed.version == record.version:  # else a later attempt under this lease
            del self.prepared[lease]
        known = self.entries.get(record.path)
        if known is not None and known.version == record.version:
            return
        self._forget(record)
        if record.temp:
            self._unlink_temp(record.temp)

    # --------------------------------------------------------------------------- delete and rename
    def delete_thd(self, path: str, version: Version) -> bool:
        """Remove the content of `path` if it is not newer than `version`; True if there was some."""
        with self._lock(path):
            waited = self._aside.delete(path, version)
            record = self.entries.get(path)
            if record is None or record.version > version:
                return waited
            self._remove(record)
        self._prune(beneath.split(path)[0])
        return True

    def drop_thd(self, path: str, version: Version) -> bool:
        """Remove exactly this content; False if it is not here. Raises LocalIO."""
        with self._lock(path):
            record = self.entries.get(path)
            if record is None or record.version != version:
                return False
            self._remove(record)
        self._prune(beneath.split(path)[0])
        return True

    def _remove(self, record: Record) -> None:
        """Of a visible content the file, then the record."""
        folder, name = beneath.split(record.path)
        try:
            with beneath.directory(self._files, folder) as fd:
                self._spare(fd, record.path, record)
                os.unlink(name, dir_fd=fd)
                os.fsync(fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise beneath.explain(error, record.path, self.where) from None
        del self.entries[record.path]
        self._forget(record)

    def rename_thd(self, source: str, old: Version, meta: SliceMeta) -> bool:
        """Content `old` of `source` becomes `meta`; True if it is now there (also when repeated). What has
        the new name still waits aside for its own new name, or for its removal. Where that is newer, what
        comes late waits aside itself, as `meta`: it may have been moved on since."""
        first, second = sorted((self._lock_index(source), self._lock_index(meta.path)))
        with self._locks[first], self._locks[second]:
            target = self.entries.get(meta.path)
            if target is not None and target.version == meta.version:
                return True
            try:
                full, data = self._content(source, old)
                if full is not None and not data and _is_within(source, meta.path):
                    self._set_by(self.entries[source])  # not below itself, nor over its own place
                    self._prune(beneath.split(source)[0])
                    full, data = self._aside.find(source, old) or (None, "")
                if full is None:
                    return False
                fresh = msgspec.structs.replace(
                    full,
                    path=meta.path,
                    epoch=meta.version.epoch,
                    counter=meta.version.counter,
                    owner=meta.owner,
                    mode=meta.mode,
                    lease="",
                    temp="",
                )
                try:
                    if target is not None and target.version > meta.version:
                        raise _Newer
                    if target is not None and (meta.path, target.version) != (source, old):
                        self._set_by(target)
                    self._write_record(fresh)
                    there = self._rename(source, data, fresh)
                except _Newer:
                    self._forget(fresh)
                    self._too_late(full, data, fresh)
                    return False
            except OSError as error:
                raise beneath.explain(error, source, self.where) from None
            if data:
                self._aside.taken(source, old)
            else:
                del self.entries[source]
                self._forget(full)
            if not there:
                self._forget(fresh)
                return False
            self.entries[meta.path] = fresh.lean()
        self._prune(beneath.split(source)[0])
        return True

    def _too_late(self, full: Record, data: str, fresh: Record) -> None:
        """A content, visible or the file `data` aside, is to have a name that a newer one has: it waits."""
        body = {RECORD: msgspec.json.encode(fresh)}
        if data:
            box = os.path.dirname(data)
            self._write_file(os.path.join(box, RECORD), body[RECORD])
            self._aside.renamed(full.path, full.version)
        else:
            if not self._lies(full):
                body = {}
            box = self._to_attic(full.path, "a newer file has the name that it was to have", full, body)
            del self.entries[full.path]
            self._prune(beneath.split(full.path)[0])
        if body:
            self._aside.add(fresh, box)

    def _current(self, path: str, version: Version) -> Record | None:
        """The record of a visible content. A master that speaks of a version has agreed to it: what is
        complete and not yet visible, since this slave ended in between, becomes visible now. Raises LocalIO,
        NoSpace."""
        record = self.entries.get(path)
        if record is not None and record.version == version:
            return record
        for sealed in list(self.prepared.values()):
            if (sealed.path, sealed.version) == (path, version):
                with contextlib.suppress(errors.Conflict):
                    return self.publish_thd(sealed)
        return None

    def _content(self, path: str, version: Version) -> tuple[Record | None, str]:
        """The whole record of a content that is to be renamed, and the data file if it waits aside."""
        record = self._current(path, version)
        if record is None:
            return self._aside.find(path, version) or (None, "")
        try:
            return self._whole(record), ""
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOENT):
                raise
            del self.entries[path]
            self._to_attic(path, "its record is damaged", record)
            return None, ""

    def _whole(self, record: Record) -> Record:
        """A record of the catalogue as it is kept, block checksums included; with the stamp of its file here,
        which that on disk need not have yet (`open_thd`). Raises OSError."""
        return Found(record.path, record.inode, record.size, record.mtime_ns).stamp(self._read_record(record))

    def _set_by(self, record: Record) -> None:
        """Have a visible content give its name away. What others edited is not that content any more: it is
        set aside for good."""
        body = {RECORD: msgspec.json.encode(self._whole(record))} if self._lies(record) else {}
        box = self._to_attic(record.path, "another file has this name now", record, body)
        self.entries.pop(record.path, None)
        if body:
            self._aside.add(record, box)

    def _rename(self, source: str, data: str, fresh: Record) -> bool:
        """Bring the file of `source`, or the file `data`, to the path of `fresh`; False if somebody has
        taken it away."""
        from_folder, from_name = beneath.split(source)
        to_folder, to_name = beneath.split(fresh.path)
        if data:
            from_folder, from_name = "/", data
        for attempt in range(3):
            try:
                with beneath.directory(self._files, from_folder) as from_fd:
                    with beneath.directory(self._files, to_folder, create=True) as to_fd:
                        self._spare(to_fd, fresh.path, fresh)
                        os.rename(from_name, to_name, src_dir_fd=from_fd, dst_dir_fd=to_fd)
                        os.fsync(to_fd)
                        os.fsync(from_fd)
                        return True
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                if isinstance(error, FileNotFoundError) and self._lies(fresh):
                    self._sync(fresh)
                    return True
                if attempt == 2:
                    if os.path.lexists(data) if data else self._exists(source):
                        raise
                    return False
                if not isinstance(error, FileNotFoundError):
                    self._clear_way(fresh.path, fresh.version)
        return False

    def _exists(self, path: str) -> bool:
        try:
            self._stat(path)
        except FileNotFoundError:
            return False
        return True

    def _prune(self, folder: str) -> None:
        """Remove directories that became empty; the namespace keeps its own."""
        while folder != "/":
            above, name = beneath.split(folder)
            try:
                with beneath.directory(self._files, above) as fd:
                    os.rmdir(name, dir_fd=fd)
            except OSError:
                return
            folder = above

    def bury_thd(self, tombstones: list[Tombstone]) -> None:
        """Keep tombstones; durable when this returns."""
        try:
            self.mirror.bury_thd(tombstones)
        except OSError as error:
            raise beneath.explain(error, "a tombstone", self.where) from None

    def mirror_thd(self, part: Part, *, last: bool, now: float) -> None:
        """Take a part of a mirror; all of it is durable when this returns for the `last` one."""
        try:
            self.mirror.part_thd(part, last=last, now=now)
        except OSError as error:
            raise beneath.explain(error, "a mirror", self.where) from None

    def aside_unknown_thd(self, path: str, why: str) -> None:
        """Move a file that is no content of ours to the attic, if it is there still. Raises LocalIO."""
        with self._lock(path):
            if path in self.entries:
                return
            try:
                if self._exists(path):
                    self._to_attic(path, why, None)
            except OSError as error:
                raise beneath.explain(error, path, self.where) from None

    def set_aside_thd(self, path: str, version: Version, why: str) -> bool:
        """Move the content `version` of `path` to the attic; False if it was not here any more. Raises
        LocalIO if the disk does not let it be moved: it is here no more even so."""
        with self._lock(path):
            record = self.entries.get(path)
            if record is None or record.version != version:
                return False
            del self.entries[path]
            try:
                self._to_attic(path, why, record)
            except OSError as error:
                with contextlib.suppress(OSError):  # or a restart would take it for good again
                    file = self._record_file(record)
                    os.rename(file, file + ".bad")
                raise beneath.explain(error, path, self.where) from None
            return True

    # ---------------------------------------------------------------------------------------- read
    def open_read_thd(self, path: str, version: Version) -> tuple[int, Record]:
        """A descriptor of exactly this content (the caller closes it) and its record. Raises NotFound
        (another version or none is here, or the file was changed outside), Conflict (a symbolic link)."""
        record = self._current(path, version)
        if record is None:
            raise errors.NotFound(f"{self.where} has no {path} at version {version.epoch}.{version.counter}")
        try:
            fd = beneath.open_beneath(self._files, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise beneath.explain(error, path, self.where) from None
        info = os.fstat(fd)
        if not Found(path, info.st_ino, info.st_size, info.st_mtime_ns).matches(record):
            os.close(fd)
            raise errors.NotFound(f"{self.where}: {path} was changed outside of the system")
        return fd, record

    def bad_blocks_thd(self, record: Record, fd: int, offset: int, length: int) -> list[int]:
        """Numbers of the blocks touched by the range whose checksum at rest is wrong."""
        if length <= 0:
            return []
        crcs = self.crcs_thd(record)
        first, last = offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES
        start = first * BLOCK_BYTES
        end = min(record.size, (last + 1) * BLOCK_BYTES)
        try:
            have = checksum.block_crcs(fd, start, end - start)
        except (OSError, EOFError):
            return [first]
        return [first + i for i, crc in enumerate(have) if crcs[first + i : first + i + 1] != (crc,)]

    def crcs_thd(self, record: Record) -> tuple[int, ...]:
        """The block checksums of a content."""
        try:
            return self._read_record(record).crcs()
        except OSError as error:
            raise beneath.explain(error, record.path, self.where) from None

    def scratch_thd(self, name: str) -> str:
        """A new empty directory `.sector/scratch/NAME-RANDOM` (mode 0700), emptied at the next start."""
        path = self._inner("scratch", f"{path_key(name)[:8]}-{os.urandom(8).hex()}")
        os.mkdir(path, 0o700)
        return path
