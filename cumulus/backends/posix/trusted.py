"""Opening the directory of an adopted bucket by its path, which others may change on the way.

Whoever may write in a directory above could put a symbolic link in the bucket's place, to another user's
bucket or to our own files: it would be served, overwritten and emptied as his. So a link counts only if an
account made it that could do all that anyway: root, ours, or the one that has the store.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Container

from cumulus.backends.posix.mounts import NotMounted

_MOST_LINKS = 40  # as the kernel
_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def makers(store: str) -> frozenset[int]:
    """Accounts whose links count, of the store in the directory `store`. Raises `OSError`."""
    return frozenset((0, os.geteuid(), os.stat(store).st_uid))


def open_directory(bucket: str, path: str, trusted: Container[int]) -> int:
    """A descriptor of the directory at a whole path. Raises `NotMounted` for a link that somebody else has
    made on the way, `OSError`."""
    names = deque(path.split("/"))
    fd, links = os.open("/", _STEP | os.O_DIRECTORY), 0
    try:
        while names:
            name = names.popleft()
            if not name:
                continue
            below = os.open(name, _STEP, dir_fd=fd)
            status = os.fstat(below)
            if not stat.S_ISLNK(status.st_mode):
                os.close(fd)
                fd = below
                continue
            try:
                if status.st_uid not in trusted:
                    raise NotMounted(_refusal(bucket, path, name, status.st_uid))
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink("", dir_fd=below)
            finally:
                os.close(below)
            names.extendleft(reversed(target.split("/")))
            if target.startswith("/"):
                os.close(fd)
                fd = os.open("/", _STEP | os.O_DIRECTORY)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)


def _refusal(bucket: str, path: str, name: str, uid: int) -> str:
    return (
        f"{name!r} in the path {path} of bucket {bucket!r} is a symbolic link of account {uid}, which is not "
        "followed; root may make it his: chown -h root"
    )
