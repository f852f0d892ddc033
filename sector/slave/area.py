"""What lies where in a slave's data directory, and the plain file work below the rules of `disk`.

Layout below DATA_DIR: `files/` the visible tree; `.sector/` with `lock`, `slave.json` (whose directory this
is), `tmp/` (data under way), `meta/` (records), `mirror/`, `attic/`, `scratch/`. Everything here blocks and
runs in the slave's disk pool.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from sector import errors
from sector.clear import clear_thd
from sector.model import check_path
from sector.slave import beneath
from sector.slave.catalog import FORMAT, Found, Record, decode_record, record_name

_encode_record = msgspec.json.Encoder().encode


class Area:
    """The folders of one data directory, locked for one slave process."""

    def __init__(self, root: str, slave_id: str, now: Callable[[], float]) -> None:
        self.root = os.path.abspath(root)
        self.slave_id = slave_id
        self.cluster = ""
        """Mark of the cluster whose slave this is; "" = not known."""
        self.warnings: list[str] = []
        self._now = now
        self._lock_fd = self._files = self._tmp = self._meta = -1

    @property
    def device(self) -> str:
        """What tells the file system of the data from others of this host."""
        return f"{os.fstat(self._tmp).st_dev:x}" if self._tmp >= 0 else ""

    def _inner(self, *names: str) -> str:
        return os.path.join(self.root, ".sector", *names)

    # ------------------------------------------------------------------------------- start and stop
    def _take(self) -> None:
        """Make the folders, lock the directory, check whose it is, open the folders."""
        for name in ("tmp", "meta", "mirror", "attic", "scratch"):
            os.makedirs(self._inner(name), mode=0o700, exist_ok=True)
        os.makedirs(os.path.join(self.root, "files"), exist_ok=True)
        self._lock_fd = os.open(self._inner("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.Busy(
                f"data directory {self.root} is in use by another slave process",
                hint="stop the other process or choose another data_dir",
            ) from None
        self._identify()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._files = os.open(os.path.join(self.root, "files"), flags | os.O_NOFOLLOW)
        self._tmp = os.open(self._inner("tmp"), flags)
        self._meta = os.open(self._inner("meta"), flags)
        for entry in os.scandir(self._inner("scratch")):
            clear_thd(entry.path)

    def _identify(self) -> None:
        identity = self._inner("slave.json")
        try:
            with open(identity, encoding="utf-8") as source:
                known = json.load(source)
            name, form = str(known["slave_id"]), int(known["format"])
            cluster = str(known.get("cluster", ""))
        except FileNotFoundError:
            self._write_identity(identity, FORMAT)
            return
        except (ValueError, KeyError, TypeError, AttributeError):
            raise errors.BadConfig(f"{identity} is damaged", hint="restore the file or remove it") from None
        if name != self.slave_id:
            raise errors.BadConfig(
                f"data directory {self.root} belongs to slave {name}, not to {self.slave_id}",
                hint="each slave needs a data_dir of its own",
            )
        if form > FORMAT:
            raise errors.BadConfig(
                f"data directory {self.root} was written by a newer version (format {form})"
            )
        if cluster and self.cluster and cluster != self.cluster:
            raise errors.BadConfig(
                f"data directory {self.root} belongs to a slave {name} of another cluster: its files would "
                "replace those of this one",
                hint=f'check data_dir; if this cluster only has a new CA, remove "cluster" from {identity}',
            )
        if not cluster and self.cluster:
            self._write_identity(identity, form)

    def _write_identity(self, file: str, form: int) -> None:
        known = {"slave_id": self.slave_id, "format": form}
        if self.cluster:
            known["cluster"] = self.cluster
        self._write_file(file, json.dumps(known).encode())

    def close_thd(self) -> None:
        """Give the directory up."""
        for name in ("_files", "_tmp", "_meta", "_lock_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    # ---------------------------------------------------------------------------------------- scan
    def _unreadable(self, error: OSError) -> errors.LocalIO:
        what = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return errors.LocalIO(
            f"data directory {self.root}: {what}{error.strerror or error}",
            hint="check data_dir, its owner and free space",
        )

    def _walk(self) -> Iterator[Found]:
        """All regular files. Raises OSError for a directory that cannot be read: its files are not gone.

        One directory is open at a time, and none is inside another on the stack: trees may be 2,000 deep."""
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                fd = self._open_folder(folder)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    self.warnings.append(f"ignored: a directory below {folder[:80]!r} has too long a path")
                elif error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # replaced meanwhile
                    error.filename = f"files{folder}"
                    raise
                continue
            try:
                yield from self._look(folder, fd, folders)
            finally:
                os.close(fd)

    def _open_folder(self, folder: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        above, name = beneath.split(folder or "/.")
        with beneath.directory(self._files, above) as fd:
            return os.open(name, flags, dir_fd=fd)

    def _look(self, folder: str, fd: int, folders: list[str]) -> Iterator[Found]:
        """The regular files of one directory; those that are in it are added to `folders`."""
        with os.scandir(fd) as entries:
            for entry in entries:
                raw = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(raw)
                    continue
                try:
                    info = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:  # removed or renamed meanwhile
                    continue
                try:
                    path = check_path(raw)
                except errors.BadPath as bad:
                    self.warnings.append(f"ignored: {bad}")
                    continue
                if not stat.S_ISREG(info.st_mode):
                    self.warnings.append(f"ignored: {path} is not a regular file")
                    continue
                yield Found(path, info.st_ino, info.st_size, info.st_mtime_ns)

    def _temps(self) -> dict[str, Found]:
        found = {}
        for entry in os.scandir(self._tmp):
            info = os.stat(entry.name, dir_fd=self._tmp, follow_symlinks=False)
            found[entry.name] = Found(entry.name, info.st_ino, info.st_size, info.st_mtime_ns)
        return found

    def _records(self) -> Iterator[Record]:
        """Each record once, read from the file that bears its name."""
        moved: set[str] = set()
        for sub in os.scandir(self._meta):
            if not sub.name.isalnum() or len(sub.name) != 2:
                continue
            folder = self._inner("meta", sub.name)
            for entry in os.scandir(folder):
                if entry.name.endswith(".new"):
                    os.unlink(entry.path)
                elif entry.name.endswith(".json"):
                    try:
                        with open(entry.path, "rb") as source:
                            record = decode_record(source.read())
                    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
                        if isinstance(error, OSError) and error.errno != errno.EIO:
                            raise  # not the record's fault
                        os.rename(entry.path, entry.path + ".bad")
                        self.warnings.append(f"damaged record {entry.path} was set aside")
                        continue
                    if entry.path not in moved and self._in_place(record, entry.path, moved):
                        yield record

    def _in_place(self, record: Record, file: str, moved: set[str]) -> bool:
        """Whether a record lies under its own name, or does from now on: one under another name (somebody's
        `cp`) takes its place if that is empty (then it is added to `moved`); else it is set aside."""
        right = self._record_file(record)
        if file == right:
            return True
        if os.path.lexists(right):
            os.rename(file, file + ".bad")
            self.warnings.append(f"record {file} is a copy of {right}; it was set aside")
            return False
        os.makedirs(os.path.dirname(right), mode=0o700, exist_ok=True)
        os.rename(file, right)
        moved.add(right)
        self.warnings.append(f"record {file} was under a wrong name; it was put back as {right}")
        return True

    def _stat(self, path: str) -> os.stat_result:
        folder, name = beneath.split(path)
        with beneath.directory(self._files, folder) as fd:
            return os.stat(name, dir_fd=fd, follow_symlinks=False)

    # ------------------------------------------------------------------------------------- records
    def _record_file(self, record: Record) -> str:
        return self._inner("meta", record_name(record.path, record.version))

    def _read_record(self, record: Record) -> Record:
        with open(self._record_file(record), "rb") as source:
            try:
                return decode_record(source.read())
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise OSError(errno.EIO, f"the record of {record.path} is damaged") from None

    def _write_record(self, record: Record) -> None:
        file = self._record_file(record)
        folder = os.path.dirname(file)
        if not os.path.isdir(folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            os.fsync(self._meta)
        self._write_file(file, _encode_record(record))

    def _write_file(self, file: str, body: bytes) -> None:
        """Replace a file atomically; durable when this returns."""
        new = file + ".new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb", closefd=False) as target:
                target.write(body)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(new, file)
        folder = os.open(os.path.dirname(file), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _forget(self, record: Record) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._record_file(record))

    # --------------------------------------------------------------------------------------- attic
    def _to_attic(self, path: str, why: str, record: Record | None, more: Mapping[str, bytes] = {}) -> str:
        """Move whatever lies at `path` to `.sector/attic/STAMP-RANDOM/data`, with `info.json` and the files
        `more` beside it; returns that folder."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._now()))
        box = self._inner("attic", f"{stamp}-{os.urandom(4).hex()}")
        os.mkdir(box, 0o700)
        info = {"path": path, "why": why, "at": self._now(), "version": None}
        if record is not None:
            info["version"] = [record.epoch, record.counter]
        for file, body in {"info.json": json.dumps(info).encode(), **more}.items():
            self._write_file(os.path.join(box, file), body)
        folder, name = beneath.split(path)
        with contextlib.suppress(FileNotFoundError):
            with beneath.directory(self._files, folder) as fd:
                os.rename(name, os.path.join(box, "data"), src_dir_fd=fd)
                os.fsync(fd)
        if record is not None:
            self._forget(record)
        if not more:
            self.warnings.append(f"{path} was moved to the attic: {why}")
        return box
