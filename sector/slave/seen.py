"""What other hands did to the files of a slave: found by a walk over its tree, looked into, adopted, missed.

All methods ending in `_thd` block; they run in the slave's disk pool and may run side by side.
Source: design.md, section 5.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

from sector._udt import checksum
from sector.model import SliceMeta, Version, digest_text
from sector.slave import beneath
from sector.slave.catalog import ADOPTED, Catalogue, Found, Record, path_key, reconcile, record_of, time_of
from sector.slave.mirror import Mirror
from sector.slave.room import Room


class Seen(Room):
    """The visible tree of one data directory, and what is known of it."""

    def __init__(
        self, root: str, slave_id: str, owner: str, keep_free_bytes: int, now: Callable[[], float]
    ) -> None:
        super().__init__(root, slave_id, keep_free_bytes, now)
        self.entries: dict[str, Record] = {}
        self.mirror = Mirror(self._inner("mirror"))
        self._owner = owner
        self._locks = [threading.RLock() for _ in range(64)]

    def _lock_index(self, path: str) -> int:
        return int(path_key(path)[:2], 16) % len(self._locks)

    def _lock(self, path: str) -> threading.RLock:
        return self._locks[self._lock_index(path)]

    def rescan_thd(self) -> Catalogue:
        """What changed in the visible tree behind our back; nothing is touched. Raises LocalIO when a part
        of the tree cannot be read."""
        try:
            return reconcile(self._walk(), list(self.entries.values()), {}, self.mirror.tombstones)
        except OSError as error:
            raise self._unreadable(error) from None

    def _fits(self, found: Found) -> bool:
        try:
            info = self._stat(found.path)
        except OSError:
            return False
        return (info.st_ino, info.st_size, info.st_mtime_ns) == (found.inode, found.size, found.mtime_ns)

    def adopt_thd(self, found: Found, stop: Callable[[], bool] = lambda: False) -> Record | None:
        """Make a file that nobody knew a content of ours; None if it changed or is no longer unknown."""
        fd = -1
        try:
            fd = beneath.open_beneath(self._files, found.path, os.O_RDONLY)
            crcs = checksum.block_crcs(fd, 0, found.size, stop)
            mode = os.fstat(fd).st_mode & 0o777
        except (EOFError, InterruptedError, FileNotFoundError):
            return None
        except OSError as error:
            raise beneath.explain(error, found.path, self.where) from None
        finally:
            if fd >= 0:
                os.close(fd)
        digest = digest_text(checksum.content_digest(crcs, found.size))
        mtime = time_of(found.mtime_ns / 1e9)
        meta = SliceMeta(found.path, ADOPTED, found.size, self._owner, mode, mtime, digest)
        with self._lock(found.path):
            known = self.entries.get(found.path)
            if not self._fits(found) or (known is not None and found.matches(known)):
                return None
            if known is not None or found.path in self.mirror.tombstones:
                return None
            record = record_of(meta, found, crcs)
            try:
                self._write_record(record)
            except OSError as error:
                raise beneath.explain(error, found.path, self.where) from None
            self.entries[found.path] = record.lean()
            return record.lean()

    def verify_thd(self, found: Found, record: Record, stop: Callable[[], bool] = lambda: False) -> bool:
        """Whether a file with a new stamp still has the content of `record`; if so it is kept, else it
        goes to the attic and the content counts as gone."""
        fd = -1
        try:
            fd = beneath.open_beneath(self._files, found.path, os.O_RDONLY)
            crcs = checksum.block_crcs(fd, 0, found.size, stop)
        except InterruptedError:
            return False
        except (EOFError, FileNotFoundError):
            crcs = []
        except OSError as error:
            raise beneath.explain(error, found.path, self.where) from None
        finally:
            if fd >= 0:
                os.close(fd)
        with self._lock(found.path):
            now = self.entries.get(found.path)
            if now is not None and now.version != record.version:
                return True
            if not self._fits(found):
                return False
            try:
                if digest_text(checksum.content_digest(crcs, found.size)) == record.digest:
                    fresh = record_of(record.meta, found, crcs)
                    self._write_record(fresh)
                    self.entries[found.path] = fresh.lean()
                    return True
                self.entries.pop(found.path, None)
                self._to_attic(found.path, "changed outside of the system", record)
                return False
            except OSError as error:
                raise beneath.explain(error, found.path, self.where) from None

    def lost_thd(self, path: str, version: Version) -> bool:
        """Drop the record of a content whose file is gone; False if it is there after all. Raises LocalIO
        when that cannot be seen."""
        with self._lock(path):
            record = self.entries.get(path)
            if record is None or record.version != version:
                return False
            try:
                info = self._stat(path)
                if Found(path, info.st_ino, info.st_size, info.st_mtime_ns).matches(record):
                    return False
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise beneath.explain(error, path, self.where) from None
            del self.entries[path]
            self._forget(record)
            return True
