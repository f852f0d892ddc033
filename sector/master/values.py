"""Frozen values that the store hands out beside those of the namespace."""

from __future__ import annotations

from dataclasses import dataclass

from sector.master.namespace import Entry, Replica
from sector.model import Right, SliceMeta, Tombstone, Version


@dataclass(frozen=True, slots=True)
class FileState:
    """A file with all its replicas, as replication looks at it; `doomed` nodes have yet to drop old content
    of this path."""

    entry: Entry
    replicas: tuple[Replica, ...]
    doomed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingRename:
    """A slave still knows `old_path` at `old_version`; it is to become `meta`. `begun`: the slave was told,
    and may have it by that name."""

    old_path: str
    old_version: Version
    meta: SliceMeta
    entry_id: int = 0
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Trash:
    """Content not newer than `version` that a slave is to remove."""

    path: str
    version: Version
    at: float
    surplus: bool


@dataclass(frozen=True, slots=True)
class MirrorPage:
    """Changes of the mirror after a position; `next` where the following page begins, None at the end."""

    tombstones: tuple[Tombstone, ...]
    directories: tuple[SliceMeta, ...]
    removed: tuple[str, ...]
    rights: tuple[Right, ...]
    next: tuple[int, int, str] | None


@dataclass(frozen=True, slots=True)
class Sums:
    """Sizes of the tables."""

    files: int
    bytes: int
    directories: int
    tombstones: int
    leases: int
    trash: int
