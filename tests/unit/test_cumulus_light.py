"""What serves loads no more than it needs, since each worker pays for it in memory."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cumulus.index.api import Away
from cumulus.index.registry import prepare
from cumulus.index.revision import HEAD, is_current
from cumulus.web.messages import Answer, Asked
from cumulus.web.resource import LateApp


def test_what_serves_loads_no_library_for_databases_of_other_kinds() -> None:
    """Not SQLAlchemy nor alembic (what makes tables and changes users), no driver of PostgreSQL, no fsspec,
    no awscrt until somebody asks for its checksums."""
    heavy = ("sqlalchemy", "alembic", "psycopg", "fsspec", "awscrt", "numpy", "sector.client")
    code = f"import cumulus.service, sys; print(*[one for one in {heavy} if one in sys.modules])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def test_a_worker_loads_nothing_of_the_admin_port_or_of_a_proxy() -> None:
    """Together they took a quarter of its start."""
    others = ("twisted.web.server", "twisted.web.client", "cumulus.http.forward", "cumulus.web.resource")
    code = f"import cumulus.service, sys; print(*[one for one in {others} if one in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


class App:
    """Answers, and notes that it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def handle(self, asked: Asked) -> Answer:
        return Answer(200, b"a page", "text/plain")

    def close(self) -> None:
        self.closed += 1


def test_the_page_is_made_when_it_is_asked_for_and_again_when_that_failed() -> None:
    made: list[App] = []
    away = [True]

    def make() -> tuple[Any, Callable[[], None]]:
        if away.pop():
            away.append(False)
            raise Away("the database does not answer")
        away.append(False)
        made.append(App())
        return made[0], made[0].close

    late = LateApp(make)
    late.close()
    asked: Any = None
    with pytest.raises(Away):
        late.handle(asked)
    assert [late.handle(asked).body for _ in range(2)] == [b"a page"] * 2
    late.close()
    late.close()
    assert [app.closed for app in made] == [1]


def test_a_file_is_current_only_with_the_tables_of_this_program(tmp_path: Path) -> None:
    path = tmp_path / "cumulus.db"
    assert not is_current(path)
    assert not path.exists()
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 50)
    assert not is_current(path)
    path.unlink()
    path.touch()
    assert not is_current(path)
    prepare(path)
    assert is_current(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
        connection.commit()
    assert not is_current(path)
