"""Deletions and renames that one slave cannot make, such as below a directory that is not its user's: they
are left out for a while, so that they hold up nothing behind them. `now` is a monotonic time in seconds.
"""

from __future__ import annotations

from sector.errors import Busy, Cancelled, Conflict, Denied, NoSpace, SectorError, TimedOut, Unreachable
from sector.master.values import PendingRename, Trash
from sector.model import Version

Key = tuple[str, str, Version]
AGAIN_S = 600.0
MOST = 2000
_OF_THE_SLAVE = (Unreachable, TimedOut, Conflict, Busy, NoSpace, Cancelled, Denied)


def blames_item(error: SectorError) -> bool:
    """Whether the error may be about one path, and not about the slave, whatever it is asked."""
    return not isinstance(error, _OF_THE_SLAVE)


def key_of(item: PendingRename | Trash) -> Key:
    """What names the item, also when the file is moved once more."""
    if isinstance(item, PendingRename):
        return "rename", item.old_path, item.old_version
    return "surplus" if item.surplus else "delete", item.path, item.version


class Stuck:
    """What one slave failed at, and when each is tried again."""

    def __init__(self) -> None:
        self._until: dict[Key, float] = {}  # the earliest first
        self._told: set[Key] = set()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, key: Key, now: float) -> bool:
        """Leave it out for AGAIN_S; False if there are too many already."""
        if len(self._until) >= MOST:
            return False
        self._until.pop(key, None)
        self._until[key] = now + AGAIN_S
        return True

    def news(self, key: Key) -> bool:
        """Whether an administrator was not told of it yet; he is now."""
        if key in self._told or len(self._told) >= MOST:
            return False
        self._told.add(key)
        return True

    def done(self, key: Key) -> None:
        """It was made after all."""
        self._until.pop(key, None)
        self._told.discard(key)

    def waiting(self, now: float) -> frozenset[Key]:
        """What is left out now."""
        while self.due(now):
            del self._until[next(iter(self._until))]
        return frozenset(self._until)

    def due(self, now: float) -> bool:
        """Whether some are to be tried again."""
        return next(iter(self._until.values()), now + 1) <= now
