"""A slave's data directory for tests: contents put into it, and changes cut off anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sector._udt.checksum import block_crcs, content_digest, crc32c
from sector.model import SliceMeta, Version, digest_text
from sector.slave import area, beneath, disk, mirror, room
from sector.slave.catalog import Record
from sector.slave.disk import Disk

V1, V2, V3 = Version(1, 1), Version(1, 2), Version(1, 3)
LEASE = b"L" * 16


def meta_of(path: str, content: bytes, version: Version) -> SliceMeta:
    """Metadata of this content."""
    crcs = [crc32c(content[i : i + (1 << 20)]) for i in range(0, len(content), 1 << 20)]
    digest = digest_text(content_digest(crcs, len(content)))
    return SliceMeta(path, version, len(content), "alice", 0o640, 1_700_000_000.25, digest)


def seal(target: Disk, path: str, content: bytes, version: Version, lease: bytes = LEASE) -> Record:
    """Reserve, write and seal content, as a transfer does."""
    temp = target.reserve_thd(path, len(content))
    try:
        os.pwrite(temp.fd, content, 0)
        crcs = tuple(block_crcs(temp.fd, 0, len(content)))
        return target.seal_thd(temp, meta_of(path, content, version), crcs, lease)
    finally:
        os.close(temp.fd)


def store(target: Disk, path: str, content: bytes, version: Version) -> Record:
    """Publish content."""
    return target.publish_thd(seal(target, path, content, version))


def opened(root: Path) -> Disk:
    """The directory as a slave that starts sees it."""
    found = Disk(str(root), "s1")
    found.open_thd()
    return found


def content_of(target: Disk, path: str, version: Version) -> bytes:
    """What a reader of this version gets."""
    fd, record = target.open_read_thd(path, version)
    try:
        assert target.bad_blocks_thd(record, fd, 0, record.size) == []
        return os.pread(fd, record.size + 1, 0)
    finally:
        os.close(fd)


class Crash(BaseException):
    """The power is gone."""


class Breaker:
    """Lets `count` changes of the disk happen, then none any more. Looks like the os module."""

    CHANGES = ("open", "rename", "unlink", "fsync", "mkdir", "rmdir", "utime", "fchmod", "truncate", "write")

    def __init__(self, count: int) -> None:
        self.left = count
        self.hit = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CHANGES:
            return real

        def change(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not (args[1] & os.O_CREAT):
                return real(*args, **kwargs)
            if self.left <= 0:
                self.hit = True
                raise Crash
            self.left -= 1
            self.calls.append(name)
            return real(*args, **kwargs)

        return change


def interrupted(root: Path, count: int, work: Callable[[Disk], Any]) -> Breaker:
    """Do `work` on the directory, cut off after `count` changes; the locks of the dead are freed."""
    target = opened(root)
    breaker = Breaker(count)
    modules = (area, beneath, disk, room, mirror)
    for module in modules:
        module.os = breaker  # type: ignore[attr-defined]
    try:
        work(target)
    except Crash:
        pass
    finally:
        for module in modules:
            module.os = os  # type: ignore[attr-defined]
        target.close_thd()
    return breaker
