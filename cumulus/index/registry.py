"""Opens the database that a URL names."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cumulus.index.api import Away, Directory, Index
from cumulus.index.directory import DatabaseDirectory
from cumulus.index.in_use import InUse
from cumulus.index.readers import Readers, Reads
from cumulus.index.revision import BUSY_MS, is_current
from cumulus.index.sqlite import SqliteIndex, reserve_path
from cumulus.reserve import Reserve
from cumulus.secrets import Keyring
from sector.errors import BadConfig

if TYPE_CHECKING:  # what serves on SQLite loads neither SQLAlchemy nor the driver of PostgreSQL
    from sqlalchemy import Engine

    from cumulus.index.admin import SqlAdmin
    from cumulus.index.postgres_pool import Target
    from cumulus.index.text_admin import TextAdmin

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")
NO_TABLES: Final = "has no tables of Cumulus"
NOT_THERE: Final = "is not there"
NOTHING_IN_IT: Final = "has neither users nor buckets"
_ANY_USER: Final = "SELECT EXISTS (SELECT 1 FROM users)"
_ANYTHING: Final = f"{_ANY_USER} OR EXISTS (SELECT 1 FROM buckets)"
# a user's name has no blanks
_NOTE: Final = (
    "INSERT INTO users (id, name, display, email, weight, disabled, admin, unix_user, created_ns) "
    "VALUES ('users-are-in-a-file', 'users are in a file', '', '', 1, true, false, '', 0) "
    "ON CONFLICT DO NOTHING"
)
_HINT: Final = "write sqlite:///PATH or postgresql://USER@HOST:PORT/NAME"


@dataclass(frozen=True, slots=True)
class Options:
    """Of PostgreSQL: the file of the password ("" = as libpq finds one), connections of a process at most,
    after how many seconds the reservations of a dead process are free."""

    password_file: str = ""
    connections: int = 8
    life_s: float = 10.0


def is_postgres(url: str) -> bool:
    """Whether the URL names a database in PostgreSQL."""
    return url.startswith(_POSTGRES)


def sqlite_path(url: str) -> Path:
    """The file that the URL names. Raises `BadConfig`."""
    if not url.startswith(_SQLITE) or not url[len(_SQLITE) :]:
        raise BadConfig(f"{url!r} names no database", hint=_HINT)
    return Path(url[len(_SQLITE) :])


def database_lacks(url: str, options: Options) -> tuple[str, str]:
    """The name of the database, and what is missing: it, its tables or all that is in them; "" for nothing.
    Raises `BadConfig`, `IndexFailure`."""
    if not is_postgres(url):
        path = sqlite_path(url)
        return str(path), _sqlite_lacks(path)
    from cumulus.index.postgres_pool import Target, lacks

    target = Target(url, options.password_file)
    return target.where, lacks(target, NO_TABLES, NOTHING_IN_IT)


def _sqlite_lacks(path: Path) -> str:
    if not path.exists() or not path.stat().st_size:
        return NOT_THERE
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
            tables = "SELECT COUNT(*) FROM sqlite_master WHERE name IN ('users', 'buckets')"
            if connection.execute(tables).fetchone()[0] < 2:
                return NO_TABLES
            return "" if connection.execute(_ANYTHING).fetchone()[0] else NOTHING_IN_IT
    except sqlite3.Error:
        return ""  # who opens it says what is wrong


def note_users_elsewhere(url: str, options: Options) -> None:
    """Leave a row in the table of users where those are in a file: without one an empty database cannot be
    told from one that was emptied. Where that fails, the next who opens it tries again."""
    if is_postgres(url):
        from cumulus.index.postgres_pool import Target, note

        note(Target(url, options.password_file), _ANY_USER, _NOTE)
        return
    with suppress(sqlite3.Error), closing(sqlite3.connect(sqlite_path(url), timeout=1)) as connection:
        if not connection.execute(_ANY_USER).fetchone()[0]:
            connection.execute(_NOTE)
            connection.commit()


def make_index(
    url: str,
    keyring: Keyring | None = None,
    *,
    directory: Directory | None = None,
    sync: bool = True,
    clock: Callable[[], int] = time.time_ns,
    options: Options | None = None,
) -> tuple[Index, Directory]:
    """The index and the directory of users in the database at `url` ("sqlite:///PATH",
    "postgresql://USER@HOST:PORT/NAME"; the tables are made or upgraded), or the `directory` given.
    "sqlite://" is a database that is gone when the index is closed. `sync` False leaves it to the system when
    writes reach the disk. Close the index, then the directory. Raises `BadConfig`, `LocalIO`,
    `IndexFailure`."""
    if is_postgres(url):
        return _make_postgres(url, keyring, directory, sync, clock, options or Options())
    scratch = tempfile.TemporaryDirectory(prefix="cumulus-") if url == "sqlite://" else None
    path = Path(scratch.name, "cumulus.db") if scratch else sqlite_path(url)
    with ExitStack() as stack:
        in_use = _used(path)
        stack.callback(in_use.close)
        if directory is None:
            if keyring is None:
                keyring = _scratch_keyring(scratch)
            directory = _users(Readers(str(path), BUSY_MS), keyring)
        durable = sync and scratch is None
        index = SqliteIndex(path, directory, sync=durable, clock=clock, scratch=scratch, in_use=in_use)
        stack.pop_all()
    return index, directory


def _used(path: Path) -> InUse:
    """With the tables made or upgraded; from now on they stay as they are."""
    in_use = InUse(path)
    if is_current(path):
        return in_use
    in_use.close()
    prepare(path)
    return InUse(path)


def _make_postgres(
    url: str,
    keyring: Keyring | None,
    directory: Directory | None,
    sync: bool,
    clock: Callable[[], int],
    options: Options,
) -> tuple[Index, Directory]:
    from cumulus.index.postgres import PostgresIndex
    from cumulus.index.postgres_pool import Pool, Target

    target = Target(url, options.password_file, sync=sync)
    _prepare_postgres(target)
    if directory is None:
        directory = _users(Pool(target, options.connections), keyring or _scratch_keyring(None))
    index = PostgresIndex(
        target, directory, clock=clock, connections=options.connections, life_s=options.life_s
    )
    return index, directory


def _users(readers: Reads, keyring: Keyring) -> Directory:
    return DatabaseDirectory(readers, keyring)


def prepare(path: Path) -> None:
    """Make or upgrade the tables of SQLite's file. Raises `IndexFailure`."""
    if is_current(path):
        return
    from cumulus.index.schema import migrate, sqlite_engine

    engine = sqlite_engine(path)
    try:
        while True:
            try:
                migrate(engine, path)
                return
            except Away:  # even to look at it SQLite needs some room for its log
                if not Reserve(reserve_path(path)).give_if_full():
                    raise
    finally:
        engine.dispose()


