"""Three processes on one tree and one index, on each kind of storage: of writers with one condition one wins,
and nobody loses what was acknowledged to another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from s3_processes import STORAGE, processes
from s3_world import World

TAGS = b"<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"


@pytest.fixture(params=STORAGE)
def worlds(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[list[World]]:
    with processes(request.param, database, tmp_path) as made:
        yield made


def together(*acts: Callable[[], int]) -> list[int]:
    """What each gives; they begin at the same time."""
    begin = threading.Barrier(len(acts))

    def run(act: Callable[[], int]) -> int:
        begin.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def put(world: World, key: str, body: bytes, **headers: str) -> Callable[[], int]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: world.ask("PUT", f"/bkt/{key}", body, headers=named).status


def test_of_writers_with_the_same_condition_one_wins(worlds: list[World]) -> None:
    for number in range(20):
        key = f"k{number}"
        new = together(*(put(world, key, b"%d" % at, If_None_Match="*") for at, world in enumerate(worlds)))
        assert sorted(new) == [200, 412, 412]
        etag = worlds[0].ask("HEAD", f"/bkt/{key}").headers["etag"]
        over = together(*(put(world, key, b"+%d" % at, If_Match=etag) for at, world in enumerate(worlds)))
        assert sorted(over) == [200, 412, 412]
        assert worlds[1].ask("GET", f"/bkt/{key}").body == b"+%d" % over.index(200)


def test_an_unconditional_put_is_not_lost_to_one_that_looked_before_it(worlds: list[World]) -> None:
    """Either the condition held, and the other one came later, or it does not hold any more."""
    for number in range(20):
        worlds[0].ask("PUT", "/bkt/k", b"first %d" % number)
        etag = worlds[0].ask("HEAD", "/bkt/k").headers["etag"]
        done = together(put(worlds[0], "k", b"conditional", If_Match=etag), put(worlds[1], "k", b"plain"))
        assert done[1] == 200 and done[0] in (200, 412)
        assert worlds[2].ask("GET", "/bkt/k").body == b"plain"


def test_a_put_is_not_lost_to_tags_that_another_process_sets(worlds: list[World]) -> None:
    """Where storage keeps a body and its record in one file, it is written again for the tags."""
    worlds[0].ask("PUT", "/bkt/k", b"x" * 200_000)

    def tag() -> int:
        return max(worlds[0].ask("PUT", "/bkt/k", TAGS, query="tagging").status for _ in range(3))

    for number in range(30):
        body = b"%d" % number + b"y" * 200_000
        assert together(tag, put(worlds[1], "k", body)) == [200, 200]
        assert worlds[2].ask("GET", "/bkt/k").body == body
