"""Rows of objects inside a transaction: what is published and removed, in any order of arrival.

A version is known by (bucket, key, version id); of two rows of one version the larger stamp wins. The newest
version of a key stands in `objects`, unless it is a delete marker; the others and all markers stand in
`versions`. A removal leaves a stamp in `removed` for a minute, so that what is older does not come back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from cumulus.index.api import NoSuch, Put, Remove, Row
from cumulus.index.readers import Run
from cumulus.index.writer import Tx

REMEMBER_NS: Final = 60 * 10**9
# the order in which rows are read; `versions` has the marker behind them
FIELDS: Final = "key, version, stamp, name, token, size, etag, modified_ns, owner, checksum, checksum_type"
CURRENT: Final = f"SELECT {FIELDS} FROM objects WHERE bucket = ? AND key = ?"
MANY_CURRENT: Final = f"SELECT {FIELDS} FROM objects WHERE bucket = ? AND key IN "
NEWEST: Final = (
    f"SELECT {FIELDS}, marker FROM versions WHERE bucket = ? AND key = ? ORDER BY stamp DESC LIMIT 1"
)
EXACT: Final = f"SELECT {FIELDS}, marker FROM versions WHERE bucket = ? AND key = ? AND version = ?"
# one statement each: between two a version may go from the one table to the other, and be in neither
_LATEST: Final = (
    f"SELECT {FIELDS}, false FROM objects WHERE bucket = ?1 AND key = ?2 UNION ALL "
    f"SELECT * FROM (SELECT {FIELDS}, marker FROM versions WHERE bucket = ?1 AND key = ?2 AND NOT EXISTS "
    "(SELECT 1 FROM objects WHERE bucket = ?1 AND key = ?2) ORDER BY stamp DESC LIMIT 1) AS newest"
)
_THAT: Final = (
    f"SELECT {FIELDS}, false, true FROM objects WHERE bucket = ?1 AND key = ?2 AND version = ?3 UNION ALL "
    f"SELECT {FIELDS}, marker, "
    "NOT EXISTS (SELECT 1 FROM objects o WHERE o.bucket = ?1 AND o.key = ?2) AND NOT EXISTS "
    "(SELECT 1 FROM versions v WHERE v.bucket = ?1 AND v.key = ?2 AND v.stamp > versions.stamp) "
    "FROM versions WHERE bucket = ?1 AND key = ?2 AND version = ?3"
)
_OLDER: Final = (
    f"SELECT {FIELDS}, marker FROM versions WHERE bucket = ? AND key = ? AND stamp <= ? "
    "ORDER BY stamp DESC LIMIT 1"
)
_INSERT: Final = f"INSERT INTO objects (bucket, {FIELDS}) VALUES"
_ROW: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
AT_ONCE: Final = 50  # rows of one statement; SQLite takes 999 values everywhere
_INTO_OBJECTS: Final = (
    f"{_INSERT} {_ROW} "
    "ON CONFLICT (bucket, key) DO UPDATE SET version = excluded.version, stamp = excluded.stamp, "
    "name = excluded.name, token = excluded.token, size = excluded.size, etag = excluded.etag, "
    "modified_ns = excluded.modified_ns, owner = excluded.owner, checksum = excluded.checksum, "
    "checksum_type = excluded.checksum_type"
)
_INTO_VERSIONS: Final = (
    f"INSERT INTO versions (bucket, {FIELDS}, marker) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# the current version, the stamp of a removal, whether there is more in `versions`, and whether the bucket is
# there
_STATE: Final = (
    f"SELECT {FIELDS}, "
    "(SELECT MAX(stamp) FROM removed WHERE bucket = ?1 AND key = ?2 AND version IN (?3, '')), "
    "EXISTS (SELECT 1 FROM versions WHERE bucket = ?1 AND key = ?2), "
    "EXISTS (SELECT 1 FROM ledger WHERE bucket = ?1) "
    "FROM (SELECT 1) LEFT JOIN objects ON objects.bucket = ?1 AND objects.key = ?2"
)
_GONE: Final = "SELECT MAX(stamp) FROM removed WHERE bucket = ? AND key = ? AND version IN (?, '')"
_REMEMBER: Final = (
    "INSERT INTO removed (bucket, key, version, stamp, at_ns) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (bucket, key, version) DO UPDATE SET at_ns = excluded.at_ns, "
    "stamp = CASE WHEN excluded.stamp > removed.stamp THEN excluded.stamp ELSE removed.stamp END"
)
VERSION, STAMP, SIZE, MODIFIED, MARKER = 1, 2, 5, 7, 11  # places in what is read


def to_row(bucket: str, values: tuple[Any, ...], latest: bool) -> Row:
    """A row as the floors above know it; `values` are `FIELDS`, of `versions` with the marker."""
    key = values[0].decode()
    name = values[3]
    return Row(
        bucket=bucket,
        key=key,
        version=values[1],
        stamp=values[2],
        name=key if name is None else name,
        token=values[4],
        size=values[5],
        etag=values[6],
        modified_ns=values[7],
        owner=values[8],
        latest=latest,
        marker=len(values) > MARKER and bool(values[MARKER]),
        checksum=values[9],
        checksum_type=values[10],
    )


def _values(row: Row, key: bytes) -> tuple[Any, ...]:
    return (
        key,
        row.version,
        row.stamp,
        None if row.name == row.key else row.name,
        row.token,
        row.size,
        row.etag,
        row.modified_ns,
        row.owner,
        row.checksum,
        row.checksum_type,
    )


def find(run: Run, bucket: str, key: str, version: str | None) -> Row | None:
    """The current version (also a delete marker) or that one."""
    where = (bucket, key.encode())
    if version is None:
        newest = run(_LATEST, where).fetchone()
        return to_row(bucket, newest, True) if newest is not None else None
    found = run(_THAT, (*where, version)).fetchone()
    return to_row(bucket, found[:-1], bool(found[-1])) if found is not None else None


def gone_at(run: Run, bucket: str, key: str, version: str) -> int:
    """As `Index.gone_at`."""
    found = run(_GONE, (bucket, key.encode(), version)).fetchone()
    return int(found[0] or 0)


def put(tx: Tx, change: Put) -> None:
    """Take in what was published; without effect when something newer of that version is known. Raises
    `NoSuch` when the bucket has gone."""
    row = change.row
    key = row.key.encode()
    where = (row.bucket, key)
    *found, gone, more, there = tx.run(_STATE, (*where, row.version)).fetchone()
    if not there:
        raise NoSuch(f"there is no bucket {row.bucket}")
    if gone is not None and gone >= row.stamp:
        return
    current = tuple(found) if found[0] is not None else None
    newest = tx.run(NEWEST, where).fetchone() if more else None
    same = _same(tx, row, where, current, newest)
    if same is not None:
        if same[STAMP] > row.stamp:
            return
        if same is current and newest is None and not row.marker:
            tx.run(_INTO_OBJECTS, (row.bucket, *_values(row, key)))  # what happens most: replaced in place
            tx.charge(row.bucket, row.size - same[SIZE], 0)
            return
        _drop(tx, where, same)
        if current is same:
            current = None
        elif newest is same:
            newest = tx.run(NEWEST, where).fetchone()
    _place(tx, change, where, current or newest)


def put_new(tx: Tx, changes: Sequence[Put]) -> list[Put]:
    """Insert, many at a time, those whose key nothing is known of; the others are given back. For long runs
    of neighbouring keys of one bucket, as a scan finds them."""
    rows = {change.row.key.encode(): change.row for change in changes}
    bucket = changes[0].row.bucket
    if len(rows) < len(changes) or any(row.bucket != bucket or row.marker for row in rows.values()):
        return list(changes)
    if not tx.run("SELECT 1 FROM ledger WHERE bucket = ?", (bucket,)).fetchone():
        return list(changes)
    first, last, most = min(rows), max(rows), 4 * len(rows)
    known: set[bytes] = set()
    for table in ("objects", "versions", "removed"):
        query = f"SELECT key FROM {table} WHERE bucket = ? AND key >= ? AND key <= ? LIMIT ?"
        found = tx.run(query, (bucket, first, last, most)).fetchall()
        if len(found) == most:
            return list(changes)
        known.update(row[0] for row in found)
    new = [(bucket, *_values(row, key)) for key, row in rows.items() if key not in known]
    for at in range(0, len(new), AT_ONCE):
        some = new[at : at + AT_ONCE]
        tx.run(f"{_INSERT} {', '.join([_ROW] * len(some))}", list(itertools.chain.from_iterable(some)))
    size = sum(row.size for key, row in rows.items() if key not in known)
    tx.charge(bucket, size, len(new))
    return [change for change in changes if change.row.key.encode() in known]


def _place(tx: Tx, change: Put, where: tuple[str, bytes], former: tuple[Any, ...] | None) -> None:
    """Insert a version that is not there; `former` is the newest of the others."""
    row = change.row
    values = (row.bucket, *_values(row, where[1]))
    if former is not None and row.stamp < former[STAMP]:
        tx.run(_INTO_VERSIONS, (*values, row.marker))
    else:
        if former is not None:
            _step_down(tx, where, former, change.keep)
        if row.marker:
            tx.run(_INTO_VERSIONS, (*values, True))
        else:
            tx.run(_INTO_OBJECTS, values)
    if not row.marker:
        tx.charge(row.bucket, row.size, 1)


def _same(
    tx: Tx,
    row: Row,
    where: tuple[str, bytes],
    current: tuple[Any, ...] | None,
    newest: tuple[Any, ...] | None,
) -> tuple[Any, ...] | None:
    if current is not None and current[VERSION] == row.version:
        return current
    if newest is None or newest[VERSION] == row.version:
        return newest
    found: tuple[Any, ...] | None = tx.run(EXACT, (*where, row.version)).fetchone()
    return found


def _drop(tx: Tx, where: tuple[str, bytes], found: tuple[Any, ...]) -> None:
    """Take one row out, and out of the ledger."""
    if len(found) > MARKER:
        tx.run("DELETE FROM versions WHERE bucket = ? AND key = ? AND version = ?", (*where, found[VERSION]))
        if found[MARKER]:
            return
    else:
        tx.run("DELETE FROM objects WHERE bucket = ? AND key = ?", where)
    tx.charge(where[0], -found[SIZE], -1)


def _step_down(tx: Tx, where: tuple[str, bytes], former: tuple[Any, ...], keep: bool) -> None:
    """The former newest version is kept as an older one, or it went from storage."""
    if not keep:
        _drop(tx, where, former)
    elif len(former) <= MARKER:
        tx.run("DELETE FROM objects WHERE bucket = ? AND key = ?", where)
        tx.run(_INTO_VERSIONS, (where[0], *former, False))


def remove(tx: Tx, change: Remove) -> None:
    """Take in that a version went; what is newer than `change.stamp` stays."""
    where = (change.bucket, change.key.encode())
    current = tx.run(CURRENT, where).fetchone()
    newest = None if current is not None else tx.run(NEWEST, where).fetchone()
    top = current if current is not None else newest
    if change.version is None and (top is None or top[STAMP] > change.stamp):
        found = tx.run(_OLDER, (*where, change.stamp)).fetchone()  # what was current at that time
    elif change.version is None or (top is not None and top[VERSION] == change.version):
        found = top
    else:
        found = tx.run(EXACT, (*where, change.version)).fetchone()
    version = change.version
    if version is None:
        version = found[VERSION] if found is not None else ""  # "": whatever was older and comes late
    tx.run(_REMEMBER, (*where, version, change.stamp, tx.now_ns))
    if found is None or found[STAMP] > change.stamp:
        return
    _drop(tx, where, found)
    if found is top:
        _promote(tx, where)


def _promote(tx: Tx, where: tuple[str, bytes]) -> None:
    """The newest of the older versions becomes current, unless it is a delete marker."""
    newest = tx.run(NEWEST, where).fetchone()
    if newest is not None and not newest[MARKER]:
        tx.run("DELETE FROM versions WHERE bucket = ? AND key = ? AND version = ?", (*where, newest[VERSION]))
        tx.run(_INTO_OBJECTS, (where[0], *newest[:MARKER]))


def forget(tx: Tx) -> None:
    """Drop the stamps of removals that are older than a minute."""
    tx.run("DELETE FROM removed WHERE at_ns < ?", (tx.now_ns - REMEMBER_NS,))
