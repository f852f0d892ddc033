"""Reading a directory whose descriptor other threads use too: the position in it belongs to the open
directory, and two that read at once through the same one each miss what the other one got."""

from __future__ import annotations

import os
from typing import Final

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
