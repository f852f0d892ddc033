"""Opens the database that a URL names."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cumulus.index.admin import SqlAdmin
from cumulus.index.api import Directory, Index
from cumulus.index.directory import DatabaseDirectory
from cumulus.index.readers import Readers
from cumulus.index.schema import BUSY_MS, migrate, sqlite_engine
from cumulus.index.sqlite import SqliteIndex
from cumulus.secrets import Keyring
from sector.errors import BadConfig

_SQLITE: Final = "sqlite:///"
_HINT: Final = "write sqlite:///PATH"


def sqlite_path(url: str) -> Path:
    """The file that the URL names. Raises `BadConfig`."""
    if not url.startswith(_SQLITE) or not url[len(_SQLITE) :]:
        raise BadConfig(f"{url!r} names no database", hint=_HINT)
    return Path(url[len(_SQLITE) :])


def make_index(
    url: str,
    keyring: Keyring | None = None,
    *,
    directory: Directory | None = None,
    sync: bool = True,
    clock: Callable[[], int] = time.time_ns,
) -> tuple[Index, Directory]:
    """The index and the directory of users in the database at `url` ("sqlite:///PATH"; the tables are made or
    upgraded), or the `directory` given. "sqlite://" is a database that is gone when the index is closed.
    `sync` False leaves it to the system when writes reach the disk. Close the index, then the directory.
    Raises `BadConfig`, `IndexFailure`."""
    scratch = tempfile.TemporaryDirectory(prefix="cumulus-") if url == "sqlite://" else None
    path = Path(scratch.name, "cumulus.db") if scratch else sqlite_path(url)
    prepare(path)
    if directory is None:
        if keyring is None:
            keyring = _scratch_keyring(scratch)
        directory = DatabaseDirectory(Readers(str(path), BUSY_MS), keyring)
    index = SqliteIndex(path, directory, sync=sync and scratch is None, clock=clock, scratch=scratch)
    return index, directory


def prepare(path: Path) -> None:
    """Make or upgrade the tables of SQLite's file. Raises `IndexFailure`."""
    engine = sqlite_engine(path)
    try:
        migrate(engine, path)
    finally:
        engine.dispose()


def _scratch_keyring(scratch: tempfile.TemporaryDirectory[str] | None) -> Keyring:
    if scratch is None:
        raise BadConfig("secrets in the database need a file of keys", hint="give [auth] secret_key_file")
    return Keyring.create(Path(scratch.name, "secret.key"))


def make_admin(url: str, keyring: Keyring, clock: Callable[[], int] = time.time_ns) -> SqlAdmin:
    """For changing users, keys, groups and quotas of the database at `url`; the tables are made or upgraded.
    Raises `BadConfig`, `IndexFailure`."""
    prepare(sqlite_path(url))
    return SqlAdmin(sqlite_engine(sqlite_path(url)), keyring, clock)
