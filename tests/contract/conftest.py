"""What several contract tests share."""

from __future__ import annotations

import pytest
from cumulus_bench import postgres_database


@pytest.fixture(scope="module")
def postgres_here() -> str:
    """PostgreSQL, for all tests of a module."""
    return postgres_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, postgres_here: str) -> str:
    """Of `s3_processes`."""
    return str(request.param)
