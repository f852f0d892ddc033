"""Threads that work hand in hand keep off each other's cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from s3_world import World

from cumulus.backends.memory import MemoryStore
from cumulus.ops import cores, hashing
from cumulus.ops.cores import core, elsewhere
from cumulus.ops.incoming import BESIDE, Incoming


@pytest.fixture
def alone() -> Iterator[ThreadPoolExecutor]:
    """A thread whose cores may be changed."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_thread_keeps_off_a_core_and_comes_back_to_all(alone: ThreadPoolExecutor) -> None:
    def work() -> None:
        allowed = os.sched_getaffinity(0)
        here = core()
        assert here in allowed
        with suppress(ValueError), elsewhere(here):
            assert os.sched_getaffinity(0) == allowed - {here}
            assert core() != here
            raise ValueError
        assert os.sched_getaffinity(0) == allowed

    assert len(os.sched_getaffinity(0)) > 1, "this test needs two cores"
    alone.submit(work).result()


@pytest.mark.parametrize("taken", [-1, 1 << 20])
def test_a_core_that_is_not_known_or_not_ours_changes_nothing(taken: int, alone: ThreadPoolExecutor) -> None:
    def work() -> None:
        allowed = os.sched_getaffinity(0)
        with elsewhere(taken):
            assert os.sched_getaffinity(0) == allowed

    alone.submit(work).result()


def test_who_has_one_core_stays_there(alone: ThreadPoolExecutor) -> None:
    def work() -> None:
        only = {core()}
        os.sched_setaffinity(0, only)
        with elsewhere(core()):
            assert os.sched_getaffinity(0) == only

    alone.submit(work).result()


def test_a_core_that_was_taken_away_meanwhile_is_no_failure(
    alone: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_pid: int, _cores: object) -> None:
        raise OSError(22, "Invalid argument")

    def work() -> None:
        with elsewhere(core()):
            pass

    monkeypatch.setattr(cores.os, "sched_setaffinity", gone)
    alone.submit(work).result()


def test_who_writes_a_body_keeps_off_the_core_where_it_is_hashed(
    alone: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, seen, busy = World(MemoryStore()), list[set[int]](), min(os.sched_getaffinity(0))
    assert world.ask("PUT", "/bkt").status == 200
    monkeypatch.setattr(hashing, "core", lambda: busy)

    def work() -> set[int]:
        allowed = os.sched_getaffinity(0)
        body = Incoming(world.site, "bkt", "k", size=None, limit=1 << 30, algorithms=["md5"])
        stream = body._stream
        assert stream is not None
        write = stream.write

        def watching(data: memoryview) -> None:
            seen.append(os.sched_getaffinity(0))
            write(data)

        stream.write = watching  # type: ignore[method-assign]
        for _ in range(3):
            body.take([memoryview(bytes(BESIDE))])
            body._lines[0].wait()
        assert os.sched_getaffinity(0) == allowed
        body.abort()
        return allowed

    allowed = alone.submit(work).result()
    world.close()
    assert seen[1:] == [allowed - {busy}] * 2, "at the first it is not known yet"
