"""One writer of a key at a time, whatever database there is and however many processes are on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cumulus_bench import Bench, postgres_database
from postgres import shared

from cumulus.index.api import Directory, Index, IndexFailure
from cumulus.index.keys import stripe_of
from cumulus.index.registry import make_index
from cumulus.index.remote import connect_index

KINDS = ("sqlite", "remote", "postgresql")


@pytest.fixture(scope="module")
def server() -> str:
    """PostgreSQL, for all tests of this module."""
    return postgres_database()


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> Iterator[Bench]:
    made = Bench(tmp_path, request.param)
    yield made
    made.close()


def another(bench: Bench, path: Path) -> tuple[Index, Directory]:
    """The index as another process has it."""
    if bench.server is not None:
        return connect_index(path / "index.sock", path / "cumulus.db")
    return make_index(bench.url, bench.keyring, clock=bench.clock)


@pytest.fixture
def beside(bench: Bench, tmp_path: Path) -> Iterator[Index]:
    index, directory = another(bench, tmp_path)
    yield index
    index.close()
    directory.close()


class Waiting(threading.Thread):
    """Takes the key of an index and gives it back at once; `got` when that was."""

    def __init__(self, index: Index, key: str = "k") -> None:
        super().__init__(daemon=True)
        self._index, self._key = index, key
        self.got = 0.0
        self.start()

    def run(self) -> None:
        with self._index.alone("b", self._key):
            self.got = time.monotonic()


def test_a_key_is_one_writer_s_in_all_threads_and_processes(bench: Bench, beside: Index) -> None:
    other = next(key for key in map(str, range(5000)) if stripe_of("b", key) != stripe_of("b", "k"))
    with bench.index.alone("b", "k"):
        waiting = [Waiting(bench.index), Waiting(beside), Waiting(beside)]
        time.sleep(0.3)
        assert not any(one.got for one in waiting)
        for index in (bench.index, beside):
            with index.alone("b", other):
                pass
        freed = time.monotonic()
    for one in waiting:
        one.join(10)
        assert one.got >= freed
    with pytest.raises(ZeroDivisionError), beside.alone("b", "k"):
        raise ZeroDivisionError
    with bench.index.alone("b", "k"):
        pass


def test_a_process_that_ends_holds_no_key(bench: Bench, tmp_path: Path) -> None:
    index, directory = another(bench, tmp_path)
    held = index.alone("b", "k")
    held.__enter__()
    waiting = Waiting(bench.index)
    time.sleep(0.2)
    assert not waiting.got
    index.close()
    directory.close()
    waiting.join(10)
    assert waiting.got


@pytest.mark.parametrize("bench", ["postgresql"], indirect=True)
def test_a_connection_that_is_lost_holds_no_key_and_is_made_anew(bench: Bench, beside: Index) -> None:
    url = shared().local(bench.database)
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE locktype = 'advisory' AND classid = 17269"
    )
    with bench.index.alone("b", "k"):
        with psycopg.connect(url, autocommit=True) as connection:
            assert len(connection.execute(kill).fetchall()) == 1
        with beside.alone("b", "k"):
            pass
    with bench.index.alone("b", "k"):
        waiting = Waiting(beside)
        time.sleep(0.2)
        assert not waiting.got
    waiting.join(10)
    assert waiting.got


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "cumulus.db-keys").mkdir()
    with pytest.raises(IndexFailure, match=r"cumulus\.db-keys: "), bench.index.alone("b", "k"):
        pass
    (tmp_path / "cumulus.db-keys").rmdir()
    with bench.index.alone("b", "k"):
        pass
    bench.close()
