"""How a bucket goes: its gate is shut, it is looked at once more, and then what is ours in it is taken away.

Below `.cumulus` only directories are removed that are empty, but for what nothing has a name in: drafts go
first, so that nothing begun before can be published, then sidecars. Where that ends half-way the bucket stays
with all that has a name in it, and whoever uses it next makes what is missing again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from cumulus.backends.posix import paths
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.folders import READ, deepest_first, names_in
from cumulus.backends.posix.listing import Listing
from cumulus.backends.posix.paths import PRIVATE, Root
from cumulus.backends.posix.unserved import first_other
from cumulus.storage.api import INTERNAL, NotEmptyStore

_TRIES: Final = 100  # against writers that begin drafts while drafts are removed


def check_empty(root: Root, listing: Listing) -> None:
    """Raises `NotEmptyStore`."""
    if listing.names(root, "", "", 1) or listing.names(root, "", INTERNAL + "/", 1):
        raise NotEmptyStore(f"bucket {root.bucket!r} has objects")


def clear(root: Root, files: Files, *, own: bool) -> None:
    """Remove what is internal, and empty directories of ours; all of the rest must be gone if the directory
    is our `own`. Raises `NotEmptyStore`, `OSError`."""
    paths.sweep(root, files)
    if own and (others := [name for name in names_in(root.fd) if name != INTERNAL]):
        first = first_other(root.path) or min(others)
        raise NotEmptyStore(f"bucket {root.bucket!r} has {first!r} in it, which is not an object of it")
    try:
        _clear_internal(root, files)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise NotEmptyStore(f"bucket {root.bucket!r} has something in {INTERNAL!r}") from None


def remove_hollow(root: Root, files: Files) -> None:
    """Remove directories that others made and that have nothing but such in them; that of a file system for
    itself stays on a disk of its own. Raises `OSError`."""
    kept = (INTERNAL, "lost+found") if os.path.ismount(root.path) else (INTERNAL,)
    for name in names_in(root.fd):
        if name not in kept:
            try:
                _remove_empty(root.fd, name, files)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY):
                    raise


def _clear_internal(root: Root, files: Files) -> None:
    try:
        inner = os.open(INTERNAL, READ, dir_fd=root.fd)
    except FileNotFoundError:
        return  # an earlier removal came so far
    try:
        for name in os.listdir(inner):
            if name not in PRIVATE:
                _remove_empty(inner, name, files)
        for name in PRIVATE:
            with contextlib.suppress(FileNotFoundError):
                _remove_files(inner, name, files)
    finally:
        os.close(inner)
    files.remove_dir(root.fd, INTERNAL)


def _remove_empty(above: int, name: str, files: Files) -> None:
    """A directory that has nothing but directories in it. Raises `OSError` for another."""
    top = os.open(name, READ, dir_fd=above)
    try:
        for _, names, fd in deepest_first(top):
            for below in names:
                files.remove_dir(fd, below)
    finally:
        os.close(top)
    files.remove_dir(above, name)


def _remove_files(above: int, name: str, files: Files) -> None:
    """A directory with the files in it. Raises `OSError`."""
    fd = os.open(name, READ, dir_fd=above)
    try:
        for attempt in range(_TRIES):
            for file in os.listdir(fd):
                with contextlib.suppress(FileNotFoundError):
                    files.unlink(fd, file)
            try:
                files.remove_dir(above, name)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == _TRIES - 1:
                    raise
    finally:
        os.close(fd)
