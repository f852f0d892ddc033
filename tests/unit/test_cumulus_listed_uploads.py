"""ListMultipartUploads with a delimiter: what lies below a prefix is passed over, not walked through."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from s3_world import World

from cumulus.backends.memory import MemoryStore
from cumulus.rest import multipart


@pytest.fixture
def world() -> Iterator[World]:
    made = World(MemoryStore())
    made.ask("PUT", "/bucket")
    yield made
    made.close()


def listed(world: World, **query: str) -> tuple[list[str], list[str]]:
    """Keys and common prefixes of a page."""
    answer = world.ask("GET", "/bucket", query={"uploads": "", "delimiter": "/", **query})
    assert answer.status == 200
    text = answer.body.decode()
    return re.findall(r"<Key>(.*?)</Key>", text), re.findall(r"<CommonPrefixes><Prefix>(.*?)<", text)


def test_a_prefix_with_many_uploads_costs_two_questions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "PAGE", 6)
    odd = ["b/\U0010ffff", "b/\U0010ffff\U0010ffff", "b/\U0010ffffz"]
    for key in ["a", *(f"b/{number}" for number in range(40)), *odd, "b0", "c/x", "c/y", "d"]:
        assert world.ask("POST", f"/bucket/{key}", query="uploads").status == 200
    index, asked = world.site.index, []
    ask = index.uploads

    def uploads(*arguments: object, **named: object) -> object:
        asked.append(named["after"])
        return ask(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "uploads", uploads)
    assert listed(world) == (["a", "b0", "d"], ["b/", "c/"])
    assert len(asked) <= 5
    assert listed(world, prefix="b") == (["b0"], ["b/"])
    asked.clear()
    page = {"max-uploads": "1", "key-marker": "b/"}
    assert listed(world, **page) == (["b0"], [])
    assert len(asked) <= 4
