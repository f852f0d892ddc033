"""Reading a directory whose descriptor other threads use too: the position in it belongs to the open
directory, and two that read at once through the same one each miss what the other one got."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from cumulus.storage.names import MAX_NAME

READ: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def reopen(fd: int) -> int:
    """The same directory at a position of its own; the caller closes it. Raises `OSError`."""
    return os.open(".", READ, dir_fd=fd)


def names_in(fd: int) -> list[str]:
    """All names in it. Raises `OSError`."""
    own = reopen(fd)
    try:
        return os.listdir(own)
    finally:
        os.close(own)


def deepest_first(fd: int, path: str = "") -> Iterator[tuple[str, list[str], int]]:
    """All directories below the open one, and it last: the path of each ("" or ending in "/"), the names of
    the directories in it, and a descriptor. Those that lie deeper than any key does are named, but not
    entered: others may make thousands within each other. What cannot be opened is left out."""
    own = reopen(fd)
    try:
        with os.scandir(own) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    finally:
        os.close(own)
    for name in names:
        if len(path) + len(name) >= MAX_NAME:
            continue
        try:
            below = os.open(name, READ, dir_fd=fd)
        except OSError:
            continue
        try:
            yield from deepest_first(below, f"{path}{name}/")
        finally:
            os.close(below)
    yield path, names, fd
