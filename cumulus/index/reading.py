"""Reading of objects' rows straight from SQLite's file: for the process that writes it, and for workers,
which need the head for changes only. What the head has committed, every process sees at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from cumulus.index import listing, objects, uploads
from cumulus.index.api import Index, Lines, Page, Row, Upload
from cumulus.index.keys import FileKeys
from cumulus.index.readers import Readers
from cumulus.index.revision import BUSY_MS
from cumulus.model import Part

AT_ONCE: Final = 64  # keys of one statement


class RowReader:
    """`path` has the tables already. The methods are those of `Index`; they raise `Away`, `IndexFailure`."""

    def __init__(self, path: Path) -> None:
        self._readers = Readers(str(path), BUSY_MS)
        self._keys = FileKeys(path)

    def alone(self, bucket: str, key: str) -> AbstractContextManager[object]:
        """One writer of a key at a time."""
        return self._keys.of(bucket, key)

    def lookup(self, bucket: str, key: str, version: str | None = None) -> Row | None:
        """The current version (a delete marker too), or that one."""
        if version is None:
            found = self._readers.one(objects.CURRENT, (bucket, key.encode()))
            if found is not None:
                return objects.to_row(bucket, found, True)
        with self._readers.run() as run:
            return objects.find(run, bucket, key, version)

    def gone_at(self, bucket: str, key: str, version: str) -> int:
        """When it was removed."""
        with self._readers.run() as run:
            return objects.gone_at(run, bucket, key, version)

    def current(self, bucket: str, keys: Sequence[str]) -> list[Row | None]:
        """The current object of each key, in their order, by one look into the database for `AT_ONCE` of
        them."""
        found: dict[str, Row] = {}
        with self._readers.run() as run:
            for at in range(0, len(keys), AT_ONCE):
                some = [key.encode() for key in keys[at : at + AT_ONCE]]
                places = "(" + ",".join("?" * len(some)) + ")"
                for values in run(objects.MANY_CURRENT + places, (bucket, *some)).fetchall():
                    row = objects.to_row(bucket, values, True)
                    found[row.key] = row
        return [found.get(key) for key in keys]

    def page(
        self, bucket: str, *, prefix: str = "", after: str = "", delimiter: str = "", limit: int = 1000
    ) -> Page:
        """Current versions."""
        with self._readers.run() as run:
            return listing.page(run, bucket, prefix=prefix, after=after, delimiter=delimiter, limit=limit)

    def lines(
        self, bucket: str, *, prefix: str = "", after: str = "", delimiter: str = "", limit: int = 1000
    ) -> Lines:
        """What a listing shows of current versions."""
        with self._readers.run() as run:
            return listing.lines(run, bucket, prefix=prefix, after=after, delimiter=delimiter, limit=limit)

    def page_versions(
        self,
        bucket: str,
        *,
        prefix: str = "",
        after: str = "",
        after_version: str = "",
        delimiter: str = "",
        limit: int = 1000,
    ) -> Page:
        """All versions and markers."""
        with self._readers.snapshot() as run:
            return listing.page_versions(
                run,
                bucket,
                prefix=prefix,
                after=after,
                after_version=after_version,
                delimiter=delimiter,
                limit=limit,
            )

    def upload(self, bucket: str, key: str, id: str) -> Upload | None:
        """An upload in progress."""
        with self._readers.run() as run:
            return uploads.get(run, bucket, key, id)

    def uploads(
        self, bucket: str, *, prefix: str = "", after: str = "", after_id: str = "", limit: int = 1000
    ) -> list[Upload]:
        """Those in progress, in order of key, creation, id."""
        with self._readers.run() as run:
            return uploads.page(run, bucket, prefix, after, after_id, limit)

    def parts(self, upload_id: str, *, after: int = 0, limit: int = 10_000) -> list[Part]:
        """In order of their numbers."""
        with self._readers.run() as run:
            return uploads.parts(run, upload_id, after, limit)

    def close(self) -> None:
        """Close the connections."""
        self._readers.close()
        self._keys.close()


class RowsIndex(Index):
    """The part of an index that reads its rows from SQLite's file. What was answered before must be in it:
    `catch_up` sees to that."""

    _rows: RowReader

    @abstractmethod
    def catch_up(self) -> None:
        """Wait until what anybody was answered is committed. Raises `Away`, `IndexFailure`."""

    def alone(self, bucket: str, key: str) -> AbstractContextManager[object]:
        return self._rows.alone(bucket, key)

    def lookup(self, bucket: str, key: str, version: str | None = None) -> Row | None:
        self.catch_up()
        return self._rows.lookup(bucket, key, version)

    def gone_at(self, bucket: str, key: str, version: str) -> int:
        return self._rows.gone_at(bucket, key, version)

    def committed(self, bucket: str, key: str) -> Row | None:
        return self._rows.lookup(bucket, key)

    def committed_all(self, bucket: str, keys: Sequence[str]) -> list[Row | None]:
        return self._rows.current(bucket, keys)

    def page(
        self, bucket: str, *, prefix: str = "", after: str = "", delimiter: str = "", limit: int = 1000
    ) -> Page:
        self.catch_up()
        return self._rows.page(bucket, prefix=prefix, after=after, delimiter=delimiter, limit=limit)

    def lines(
        self, bucket: str, *, prefix: str = "", after: str = "", delimiter: str = "", limit: int = 1000
    ) -> Lines:
        self.catch_up()
        return self._rows.lines(bucket, prefix=prefix, after=after, delimiter=delimiter, limit=limit)

    def page_versions(
        self,
        bucket: str,
        *,
        prefix: str = "",
        after: str = "",
        after_version: str = "",
        delimiter: str = "",
        limit: int = 1000,
    ) -> Page:
        self.catch_up()
        return self._rows.page_versions(
            bucket,
            prefix=prefix,
            after=after,
            after_version=after_version,
            delimiter=delimiter,
            limit=limit,
        )

    def upload(self, bucket: str, key: str, id: str) -> Upload | None:
        return self._rows.upload(bucket, key, id)

    def uploads(
        self, bucket: str, *, prefix: str = "", after: str = "", after_id: str = "", limit: int = 1000
    ) -> list[Upload]:
        return self._rows.uploads(bucket, prefix=prefix, after=after, after_id=after_id, limit=limit)

    def parts(self, upload_id: str, *, after: int = 0, limit: int = 10_000) -> list[Part]:
        return self._rows.parts(upload_id, after=after, limit=limit)
