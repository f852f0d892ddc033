"""Engines, and the tables made or brought up to date; an older file of SQLite is copied first."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError

from cumulus.index.api import Away, IndexFailure
from cumulus.index.functions import FUNCTIONS
from cumulus.index.in_use import alone
from cumulus.index.revision import BUSY_MS, HEAD, PROGRAM
from cumulus.index.tables import metadata, tables_of
from cumulus.index.writer import failure
from sector.revisions import UnknownRevision, create_private, make_tables, revision_of, upgrade

_MIGRATIONS = Path(__file__).with_name("migrations")
_ADMIN_LOCK = 0x43756D756C7574  # an advisory lock: "Cumulut"


def sqlite_engine(path: Path, *, sync: bool = True) -> Engine:
    """An engine whose transactions take the write lock when they begin (unless the connection has the option
    `reads`) and are durable when they end."""
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        for setting in (
            f"busy_timeout = {BUSY_MS}",
            "journal_mode = WAL",
            f"synchronous = {'FULL' if sync else 'OFF'}",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {setting}")

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        reads = connection.get_execution_options().get("reads", False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def postgres_engine(connect: Callable[[], Any]) -> Engine:
    """An engine over connections that `connect` makes. Transactions that change something come one after
    another (unless the connection has the option `reads`), as with SQLite."""
    engine = create_engine("postgresql+psycopg://", creator=connect, pool_pre_ping=True)

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        if not connection.get_execution_options().get("reads", False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADMIN_LOCK})")

    return engine


def migrate(engine: Engine, path: Path | None = None, where: str = "") -> None:
    """Make or upgrade the tables; `path` is SQLite's file, `where` the database's name for people. Raises
    `IndexFailure` (a newer program wrote it, or an older one uses it), `Away` (it cannot be opened)."""
    where = where or str(path)
    try:
        if path is not None:
            create_private(path)
        with engine.connect().execution_options(reads=True) as connection:
            current = revision_of(connection)
            fresh = current is None and not inspect(connection).get_table_names()
        if current == HEAD:
            return
        with ExitStack() as stack:
            if current is not None:
                _check_known(current)
                if path is not None:
                    stack.enter_context(alone(path))
            connection = stack.enter_context(engine.begin())
            if fresh:
                _create(connection)
                return
            current = revision_of(connection)
            if current == HEAD:  # another program was faster; its copy of what was before is not replaced
                return
            if path is not None and current is not None:
                _back_up(path, current)
            if path is None and current is not None and current < HEAD:
                _check_alone(connection, where)
            upgrade(connection, _MIGRATIONS)
    except UnknownRevision as bad:
        raise IndexFailure(f"{where}: was written by another version: {bad}") from None
    except DBAPIError as bad:
        if isinstance(bad.orig, sqlite3.Error):
            raise failure(bad.orig, where) from None
        raise Away(f"{where}: {' '.join(str(bad.orig).split())}") from None
    except OSError as bad:
        raise Away(f"{where}: {bad.strerror}") from None


def _check_known(revision: str) -> None:
    """Before anything is copied, or said of others who use it. Raises `UnknownRevision`."""
    if not any(one.name.startswith(f"v{revision}_") for one in (_MIGRATIONS / "versions").iterdir()):
        raise UnknownRevision(f"its tables have revision {revision}")


def _check_alone(connection: Any, where: str) -> None:
    """That no server of an older version uses the database: its calls would meet functions that are not
    there, or mean something else. Raises `IndexFailure`."""
    others = text(
        "SELECT count(*), string_agg(DISTINCT coalesce(host(client_addr), 'this machine'), ', ') "
        "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND application_name LIKE 'cumulus%' AND application_name <> :mine"
    )
    count, hosts = connection.execute(others, {"mine": PROGRAM}).one()
    if count:
        what = f"servers of an older version use it ({count} connections from {hosts})"
        raise IndexFailure(f"{where}: {what}; stop all of them, then start this one, which upgrades it")


def _create(connection: Any) -> None:
    """All tables at once in an empty database: what the migrations would have made (a test compares)."""
    if inspect(connection).get_table_names():
        return  # another process was faster
    dialect = connection.dialect.name
    make_tables(connection, metadata, HEAD, tables_of(dialect))
    for function in FUNCTIONS if dialect == "postgresql" else ():
        connection.execute(text(function))


def _back_up(path: Path, revision: str) -> None:
    """As it is now, while who calls keeps others from changing it."""
    target = path.with_name(f"{path.name}.{revision}.bak")
    create_private(target)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    target.chmod(0o600)
