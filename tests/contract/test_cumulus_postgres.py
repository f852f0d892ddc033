"""What only an index in PostgreSQL promises: several servers, a database that goes away, what it costs."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from cumulus_bench import Bench, bucket, part, postgres_database, put, row, run_all, upload
from postgres import Postgres, shared

from cumulus.index.admin_api import Quota
from cumulus.index.api import (
    Away,
    Directory,
    Index,
    IndexFailure,
    NoSuch,
    OverQuota,
    Put,
    Remove,
    Reservation,
)
from cumulus.index.postgres import PostgresIndex
from cumulus.index.registry import Options, make_index


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


class Beside:
    """Another server's index on the same database."""

    def __init__(self, bench: Bench, options: Options | None = None) -> None:
        self.index: Index
        self.directory: Directory
        self.index, self.directory = make_index(bench.url, bench.keyring, clock=bench.clock, options=options)

    def close(self) -> None:
        """End it."""
        self.index.close()
        self.directory.close()


@pytest.fixture
def beside(bench: Bench) -> Iterator[Beside]:
    """One more server."""
    made = Beside(bench)
    yield made
    made.close()


def until(condition: Callable[[], Any], what: str, seconds: float = 30) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def quota(bench: Bench, limit: int) -> None:
    """Of alice, in bytes, seen by all."""
    bench.admin.set_quota(Quota(scope="user", name="alice", hard_bytes=limit))
    bench.fresh()


def query(bench: Bench, sql: str) -> list[tuple[Any, ...]]:
    """The database as it is."""
    return shared().execute(sql, bench.database)


# several servers ----------------------------------------------------------------------------------------
def test_what_one_server_does_the_other_knows_at_once(bench: Bench, beside: Beside) -> None:
    """Objects, listings, uploads; a new bucket also when it was asked for before."""
    assert beside.index.bucket("new") is None
    bench.index.add_bucket(bucket("new"))
    assert beside.index.bucket("new") is not None
    for stamp in range(1, 5):
        writer, reader = (bench.index, beside.index) if stamp % 2 else (beside.index, bench.index)
        put(writer, "k", stamp=stamp)
        found = reader.lookup("b", "k")
        assert found is not None and found.stamp == stamp and reader.page("b").rows == [found]
    bench.index.add_upload(upload("u"))
    assert beside.index.put_part("u", part(1, 5), None) == 0
    assert bench.index.parts("u") == [part(1, 5)]
    assert beside.index.drop_upload("u") and not bench.index.drop_upload("u")


def test_writers_of_two_servers_never_overshoot_and_leak_nothing(bench: Bench, beside: Beside) -> None:
    """64 threads, half on each; used and reserved bytes are within the quota at every moment."""
    limit, stamp = 30_000, itertools.count(100)
    quota(bench, limit)
    refused = itertools.count()
    over: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            usage = beside.index.usage("user", "alice")
            if usage.bytes + usage.reserved_bytes > limit:
                over.append(usage.bytes + usage.reserved_bytes)
            done.wait(0.01)

    def writer(number: int) -> None:
        index = (bench.index, beside.index)[number % 2]
        rng = random.Random(number)
        for turn in range(3):
            size, key = rng.randint(500, 4000), f"k{rng.randint(0, 40)}"
            try:
                mine = index.reserve("b", 0)
                try:
                    index.grow(mine, size)
                except OverQuota:
                    index.release(mine)
                    raise
            except OverQuota:
                next(refused)
                index.apply([Remove(bucket="b", key=key, stamp=next(stamp))])
                continue
            finish(index, mine, key, f"u{number}-{turn}", size, next(stamp), rng)

    watcher = threading.Thread(target=watch)
    watcher.start()
    run_all([lambda number=number: writer(number) for number in range(64)])
    done.set()
    watcher.join()
    usage, rows = bench.index.usage("user", "alice"), bench.index.page("b").rows
    assert not over and next(refused) > 0
    assert (usage.reserved_bytes, usage.reserved_objects) == (0, 0)
    assert usage.bytes == sum(one.size for one in rows) and usage.objects == len(rows)
    assert query(bench, "SELECT * FROM reservations") == []


def finish(
    index: Index, mine: Reservation, key: str, id: str, size: int, stamp: int, rng: random.Random
) -> None:
    """End an upload in one of four ways."""
    how = rng.choice(["put", "abort", "parts", "parts aborted"])
    published = Put(row=row(key, stamp, size))
    if how == "put":
        index.apply([Put(row=published.row, reservation=mine)])
    elif how == "abort":
        index.release(mine)
    else:
        index.add_upload(upload(id, key))
        index.put_part(id, part(1, size), mine)
        index.drop_upload(id, published if how == "parts" else None)


