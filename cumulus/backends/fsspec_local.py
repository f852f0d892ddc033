"""Files of the local file system below the fsspec store: by their descriptors, and synced."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from cumulus.backends.fsspec_record import Footer, asked, plain_entry, whole_entry
from cumulus.storage.api import Entry, Missing

TAIL: Final = 4096  # bytes read at once for footer and, mostly, meta


def opened(name: str, path: str) -> tuple[Entry, int]:
    """A local file and what it is, both by its descriptor: another process may put another in its place
    at any moment. Raises `StorageError`, `Missing` also for a directory."""
    with asked(path):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise Missing(f"no {name!r}") from error
            raise
    try:
        with asked(path):
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise Missing(f"no {name!r}")
            size = status.st_size
            tail = os.pread(fd, TAIL, max(0, size - TAIL))
            footer = Footer.decode(size, tail, lambda start, end: os.pread(fd, end - start, start))
        entry = (
            plain_entry(name, size, status.st_mtime) if footer is None else whole_entry(name, size, footer)
        )
    except BaseException:
        os.close(fd)
        raise
    return entry, fd


def sync_above(path: str, root: str) -> None:
    """Sync the directories of a local file, up to `root`."""
    while len(path) > len(root):
        path = os.path.dirname(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
