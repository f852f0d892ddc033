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
from typing import Final

from cumulus.backends.posix.mounts import NotMounted

_MOST_LINKS: Final = 40  # as the kernel
_LINK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP: Final = _LINK | os.O_DIRECTORY  # has what is mounted on demand mounted
_NO_DIRECTORY: Final = (errno.ENOTDIR, errno.ELOOP)


def makers(store: str) -> frozenset[int]:
    """Accounts whose links count, of the store in the directory `store`. Raises `OSError`."""
    return frozenset((0, os.geteuid(), os.stat(store).st_uid))


def open_directory(bucket: str, path: str, trusted: Container[int]) -> int:
    """A descriptor of the directory at a whole path. Raises `NotMounted` for a link that somebody else has
    made on the way, `OSError`."""
    names = deque(path.split("/"))
    fd, links = os.open("/", _STEP), 0
    try:
        while names:
            name = names.popleft()
            if not name:
                continue
            try:
                below = os.open(name, _STEP, dir_fd=fd)
            except OSError as error:
                if error.errno not in _NO_DIRECTORY:
                    raise
            else:
                os.close(fd)
                fd = below
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = _target(bucket, path, name, fd, trusted)
            names.extendleft(reversed(target.split("/")))
            if target.startswith("/"):
                os.close(fd)
                fd = os.open("/", _STEP)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)


def _target(bucket: str, path: str, name: str, above: int, trusted: Container[int]) -> str:
    """Where the link of that name leads. Raises as `open_directory`."""
    link = os.open(name, _LINK, dir_fd=above)
    try:
        status = os.fstat(link)
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if status.st_uid not in trusted:
            raise NotMounted(_refusal(bucket, path, name, status.st_uid))
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _refusal(bucket: str, path: str, name: str, uid: int) -> str:
    return (
        f"{name!r} in the path {path} of bucket {bucket!r} is a symbolic link of account {uid}, which is not "
        "followed; root may make it his: chown -h root"
    )
