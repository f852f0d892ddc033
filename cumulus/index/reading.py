"""Reading of objects' rows straight from SQLite's file: for the process that writes it, and for workers,
which need the head for changes only. What the head has committed, every process sees at once."""

from __future__ import annotations

from pathlib import Path

from cumulus.index import listing, objects
from cumulus.index.api import Lines, Page, Row
from cumulus.index.readers import Readers
from cumulus.index.schema import BUSY_MS


class RowReader:
    """`path` has the tables already. The methods are those of `Index`; they raise `Away`, `IndexFailure`."""

    def __init__(self, path: Path) -> None:
        self._readers = Readers(str(path), BUSY_MS)

    def lookup(self, bucket: str, key: str, version: str | None = None) -> Row | None:
        """The current version (a delete marker too), or that one."""
        if version is None:
            found = self._readers.one(objects.CURRENT, (bucket, key.encode()))
            if found is not None:
                return objects.to_row(bucket, found, True)
        with self._readers.run() as run:
            return objects.find(run, bucket, key, version)

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
        with self._readers.run() as run:
            return listing.page_versions(
                run,
                bucket,
                prefix=prefix,
                after=after,
                after_version=after_version,
                delimiter=delimiter,
                limit=limit,
            )

    def close(self) -> None:
        """Close the connections."""
        self._readers.close()