def test_changes_made_at_the_same_time_share_a_transaction(bench: Bench) -> None:
    """As with SQLite; and reservations do."""
    index = bench.index
    assert isinstance(index, PostgresIndex)
    quota(bench, 10**9)
    start = threading.Barrier(24)

    def work(number: int) -> None:
        start.wait()
        for turn in range(8):
            held = index.reserve("b", 10)
            index.apply([Put(row=row(f"k{number}-{turn}"), reservation=held)])

    run_all([lambda number=number: work(number) for number in range(24)])
    assert len(index.page("b").rows) == 192 and index.commits < 150 and index.reservations == 0
    assert index._leases.batches < 150


def test_a_removed_key_is_refused_by_both(bench: Bench, beside: Beside) -> None:
    """Within a second; a new one counts at once."""
    assert beside.directory.credential("AK") is None
    bench.admin.add_key("alice", "AK", "longsecret")
    bench.fresh()
    for directory in (bench.directory, beside.directory):
        found = directory.credential("AK")
        assert found is not None and found.secret == "longsecret"
    bench.admin.remove_key("AK")
    removed = time.monotonic()
    for directory in (bench.directory, beside.directory):
        until(lambda directory=directory: directory.credential("AK") is None, "the key is refused")
    assert time.monotonic() - removed < 5


