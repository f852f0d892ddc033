"""Local files of puts and gets: what blocks, for threads."""

from __future__ import annotations

import os

from sector import errors

_PIECE = 64 << 20


def make_folders_thd(folders: list[str]) -> None:
    """Make directories, and those above them. Raises `LocalIO`."""
    for folder in folders:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise errors.LocalIO(f"{folder}: {error.strerror}") from None


def write_all_thd(fd: int, content: bytes) -> None:
    """Write it from the beginning of the file on. Raises `OSError`."""
    view = memoryview(content)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done : done + _PIECE], done)


def read_all_thd(fd: int, size: int) -> bytes:
    """The first `size` bytes of a file that has them; fewer where it ends before. Raises `OSError`."""
    parts = []
    done = 0
    while done < size and (part := os.pread(fd, min(_PIECE, size - done), done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)
