"""The inverted index of the examples, without a cluster."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from sector.testing import call

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "inverted_index.py"
BUCKETS = 8
PAGES = {
    "/pages/plain.html": b"<p>Hello</p> moon",
    "/pages/with a blank.html": b"hello, hello <b>moon</b> stars",
    "/pages/100%20\ttab\r\nline.html": b"moon moon moon",
}


@pytest.fixture(scope="module")
def index() -> ModuleType:
    """The program."""
    spec = importlib.util.spec_from_file_location("inverted_index", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(index: ModuleType) -> dict[str, bytes]:
    """What both stages make of the pages: a bucket without terms leaves no file."""
    buckets: defaultdict[int, bytes] = defaultdict(bytes)
    for path, page in PAGES.items():
        sent = call(index.extract, page, granularity="file", buckets=BUCKETS, path=path).buckets
        for number, lines in sent.items():
            buckets[number] += lines
    merged = {
        number: call(index.merge, buckets[number], granularity="file").data for number in range(BUCKETS)
    }
    return {f"/index/part.{number}": data for number, data in merged.items() if data is not None}


def test_words_are_found_though_buckets_are_empty(index: ModuleType, files: dict[str, bytes]) -> None:
    """A word was looked for in another bucket's file, and said to be in no page."""
    assert len(files) == 3
    cloud = SimpleNamespace(read=files.__getitem__)

    def look_up(word: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = index.look_up(cloud, list(files), BUCKETS, word)
        return found

    plain, blank, lines = PAGES
    assert look_up("hello") == [(blank, 2), (plain, 1)]
    assert look_up("Moon") == [(lines, 3), (plain, 1), (blank, 1)]
    assert look_up("stars") == [(blank, 1)]
    assert [look_up(word) for word in ("zebra", "world", "dwarf", "sun", "galaxy")] == [[]] * 5


def test_paths_are_words_of_a_line(index: ModuleType, files: dict[str, bytes]) -> None:
    """Whatever is in them."""
    lines = b"".join(files.values()).splitlines()
    assert len(lines) == 3
    (moon,) = (line for line in lines if line.startswith(b"moon\t"))
    assert moon.split(b"\t")[1].split(b" ") == [
        b"/pages/100%2520%09tab%0D%0Aline.html:3",
        b"/pages/plain.html:1",
        b"/pages/with%20a%20blank.html:1",
    ]
