"""Names in a tree of buckets that no S3 key can be: nothing serves or lists them, so the doctor does, and
they keep a bucket from being removed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cumulus.backends.posix.paths import BARE
from cumulus.storage.api import INTERNAL
from cumulus.storage.names import MAX_NAME


class Look(NamedTuple):
    """`names`: "BUCKET/NAME" of those found, with what is not UTF-8 as `\\xNN`; `seen` counts all that were
    looked at; `whole`: these were all."""

    names: list[str]
    seen: int
    whole: bool


def unserved(store: Path, most: int, limit_s: float) -> Look:
    """Look through the buckets below the store's directory until `most` are found or the time (seconds) is
    over. What may not be read is left out."""
    end = time.monotonic() + limit_s
    found: list[str] = []
    seen = 0
    for bucket, top in _buckets(store):
        for name, is_served in _names(top):
            seen += 1
            if not is_served:
                found.append(f"{bucket}/{_text(name)}")
            if len(found) >= most or (not seen % 1024 and time.monotonic() > end):
                return Look(found, seen, False)
    return Look(found, seen, True)


def _buckets(store: Path) -> Iterator[tuple[str, bytes]]:
    """Name and directory of each, also of those adopted from elsewhere."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(store / "data"):
            if entry.is_dir(follow_symlinks=False):
                yield entry.name, os.fsencode(entry.path)
    with contextlib.suppress(OSError):
        for link in (store / "adopted").iterdir():
            if not link.name.startswith("."):
                yield link.name, link.read_bytes().removesuffix(BARE.encode())


def first_other(top: str) -> str:
    """Something below a bucket's directory that is no object and no directory of objects: a link, a pipe, a
    name that can be no key; "" if there is nothing."""
    return next((_text(name) for name, is_served in _names(os.fsencode(top), True) if not is_served), "")


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _names(top: bytes, links: bool = False) -> Iterator[tuple[bytes, bool]]:
    """Files and directories below it, and whether they can be keys, or begin some; with `links` also links,
    pipes and the like, which cannot."""
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(os.path.join(top, path)) as entries:
            for entry in entries:
                name = path + entry.name
                is_dir = entry.is_dir(follow_symlinks=False)
                is_plain = is_dir or entry.is_file(follow_symlinks=False)
                if name == INTERNAL.encode() or not (is_plain or links):
                    continue
                is_served = is_plain and len(name) <= MAX_NAME and _is_utf8(entry.name)
                yield name, is_served
                if is_dir and is_served:
                    waiting.append(name + b"/")


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
