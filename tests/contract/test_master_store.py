"""What every store of the master promises, run on each implementation; and the migrations of SQLite."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import alembic.autogenerate
import alembic.migration
import pytest
from running import running
from sqlalchemy import event, inspect
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from sector import errors
from sector.master import namespace as ns
from sector.master import store as store_module
from sector.master.models import Base
from sector.master.reconcile import merge_tombstones
from sector.master.replication import CopyRule, CopyRules
from sector.master.sessions import SessionRow
from sector.master.store import SqlStore, SqlTx, Store, is_empty, make_engine
from sector.model import Right, SliceMeta, Tombstone, Version, parent
from sector.revisions import upgrade

Wait = Callable[[Deferred[Any]], Any]


class ThreadReactor:
    """What a store needs of a reactor: functions run in the thread that waits."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []
        self._ready = threading.Condition()

    def callFromThread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Queue a call."""
        with self._ready:
            self._calls.append(lambda: function(*args, **kwargs))
            self._ready.notify()

    def run_until(self, done: Callable[[], bool], limit_s: float = 20.0) -> None:
        """Run queued calls until `done`."""
        while not done():
            with self._ready:
                if not self._calls and not self._ready.wait(limit_s):
                    raise AssertionError("the store does not answer")
                calls, self._calls = self._calls, []
            for call in calls:
                call()


class Bench:
    """A store and how to wait for it."""

    def __init__(self, path: Path, threads: bool) -> None:
        self.path = path
        self.reactor = ThreadReactor() if threads else None
        self.store: Store = SqlStore(path, self.reactor)
        self.store.open()

    def wait(self, waiting: Deferred[Any]) -> Any:
        """The result, or raises."""
        out: list[Any] = []
        waiting.addBoth(out.append)
        if self.reactor is not None:
            self.reactor.run_until(lambda: bool(out))
        assert out, "an answer at once"
        if isinstance(out[0], Failure):
            out[0].raiseException()
        return out[0]

    def write(self, rule: Callable[[SqlTx], Any]) -> Any:
        return self.wait(self.store.write(rule))

    def read(self, rule: Callable[[SqlTx], Any]) -> Any:
        return self.wait(self.store.read(rule))

    def close(self) -> None:
        self.wait(self.store.close())


@pytest.fixture(params=["inline", "threads"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "master.db", request.param == "threads")
    yield made
    made.close()


def put(tx: SqlTx, path: str, node: str = "s1", digest: str = "d") -> Version:
    """A whole write in one transaction."""
    lease = ns.open_write(tx, ns.WriteRequest(path, 10, "u", node, os.urandom(16), 60.0), 1.0)
    meta = SliceMeta(path, lease.version, 10, "u", 0o644, 1.0, digest)
    return ns.publish(tx, node, lease.id, meta, 1.0)


# transactions -------------------------------------------------------------------------------------------
def test_write_is_seen_by_later_reads(bench: Bench) -> None:
    assert bench.read(is_empty)
    version = bench.write(lambda tx: put(tx, "/f"))
    assert bench.read(lambda tx: tx.entry("/f")).version == version
    assert not bench.read(is_empty)


def test_refusal_changes_nothing_and_spares_its_neighbours(bench: Bench) -> None:
    """Rules that share a commit do not share their fate."""

    def bad(tx: SqlTx) -> None:
        put(tx, "/bad")
        raise errors.Conflict("no")

    results: list[Any] = []
    for rule in (lambda tx: put(tx, "/a"), bad, lambda tx: put(tx, "/b"), lambda tx: 1 // 0):
        bench.store.write(rule).addBoth(results.append)
    bench.write(lambda tx: None)
    assert [type(r) for r in results] == [Version, Failure, Version, Failure]
    assert results[1].check(errors.Conflict) and results[3].check(ZeroDivisionError)
    assert results[0] < results[2]
    assert [e.path for e in bench.read(lambda tx: tx.listing("/", True, "", 10))] == ["/a", "/b"]


def test_reads_cannot_write(bench: Bench) -> None:
    with pytest.raises(errors.LocalIO):
        bench.read(lambda tx: put(tx, "/f"))


def test_counters_survive_a_restart(bench: Bench) -> None:
    bench.write(lambda tx: tx.set("epoch", 7))
    first = bench.write(lambda tx: tx.draw())
    bench.close()
    bench.__init__(bench.path, bench.reactor is not None)  # type: ignore[misc]
    assert first.epoch == 7 and bench.write(lambda tx: tx.draw()) > first


def test_closed_store_refuses(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "m.db", True)
    bench.close()
    with pytest.raises(errors.Busy):
        bench.wait(bench.store.write(lambda tx: None))
    with pytest.raises(errors.Busy):
        bench.wait(bench.store.read(lambda tx: None))
    bench.wait(bench.store.close())


def test_many_writes_share_commits(tmp_path: Path) -> None:
    """Publishes that come together cost one fsync, not one each."""
    bench = Bench(tmp_path / "m.db", True)
    store = bench.store
    assert isinstance(store, SqlStore)
    done: list[Any] = []
    for index in range(300):
        store.write(lambda tx, i=index: put(tx, f"/f{i}")).addBoth(done.append)
    assert bench.reactor is not None
    bench.reactor.run_until(lambda: len(done) == 300)
    assert all(isinstance(v, Version) for v in done) and done == sorted(done)
    assert store.writes == 300 and store.commits < 250
    bench.close()


def test_two_masters_never_share_a_database(bench: Bench) -> None:
    with pytest.raises(errors.Conflict, match="another master"):
        SqlStore(bench.path).open()
    bench.store.open()


def test_unusable_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_bytes(b"not a database" * 100)
    with pytest.raises(errors.LocalIO, match=r"m\.db"):
        SqlStore(tmp_path / "m.db").open()
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.LocalIO):
        SqlStore(tmp_path / "file" / "m.db").open()


# rows -----------------------------------------------------------------------------------------------------
def test_sessions(bench: Bench) -> None:
    rows = [
        SessionRow(bytes([i]) * 16, f"u{i}", b"sealed", i, 3, 99.5, "10.0.0.1/32", ("admin",),
                   (Right("u", "/", "rw"),), "svc" * (i == 1), i)
        for i in range(3)
    ]  # fmt: skip
    for row in rows:
        bench.wait(bench.store.session_add(row))
    bench.wait(bench.store.session_add(rows[0]))
    assert sorted(bench.wait(bench.store.session_all()), key=lambda r: r.id) == rows
    bench.wait(bench.store.session_drop([rows[0].id, rows[2].id, b"x" * 16]))
    assert bench.wait(bench.store.session_all()) == [rows[1]]


def test_leases(bench: Bench) -> None:
    lease = ns.Lease(b"l" * 16, "/f", "s1", Version(1, 2), 5, "u", "o", 0o600, 50.0)
    bench.write(lambda tx: tx.put_lease(lease))
    assert bench.read(lambda tx: tx.lease(lease.id)) == bench.read(lambda tx: tx.lease_on("/f")) == lease
    assert bench.read(lambda tx: tx.leased_below("/", 49.0)) == "/f"
    assert bench.read(lambda tx: tx.leased_below("/", 50.0)) is None
    assert bench.read(lambda tx: tx.leased_below("/g", 1.0)) is None
    with pytest.raises(errors.LocalIO):
        bench.write(lambda tx: tx.put_lease(ns.Lease(b"m" * 16, *_fields(lease)[1:])))
    ended = ns.Lease(b"e" * 16, "/g", *_fields(lease)[2:-1], state=ns.PUBLISHED)
    bench.write(lambda tx: tx.put_lease(ended))
    bench.write(lambda tx: tx.rebase_leases(70.0))
    assert [bench.read(lambda tx, one=one: tx.lease(one.id)).expires for one in (lease, ended)] == [
        70.0,
        50.0,
    ]
    bench.write(lambda tx: tx.rebase_leases(65.0, 80.0))
    assert [bench.read(lambda tx, one=one: tx.lease(one.id)).expires for one in (lease, ended)] == [
        65.0,
        80.0,
    ]
    assert bench.write(lambda tx: tx.expire_leases(60.0)) == 0
    assert [held.id for held in bench.read(lambda tx: tx.leases_of("u"))] == [lease.id]
    bench.write(lambda tx: tx.drop_lease(lease.id))
    assert bench.read(lambda tx: tx.lease(lease.id)) is None
    assert bench.read(lambda tx: tx.leases_of("u")) == []


def _fields(lease: ns.Lease) -> list[Any]:
    return [getattr(lease, name) for name in lease.__dataclass_fields__]


def test_tombstones_only_rise(bench: Bench) -> None:
    for counter in (5, 3, 7):
        bench.write(lambda tx, c=counter: tx.put_tombstone("/f", Version(1, c), 1.0, False))
    assert bench.read(lambda tx: tx.tombstone("/f")) == Version(1, 7)
    entry = ns.Entry("/f", "file", 1, Version(1, 8), "u", 0, 0.0, "d")
    bench.write(lambda tx: tx.put_entry(entry))
    assert bench.read(lambda tx: tx.tombstone("/f")) is None


def test_trash_keeps_the_newest(bench: Bench) -> None:
    for counter in (5, 3):
        bench.write(lambda tx, c=counter: tx.discard("/f", "s1", Version(1, c), 1.0))
    trash = bench.read(lambda tx: tx.trash("s1", 10))
    assert [(t.path, t.version, t.surplus) for t in trash] == [("/f", Version(1, 5), True)]
    bench.write(lambda tx: tx.discard("/f", "s1", Version(1, 6), 1.0))
    bench.write(lambda tx: tx.trash_done("s1", trash))
    assert [t.version for t in bench.read(lambda tx: tx.trash("s1", 10))] == [Version(1, 6)]


def test_mirror_pages_hold_every_change_once(bench: Bench) -> None:
    """Small pages over tombstones, directories and rights, from any serial on."""

    def fill(tx: SqlTx) -> int:
        for index in range(7):
            ns.make_directory(tx, f"/d{index}", False, "u", 1.0)
            tx.put_tombstone(f"/x{index}", Version(1, index), 1.0, index == 0)
        tx.mirror_rights({f"u{i}": [Right(f"u{i}", "/", "r")] for i in range(5)})
        return tx.serial()

    first = bench.write(fill)
    second = bench.write(lambda tx: (ns.make_directory(tx, "/late", False, "u", 1.0), tx.serial())[1])

    def pages(since: int, until: int) -> tuple[list[str], list[str], list[str], list[str]]:
        position: tuple[int, int, str] | None = (0, 0, "")
        found: tuple[list[str], list[str], list[str], list[str]] = ([], [], [], [])
        while position is not None:
            page = bench.read(lambda tx, p=position: tx.mirror(since, until, p, 2))
            found[0].extend(t.path for t in page.tombstones)
            found[1].extend(d.path for d in page.directories)
            found[2].extend(page.removed)
            found[3].extend(r.user for r in page.rights)
            position = page.next
        return found

    dead, dirs, removed, rights = pages(0, first)
    assert dead == [f"/x{i}" for i in range(7)] and removed == ["/x0"]
    assert dirs == [f"/d{i}" for i in range(7)] and rights == [f"u{i}" for i in range(5)]
    assert pages(first, second) == ([], ["/late"], [], [])
    assert pages(second, second) == ([], [], [], [])


def test_lacking_counts_what_users_would_count(bench: Bench) -> None:
    def fill(tx: SqlTx) -> None:
        put(tx, "/one")
        version = put(tx, "/two")
        tx.put_replica("/two", ns.Replica("s2", version, 1.0))
        bad = put(tx, "/bad")
        tx.put_replica("/bad", ns.Replica("s2", bad, 1.0, bad=True))
        put(tx, "/old")
        put(tx, "/old", node="s2")

    bench.write(fill)
    for live, copies, wanted in ((["s1"], 3, 1), (["s1", "s2"], 1, 0), (["s1", "s2"], 2, 3), (["s3"], 1, 4)):
        assert bench.read(lambda tx, a=live, b=copies: tx.lacking(a, b)) == wanted
    bench.write(lambda tx: tx.set_copies("/two", 3))
    assert bench.read(lambda tx: tx.lacking(["s1", "s2", "s3"], 1)) == 1
    sums = bench.read(lambda tx: tx.sums())
    assert (sums.files, sums.bytes) == (4, 40)


def test_lacking_counts_by_the_rules_of_each_path(bench: Bench) -> None:
    """As `CopyRules.of` decides: a directory or a pattern, the last that fits, and never less than users
    asked for."""
    paths = ("/a", "/scratch/b", "/scratch/a", "/scratch/keep/a", "/scratchy", "/x/a.raw", "/x/[a]", "/x/!")

    def fill(tx: SqlTx) -> None:
        for path in paths:
            ns.make_directory(tx, parent(path), True, "u", 1.0)
            put(tx, path)

    bench.write(fill)
    live = ["s1", "s2", "s3"]
    for default in (1, 2):
        for rules in (
            [("/scratch", 1)],
            [("/scratch", 1), ("/scratch/keep", 2)],
            [("/scratch/keep", 2), ("/scratch", 1)],
            [("/*.raw", 3), ("/x/[[]a]", 1)],
            [("/x/[!a-z[]", 3), ("/", 1), ("/?", 2)],
        ):
            known = CopyRules(CopyRule("/", default), tuple(CopyRule(*rule) for rule in rules))
            wanted = sum(known.of(path).minimum > 1 for path in paths)
            assert bench.read(lambda tx, d=default, r=rules: tx.lacking(live, d, r)) == wanted, rules
    bench.write(lambda tx: tx.set_copies("/scratch/a", 2))
    assert bench.read(lambda tx: tx.lacking(live, 1, [("/scratch", 1)])) == 1


def test_report_confirms_marks_and_forgets(bench: Bench) -> None:
    def fill(tx: SqlTx) -> list[SliceMeta]:
        return [SliceMeta(p, put(tx, p), 10, "u", 0o644, 1.0, "d") for p in ("/a", "/b", "/c")]

    metas = bench.write(fill)
    other = SliceMeta("/b", metas[1].version, 10, "u", 0o644, 1.0, "other")
    rest = bench.write(lambda tx: tx.confirm("s1", 5, [metas[0], other]))
    assert rest == [other]
    bench.write(lambda tx: tx.mark("s1", "/b", 5))
    assert bench.write(lambda tx: tx.unseen("s1", 5, 1.0, 9.0)) == 0, "confirmed too lately"
    assert bench.write(lambda tx: tx.unseen("s1", 5, 2.0, 9.0)) == 1
    assert bench.read(lambda tx: tx.replicas("/c")) == []
    assert len(bench.read(lambda tx: tx.replicas("/b"))) == 1


def statements_of(tx: SqlTx, rule: Callable[[SqlTx], Any]) -> list[tuple[str, Any]]:
    """The statements that a rule executes, with their parameters."""
    seen: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        seen.append((statement, parameters))

    event.listen(tx.connection, "before_cursor_execute", note)
    rule(tx)
    event.remove(tx.connection, "before_cursor_execute", note)
    return seen


FOUND = [SliceMeta(f"/d/f{index}", Version(1, 1), 1, "u", 0o644, 1.0, "d") for index in range(400)]


@pytest.mark.parametrize(
    "rule",
    [
        lambda tx: tx.confirm("s1", 5, FOUND),
        lambda tx: tx.leased_below("/d", 1.0),
        lambda tx: tx.page("/d", "", 500),
        lambda tx: tx.page("/d", "/d/f1", 500),
        lambda tx: tx.listing("/d", True, "/d/f1", 500),
    ],
    ids=["confirm", "leased_below", "page", "next page", "listing"],
)
def test_no_plan_walks_all_of_a_slave_or_a_day_or_sorts_a_directory(
    bench: Bench, rule: Callable[[SqlTx], Any]
) -> None:
    """SQLite, which has no figures of the tables, does not take an index whose rows are all alike."""

    def plans(tx: SqlTx) -> str:
        seen = statements_of(tx, rule)
        rows = [
            tx.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            for statement, parameters in seen
        ]
        return "\n".join(str(row[3]) for plan in rows for row in plan)

    plan = bench.write(plans)
    assert "USING" in plan
    for bad in ("ix_replica_node", "ix_lease_expires", "TEMP B-TREE"):
        assert bad not in plan, plan


def test_known_tombstones_cost_next_to_nothing(bench: Bench) -> None:
    """Slaves tell all of them with every report; nothing is mirrored anew for that."""
    stones = [Tombstone(f"/gone/{index}", Version(1, index + 1), 1.0) for index in range(2000)]
    bench.write(lambda tx: merge_tombstones(tx, stones, False))
    before = bench.read(lambda tx: tx.setting("serial"))
    older = [Tombstone(stone.path, Version(0, 1), 1.0) for stone in stones[:10]]
    for told in (stones, older, []):
        seen = bench.write(
            lambda tx, s=told: statements_of(tx, lambda tx: (merge_tombstones(tx, s, False), tx.flush()))
        )
        assert len(seen) <= 20
        assert bench.read(lambda tx: tx.setting("serial")) == before
    assert bench.read(lambda tx: tx.sums()).tombstones == 2000
    newer = Tombstone("/gone/7", Version(1, 5000), 1.0)
    bench.write(lambda tx: merge_tombstones(tx, [*stones, newer], False))
    assert bench.read(lambda tx: tx.tombstone("/gone/7")) == Version(1, 5000)
    assert bench.read(lambda tx: tx.setting("serial")) == before + 1
    page = bench.read(lambda tx: tx.mirror(before, before + 1, (0, 0, ""), 10))
    assert list(page.tombstones) == [newer]


def test_pages_of_a_path_hold_it_and_what_is_below_once(bench: Bench) -> None:
    bench.write(lambda tx: [ns.make_directory(tx, path, False, "u", 1.0) for path in ("/a", "/a/c")])
    bench.write(lambda tx: [put(tx, p) for p in ("/a-", "/a/b", "/a/c/d", "/a/e", "/a0", "/b")])
    wanted = {
        "/a": ["/a/b", "/a/c/d", "/a/e"],
        "/b": ["/b"],
        "/": ["/a-", "/a/b", "/a/c/d", "/a/e", "/a0", "/b"],
    }
    for path, files in wanted.items():
        for limit in (1, 2, 9):
            found, after = [], ""
            while page := bench.read(lambda tx, p=path, a=after, n=limit: tx.page(p, a, n)):
                assert len(page) <= limit
                found += [file.entry.path for file in page]
                after = found[-1]
            assert found == files, (path, limit)


def test_names_that_sort_between_are_not_below(bench: Bench) -> None:
    """ "/a-", "/a0" and "/a b" are no children of "/a"; wildcards of SQL mean nothing."""
    bench.write(lambda tx: [put(tx, p) for p in ("/a-", "/a0", "/a b", "/%", "/_")])
    bench.write(lambda tx: ns.make_directory(tx, "/a", False, "u", 1.0))
    bench.write(lambda tx: put(tx, "/a/f"))
    assert bench.write(lambda tx: ns.remove(tx, "/a", True, 1.0)).files == 1
    assert bench.write(lambda tx: ns.remove(tx, "/%", True, 1.0)).files == 1
    left = [e.path for e in bench.read(lambda tx: tx.listing("/", True, "", 99))]
    assert left == ["/_", "/a b", "/a-", "/a0"]


def test_big_directory_is_renamed_in_one_transaction(bench: Bench) -> None:
    def fill(tx: SqlTx) -> None:
        ns.make_directory(tx, "/big", False, "u", 1.0)
        for index in range(2000):
            version = tx.draw()
            tx.put_entry(ns.Entry(f"/big/f{index:05}", "file", 1, version, "u", 0, 0.0, "d"))
            tx.put_replica(f"/big/f{index:05}", ns.Replica("s1", version, 1.0))

    bench.write(fill)
    totals = bench.write(lambda tx: ns.move(tx, "/big", "/b", False, 1.0))
    assert totals.files == 2000
    assert len(bench.read(lambda tx: tx.page("/b", "", 5000))) == 2000
    renames = bench.read(lambda tx: tx.renames("s1", 5000))
    assert len(renames) == 2000 and renames[0].old_path.startswith("/big/")
    page = bench.read(lambda tx: tx.mirror(0, 10**9, (0, 0, ""), 5000))
    assert [stone.path for stone in page.tombstones] == ["/big"]
    assert not bench.read(lambda tx: tx.stones_free()), "no slave has any of it under its new name"
    assert bench.write(lambda tx: tx.release_stones()) == 0
    bench.write(lambda tx: tx.renames_done("s1", renames[:500], 2.0))
    assert bench.read(lambda tx: tx.stones_free())
    assert bench.write(lambda tx: tx.release_stones()) == 500
    bench.write(lambda tx: tx.renames_done("s1", renames[500:], 2.0))
    assert bench.write(lambda tx: tx.release_stones()) == 1500
    assert not bench.read(lambda tx: tx.stones_free())
    page = bench.read(lambda tx: tx.mirror(0, 10**9, (0, 0, ""), 5000))
    assert len(page.tombstones) == 2001
    assert Tombstone("/big/f00000", renames[0].meta.version, 1.0) in page.tombstones


# durability -----------------------------------------------------------------------------------------------
CHILD = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_master_store import Bench, put
bench = Bench(Path({path!r}), True)
for index in range(10**6):
    bench.write(lambda tx: put(tx, f"/f{{index}}"))
    os.write(1, b"%d\\n" % index)
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """Each answered write is there after the process was killed."""
    path = tmp_path / "m.db"
    here = Path(__file__).parent
    code = CHILD.format(paths=[str(here), str(here.parent)], path=str(path))
    with running([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        last = b""
        for _ in range(25):
            last = child.stdout.readline() or last
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split(b"\n")
    acknowledged = max(int(line) for line in [last.strip(), *rest] if line)
    bench = Bench(path, False)
    found = {e.path for e in bench.read(lambda tx: tx.listing("/", True, "", 10**6))}
    assert {f"/f{i}" for i in range(acknowledged + 1)} <= found
    bench.close()


# schema ---------------------------------------------------------------------------------------------------
def test_migrations_make_the_schema_of_the_models(tmp_path: Path) -> None:
    """As `alembic check`: nothing left to generate."""
    engine = make_engine(tmp_path / "m.db")
    with engine.begin() as connection:
        upgrade(connection, store_module.MIGRATIONS)
    with engine.connect() as connection:
        context = alembic.migration.MigrationContext.configure(connection, opts={"compare_type": True})
        assert alembic.autogenerate.compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_every_revision_leads_up_and_down(tmp_path: Path) -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", str(store_module.MIGRATIONS))
    engine = make_engine(tmp_path / "m.db")
    for target, move in (("head", "upgrade"), ("base", "downgrade"), ("head", "upgrade")):
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            getattr(alembic.command, move)(config, target)
    with engine.connect() as connection:
        assert "entry" in inspect(connection).get_table_names()
    engine.dispose()


def test_older_database_is_copied_before_it_is_upgraded(tmp_path: Path) -> None:
    """An older schema comes up with its content, and a copy of what it was lies beside it."""
    path = tmp_path / "m.db"
    config = alembic.config.Config()
    config.set_main_option("script_location", str(store_module.MIGRATIONS))
    engine = make_engine(path)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, "0001")
        connection.exec_driver_sql("INSERT INTO setting VALUES ('epoch', 41)")
    engine.dispose()
    bench = Bench(path, False)
    assert bench.read(lambda tx: tx.setting("epoch")) == 41
    bench.close()
    backup = tmp_path / "m.db.0001.bak"
    shutil.copy(backup, tmp_path / "old.db")
    old = make_engine(tmp_path / "old.db")
    with old.connect() as connection:
        assert connection.exec_driver_sql("SELECT value FROM setting").scalar() == 41
    old.dispose()
