"""What several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cumulus_commands import Commands
from web_page import Page, Visitor


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """An admin page over an empty database with one administrator."""
    made = Page(tmp_path)
    yield made
    made.close()


@pytest.fixture
def boss(page: Page) -> Visitor:
    """Who is logged in."""
    visitor = page.visitor()
    visitor.log_in()
    return visitor


@pytest.fixture
def cloud(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The commands of a new Cumulus, which nothing in the environment names."""
    for name in ("CUMULUS_DIR", "CUMULUS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    made = Commands(capsys, tmp_path / "cloud")
    made("init", str(made.dir))
    return made
