"""One key under several clients at once: there is an order in which their answers are those of one object."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from linearizable import Operation, linearizable
from s3_histories import history
from s3_stores import STORES
from s3_world import World

HISTORIES = int(os.environ.get("SECTOR_TEST_S3_HISTORIES", "60"))  # on each kind of storage
CLIENTS, EACH = 4, 7


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads change places often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


def put(begin: int, end: int, value: str, condition: str = "", status: int = 200) -> Operation:
    return Operation(begin, end, "put", value, condition, status)


def get(begin: int, end: int, seen: str | None) -> Operation:
    return Operation(begin, end, "get", "", "", 404 if seen is None else 200, seen)


def delete(begin: int, end: int, condition: str = "", status: int = 204) -> Operation:
    return Operation(begin, end, "delete", "", condition, status)


@pytest.mark.parametrize(
    ("operations", "possible"),
    [
        ([put(0, 1, "a"), get(2, 3, "a")], True),
        ([put(0, 1, "a"), get(2, 3, None)], False),
        ([put(0, 3, "a"), get(1, 2, None)], True),
        ([put(0, 9, "a"), get(1, 2, "a"), get(3, 4, None)], False),
        ([put(0, 1, "a"), put(2, 3, "b"), get(4, 5, "a")], False),
        ([put(0, 9, "a", "*"), put(1, 8, "b", "*")], False),
        ([put(0, 9, "a", "*"), put(1, 8, "b", "*", 412), get(10, 11, "a")], True),
        ([put(0, 1, "a"), put(2, 9, "b", "a"), put(3, 8, "c", "a")], False),
        ([put(0, 1, "a"), put(2, 9, "b", "a"), put(3, 8, "c", "a", 412), get(10, 11, "b")], True),
        ([put(0, 1, "a"), delete(2, 3), get(4, 5, "a")], False),
        ([put(0, 1, "a"), delete(2, 3, "b"), get(4, 5, None)], False),
        ([put(0, 1, "a"), delete(2, 3, "b", 412), get(4, 5, "a")], True),
        ([put(0, 1, "a", "z", 404)], True),
        ([put(0, 1, "a", "", 500)], False),
    ],
)
def test_the_checker_tells_right_from_wrong(operations: list[Operation], possible: bool) -> None:
    assert linearizable(operations) is possible


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("kind", list(STORES))
def test_answers_of_one_key_have_an_order(kind: str, tmp_path: Path, seed: int) -> None:
    world = World(STORES[kind](tmp_path))
    world.ask("PUT", "/bkt")
    for number in range(HISTORIES):
        found = history([world.ask] * CLIENTS, f"/bkt/k{number}", seed + number, EACH)
        assert linearizable(found), f"history {number} of seed {seed}: {sorted(found)}"
    world.close()
