"""What only an index in PostgreSQL promises: several servers, a database that goes away, one line for what is
wrong with it."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import alembic.command
import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from cumulus_bench import ALICE, Bench, bucket, part, postgres_database, put, row, run_all, upload
from postgres import PASSWORD, Postgres, shared
from sqlalchemy import inspect, text

from cumulus.index import schema
from cumulus.index.admin_api import Quota
from cumulus.index.api import Away, Directory, Index, IndexFailure, OverQuota, Put, Remove, Reservation
from cumulus.index.postgres import PostgresIndex
from cumulus.index.postgres_pool import Target
from cumulus.index.registry import Options, make_index
from cumulus.index.tables import metadata, tables_of
from sector.errors import BadConfig, LocalIO
from sector.ports import free_ports

SOON = Options(life_s=1.0)


@pytest.fixture(scope="module")
def server() -> Postgres:
    """The server of these tests."""
    postgres_database()
    return shared()


@pytest.fixture
def bench(server: Postgres, tmp_path: Path) -> Iterator[Bench]:
    """An empty database."""
    made = Bench(tmp_path, "postgresql", SOON)
    yield made
    made.close()


class Beside:
    """Another server's index on the same database."""

    def __init__(self, bench: Bench, options: Options = SOON) -> None:
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
    dying = Beside(bench)
    assert isinstance(dying.index, PostgresIndex)
    held = dying.index.reserve("b", 80)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 2.5, "it has lived two and a half lives")
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
    assert isinstance(index, PostgresIndex)
    index._closing.set()  # it stands still
    index._keeper.join()
    query(bench, "UPDATE holders SET expires = clock_timestamp() - interval '1 hour'")
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
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%cumulus_apply%'"
    until(lambda: query(bench, waits), "it waits for the lock")
    query(bench, f"SELECT pg_terminate_backend(pid) FROM ({waits}) a")
    until(lambda: not query(bench, f"{waits} AND state <> 'active'"), "it is cut")
    locker.rollback()
    locker.close()
    thread.join()
    usage = bench.index.usage("bucket", "b")
    assert (usage.bytes, usage.objects) == (7, 1)


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


# one line for what is wrong -------------------------------------------------------------------------------
def secret(path: Path, value: str) -> str:
    """A file of a password."""
    path.touch(0o600)
    path.write_text(value + "\n")
    return str(path)


def test_a_password_comes_from_its_file_and_is_never_told(server: Postgres, tmp_path: Path) -> None:
    """Nor from the URL."""
    right = secret(tmp_path / "right", PASSWORD)
    target = Target(server.url("postgres"), right)
    target.connect().close()
    assert PASSWORD not in repr(target)
    wrong = Target(server.url("postgres"), secret(tmp_path / "wrong", "wrong-password"))
    with pytest.raises(Away, match='password authentication failed for user "cumulus"') as bad:
        wrong.connect()
    assert "wrong-password" not in str(bad.value) and "\n" not in str(bad.value)
    with pytest.raises(BadConfig, match="has a password in it") as refused:
        Target("postgresql://cumulus:hidden-word@127.0.0.1/x")
    assert "hidden-word" not in refused.value.message + refused.value.hint
    (tmp_path / "right").chmod(0o640)
    with pytest.raises(BadConfig, match="others can read it"):
        Target(server.url("postgres"), right)
    with pytest.raises(LocalIO, match="No such file"):
        Target(server.url("postgres"), str(tmp_path / "none"))
    (tmp_path / "wrong").write_bytes(b"\xff")
    with pytest.raises(LocalIO, match="not UTF-8"):
        Target(server.url("postgres"), str(tmp_path / "wrong"))


def test_a_database_that_cannot_be_used_is_told_in_one_line(
    server: Postgres, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, of a wrong encoding or version, made by a newer program, nobody there."""

    def wrong(url: str) -> str:
        with pytest.raises(IndexFailure) as bad:
            make_index(url, bench.keyring)
        assert "\n" not in str(bad.value)
        return str(bad.value)

    assert 'database "nowhere" does not exist' in wrong(server.local("nowhere"))
    (nobody,) = free_ports(1)
    assert f"port {nobody} failed" in wrong(f"postgresql://cumulus@127.0.0.1:{nobody}/x")
    server.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    assert "has the encoding LATIN1, and UTF8 is needed" in wrong(server.local("latin"))
    server.execute("DROP DATABASE latin")
    with pytest.raises(BadConfig, match="names no database"):
        make_index("postgresql://x?colour=red", bench.keyring)
    with pytest.raises(BadConfig, match="need a file of keys"):
        make_index(bench.url)
    query(bench, "UPDATE alembic_version SET version_num = '9999'")
    try:
        assert "written by another version" in wrong(bench.url)
    finally:
        query(bench, "UPDATE alembic_version SET version_num = '0002'")
    monkeypatch.setattr("cumulus.index.postgres_pool.OLDEST", 990000)
    assert "and 99 or later is needed" in wrong(bench.url)


def test_commits_are_waited_for_whatever_the_database_says(bench: Bench) -> None:
    """Unless the settings say otherwise."""
    query(bench, f"ALTER DATABASE {bench.database} SET synchronous_commit = off")
    try:
        for sync, wanted in ((True, "on"), (False, "off")):
            with Target(bench.url, sync=sync).connect() as connection:
                assert connection.execute("SHOW synchronous_commit").fetchone() == (wanted,)
    finally:
        query(bench, f"ALTER DATABASE {bench.database} RESET synchronous_commit")


def test_migrations_make_what_the_tables_say(server: Postgres) -> None:
    """A new database is made at once, an old one by migrations: the same, and gone after the way back."""
    made, migrated = (server.local(server.database()) for _ in range(2))
    first = schema.postgres_engine(Target(made).connect_plain)
    schema.migrate(first, where="made")
    schema.migrate(first, where="made")
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    second = schema.postgres_engine(Target(migrated).connect_plain)
    with second.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "head")
    functions = text("SELECT proname, md5(prosrc) FROM pg_proc WHERE proname LIKE 'cumulus%' ORDER BY 1")
    with first.connect() as one, second.connect() as two:
        for connection in (one, two):
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert one.execute(functions).all() == two.execute(functions).all()
        for table in tables_of("postgresql"):
            assert str(inspect(one).get_columns(table.name)) == str(inspect(two).get_columns(table.name))
    with second.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.downgrade(settings, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
        assert connection.execute(functions).all() == []
    first.dispose()
    second.dispose()


def test_two_servers_may_make_the_tables_at_once(server: Postgres, bench: Bench) -> None:
    """One makes them, all use them."""
    url = server.local(server.database())
    made: list[tuple[Index, Directory]] = []
    run_all([lambda: made.append(make_index(url, bench.keyring))] * 4)
    assert len(made) == 4
    made[0][0].add_bucket(bucket("x", ALICE))
    assert all(index.bucket("x") is not None for index, _ in made)
    for one, two in made:
        one.close()
        two.close()


def test_a_ledger_that_is_wrong_is_counted_anew(bench: Bench) -> None:
    """From rows and uploads."""
    put(bench.index, "a", "b", size=5)
    bench.index.add_upload(upload("u"))
    bench.index.put_part("u", part(1, 7), None)
    query(bench, "UPDATE ledger SET bytes = 99, objects = 99, held = 99")
    bench.index.recount("b")
    assert query(bench, "SELECT bytes, objects, held FROM ledger") == [(10, 2, 7)]
