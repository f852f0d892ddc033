"""Which revision the tables of a database have; new ones are made at once, older ones brought up to date by
alembic. That is imported only then: it takes every program as long as SQLAlchemy itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection, MetaData, Table, inspect, text

VERSION = "version_num VARCHAR(32) NOT NULL PRIMARY KEY"  # alembic's own table


class UnknownRevision(Exception):
    """Another version of the program wrote the database."""


def create_private(path: Path) -> None:
    """An empty file for our account alone; SQLite gives what it puts beside it the same mode. One that is
    there is not opened: closing any descriptor of it would end the locks of this process's other connections,
    and the next process to close would take the log from them."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def revision_of(connection: Connection) -> str | None:
    """The revision of its tables; None = there are none yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def make_tables(
    connection: Connection, metadata: MetaData, revision: str, tables: Sequence[Table] | None = None
) -> None:
    """All tables (or these) in an empty database: what its migrations up to `revision` would have made."""
    metadata.create_all(connection, tables=tables)
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS alembic_version ({VERSION})"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision})


def upgrade(connection: Connection, migrations: Path) -> None:
    """Bring the tables to the newest revision in a directory of migrations. Raises `UnknownRevision`."""
    import alembic.command
    import alembic.config
    import alembic.util

    settings = alembic.config.Config()
    settings.set_main_option("script_location", str(migrations))
    settings.attributes["connection"] = connection
    try:
        alembic.command.upgrade(settings, "head")
    except alembic.util.CommandError as bad:
        raise UnknownRevision(str(bad)) from None
