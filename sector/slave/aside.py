"""Contents that gave their name to another one and wait for their own new name.

A master may send renames in any order, and in parts: `/b` becomes `/c` and `/a` becomes `/b`, or two files
change places. What still has the name that another content is to get is therefore never replaced by it: it
waits in a box of the attic, with its record, through a restart too. What nobody comes for stays there.
Everything here blocks and runs in the slave's disk pool; callers hold the lock of the path.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import msgspec

from sector.clear import clear_thd
from sector.model import Version
from sector.slave.catalog import Record, decode_record

RECORD = "record.json"


class Aside:
    """Boxes by the path and version that the content had."""

    def __init__(self, attic: str) -> None:
        """`attic`: the folder of all boxes."""
        self._attic = attic
        self._boxes: dict[str, dict[Version, str]] = {}

    def load(self) -> None:
        """Find the boxes of earlier runs. Raises OSError."""
        self._boxes = {}
        for box in os.scandir(self._attic):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
                with open(os.path.join(box.path, RECORD), "rb") as source:
                    record = decode_record(source.read())
                self.add(record, box.path)

    def add(self, record: Record, box: str) -> None:
        """The content of `record` is the file `data` in `box`, its record beside it."""
        self._boxes.setdefault(record.path, {})[record.version] = box

    def find(self, path: str, version: Version) -> tuple[Record, str] | None:
        """Record and data file of a content that waits; None if it does not, or was taken out by hand."""
        box = self._boxes.get(path, {}).get(version)
        if box is None:
            return None
        data = os.path.join(box, "data")
        try:
            info = os.lstat(data)
            with open(os.path.join(box, RECORD), "rb") as source:
                record = decode_record(source.read())
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        same = (info.st_ino, info.st_size, info.st_mtime_ns) == (record.inode, record.size, record.mtime_ns)
        return (record, data) if same else None

    def renamed(self, path: str, version: Version) -> None:
        """The box is to be added by another name."""
        boxes = self._boxes.get(path, {})
        boxes.pop(version, None)
        if not boxes:
            self._boxes.pop(path, None)

    def taken(self, path: str, version: Version) -> None:
        """The content has left its box."""
        self._remove(path, lambda known: known == version)

    def delete(self, path: str, version: Version) -> bool:
        """Remove what waits of this path and is not newer than `version`; True if there was some."""
        return self._remove(path, lambda known: known <= version)

    def _remove(self, path: str, chosen: Callable[[Version], bool]) -> bool:
        boxes = self._boxes.get(path, {})
        gone = [known for known in boxes if chosen(known)]
        for known in gone:
            clear_thd(boxes.pop(known))
        if not boxes:
            self._boxes.pop(path, None)
        return bool(gone)
