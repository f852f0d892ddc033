"""Whether a file of SQLite has the tables of this program, told without the library that makes them: what
serves has no other use for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

HEAD: Final = "0005"  # the newest revision in migrations/versions
PROGRAM: Final = f"cumulus {HEAD}"  # what PostgreSQL calls our connections; "cumulus" until 0004
BUSY_MS: Final = 10_000


def is_current(path: Path) -> bool:
    """False also for a file that is not there, or that cannot be read: then `cumulus.index.schema.migrate`
    has to see to it."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_MS / 1000)) as connection:
            found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.Error:
        return False
    return found == [(HEAD,)]
