"""Removing a directory with all that is in it, however deep it is: users' functions and foreign hands make
such trees, and `shutil.rmtree` goes as deep into its own stack and takes a descriptor for each level.
"""

from __future__ import annotations

import contextlib
import os


def clear_thd(folder: str) -> None:
    """Remove `folder`; what cannot be removed stays. Directories in it are brought up to it before they
    are emptied, so that no path becomes long. Blocks."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _empty(fd)
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _empty(top: int) -> None:
    """Remove what is in the directory `top`."""
    waiting = _unlink_files(top)
    while waiting:
        name = waiting.pop()
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        except OSError:
            continue
        try:
            for inner in _unlink_files(fd):
                fresh = os.urandom(12).hex()
                with contextlib.suppress(OSError):
                    os.rename(inner, fresh, src_dir_fd=fd, dst_dir_fd=top)
                    waiting.append(fresh)
        finally:
            os.close(fd)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=top)


def _unlink_files(fd: int) -> list[str]:
    """Remove what is no directory in a directory; the names of the directories in it."""
    folders = []
    try:
        entries = os.listdir(fd)
    except OSError:
        return []
    for name in entries:
        try:
            os.unlink(name, dir_fd=fd)
        except IsADirectoryError:
            folders.append(name)
        except OSError:
            continue
    return folders
