"""Work in the background on many things, of which one that fails does not keep the others from their turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cumulus.index.api import IndexFailure
from cumulus.storage.api import NoBucket, ReadOnly, StorageError


class Failed:
    """The first error of storage among them, which is raised when all are done. `most`: all are in one
    bucket, and one that is not there or read-only ends the work at once, as do so many errors one after
    another that may pass (a disk away). Without it each is a bucket, and what nobody expected in one of them
    counts as an error of storage: it would come again each time, and no other bucket have its turn ever."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._first: Exception | None = None
        self._passing = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """For one of them: its error is kept for `check`. Raises it where the work is to end, and what the
        index raises, which is the same for all."""
        try:
            yield
        except StorageError as bad:
            self._first = self._first or bad
            if not bad.permanent:
                self._passing += 1
            if self._most and (self._passing >= self._most or isinstance(bad, NoBucket | ReadOnly)):
                raise
        except Exception as bad:
            if self._most or isinstance(bad, IndexFailure):
                raise
            self._first = self._first or bad
        else:
            self._passing = 0

    def check(self) -> None:
        """Raises the first error, if there was one."""
        if self._first is not None:
            raise self._first
