"""Checksums of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cumulus.checksums import Hasher
from cumulus.storage.api import Changed, ObjectStream

CHUNK: Final = 1 << 20


def digest_stream(
    stream: ObjectStream,
    names: Iterable[str],
    offset: int,
    size: int,
    stop: Callable[[], bool] = lambda: False,
) -> Hasher:
    """Checksums of some bytes of an open object. Raises `Changed`, also when `stop` says so."""
    hasher = Hasher(names)
    end = offset + size
    while offset < end:
        if stop():
            raise Changed("the service ends before all of it was read")
        data = stream.read_at(offset, min(CHUNK, end - offset))
        if not data:
            raise Changed("the object became shorter while it was read")
        hasher.update(memoryview(data))
        offset += len(data)
    if not stream.unchanged():
        raise Changed("the object was changed while it was read")
    return hasher
