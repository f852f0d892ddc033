"""What the journals say was under a name before a crash, and whether what is there now is of that.

A file of others may have come after what a journal has, as by `mv b k`, and bears older times, a record of
ours and an inode that something of ours has had. So nothing goes but what is known to have been under this
name, each inode only up to the time until which it was; what has got its name later stays; and the rest,
which may be either, is put aside.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Final

from cumulus.backends.posix import meta as metas
from cumulus.backends.posix import sidecar
from cumulus.backends.posix.files import XATTR, Files
from cumulus.backends.posix.links import NO_LINKS
from cumulus.backends.posix.meta import Record, inode_of, last_change, mtime_of, token_of
from cumulus.backends.posix.paths import Directory, Root
from cumulus.backends.posix.publish import SMALL
from cumulus.backends.posix.records import PUT, Change
from cumulus.storage.api import INTERNAL
from cumulus.storage.names import MAX_SEGMENT

_SUFFIX: Final = ".aside-"


class Verdict(enum.Enum):
    """Of what is under a name."""

    FORMER = "what was replaced or removed, or what the crash left of a change"
    LATER = "it came after the change, and stays"
    UNKNOWN = "nobody can tell"


class Past:
    """Of one name."""

    def __init__(self) -> None:
        self._until: dict[int, int] = {}  # inode: the last stamp at which it is known to have had the name
        self._tokens: set[bytes] = set()  # without their ctime, which a lost rename may have changed
        self._stamps: set[int] = set()  # of what was put
        self._bodies: list[Callable[[], bytes]] = []  # the same

    def add(self, change: Change, body: Callable[[], bytes]) -> None:
        """One change that a journal has; `body` reads there what was put, and raises `OSError`."""
        if change.kind == PUT:
            self._stamps.add(change.stamp)
            self._bodies.append(body)
        if change.inode:
            self._until[change.inode] = max(change.stamp, self._until.get(change.inode, 0))
        if change.before:
            inode = inode_of(change.before)
            self._until[inode] = max(change.stamp, self._until.get(inode, 0))
            self._tokens.add(change.before[:-8])

    def judge(self, fd: int, there: os.stat_result, record: Record | None, change: Change) -> Verdict:
        """Of an open file, whose `record` fits it if it has one. Raises `OSError`."""
        if record is not None and record.stamp >= change.stamp:
            return Verdict.LATER
        if token_of(there)[:-8] in self._tokens or self._is_left(fd, there, record):
            return Verdict.FORMER
        if last_change(there) > change.stamp:
            return Verdict.LATER
        return Verdict.UNKNOWN

    def _is_left(self, fd: int, there: os.stat_result, record: Record | None) -> bool:
        """Whether something of ours has this inode, and not a file of others that got it afterwards."""
        if record is not None and record.stamp in self._stamps:
            return True
        until = self._until.get(there.st_ino, -1)
        if record is not None:
            return record.stamp <= until
        if mtime_of(there) > until:
            return False
        if last_change(there) <= until or self._has_attribute(fd, there):
            return True
        if there.st_size > SMALL:
            return False
        found = os.pread(fd, SMALL + 1, 0)
        return any(_is_part(found, body()) for body in self._bodies)

    def _has_attribute(self, fd: int, there: os.stat_result) -> bool:
        """It has our record, which does not fit what a crash has left of it."""
        try:
            record = metas.decode(os.getxattr(fd, XATTR))
        except OSError:
            return False
        return record is not None and record.inode == there.st_ino and record.stamp in self._stamps


def _is_part(found: bytes, body: bytes) -> bool:
    """Whether nothing but a body was written; what of it was not is zeros."""
    written = found.rstrip(b"\0")
    if body.startswith(written):
        return True
    return len(written) <= len(body) and all(
        byte in (0, wanted) for byte, wanted in zip(written, body, strict=False)
    )


def may_go_aside(segments: list[str]) -> bool:
    """Whether others put files under such a name: not below `.cumulus`."""
    return segments[0] != INTERNAL


def put_aside(root: Root, segments: list[str], parent: Directory, fd: int, files: Files) -> str:
    """Give the open file, which is the last of `segments`, a second name beside it, with its record; the
    caller takes the first. Returns the second. Raises `OSError`."""
    status, last = os.fstat(fd), segments[-1]
    found = sidecar.find(root, "/".join(segments), status.st_ino)
    number = 0
    while True:
        number += 1
        to = _shortened(last, f"{_SUFFIX}{number}")
        name = "/".join([*segments[:-1], to])
        try:
            os.stat(to, dir_fd=parent.fd, follow_symlinks=False)
            continue
        except FileNotFoundError:
            pass
        if found:
            sidecar.write(root, name, found[1], files, sync=False)
        try:
            files.link(parent.fd, last, parent.fd, to)
        except FileExistsError:
            if found:
                sidecar.drop(root, name, status.st_ino, files)
            continue
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            files.rename(parent.fd, last, parent.fd, to)
        return name


def _shortened(last: str, suffix: str) -> str:
    room = MAX_SEGMENT - len(suffix)
    return last.encode()[:room].decode(errors="ignore") + suffix
