"""A disk that fails where a test says so, and one that forgets at a crash what was not synced."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from cumulus.backends.posix.files import XATTR, Files
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Missing


class Faulty(Files):
    """Counts calls by name; `fail(name, number, nth)` makes the nth call from now on raise that errno."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self._plan: dict[str, tuple[int, int]] = {}
        self.before: Callable[[str], None] = lambda _: None

    def fail(self, name: str, number: int, nth: int = 1) -> None:
        """From then on, until `heal`."""
        self._plan[name] = (self.calls.get(name, 0) + nth, number)

    def heal(self, *names: str) -> None:
        """These calls, or all, fail no more."""
        for name in names or tuple(self._plan):
            self._plan.pop(name, None)

    def step(self, name: str) -> None:
        """Called before each call."""
        self.calls[name] = count = self.calls.get(name, 0) + 1
        first, number = self._plan.get(name, (0, 0))
        if first and count >= first:
            raise OSError(number, os.strerror(number))
        self.before(name)


def _counted(name: str) -> Callable[..., object]:
    real = getattr(Files, name)

    def call(self: Faulty, *arguments: object) -> object:
        self.step(name)
        return real(self, *arguments)

    return call


CHANGES = (
    "create", "write", "take", "truncate", "reserve", "copy", "set_times", "set_xattr", "drop_xattr",
    "mark", "unmark", "set_owner", "set_mode", "rename", "link", "unlink", "make_dir", "remove_dir", "sync",
    "sync_data", "sync_all",
)  # fmt: skip
for _name in CHANGES:
    setattr(Faulty, _name, _counted(_name))


class NoXattr(Faulty):
    """A file system without extended attributes."""

    def mark(self, fd: int, value: bytes) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def set_xattr(self, fd: int, value: bytes) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def _listed(path: Path) -> dict[str, int | None]:
    """Names in a directory with their inodes, None for directories."""
    with os.scandir(path) as entries:
        return {
            entry.name: None if entry.is_dir(follow_symlinks=False) else entry.inode() for entry in entries
        }


class Crash(BaseException):
    """The power is cut here."""


class Inode:
    """What is durable of one file: contents, attribute, mtime."""

    def __init__(self, body: bytes, xattr: bytes | None, mtime_ns: int) -> None:
        self.body = body
        self.xattr = xattr
        self.mtime_ns = mtime_ns


class Forgetful(Faulty):
    """Keeps book of what syncs made durable below `tree`, and can bring the tree back to just that.

    `aside` is a directory on the same file system where each file has a second name, so that files come back
    with their own inodes.
    """

    def __init__(self, tree: Path, aside: Path) -> None:
        super().__init__()
        self.tree, self.aside = tree, aside
        self.aside.mkdir()
        self.entries: dict[str, dict[str, int | None]] = {}  # durable; None for a directory
        self.opened: list[int] = []
        self.inodes: dict[int, Inode] = {}
        self.run = "first boot"

    def boot(self) -> str:
        return self.run

    def create(self, directory: int, name: str, mode: int) -> int:
        self.step("create")
        fd = Files.create(self, directory, name, mode)
        self.opened.append(fd)
        inode = os.fstat(fd).st_ino
        second = self.aside / str(inode)
        if not second.exists():
            os.link(name, second, src_dir_fd=directory)
        return fd

    def sync(self, fd: int) -> None:
        self.step("sync")
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            self._sync_dir(Path(path))
        else:
            self._sync_file(fd)

    def sync_data(self, fd: int) -> None:
        self.step("sync_data")
        self._sync_file(fd)

    def sync_all(self, fd: int) -> None:
        self.step("sync_all")
        self.settle()

    def settle(self) -> None:
        """Everything is durable now."""
        self.entries.clear()
        for top, _, files in os.walk(self.tree):
            self._sync_dir(Path(top))
            for file in files:
                with open(os.path.join(top, file), "rb") as opened:
                    self._sync_file(opened.fileno())

    def _sync_dir(self, path: Path) -> None:
        self.entries[str(path.relative_to(self.tree))] = _listed(path)

    def _sync_file(self, fd: int) -> None:
        status = os.fstat(fd)
        try:
            xattr: bytes | None = os.getxattr(fd, XATTR)
        except OSError:
            xattr = None
        with open(f"/proc/self/fd/{fd}", "rb") as opened:
            body = opened.read()
        self.inodes[status.st_ino] = Inode(body, xattr, status.st_mtime_ns)

    def crash(self, rng: random.Random | None) -> None:
        """Bring the tree back to what is durable. With `rng` some of what was not synced is there all the
        same, each directory and each file by itself, as disks do."""
        for fd in self.opened:  # locks end with their process
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
        tops = [Path(top) for top, _, _ in os.walk(self.tree)]
        current = {str(top.relative_to(self.tree)): _listed(top) for top in tops}
        chosen = dict(self.entries)
        kept: set[int] = set()
        if rng:
            for directory in current:
                if rng.random() < 0.5:
                    chosen[directory] = current[directory]
            kept = {int(name) for name in os.listdir(self.aside) if rng.random() < 0.5}
        shutil.rmtree(self.tree)
        self.tree.mkdir()
        self._build(".", chosen)
        for name in os.listdir(self.aside):
            if int(name) not in kept:
                self._revert(int(name))
        self.run = "second boot"

    def _build(self, directory: str, chosen: dict[str, dict[str, int | None]]) -> None:
        for name, inode in chosen.get(directory, {}).items():
            path = self.tree / directory / name
            if inode is None:
                path.mkdir()
                self._build(str(Path(directory) / name), chosen)
            elif (self.aside / str(inode)).exists():
                os.link(self.aside / str(inode), path)

    def _revert(self, inode: int) -> None:
        path = self.aside / str(inode)
        was = self.inodes.get(inode, Inode(b"", None, 0))
        if path.stat().st_nlink == 1:
            return
        path.write_bytes(was.body)
        if was.xattr is None:
            if XATTR in os.listxattr(path):
                os.removexattr(path, XATTR)
        else:
            os.setxattr(path, XATTR, was.xattr)
        os.utime(path, ns=(was.mtime_ns, was.mtime_ns))


class Lossy(Forgetful):
    """As Linux has it: what could not be written when a sync of all failed counts as written afterwards. A
    later sync says nothing of it, and it is not on disk."""

    def __init__(self, tree: Path, aside: Path) -> None:
        super().__init__(tree, aside)
        self.lost: set[int] = set()

    def sync_all(self, fd: int) -> None:
        try:
            self.step("sync_all")
        except OSError:
            self.lost |= {int(name) for name in os.listdir(self.aside)} - set(self.inodes)
            raise
        self.settle()

    def _sync_file(self, fd: int) -> None:
        if os.fstat(fd).st_ino not in self.lost:
            super()._sync_file(fd)


def put(store: PosixStore, name: str, body: bytes, meta: bytes = b"meta") -> None:
    """Write one object."""
    stream = store.open_write("b", name, len(body))
    stream.write(memoryview(body))
    stream.commit(meta)
    stream.close()


def get(store: PosixStore, name: str) -> tuple[bytes, bytes | None] | None:
    """Body and meta of one object."""
    try:
        stream = store.open_read("b", name)
    except Missing:
        return None
    try:
        return stream.read_at(0, stream.entry.size), stream.entry.meta
    finally:
        stream.close()
