"""Pages of listings: rows in order of UTF-8 bytes, common prefixes found by jumping behind each one.

A page holds at most `limit` rows and prefixes in memory, and reads a few rows more than it returns: below a
common prefix a handful are read, then the search goes on behind it.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from cumulus.index.api import Line, Lines, Page, Row
from cumulus.index.objects import FIELDS, MODIFIED, STAMP, VERSION, to_row
from cumulus.index.readers import Run

Values = tuple[Any, ...]
Scan = Callable[[bytes], Iterator[Values]]  # rows of keys from there on, in order
# rows of a bucket from a key to another in order, the newest of each key first; of the first key only what is
# older than a stamp, if one is given
Versions = Callable[[Run, str, bytes, bytes, int | None], Iterator[Values]]
_TABLES: Final = ("objects", "versions")
_MOST: Final = 1000  # rows that are read at once
_NEAR: Final = 8  # rows of one common prefix that are read before the search jumps behind it
_END: Final = b"\xff"  # above all of UTF-8
_ID: Final = re.compile(r"[0-9a-f]{32}")
_LATEST: Final = (1 << 64) - 1  # from which the times of versions are counted back in their ids
_OBJECTS: Final = f"SELECT {FIELDS} FROM objects WHERE bucket = ? AND key >= ? AND key < ? ORDER BY key"
_SHOWN: Final = "etag, size, modified_ns, owner, checksum, checksum_type"  # of `Line`, behind the key
_FROM: Final = "FROM objects WHERE bucket = ? AND key >= ? AND key < ? ORDER BY key"
_LINES: Final = f"SELECT CAST(key AS TEXT), {_SHOWN} {_FROM} LIMIT ?"
_MIXED_LINES: Final = f"SELECT key, {_SHOWN} {_FROM}"
_VERSIONS: Final = (
    f"SELECT {FIELDS}, marker FROM versions WHERE bucket = ? AND key >= ? AND key < ? "
    "ORDER BY key, stamp DESC"
)
# of one key what is older than a version that is there: only the newest one is in `objects`
_OLDER: Final = (
    f"SELECT {FIELDS}, marker FROM versions WHERE bucket = ? AND key = ? AND stamp < ? ORDER BY stamp DESC"
)


def _both(current: str, *older: str) -> str:
    """Rows of both tables in one statement, so that none is missed or doubled on its way from one to the
    other: those for which `current` holds of `objects`, and one of `older` of `versions`, each of which ends
    where a range of an index does."""
    objects = f"SELECT {FIELDS}, false AS marker FROM objects WHERE bucket = ?1 AND {current} ORDER BY key"
    versions = (
        f"SELECT {FIELDS}, marker FROM versions WHERE bucket = ?1 AND {which} ORDER BY key, stamp DESC"
        for which in older
    )
    tables = " UNION ALL ".join(f"({each} LIMIT ?4)" for each in (objects, *versions))
    return f"{tables} ORDER BY key, stamp DESC LIMIT ?4"


_FIRST: Final = _both("key >= ?2 AND key < ?3", "key >= ?2 AND key < ?3")
_NEXT: Final = _both(
    "key >= ?2 AND key < ?3 AND (key > ?2 OR stamp < ?5)", "key = ?2 AND stamp < ?5", "key > ?2 AND key < ?3"
)


def behind(prefix: bytes) -> bytes:
    """The smallest bytes greater than everything that begins with `prefix` (UTF-8, not empty)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


class Cut:
    """Where a listing begins and ends, and what its delimiter makes of a key."""

    def __init__(self, prefix: str, delimiter: str) -> None:
        self.prefix = prefix.encode()
        self.delimiter = delimiter.encode()
        self.end = behind(self.prefix) if self.prefix else _END

    def common(self, key: bytes) -> bytes | None:
        """The common prefix under which this key is hidden."""
        if not self.delimiter:
            return None
        at = key.find(self.delimiter, len(self.prefix))
        return key[: at + len(self.delimiter)] if at >= 0 else None

    def start(self, after: str) -> bytes:
        """The first key that may follow `after`."""
        if not after:
            return self.prefix
        last = after.encode()
        hidden = last.startswith(self.prefix) and self.common(last) == last
        return max(self.prefix, behind(last) if hidden else last + b"\0")


