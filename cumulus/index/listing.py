"""Pages of listings: rows in order of UTF-8 bytes, common prefixes found by jumping behind each one.

A page holds at most `limit` rows and prefixes in memory, and reads a few rows more than it returns: below a
common prefix a handful are read, then the search goes on behind it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from cumulus.index.api import Page
from cumulus.index.objects import FIELDS, STAMP, VERSION, to_row
from cumulus.index.readers import Run

Values = tuple[Any, ...]
Scan = Callable[[bytes], Iterator[Values]]  # rows of keys from there on, in order
# rows of `objects` or `versions` (True) of a bucket from a key to another, in order
Rows = Callable[[Run, bool, str, bytes, bytes], Iterator[Values]]
_MOST: Final = 1000  # rows that are read at once
_NEAR: Final = 8  # rows of one common prefix that are read before the search jumps behind it
_END: Final = b"\xff"  # above all of UTF-8
_OBJECTS: Final = f"SELECT {FIELDS} FROM objects WHERE bucket = ? AND key >= ? AND key < ? ORDER BY key"
_VERSIONS: Final = (
    f"SELECT {FIELDS}, marker FROM versions WHERE bucket = ? AND key >= ? AND key < ? "
    "ORDER BY key, stamp DESC"
)
_OLDER: Final = (
    f"SELECT {FIELDS}, marker FROM versions WHERE bucket = ?1 AND key >= ?2 AND key < ?4 "
    "AND (key > ?2 OR stamp < ?3) ORDER BY key, stamp DESC LIMIT ?5"
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


def _collect(bucket: str, scan: Scan, start: bytes, cut: Cut, limit: int, resumed: bytes) -> Page:
    """`resumed` is the key whose newest version stood on an earlier page, or b""."""
    page = Page(rows=[], prefixes=[], truncated=False)
    last: tuple[bytes, str] = (b"", "")
    position: bytes | None = start
    key_before = resumed
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
            if len(page.rows) + len(page.prefixes) >= limit:
                return _truncated(page, last)
            under, near = cut.common(key), 0
            if under is not None:
                page.prefixes.append(under.decode())
                last = (under, "")
            else:
                page.rows.append(to_row(bucket, values, key != key_before))
                last, key_before = (key, values[VERSION]), key
    return page


def _truncated(page: Page, last: tuple[bytes, str]) -> Page:
    return Page(
        rows=page.rows, prefixes=page.prefixes, truncated=True, next=last[0].decode(), next_version=last[1]
    )


def page(run: Run, bucket: str, *, prefix: str, after: str, delimiter: str, limit: int) -> Page:
    """Current versions (`Index.page`)."""
    cut = Cut(prefix, delimiter)
    start = cut.start(after)
    if limit <= 0 or start >= cut.end:
        return Page(rows=[], prefixes=[], truncated=False)
    if not delimiter:
        found = run(_OBJECTS + " LIMIT ?", (bucket, start, cut.end, limit + 1)).fetchall()
        plain = Page(
            rows=[to_row(bucket, values, True) for values in found[:limit]], prefixes=[], truncated=False
        )
        return _truncated(plain, (found[limit - 1][0], "")) if len(found) > limit else plain

    def scan(position: bytes) -> Iterator[Values]:
        return _rows(run, False, bucket, position, cut.end)

    found_page = _collect(bucket, scan, start, cut, limit, b"")
    if not found_page.truncated:
        return found_page
    return Page(rows=found_page.rows, prefixes=found_page.prefixes, truncated=True, next=found_page.next)


def from_items(bucket: str, items: Sequence[Values], limit: int) -> Page:
    """A page of what a database has collected itself: (common prefix, or None; the values of a row), at most
    one more than `limit`."""
    page = Page(rows=[], prefixes=[], truncated=False)
    last = b""
    for common, *values in items[:limit]:
        last = common if common is not None else values[0]
        if common is not None:
            page.prefixes.append(common.decode())
        else:
            page.rows.append(to_row(bucket, tuple(values), True))
    return _truncated(page, (last, "")) if len(items) > limit else page


def _rows(run: Run, versions: bool, bucket: str, start: bytes, end: bytes) -> Iterator[Values]:
    """As they are read: for a database in this process."""
    if start >= end:
        return
    cursor = run(_VERSIONS if versions else _OBJECTS, (bucket, start, end))
    try:
        yield from cursor
    finally:
        cursor.close()


def in_pieces(first: int) -> Rows:
    """`first` rows, then more and more: for a database at the other end of a connection."""

    def rows(run: Run, versions: bool, bucket: str, start: bytes, end: bytes) -> Iterator[Values]:
        if start >= end:
            return
        size = first
        found = run((_VERSIONS if versions else _OBJECTS) + " LIMIT ?", (bucket, start, end, size)).fetchall()
        while found:
            yield from found
            if len(found) < size:
                return
            size, start, stamp = min(2 * size, _MOST), found[-1][0], found[-1][STAMP]
            if versions:
                found = run(_OLDER, (bucket, start, stamp, end, size)).fetchall()
            else:
                found = run(_OBJECTS + " LIMIT ?", (bucket, start + b"\0", end, size)).fetchall()

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
    rows: Rows = _rows,
) -> Page:
    """All versions and markers (`Index.page_versions`)."""
    cut = Cut(prefix, delimiter)
    start, older_than = cut.start(after), None
    if after and after_version and start == after.encode() + b"\0":
        start = after.encode()
        older_than = _stamp(run, bucket, start, after_version)
    if limit <= 0:
        return Page(rows=[], prefixes=[], truncated=False)
    resumed = start if older_than is not None else b""

    def scan(position: bytes) -> Iterator[Values]:
        for values in heapq.merge(
            rows(run, False, bucket, position, cut.end),
            rows(run, True, bucket, position, cut.end),
            key=_order,
        ):
            if older_than is None or values[0] != resumed or values[STAMP] < older_than:
                yield values

    return _collect(bucket, scan, start, cut, limit, resumed)


def _stamp(run: Run, bucket: str, key: bytes, version: str) -> int | None:
    """The stamp of the version where a page ended; None when it has gone since: then the key begins anew."""
    for table in ("objects", "versions"):
        query = f"SELECT stamp FROM {table} WHERE bucket = ? AND key = ? AND version = ?"
        found = run(query, (bucket, key, version)).fetchone()
        if found is not None:
            return int(found[0])
    return None
