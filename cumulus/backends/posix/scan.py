"""All names of a bucket in one pass, and what has changed under them: for scans of millions of files.

A pass reads each directory once. Of a large one, `RUN` names at a time are sorted and packed; the runs are
merged while they are read, so that a million names take a few megabytes. What comes into a directory after it
was read is found by the next pass.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from cumulus.backends.posix import marks, paths, sidecar
from cumulus.backends.posix.errors import storage_error, translated
from cumulus.backends.posix.folders import READ, reopen
from cumulus.backends.posix.listing import entry_at, is_utf8
from cumulus.backends.posix.meta import token_of
from cumulus.backends.posix.paths import Directory, Root
from cumulus.storage.api import INTERNAL, Entry, Forbidden, Missing, Token
from cumulus.storage.names import MAX_NAME

RUN: Final = 65_536  # names that are held as they are
_BLOCK: Final = 512  # of these, packed together
_OWN: Final = INTERNAL + "/"
_COARSE_NS: Final = 2_000_000_000  # by which a file system's clock may be behind


def walk(root: Root, limit: int) -> Iterator[list[str]]:
    """As `FileStore.walk`, some `limit` names at a time."""
    held: list[str] = []
    try:
        for names in _below(root, root.fd, ""):
            held += names
            while len(held) >= limit:
                yield held[:limit]
                del held[:limit]
    except OSError as error:
        raise storage_error(error, f"scan of {root.bucket}") from error
    if held:
        yield held


def _below(root: Root, fd: int, path: str) -> Iterator[list[str]]:
    """Names below the directory `path` ("" or ending in "/"), which is open. What cannot be opened is left
    out."""
    for names in _sorted(fd):
        plain: list[str] = []
        for name in names:
            if name[-1] != "/":
                plain.append(path + name)
                continue
            if (not path and name == _OWN) or len(path) + len(name) > MAX_NAME:
                continue
            try:
                inner = os.open(name[:-1], READ, dir_fd=fd)
            except OSError:
                continue
            try:
                if plain:
                    yield plain
                    plain = []
                if marks.is_marked(root, path + name, inner):
                    yield [path + name]
                yield from _below(root, inner, path + name)
            finally:
                os.close(inner)
        if plain:
            yield plain


def _sorted(fd: int) -> Iterator[list[str]]:
    """The names of plain files, and with "/" at their end those of directories, in order."""
    runs: list[list[bytes]] = []
    names: list[str] = []
    try:
        own = reopen(fd)
    except PermissionError:
        return  # names that nobody may follow
    try:
        with os.scandir(own) as entries:
            for entry in entries:
                name = entry.name
                if entry.is_file(follow_symlinks=False):
                    pass
                elif entry.is_dir(follow_symlinks=False):
                    name += "/"
                else:
                    continue
                if not (name.isascii() or is_utf8(name)):
                    continue
                names.append(name)
                if len(names) >= RUN:
                    runs.append(_pack(names))
                    names = []
    finally:
        os.close(own)
    names.sort()
    if not runs:
        yield names
        return
    merged = heapq.merge(names, *map(_unpacked, runs))
    while some := list(islice(merged, _BLOCK)):
        yield some


def _pack(names: list[str]) -> list[bytes]:
    names.sort()
    return [
        zlib.compress("\0".join(names[at : at + _BLOCK]).encode(), 1) for at in range(0, len(names), _BLOCK)
    ]


def _unpacked(run: list[bytes]) -> Iterator[str]:
    for block in run:
        yield from zlib.decompress(block).decode().split("\0")


def look(root: Root, names: Sequence[str], known: Mapping[str, Token]) -> dict[str, Entry | None]:
    """As `FileStore.look`; names of one directory should stand together. What is closed to us, or cannot be
    read for an error of the disk, is left out."""
    found: dict[str, Entry | None] = {}
    inside = ""
    directory: Directory | None = None
    with translated(f"scan of {root.bucket}"):
        bare_before = 0 if sidecar.any_in(root) else time.time_ns() - _COARSE_NS
        try:
            for name in names:
                start = name.rfind("/") + 1
                if directory is None or start != len(inside) or not name.startswith(inside):
                    if directory is not None:
                        directory.close()
                        directory = None
                    try:
                        directory = paths.open_parent(root, name.split("/"))
                    except Missing:
                        found[name] = None
                        continue
                    except Forbidden:
                        continue
                    inside = name[:start]
                with contextlib.suppress(OSError):
                    _look(root, directory, name, start, known.get(name), bare_before, found)
        finally:
            if directory is not None:
                directory.close()
    return found


def _look(
    root: Root,
    directory: Directory,
    name: str,
    start: int,
    token: Token | None,
    bare_before: int,
    found: dict[str, Entry | None],
) -> None:
    """One name, whose last segment begins at `start`. Raises `OSError`."""
    last = name[start:]
    if not last:
        marked = marks.entry_in(root, name, directory.fd)
        if marked is None or marked.token != token:
            found[name] = marked
    elif token is None or token != _token(directory.fd, last):
        found[name] = entry_at(root, directory.fd, name, last, bare_before)


def _token(fd: int, last: str) -> Token | None:
    try:
        return token_of(os.stat(last, dir_fd=fd, follow_symlinks=False))
    except OSError:
        return None
