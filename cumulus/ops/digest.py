"""Checksums of what is stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cumulus.checksums import Hasher
from cumulus.storage.api import Changed, ObjectStream

CHUNK: Final = 1 << 20


def digest_stream(stream: ObjectStream, names: Iterable[str], offset: int, size: int) -> Hasher:
    """Checksums of some bytes of an open object. Raises `Changed`."""
    hasher = Hasher(names)
    end = offset + size
    while offset < end:
        data = stream.read_at(offset, min(CHUNK, end - offset))
        if not data:
            raise Changed("the object became shorter while it was read")
        hasher.update(memoryview(data))
        offset += len(data)
    if not stream.unchanged():
        raise Changed("the object was changed while it was read")
    return hasher
