"""What several contract tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cumulus_bench import postgres_database
from s3_stores import STORES
from s3_world import World


@pytest.fixture(scope="module")
def postgres_here() -> str:
    """PostgreSQL, for all tests of a module."""
    return postgres_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, postgres_here: str) -> str:
    """Of `s3_processes`."""
    return str(request.param)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Plain files; with the bucket `bkt`."""
    made = World(STORES["posix"](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


@pytest.fixture
def data(tmp_path: Path, world: World) -> Path:
    """The bucket's directory, of plain files."""
    return tmp_path / "store" / "data" / "bkt"