def _collect(
    scan: Scan, start: bytes, cut: Cut, limit: int, take: Callable[[Values], None]
) -> tuple[list[str], bytes | None]:
    """Give `take` the rows of a page. Returns the common prefixes among them and, if the listing goes on, the
    last key or prefix of the page."""
    prefixes: list[str] = []
    count, last = 0, b""
    position: bytes | None = start
    while position is not None:
        found, position = scan(position), None
        under: bytes | None = None
        near = 0
        for values in found:
            key = values[0]
            if under is not None and key.startswith(under):
                near += 1
                if near >= _NEAR:
                    position = behind(under)
                    break
                continue
            if count >= limit:
                return prefixes, last
            count += 1
            under, near = cut.common(key), 0
            if under is not None:
                prefixes.append(under.decode())
                last = under
            else:
                take(values)
                last = key
    return prefixes, None


def _ended(rows: list[Row], prefixes: list[str], last: bytes | None, version: str = "") -> Page:
    if last is None:
        return Page(rows=rows, prefixes=prefixes, truncated=False)
    return Page(rows=rows, prefixes=prefixes, truncated=True, next=last.decode(), next_version=version)


def page(run: Run, bucket: str, *, prefix: str, after: str, delimiter: str, limit: int) -> Page:
    """Current versions (`Index.page`)."""
    cut = Cut(prefix, delimiter)
    start = cut.start(after)
    if limit <= 0 or start >= cut.end:
        return Page(rows=[], prefixes=[], truncated=False)
    if not delimiter:
        found = run(_OBJECTS + " LIMIT ?", (bucket, start, cut.end, limit + 1)).fetchall()
        made = [to_row(bucket, values, True) for values in found[:limit]]
        return _ended(made, [], found[limit - 1][0] if len(found) > limit else None)
    rows: list[Row] = []
    prefixes, last = _collect(
        lambda position: _rows(run, _OBJECTS, bucket, position, cut.end),
        start,
        cut,
        limit,
        lambda values: rows.append(to_row(bucket, values, True)),
    )
    return _ended(rows, prefixes, last)


def lines(run: Run, bucket: str, *, prefix: str, after: str, delimiter: str, limit: int) -> Lines:
    """What a listing shows of current versions (`Index.lines`)."""
    cut = Cut(prefix, delimiter)
    start = cut.start(after)
    if limit <= 0 or start >= cut.end:
        return Lines(lines=[], prefixes=[], truncated=False)
    if not delimiter:
        found: list[Line] = run(_LINES, (bucket, start, cut.end, limit + 1)).fetchall()
        if len(found) <= limit:
            return Lines(lines=found, prefixes=[], truncated=False)
        del found[limit:]
        return Lines(lines=found, prefixes=[], truncated=True, next=found[-1][0])
    shown: list[Line] = []
    prefixes, last = _collect(
        lambda position: _rows(run, _MIXED_LINES, bucket, position, cut.end),
        start,
        cut,
        limit,
        lambda values: shown.append((values[0].decode(), *values[1:])),
    )
    end = "" if last is None else last.decode()
    return Lines(lines=shown, prefixes=prefixes, truncated=last is not None, next=end)


def from_items(bucket: str, items: Sequence[Values], limit: int) -> Page:
    """A page of what a database has collected itself: (common prefix, or None; the values of a row), at most
    one more than `limit`."""
    rows: list[Row] = []
    prefixes: list[str] = []
    last = b""
    for common, *values in items[:limit]:
        last = common if common is not None else values[0]
        if common is not None:
            prefixes.append(common.decode())
        else:
            rows.append(to_row(bucket, tuple(values), True))
    return _ended(rows, prefixes, last if len(items) > limit else None)


def _rows(run: Run, query: str, bucket: str, start: bytes, end: bytes) -> Iterator[Values]:
    """As they are read: for a database in this process."""
    if start < end:
        yield from _read(run, query, (bucket, start, end))


def _read(run: Run, query: str, values: Values) -> Iterator[Values]:
    cursor = run(query, values)
    try:
        yield from cursor
    finally:
        cursor.close()


