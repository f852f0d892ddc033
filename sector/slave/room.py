"""Room for data on its way into a slave: temporary files in `.sector/tmp`, reserved, taken over, given up.

Everything here blocks and runs in the slave's disk pool.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass

from sector import errors, space
from sector._udt import checksum
from sector.model import BLOCK_BYTES
from sector.slave import beneath
from sector.slave.area import Area

_MARGIN_BYTES = 256 << 10
PART_S = 900.0
"""How long a part of a content is kept for a sender that may go on with it."""
_PART = re.compile("[0-9a-f]{32}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Temp:
    """A reserved file in `.sector/tmp`; `fd` is open for writing and owned by whoever holds this."""

    name: str
    fd: int


class Room(Area):
    """The temporary files of one data directory."""

    def __init__(self, root: str, slave_id: str, keep_free_bytes: int, now: Callable[[], float]) -> None:
        super().__init__(root, slave_id, now)
        self.where = f"slave {slave_id}"
        self._keep_free = keep_free_bytes
        self.parts: dict[str, str] = {}
        """Temporary files that an earlier process left for who goes on with them: key -> name."""

    def _free(self, info: os.statvfs_result) -> int:
        keep = min(self._keep_free, info.f_blocks * info.f_frsize // 20)
        return max(0, info.f_bavail * info.f_frsize - keep)

    def reserve_thd(self, path: str, size: int, key: str = "") -> Temp:
        """A temporary file with room for `size` bytes of `path`; with a `key` (32 hex digits) a later process
        finds it (`parts`). Raises NoSpace, Conflict (a symbolic link is in the way), LocalIO."""
        self._check_way(path)
        need = _MARGIN_BYTES + 6 * (size // BLOCK_BYTES + 1)
        name = f"{key}-{os.urandom(4).hex()}" if key else os.urandom(12).hex()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = -1
        try:
            fd = os.open(name, flags, 0o644, dir_fd=self._tmp)
            # more than is free is not asked for: the kernel would take all there is before it refuses, and
            # whoever writes meanwhile would find a full disk
            backed = self._free(os.fstatvfs(fd)) >= size and space.fallocate(fd, size)
            if self._free(os.fstatvfs(fd)) < need + (0 if backed else size):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                self._unlink_temp(name)
            if error.errno in space.FULL:
                raise self._full(error, path, size, size + need) from None
            raise beneath.explain(error, path, self.where) from None
        return Temp(name, fd)

    def _full(self, error: OSError, path: str, size: int, need: int) -> errors.NoSpace:
        """Why `size` bytes of `path`, with all that goes with them `need`, found no room."""
        usable = self._free(os.fstatvfs(self._tmp))
        if error.errno == errno.ENOSPC and usable < need:
            return errors.NoSpace(
                f"{self.where} has no room for {size} bytes of {path}; {usable} bytes are free for files"
            )
        return space.no_room(error.errno or errno.ENOSPC, f"{self.where}: {path}", size, self._tmp)

    def _check_way(self, path: str) -> None:
        """Refuse a path that a symbolic link would lead elsewhere."""
        try:
            os.close(beneath.open_beneath(self._files, path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):
                raise beneath.explain(error, path, self.where) from None

    def drop_temp_thd(self, temp: Temp) -> None:
        """Give a temporary file up."""
        os.close(temp.fd)
        self._unlink_temp(temp.name)

    def leave_temp_thd(self, temp: Temp) -> None:
        """Close a temporary file for the next process."""
        os.close(temp.fd)

    def reopen_thd(self, name: str) -> Temp:
        """Take over what an earlier process left. Raises LocalIO."""
        try:
            return Temp(name, os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._tmp))
        except OSError as error:
            raise beneath.explain(error, "what an earlier process left", self.where) from None

    def fit_temp_thd(self, temp: Temp, size: int) -> bool:
        """Reserve `size` bytes for a file that has some already, and cut off what is behind; False where
        there is no room for it."""
        try:
            info = os.fstat(temp.fd)
            if self._free(os.fstatvfs(temp.fd)) < size - 512 * info.st_blocks:
                return False
            space.fallocate(temp.fd, size)
            if info.st_size > size:
                os.ftruncate(temp.fd, size)
        except OSError:
            return False
        return True

    def name_part_thd(self, temp: Temp, key: str) -> Temp:
        """Have a later process find it under another key."""
        name = f"{key}-{os.urandom(4).hex()}"
        try:
            os.rename(temp.name, name, src_dir_fd=self._tmp, dst_dir_fd=self._tmp)
        except OSError:
            return temp
        return Temp(name, temp.fd)

    def whole_blocks_thd(self, temp: Temp) -> int:
        """How many whole blocks have been written: transfers write from the beginning on."""
        return os.fstat(temp.fd).st_size // BLOCK_BYTES

    def _sort_parts(self, temps: dict[str, int]) -> list[str]:
        """Keep what is young of these files (name -> time of its last change in ns) in `parts`; returns the
        names of the others."""
        old = []
        self.parts = {}
        for name, changed in sorted(temps.items(), key=lambda item: -item[1]):
            key = name[:32]
            young = self._now() - changed / 1e9 < PART_S
            if _PART.fullmatch(name) and young and key not in self.parts:
                self.parts[key] = name
            else:
                old.append(name)
        return old

    def unlink_part_thd(self, name: str) -> None:
        """Remove what an earlier process left."""
        self._unlink_temp(name)

    def _unlink_temp(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._tmp)

    def import_thd(self, local: str) -> tuple[Temp, tuple[int, ...], int]:
        """Take a finished local file over as a temporary one (renamed where possible, else copied and
        removed): (temp, block checksums, size in bytes). Raises NotFound, NoSpace, LocalIO."""
        name = os.urandom(12).hex()
        fd = -1
        try:
            fd = os.open(local, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise errors.LocalIO(f"{self.where}: {local} is not a regular file")
            crcs = checksum.block_crcs(fd, 0, info.st_size)
            try:
                os.rename(local, name, dst_dir_fd=self._tmp)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copy = self.reserve_thd("/" + os.path.basename(local), info.st_size)
                try:
                    os.lseek(fd, 0, os.SEEK_SET)
                    while os.sendfile(copy.fd, fd, None, 1 << 24):
                        pass
                except OSError:
                    self.drop_temp_thd(copy)
                    raise
                os.close(fd)
                os.unlink(local)
                return copy, tuple(crcs), info.st_size
        except (OSError, EOFError, errors.SectorError) as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, OSError):
                raise beneath.explain(error, local, self.where) from None
            if isinstance(error, EOFError):
                raise errors.LocalIO(f"{self.where}: {local} changed while it was read") from None
            raise
        return Temp(name, fd), tuple(crcs), info.st_size

    def put_back_thd(self, temp: Temp, local: str) -> None:
        """Undo `import_thd`."""
        os.close(temp.fd)
        try:
            os.rename(temp.name, local, src_dir_fd=self._tmp)
        except OSError as error:
            self._unlink_temp(temp.name)
            raise beneath.explain(error, local, self.where) from None