def test_one_server_leads_until_it_ends(bench: Bench, beside: Beside) -> None:
    """Then another one does."""
    assert bench.index.leads() and bench.index.leads() and not beside.index.leads()
    third = Beside(bench)
    assert not third.index.leads()
    query(bench, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")
    until(beside.index.leads, "another one leads")
    assert not bench.index.leads()
    beside.index.close()
    until(third.index.leads, "the third one leads")
    third.close()


# reservations -------------------------------------------------------------------------------------------
def test_nothing_is_reserved_without_a_quota_and_the_first_quota_counts(bench: Bench) -> None:
    """For what is being written when it is set: before it is published."""
    index = bench.index
    small, large = index.reserve("b", 40), index.reserve("b", 70)
    index.grow(small, 10)
    assert (small.id, small.bytes, index.usage("bucket", "b").reserved_bytes) == (0, 50, 0)
    quota(bench, 100)
    index.confirm(small)
    assert small.id and index.usage("bucket", "b").reserved_bytes == 50
    for call in (lambda: index.confirm(large), lambda: index.grow(large, 1)):
        with pytest.raises(OverQuota) as refused:
            call()
    assert (refused.value.name, refused.value.reserved, large.bytes) == ("alice", 50, 70)
    index.release(large)
    index.release(small)
    assert index.usage("bucket", "b").reserved_bytes == 0


def test_a_dead_servers_reservations_come_back(bench: Bench) -> None:
    """When its time is over; while it lives they are renewed."""
    quota(bench, 100)
    dying = Beside(bench, Options(life_s=3.0))
    assert isinstance(dying.index, PostgresIndex)
    held = dying.index.reserve("b", 80)
    first = query(bench, "SELECT expires + interval '1 second' FROM holders")[0][0]
    until(lambda: query(bench, "SELECT expires FROM holders")[0][0] > first, "its time was renewed")
    with pytest.raises(OverQuota):
        bench.index.reserve("b", 21)
    dying.index._closing.set()  # nothing more of it is heard
    until(lambda: bench.index.usage("user", "alice").reserved_bytes == 0, "its time is over")
    mine = bench.index.reserve("b", 100)
    with pytest.raises(OverQuota):  # it was only asleep
        dying.index.confirm(held)
    with pytest.raises(OverQuota):
        dying.index.grow(held, 1)
    dying.index.release(held)
    dying.close()
    bench.index.release(mine)
    assert query(bench, "SELECT * FROM reservations") == []


def test_what_still_fits_is_held_again(bench: Bench, beside: Beside) -> None:
    """By a process that could not renew, and with another one's in between."""
    quota(bench, 100)
    index = bench.index
    one, two, three = (index.reserve("b", size) for size in (30, 40, 20))
    stand_still(bench)
    other = beside.index.reserve("b", 35)
    four = index.reserve("b", 5)  # finds that its time is over
    index.confirm(one)
    with pytest.raises(OverQuota):
        index.confirm(two)
    index.confirm(three)
    assert index.usage("user", "alice").reserved_bytes == 30 + 20 + 5 + 35
    index.apply([Put(row=row("one", 1, 30), reservation=one)])
    for reservation in (two, three, four):
        index.release(reservation)
    beside.index.release(other)
    usage = index.usage("user", "alice")
    assert (usage.bytes, usage.reserved_bytes) == (30, 0)


def test_a_connection_cut_while_room_is_reserved_leaks_nothing(bench: Bench) -> None:
    """It may have been done: the process becomes another holder, and what it had is held again."""
    quota(bench, 100)
    index = bench.index
    held = index.reserve("b", 30)
    locker = psycopg.connect(bench.url)
    locker.execute("SELECT * FROM quotas FOR UPDATE")
    made: list[Reservation] = []
    thread = threading.Thread(target=lambda: made.append(index.reserve("b", 50)))
    thread.start()
    cut(bench, "cumulus_reserve", locker)
    thread.join()
    assert index.usage("user", "alice").reserved_bytes == 80
    for reservation in (held, *made):
        index.confirm(reservation)
        index.release(reservation)
    assert query(bench, "SELECT * FROM reservations") == []


def test_holding_again_that_fails_is_tried_again_before_anything_is_published(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new holder without its reservations is not trusted."""
    quota(bench, 100)
    index = bench.index
    assert isinstance(index, PostgresIndex)
    leases, held = index._leases, index.reserve("b", 30)
    stand_still(bench)
    ask, fails = leases._ask, [True, True]

    def failing(*arguments: Any) -> Any:
        if fails and fails.pop():
            raise Away("cut")
        return ask(*arguments)

    monkeypatch.setattr(leases, "_ask", failing)
    for _ in range(2):
        with pytest.raises(Away):
            index.confirm(held)
        assert index.usage("user", "alice").reserved_bytes == 0
    index.confirm(held)
    assert index.usage("user", "alice").reserved_bytes == 30


def test_holding_again_goes_past_a_bucket_that_has_gone(bench: Bench) -> None:
    """An upload into it may go on for hours, and all others of the process would fail with it."""
    quota(bench, 100)
    index = bench.index
    index.add_bucket(bucket("away"))
    gone, held = index.reserve("away", 20), index.reserve("b", 30)
    index.drop_bucket("away")
    stand_still(bench)
    index.confirm(held)
    with pytest.raises(NoSuch):
        index.confirm(gone)
    index.release(index.reserve("b", 70))
    index.release(gone)
    index.release(held)
    assert query(bench, "SELECT * FROM reservations") == []


def test_a_database_too_slow_for_a_new_holder_is_away_and_is_asked_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the new one is over before anything is held: its keeper goes on."""
    quota(bench, 100)
    short = Beside(bench, Options(life_s=0.5))
    assert isinstance(short.index, PostgresIndex)
    leases, held = short.index._leases, short.index.reserve("b", 30)
    again, slow = leases._hold_again, [True]

    def late() -> None:
        if slow:
            query(bench, "UPDATE holders SET expires = clock_timestamp() - interval '1 hour'")
        again()

    monkeypatch.setattr(leases, "_hold_again", late)
    query(bench, "UPDATE holders SET expires = clock_timestamp() - interval '1 hour'")
    leases._until = 0.0
    with pytest.raises(Away):
        short.index.confirm(held)
    time.sleep(0.5)
    slow.clear()
    until(lambda: bench.index.usage("user", "alice").reserved_bytes == 30, "the keeper holds it again", 10)
    short.index.release(held)
    short.close()


def stand_still(bench: Bench) -> None:
    """The process did not renew in time."""
    assert isinstance(bench.index, PostgresIndex)
    bench.index._closing.set()
    bench.index._keeper.join()
    query(bench, "UPDATE holders SET expires = clock_timestamp() - interval '1 hour'")
    bench.index._leases._until = 0.0


def cut(bench: Bench, function: str, locker: psycopg.Connection[Any]) -> None:
    """End the connection whose call of a function waits for a lock, then that of the lock."""
    waits = f"SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{function}(%'"
    until(lambda: query(bench, waits), "it waits for the lock")
    (pid,) = query(bench, waits)[0]
    query(bench, f"SELECT pg_terminate_backend({pid})")
    until(lambda: not query(bench, f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"), "it is cut")
    locker.rollback()
    locker.close()


# the database goes away -----------------------------------------------------------------------------------
def test_away_is_told_quickly_and_ends_by_itself(bench: Bench, server: Postgres) -> None:
    """Storage goes on: a change of which the database could not be told is told when it is back. A
    reservation lives on."""
    index = bench.index
    quota(bench, 100)
    held = index.reserve("b", 60)
    server.stop()
    try:
        for call in (
            lambda: index.lookup("b", "k"),
            lambda: index.reserve("b", 5),
            lambda: index.page("b", delimiter="/"),
            lambda: put(index, "late", size=10),
            lambda: index.drop_upload("u", Put(row=row("done", 1, 20))),
            lambda: bench.directory.credential("AK"),
            index.buckets,
        ):
            began = time.monotonic()
            with pytest.raises(Away) as bad:
                call()
            assert "\n" not in str(bad.value) and time.monotonic() - began < 5
        assert not index.leads()
    finally:
        server.start()
    until(lambda: answers(index), "it is back")
    until(lambda: index.lookup("b", "late") and index.lookup("b", "done"), "what was owed is told")
    index.confirm(held)
    usage = index.usage("user", "alice")
    assert (usage.bytes, usage.reserved_bytes) == (30, 60)
    index.release(held)
    assert index.leads()


def answers(index: Index) -> bool:
    """Whether the database does."""
    try:
        index.lookup("b", "k")
    except Away:
        return False
    return True


def test_a_restart_between_two_requests_is_not_noticed(bench: Bench, server: Postgres) -> None:
    """Connections that the server has closed are replaced."""
    put(bench.index, "k")
    held = [bench.index.lookup("b", "k"), bench.directory.user("alice"), bench.index.page("b")]
    server.stop("QUIT")
    server.start()
    bench.fresh()
    until(lambda: answers(bench.index), "the keeper, too, has seen that it is back")
    assert [bench.index.lookup("b", "k"), bench.directory.user("alice"), bench.index.page("b")] == held
    put(bench.index, "more")
    assert len(bench.admin.users()) == 2


def test_a_connection_cut_in_the_middle_of_a_change(bench: Bench) -> None:
    """It is done again: changes may be told twice."""
    locker = psycopg.connect(bench.url)
    locker.execute("SELECT * FROM ledger FOR UPDATE")
    thread = threading.Thread(target=lambda: put(bench.index, "k", size=7))
    thread.start()
    cut(bench, "cumulus_apply", locker)
    thread.join()
    usage = bench.index.usage("bucket", "b")
    assert (usage.bytes, usage.objects) == (7, 1)


def test_a_server_that_has_become_one_that_only_reads(bench: Bench) -> None:
    """As a former primary does: writes are away, not refused, and told later; reads go on."""
    index = bench.index
    assert isinstance(index, PostgresIndex)
    put(index, "k", size=1)
    with (
        index._pool.run() as run,
        index._pool.run() as other,
    ):  # a new connection would find the server that writes
        for each in (run, other):
            each("SET default_transaction_read_only = on")
    put(index, "new", size=2)
    assert index._pool.one("SHOW transaction_read_only") == ("off",)
    shared().execute(f'ALTER DATABASE "{bench.database}" SET default_transaction_read_only = on')
    index._pool._let_go()
    try:
        for call in (
            lambda: put(index, "late", size=10),
            lambda: index.add_upload(upload("u")),
            lambda: index.set_bucket(bucket("b"), ["acl"]),
        ):
            with pytest.raises(Away, match="read-only"):
                call()
        assert index.lookup("b", "new") and len(index.page("b").rows) == 2
    finally:
        shared().execute(f'ALTER DATABASE "{bench.database}" RESET default_transaction_read_only')
    until(lambda: index.lookup("b", "late"), "what was owed is told")


def test_what_waits_for_a_lock_is_tried_once(bench: Bench) -> None:
    """An administrator's, say: hears of it after one `lock_timeout`; a cut connection is tried again."""
    pool, tried = cast(PostgresIndex, bench.index)._pool, list[int]()

    def stuck(run: Any) -> None:
        tried.append(1)
        run("SET lock_timeout = '50ms'")
        run("SELECT * FROM ledger FOR UPDATE")

    def cut_off(run: Any) -> Any:
        tried.append(1)
        text = "SELECT 2" if len(tried) > 1 else "SELECT pg_terminate_backend(pg_backend_pid())"
        return run(text).fetchone()

    with psycopg.connect(bench.url) as locker:
        locker.execute("LOCK TABLE ledger IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Away, match="lock timeout"):
            pool.repeat(stuck)
        locker.rollback()
    assert len(tried) == 1
    tried.clear()
    assert pool.repeat(cut_off) == (2,) and len(tried) == 2


def test_closed_index_says_so(bench: Bench) -> None:
    """Reads and writes."""
    other = Beside(bench)
    other.close()
    for call in (lambda: put(other.index, "k"), other.index.buckets, lambda: other.index.lookup("b", "k")):
        with pytest.raises(Away, match="closed"):
            call()


# cost ---------------------------------------------------------------------------------------------------
def test_look_up_change_and_page_are_one_round_trip_each(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a key that is not there, and with a common prefix."""
    put(bench.index, "a/1", "a/2", "k")
    asked: list[str] = []
    plain = psycopg.Connection.execute

    def execute(self: Any, sql: Any, *values: Any, **more: Any) -> Any:
        asked.append(sql)
        return plain(self, sql, *values, **more)

    assert isinstance(bench.index, PostgresIndex)
    bench.index._closing.set()
    bench.index._keeper.join()
    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    for call in (
        lambda: bench.index.lookup("b", "k"),
        lambda: bench.index.lookup("b", "none"),
        lambda: bench.index.apply([Put(row=row("k", 5)), Put(row=row("v", 5, version="v5"), keep=True)]),
        lambda: bench.index.page("b", delimiter="/"),
        lambda: bench.index.page("b", limit=2),
        lambda: bench.index.page_versions("b"),
    ):
        bench.index.reserve("b", 1)  # what a bucket is charged to is known then
        asked.clear()
        call()
        assert len(asked) <= 2 if "version" in asked[0] else len(asked) == 1, asked


def test_a_page_reads_what_it_returns_and_not_what_prefixes_hide(bench: Bench) -> None:
    """Rows fetched from the table, as PostgreSQL counts them."""
    names = [f"{letter}/{number:04}" for letter in "abc" for number in range(700)]
    bench.index.apply([Put(row=row(key)) for key in names])
    page = bench.index.page("b", delimiter="/")
    assert page.prefixes == ["a/", "b/", "c/"] and not page.truncated
    with psycopg.connect(bench.url) as connection:
        connection.execute("SELECT cumulus_page('b', '', '\\xff', 0, '/', 1000)")
        sql = "SELECT idx_tup_fetch, seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'objects'"
        fetched, scanned = connection.execute(sql).fetchone() or (0, 0)
    assert 3 <= fetched <= 200 and scanned == 0


def test_a_ledger_that_is_wrong_is_counted_anew(bench: Bench) -> None:
    """From rows and uploads."""
    put(bench.index, "a", "b", size=5)
    bench.index.add_upload(upload("u"))
    bench.index.put_part("u", part(1, 7), None)
    query(bench, "UPDATE ledger SET bytes = 99, objects = 99, held = 99")
    bench.index.recount("b")
    assert query(bench, "SELECT bytes, objects, held FROM ledger") == [(10, 2, 7)]


# what PostgreSQL cannot hold ------------------------------------------------------------------------------
def test_texts_with_a_zero_byte(bench: Bench) -> None:
    """Are not there when they are asked for; in a change they fail that change. Keys may have them."""
    index = bench.index
    put(index, "a\0b")
    assert index.lookup("b", "a\0b") is not None
    assert index.lookup("b", "a\0b", "v\0") is None and index.bucket("x\0") is None
    assert index.upload("b", "k", "\0") is None and index.parts("\0") == []
    assert bench.directory.credential("A\0") is None and bench.directory.user("\0") is None
    assert index.page_versions("b", after="a", after_version="\0").rows[0].key == "a\0b"
    with pytest.raises(IndexFailure, match="zero byte"):
        index.apply([Put(row=row("k", etag="e\0"))])
    with pytest.raises(IndexFailure, match="zero byte"):
        index.add_bucket(bucket("x\0"))


def test_a_change_that_fails_in_the_database_fails_alone(bench: Bench) -> None:
    """A number that does not fit, in one of several changes of one transaction."""
    failed: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        try:
            put(bench.index, f"k{number}", size=2**62 if number == 3 else 10)
            put(bench.index, f"m{number}", size=2**62 if number == 3 else 10)
        except IndexFailure as bad:
            failed.append(bad)

    run_all([lambda number=number: work(number) for number in range(8)])
    assert len(failed) == 1 and "out of range" in str(failed[0])
    assert len(bench.index.page("b").rows) == 15
