"""The forms of the admin page as somebody meets them who makes mistakes, or has several tabs open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from web_page import Page, Visitor


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A page over an empty database with one administrator."""
    made = Page(tmp_path)
    yield made
    made.close()


@pytest.fixture
def boss(page: Page) -> Visitor:
    """Who is logged in."""
    visitor = page.visitor()
    visitor.log_in()
    return visitor


# what a refusal keeps ---------------------------------------------------------------------------------
def test_a_refused_form_keeps_its_tick(page: Page, boss: Visitor) -> None:
    """Who corrects the date adds the administrator that he meant; a box that was not ticked stays so."""
    boss.get("users")
    typed = {"name": "chief", "expires": "garbage"}
    assert 'name="admin" value="yes" checked>' in boss.post("users", 400, **typed, admin="yes")
    assert 'name="admin" value="yes">' in boss.post("users", 400, **typed)
    assert 'name="admin" value="yes">' in boss.get("users")
    alice = page.user("alice")
    page.bucket("data", alice)
    text = boss.post(f"users/{alice.id}/remove", 400, confirm="yes", give_to="nobody")
    assert 'name="confirm" value="yes" checked' in text


def open_folds(text: str) -> list[str]:
    """The titles of those that come back open."""
    return re.findall(r"<details open><summary>([^<]*)<", text)


def test_a_refused_form_is_not_folded_away(page: Page, boss: Visitor) -> None:
    """What was typed can be seen, and only there."""
    alice = page.user("alice", "AKALICE")
    page.admin.add_key("alice", "AKOTHER", "another-secret")
    page.admin.add_group("lab")
    boss.get(f"users/{alice.id}")
    text = boss.post("keys/AKALICE/expire", 400, when="whenever")
    assert open_folds(text) == ["Expire"] and text.count('value="whenever"') == 1
    assert open_folds(boss.post("keys/AKALICE/remove", 400)) == ["Remove"]
    assert open_folds(boss.post("groups/lab/remove", 400))[-1].startswith("Remove this group")


# what is shown ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("typed", "shown"), [("90m", "90m"), ("30s", "30s"), ("24h", "1d"), ("2w", "14d")])
def test_a_grace_time_is_shown_as_the_commands_do(page: Page, boss: Visitor, typed: str, shown: str) -> None:
    """In the largest unit that fits, not in whole hours."""
    page.admin.add_group("lab")
    boss.get("groups/lab")
    assert f"; {shown} grace" in boss.post("groups/lab/quota", kind="soft", size="1G", grace=typed)


def test_where_there_is_nothing_one_line_says_so(page: Page, boss: Visitor) -> None:
    """That there is none, or after a search that nothing was found; not both."""
    page.admin.add_group("lab")
    for path, said in (
        ("groups/lab", "None."),
        ("buckets", "None."),
        ("buckets?q=data", "nothing found"),
        ("users?q=nobody", "nothing found"),
        ("usage?of=bucket", "None."),
    ):
        assert re.findall(r"None\.|nothing found", boss.get(path)) == [said], path
