"""Bytes of what storage has already, copied for a new object before its key is locked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature

from cumulus.ops.site import Site
from cumulus.storage.api import FileStore, ObjectStream, pour


@contextmanager
def drafted(
    site: Site, bucket: str, name: str, sources: Iterable[ObjectStream]
) -> Iterator[ObjectStream | None]:
    """Streams one after another as an object that only waits for its commit, where the lock of a key is that
    of other keys, too, and held while the object gets its name. None where it is not, or each body gets a
    name of its own before. Raises as `pour`."""
    if site.compares or not site.atomic:
        yield None
        return
    writer = site.store.open_write(bucket, name)
    try:
        for source in sources:
            pour(source, writer)
        yield writer
    finally:
        writer.close()


def opened(site: Site, bucket: str, names: Sequence[str]) -> Iterator[ObjectStream]:
    """Each of them while it is its turn."""
    for name in names:
        source = site.store.open_read(bucket, name)
        try:
            yield source
        finally:
            source.close()


@cache
def asks(store: type[FileStore], method: str, what: str = "check") -> bool:
    """Whether its `copy` or `concat` has a `check`: that of a backend from before there was one has none."""
    return what in signature(getattr(store, method)).parameters
