"""What a slave's directory means: files found + metadata records -> catalogue, adoptions, conflicts. Pure.

A published content is a file in the visible tree and a record of it in `.sector/meta`. Publishing writes
the record before the rename, so after a crash one path may have several records: the one that matches the
file (inode, size, time) counts (design section 12).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from sector.model import TIME_MOST, SliceMeta, Tombstone, Version

FORMAT = 1
ADOPTED = Version(0, 1)
"""Version of content that was found in the tree and not known before; older than any written one."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of one content, one JSON file in `.sector/meta`.

    `inode`, `size`, `mtime_ns` identify the data file; `blocks` has the CRC32C of each 1 MiB block as
    little-endian u32 (empty in the catalogue in memory). Until the rename that publishes the content, it lies
    in the file `temp` of `.sector/tmp`; `lease` (hex) if a master has yet to agree. `mtime`: seconds since
    1970.
    """

    path: str
    epoch: int
    counter: int
    size: int
    owner: str
    mode: int
    mtime: float
    digest: str
    inode: int
    mtime_ns: int
    blocks: bytes = b""
    lease: str = ""
    temp: str = ""
    format: int = FORMAT

    @property
    def version(self) -> Version:
        return Version(self.epoch, self.counter)

    @property
    def meta(self) -> SliceMeta:
        """What the master hears of it."""
        return SliceMeta(self.path, self.version, self.size, self.owner, self.mode, self.mtime, self.digest)

    def lean(self) -> Record:
        """The same without block checksums, for the catalogue in memory."""
        return msgspec.structs.replace(self, blocks=b"") if self.blocks else self

    def crcs(self) -> tuple[int, ...]:
        """The block checksums."""
        return struct.unpack(f"<{len(self.blocks) // 4}I", self.blocks)


_decode = msgspec.json.Decoder(Record).decode


def time_of(seconds: float) -> float:
    """The time of a file as messages can carry it: some file systems keep absurd ones."""
    return min(max(seconds, -TIME_MOST), TIME_MOST)


def decode_record(raw: bytes) -> Record:
    """A record as it is kept. Raises msgspec.DecodeError, UnicodeDecodeError."""
    record = _decode(raw)
    mtime = time_of(record.mtime)
    return record if mtime == record.mtime else msgspec.structs.replace(record, mtime=mtime)


def record_of(
    meta: SliceMeta,
    found: Found,
    crcs: Iterable[int],
    *,
    lease: bytes = b"",
    temp: str = "",
) -> Record:
    """The record of `meta` whose bytes are in the file `found`."""
    values = tuple(crcs)
    return Record(
        meta.path,
        meta.version.epoch,
        meta.version.counter,
        meta.size,
        meta.owner,
        meta.mode,
        meta.mtime,
        meta.digest,
        found.inode,
        found.mtime_ns,
        struct.pack(f"<{len(values)}I", *values),
        lease.hex(),
        temp,
    )


def path_key(path: str) -> str:
    """The name under which records of `path` are kept: 32 hex digits (names can be too long for a suffix)."""
    return hashlib.sha256(path.encode()).hexdigest()[:32]


def record_name(path: str, version: Version) -> str:
    """The file of a record, relative to `.sector/meta`."""
    key = path_key(path)
    return f"{key[:2]}/{key}.{version.epoch}.{version.counter}.json"


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file seen on disk: cloud path (or temp name), inode, size in bytes, mtime in ns."""

    path: str
    inode: int
    size: int
    mtime_ns: int

    def matches(self, record: Record) -> bool:
        """Whether this is the very file that the record was written for."""
        return (self.inode, self.size, self.mtime_ns) == (record.inode, record.size, record.mtime_ns)

    def stamp(self, record: Record) -> Record:
        """The record as that of this file, which has its size."""
        return msgspec.structs.replace(record, inode=self.inode, mtime_ns=self.mtime_ns)


