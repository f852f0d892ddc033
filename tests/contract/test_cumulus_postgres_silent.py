"""A PostgreSQL that holds its connections and does not answer, and one that gives no more of them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from cumulus_bench import Bench, postgres_database, put
from postgres import Postgres, shared

from cumulus.index.api import Away
from cumulus.index.postgres import PostgresIndex
from cumulus.index.postgres_pool import Pool


@pytest.fixture(scope="module")
def server() -> Postgres:
    """The server of these tests."""
    postgres_database()
    return shared()


@pytest.fixture
def bench(server: Postgres, tmp_path: Path) -> Iterator[Bench]:
    """An empty database."""
    made = Bench(tmp_path, "postgresql")
    yield made
    made.close()


@contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    """All its processes stand still: the kernel goes on to take connections for them."""
    first = int((server.directory / "data/postmaster.pid").read_text().split()[0])
    os.kill(first, signal.SIGSTOP)
    found = subprocess.run(["pgrep", "-P", str(first)], capture_output=True, text=True, check=True)
    others = [int(one) for one in found.stdout.split()]
    for each in others:
        os.kill(each, signal.SIGSTOP)
    try:
        yield
    finally:
        for each in (*others, first):
            os.kill(each, signal.SIGCONT)


def refused_after(call: Any) -> float:
    """Seconds until it is said that the database is away."""
    began = time.monotonic()
    with pytest.raises(Away):
        call()
    return time.monotonic() - began


def test_a_server_that_does_not_answer_is_away_within_seconds(bench: Bench, server: Postgres) -> None:
    """For all who wait at that moment, also for a key; for those who come then at once. It is used again by
    itself."""
    index = bench.index
    put(index, "k", size=7)

    def changing() -> None:
        with index.alone("b", "k"):
            pass

    changing()
    with stopped(server):
        with ThreadPoolExecutor(12) as threads:
            looks = [threads.submit(refused_after, lambda: index.lookup("b", "k")) for _ in range(6)]
            keys = [threads.submit(refused_after, changing) for _ in range(6)]
            waits = [one.result(60) for one in (*looks, *keys)]
        assert max(waits) < 15, waits
        assert sum(refused_after(lambda: index.lookup("b", "k")) for _ in range(5)) < 5
    end = time.monotonic() + 15
    while True:
        try:
            found = index.lookup("b", "k")
            changing()
            break
        except Away:
            assert time.monotonic() < end, "it is not used again"
            time.sleep(0.05)
    assert found is not None and found.size == 7


def test_a_statement_that_takes_long_is_waited_for(bench: Bench) -> None:
    """Longer than the time after which it is asked whether anybody is there."""
    pool = cast(PostgresIndex, bench.index)._pool
    assert pool.one("SELECT 1 FROM pg_sleep(8.5)") == (1,)


def test_who_gets_no_new_connection_waits_for_one_that_there_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have all that the server gives: a few are enough."""
    pool = Pool(cast(PostgresIndex, bench.index)._pool.target)

    def no_more() -> Any:
        raise Away("too many clients already")

    taken, go = threading.Event(), threading.Event()

    def work() -> None:
        with pool.run() as run:
            run("SELECT 1")
            taken.set()
            assert go.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert taken.wait(10)
        monkeypatch.setattr(pool.target, "connect_current", no_more)
        threading.Timer(0.2, go.set).start()
        assert pool.one("SELECT 2") == (2,)
    finally:
        go.set()
        thread.join()
    pool._let_go()
    assert refused_after(lambda: pool.one("SELECT 3")) < 1, "there is none to wait for"
    pool.close()


def test_a_lock_whose_connection_was_cut_is_there_for_the_next(bench: Bench) -> None:
    """Who was at it hears of it; nobody else has to wait until the database counts as back."""
    index = cast(PostgresIndex, bench.index)
    with index.alone("b", "k"):
        pass
    assert index._keys._connection is not None
    pid = index._keys._connection.info.backend_pid
    shared().execute(f"SELECT pg_terminate_backend({pid}, 5000)")

    def changing() -> None:
        with index.alone("b", "k"):
            pass

    assert refused_after(changing) < 5
    changing()
