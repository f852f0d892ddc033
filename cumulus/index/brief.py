"""Lists of buckets without the documents that their owners have set, a few of which are read at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cumulus.model import Bucket

AT_A_TIME: Final = 8

_bucket = msgspec.msgpack.Decoder(Bucket)


def briefly(read: Callable[[str], Sequence[Sequence[Any]]]) -> list[Bucket]:
    """`read(name)` gives the next `AT_A_TIME` records behind that name, less at the end."""
    found: list[Bucket] = []
    while True:
        records = read(found[-1].name if found else "")
        found += [_bucket.decode(record[0]).brief for record in records]
        if len(records) < AT_A_TIME:
            return found