@dataclass(slots=True)
class Catalogue:
    """The meaning of a directory, and what has to be done about the rest.

    `current` path -> record of the visible content; `prepared` lease -> complete, unpublished content;
    `verify` files whose stamp changed while the size did not: equal digest = keep, else attic; `adopt`
    files nobody knows; `attic` (path, why) to be set aside, `buried` records of those that have a tombstone;
    `stale` records and `temps` to be removed;
    `gone` contents whose file disappeared; `doubles` further records of a content that is kept, under
    whose name in `.sector/meta` only one can lie: they are told of, and nothing is removed for them.
    """

    current: dict[str, Record] = field(default_factory=dict)
    prepared: dict[bytes, Record] = field(default_factory=dict)
    verify: list[tuple[Found, Record]] = field(default_factory=list)
    adopt: list[Found] = field(default_factory=list)
    attic: list[tuple[str, str]] = field(default_factory=list)
    buried: dict[str, Record] = field(default_factory=dict)
    stale: list[Record] = field(default_factory=list)
    temps: list[str] = field(default_factory=list)
    gone: list[tuple[str, Version]] = field(default_factory=list)
    doubles: list[Record] = field(default_factory=list)


def reconcile(
    files: Iterable[Found],
    records: Iterable[Record],
    temps: Mapping[str, Found],
    tombstones: Mapping[str, Tombstone],
) -> Catalogue:
    """Decide what the files of a slave are (design section 5).

    A file not newer than its tombstone goes to the attic and is never adopted. A file with records that do
    not match it was changed outside of the system: the attic, and the content counts as gone here. Of
    several records for one lease (a crash while the version that the master gave was written) the newest
    counts.
    """
    result = Catalogue()
    by_path: dict[str, list[Record]] = {}
    for record in records:
        temp = temps.get(record.temp) if record.temp else None
        if temp is None:
            by_path.setdefault(record.path, []).append(record)
        elif record.lease and temp.matches(record):
            _prepare(result, bytes.fromhex(record.lease), record)
        else:
            result.stale.append(record)
    for found in files:
        known = by_path.pop(found.path, [])
        _place(result, found, known, tombstones.get(found.path))
    for path, rest in by_path.items():
        result.gone.append((path, max(record.version for record in rest)))
        result.stale.extend(rest)
    _part_doubles(result)
    kept_temps = {record.temp for record in result.prepared.values()}
    result.temps = sorted(name for name in temps if name not in kept_temps)
    return result


def _prepare(result: Catalogue, lease: bytes, record: Record) -> None:
    other = result.prepared.get(lease)
    if other is None or record.version > other.version:
        result.prepared[lease] = record
    else:
        other = record
    if other is not None:
        result.stale.append(other)


def _part_doubles(result: Catalogue) -> None:
    """A stale record with path and version of a kept one has its name too: removing the one would remove
    the other. Of a content that is visible no second one in that version is prepared."""
    shown = (*result.current.values(), *(record for _, record in result.verify))
    kept = {(record.path, record.version) for record in shown}
    for lease, record in list(result.prepared.items()):
        if (record.path, record.version) in kept:
            result.doubles.append(result.prepared.pop(lease))
    kept |= {(record.path, record.version) for record in result.prepared.values()}
    stale, result.stale = result.stale, []
    for record in stale:
        name = (record.path, record.version)
        (result.doubles if name in kept else result.stale).append(record)


def _place(result: Catalogue, found: Found, known: list[Record], tombstone: Tombstone | None) -> None:
    matching = [record for record in known if found.matches(record)]
    if matching:
        best = max(matching, key=lambda record: record.version)
        result.stale.extend(record for record in known if record is not best)
        if tombstone is not None and best.version <= tombstone.version:
            result.stale.append(best)
            result.attic.append((found.path, "deleted while this slave was away"))
            result.buried[found.path] = best
        else:
            result.current[found.path] = best
        return
    same_size = [record for record in known if record.size == found.size]
    if same_size:
        best = max(same_size, key=lambda record: record.version)
        result.verify.append((found, best))
        result.stale.extend(record for record in known if record is not best)
        return
    result.stale.extend(known)
    if known:
        result.gone.append((found.path, max(record.version for record in known)))
        result.attic.append((found.path, "changed outside of the system"))
    elif tombstone is not None:
        result.attic.append((found.path, "not known, and this path was deleted"))
    else:
        result.adopt.append(found)
