"""Which buckets of `data` are mount points: a disk is mounted there, or a directory is bound there, perhaps
one of the same file system.

Whoever opens such a bucket leaves an empty file in DIR/mounted. While that is there and nothing is mounted,
the bucket is away, whatever lies in the bare directory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from cumulus.storage.api import Unavailable

IS_IT: Final = "is its disk mounted?"
_NOTE_MODE: Final = 0o640


class NotMounted(Unavailable):
    """The directory of a bucket, or of all of them, is not there now."""


def on_another_mount(path: str, above: str) -> bool:
    """Whether a directory is on another file system than one above it, or on another mount of the same.
    Raises `OSError`."""
    with _opened(path) as one, _opened(above) as other:
        if os.fstat(one).st_dev != os.fstat(other).st_dev:
            return True
        return _mount_of(one) != _mount_of(other)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _mount_of(fd: int) -> str:
    """The kernel's number of the mount that an open file is on; "" where it does not say (no /proc)."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")
    except OSError:
        return ""


class Mounts:
    """The notes, one file a bucket in the directory `notes`; `sync` makes a directory durable."""

    def __init__(self, notes: str, data: str, sync: Callable[[str], None]) -> None:
        self._notes = notes
        self._data = data
        self._sync = sync

    def _note(self, bucket: str) -> str:
        return os.path.join(self._notes, bucket)

    def known(self, bucket: str) -> bool:
        """Whether something has been mounted there."""
        return os.path.exists(self._note(bucket))

    def check(self, bucket: str, path: str) -> None:
        """That a bucket's directory below `data` still shows what has been mounted on it; noted when that is
        seen for the first time. Raises `NotMounted`, `OSError`."""
        if on_another_mount(path, self._data):
            if not self.known(bucket):
                with contextlib.suppress(OSError):  # no room, or read-only: at the next opening
                    os.close(os.open(self._note(bucket), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, _NOTE_MODE))
                    self._sync(self._notes)
        elif self.known(bucket):
            why = "shows nothing of what was mounted on it"
            raise NotMounted(f"the directory {path} of bucket {bucket!r} {why}; {IS_IT}")

    def forget(self, bucket: str) -> None:
        """The bucket goes. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._note(bucket))
            self._sync(self._notes)