def _as_read(
    run: Run, bucket: str, start: bytes, end: bytes, older_than: int | None = None
) -> Iterator[Values]:
    """For a connection on which all statements see the same moment."""
    if older_than is not None:
        yield from _read(run, _OLDER, (bucket, start, older_than))
        start += b"\0"
    rows = (_rows(run, query, bucket, start, end) for query in (_OBJECTS, _VERSIONS))
    yield from heapq.merge(*rows, key=_order)


def in_pieces(first: int) -> Versions:
    """`first` rows, then more and more: for a database at the other end of a connection. The rows of a piece
    are of one moment."""

    def rows(
        run: Run, bucket: str, start: bytes, end: bytes, older_than: int | None = None
    ) -> Iterator[Values]:
        if start >= end:
            return
        size, where = first, (bucket, start, end, first)
        query, values = (_FIRST, where) if older_than is None else (_NEXT, (*where, older_than))
        found = run(query, values).fetchall()
        while found:
            yield from found
            if len(found) < size:
                return
            size, start, stamp = min(2 * size, _MOST), found[-1][0], found[-1][STAMP]
            found = run(_NEXT, (bucket, start, end, size, stamp)).fetchall()

    return rows


def _order(values: Values) -> tuple[bytes, int]:
    return values[0], -values[STAMP]


def page_versions(
    run: Run,
    bucket: str,
    *,
    prefix: str,
    after: str,
    after_version: str,
    delimiter: str,
    limit: int,
    rows: Versions = _as_read,
) -> Page:
    """All versions and markers (`Index.page_versions`)."""
    cut = Cut(prefix, delimiter)
    start = cut.start(after)
    there: int | None = None  # the stamp of the version where the page before ended,
    gone: _Gone | None = None  # or what is known of it
    if after and after_version and start == after.encode() + b"\0":
        start = after.encode()
        version, _, then = after_version.partition("-")
        there = _stamp(run, bucket, start, version)
        gone = _Gone(start, version, int(then, 16)) if then and there is None else None
    if limit <= 0:
        return Page(rows=[], prefixes=[], truncated=False)
    made: list[Row] = []
    before = b"" if there is None else start  # the key of the row before: a key's first row is its newest

    def scan(position: bytes) -> Iterator[Values]:
        nonlocal before
        for values in rows(run, bucket, position, cut.end, there if position == start else None):
            if gone is not None and gone.covers(values):
                before = start
            else:
                yield values

    def take(values: Values) -> None:
        nonlocal before
        made.append(to_row(bucket, values, values[0] != before))
        before = values[0]

    prefixes, last = _collect(scan, start, cut, limit, take)
    ends_in_row = made and last == before
    return _ended(made, prefixes, last, _place(made[-1]) if ends_in_row else "")


def _place(row: Row) -> str:
    """Where a page ended within a key: a version, and its place among the others, which it keeps when it is
    removed."""
    return f"{row.version}-{row.stamp:x}"


class _Gone:
    """The version of a key where a page ended. Since then what had been older may have become current, with a
    later stamp than it had: that is seen by its id."""

    def __init__(self, key: bytes, version: str, stamp: int) -> None:
        self._key = key
        self._stamp = stamp
        self._time = _time(version, stamp)

    def covers(self, values: Values) -> bool:
        """Whether that row was on the page, or would have been before it."""
        if values[0] != self._key or values[STAMP] < self._stamp:
            return False
        return _time(values[VERSION], values[MODIFIED]) >= self._time


def _time(version: str, other: int) -> int:
    """When a version was made, by its id (those of later ones sort first), or `other` where that says
    nothing."""
    return _LATEST - int(version[:16], 16) if _ID.fullmatch(version) else other


def _stamp(run: Run, bucket: str, key: bytes, version: str) -> int | None:
    """The stamp of a version; None when there is none."""
    tables = (
        f"SELECT stamp FROM {table} WHERE bucket = ?1 AND key = ?2 AND version = ?3" for table in _TABLES
    )
    found = run(" UNION ALL ".join(tables), (bucket, key, version)).fetchone()
    return int(found[0]) if found is not None else None