def _prepare_postgres(target: Target) -> None:
    from cumulus.index.schema import migrate, postgres_engine

    engine = postgres_engine(target.connect_plain)
    try:
        migrate(engine, where=target.where)
    finally:
        engine.dispose()


def _scratch_keyring(scratch: tempfile.TemporaryDirectory[str] | None) -> Keyring:
    if scratch is None:
        raise BadConfig("secrets in the database need a file of keys", hint="give [auth] secret_key_file")
    return Keyring.create(Path(scratch.name, "secret.key"))


def make_admin(
    url: str, keyring: Keyring, clock: Callable[[], int] = time.time_ns, options: Options | None = None
) -> SqlAdmin:
    """For changing users, keys, groups and quotas of the database at `url`; the tables are made or upgraded.
    Raises `BadConfig`, `LocalIO`, `IndexFailure`."""
    from cumulus.index.admin import SqlAdmin

    engine, where = _engine(url, options or Options())
    return SqlAdmin(engine, keyring, clock, where)


def make_text_admin(url: str, path: Path, options: Options | None = None) -> TextAdmin:
    """The same where users are in the file `path`: for reading them and changing quotas."""
    from cumulus.index.text_admin import TextAdmin

    engine, where = _engine(url, options or Options())
    return TextAdmin(engine, path, where)


def _engine(url: str, options: Options) -> tuple[Engine, str]:
    """An engine with the tables made or upgraded, and what to call its database ("": as it does)."""
    from cumulus.index.schema import postgres_engine, sqlite_engine

    if is_postgres(url):
        from cumulus.index.postgres_pool import Target

        target = Target(url, options.password_file)
        _prepare_postgres(target)
        return postgres_engine(target.connect_plain), target.where
    prepare(sqlite_path(url))
    return sqlite_engine(sqlite_path(url)), ""
