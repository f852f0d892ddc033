"""What several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
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
