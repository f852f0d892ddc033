"""Small PUTs that are answered together: each as if it were alone, with one sync for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from posix_disk import Faulty
from s3_world import World
from twisted.internet.task import Clock

from cumulus.backends.memory import MemoryStore
from cumulus.backends.posix.store import PosixStore
from cumulus.http.batches import AT_WORK, MOST, Batches
from cumulus.http.pool import Failed
from cumulus.index.api import Away, OverQuota
from cumulus.index.sqlite import SqliteIndex
from cumulus.rest.call import Call, Headers, Joint, Reply


@pytest.fixture
def disk() -> Faulty:
    """The system calls of the store."""
    return Faulty()


@pytest.fixture
def world(tmp_path: Path, disk: Faulty) -> Iterator[World]:
    """A service on plain files with a bucket that was just asked for."""
    made = World(PosixStore(str(tmp_path / "store"), files=disk))
    assert made.ask("PUT", "/bkt").status == 200
    assert made.ask("PUT", "/bkt/first", b"1").status == 200
    yield made
    made.close()


def start(world: World, key: str, body: bytes, *, fresh: bool = True, **headers: str) -> Any:
    """What is said at once to a PUT; `fresh`: the bucket was just asked for."""
    if fresh:
        world.index.forget()  # type: ignore[attr-defined]
        world.index.bucket("bkt")
    target = f"/bkt/{key}"
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    pairs = Headers(world.signed("alice", "PUT", target, body, given))
    call = Call("R", "PUT", target, pairs, "192.0.2.1", False, world.clock(), length=len(body))
    return world.gateway.start_now(call, memoryview(body))


def together(world: World, *puts: tuple[str, bytes]) -> list[Reply]:
    """They are done as one."""
    joints = [start(world, key, body) for key, body in puts]
    assert all(isinstance(joint, Joint) for joint in joints)
    return world.gateway.finish_all(joints)


def etag(reply: Reply) -> str:
    """Of a PUT's reply."""
    return dict(reply.headers)["ETag"].strip('"')


def test_each_is_there_and_has_its_own_etag(world: World, disk: Faulty) -> None:
    before = disk.calls["sync_data"]
    puts = [(f"dir/k{number}", b"x" * number) for number in range(20)]
    replies = together(world, *puts)
    assert disk.calls["sync_data"] == before + 1
    for (key, body), reply in zip(puts, replies, strict=True):
        assert (reply.status, etag(reply)) == (200, hashlib.md5(body).hexdigest())
        assert world.ask("GET", f"/bkt/{key}").body == body
    usage = world.index.usage("bucket", "bkt")
    assert (usage.objects, usage.reserved_bytes, usage.reserved_objects) == (21, 0, 0)
    assert usage.bytes == 1 + sum(range(20))


def test_of_one_key_the_last_one_stays(world: World) -> None:
    """As if they had come one after the other."""
    replies = together(world, ("k", b"one"), ("k", b"two"), ("other", b"o"), ("k", b"three"))
    assert [reply.status for reply in replies] == [200] * 4
    assert world.ask("GET", "/bkt/k").body == b"three"
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects, usage.reserved_bytes) == (1 + 5 + 1, 3, 0)


def test_keys_that_no_directory_can_hold_together(world: World) -> None:
    """`n` beside `n/m`, and keys that are no names of files."""
    keys = ["n", "n/m", "a//b", "q/../r"]
    replies = together(world, *((key, key.encode()) for key in keys))
    assert [reply.status for reply in replies] == [200] * len(keys)
    for key in keys:
        assert world.ask("GET", f"/bkt/{key}", raw=True).body == key.encode()
    assert together(world, ("n/m", b"2"), ("n", b"2"))[0].status == 200
    assert world.ask("GET", "/bkt/n").body == b"2"


def test_a_wrong_body_is_refused_alone(world: World) -> None:
    """Its promised hash, or its length, is that of another."""
    wrong = start(world, "bad", b"good", Content_MD5="1B2M2Y8AsgTpgAmY7PhCfg==")
    replies = world.gateway.finish_all([start(world, "a", b"a"), wrong, start(world, "b", b"b")])
    assert [reply.status for reply in replies] == [200, 400, 200]
    assert b"BadDigest" in bytes(replies[1].body)  # type: ignore[arg-type]
    assert world.ask("GET", "/bkt/bad").status == 404


def test_a_quota_refuses_what_does_not_fit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are published, and nothing stays reserved."""
    real = world.index.reserve_all

    def some(asked: Sequence[tuple[str, int]]) -> list[Any]:
        found: list[Any] = list(real(asked))
        world.index.release(found[1])
        found[1] = OverQuota("user", "alice", "bytes", 90, 5, 100)
        return found

    monkeypatch.setattr(world.index, "reserve_all", some)
    replies = together(world, ("a", b"a"), ("b", b"bb"), ("c", b"c"))
    assert [reply.status for reply in replies] == [200, 403, 200]
    assert b"Quota of alice reached" in bytes(replies[1].body)  # type: ignore[arg-type]
    assert world.index.usage("bucket", "bkt").reserved_bytes == 0
    assert world.ask("GET", "/bkt/b").status == 404


@pytest.mark.parametrize("method", ["reserve_all", "committed_all"])
def test_without_the_index_all_are_refused_and_nothing_stays_reserved(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise Away("no database")

    joints = [start(world, key, b"x") for key in ("a", "b")]
    monkeypatch.setattr(world.index, method, fail)
    replies = world.gateway.finish_all(joints)
    assert [reply.status for reply in replies] == [503, 503]
    monkeypatch.undo()
    assert world.index.usage("bucket", "bkt").reserved_objects == 0


def test_a_disk_that_fails_refuses_all_and_keeps_what_was(world: World, disk: Faulty) -> None:
    disk.fail("sync_data", 5)
    replies = together(world, ("first", b"new"), ("second", b"new"))
    disk.heal()
    assert [reply.status for reply in replies] == [503, 503]
    assert world.ask("GET", "/bkt/first").body == b"1"
    assert world.ask("GET", "/bkt/second").status == 404
    assert world.index.usage("bucket", "bkt").reserved_objects == 0


def test_what_has_more_to_it_is_done_alone(world: World) -> None:
    """A condition, a version, a question that has to be asked; who may not is told at once."""
    assert callable(start(world, "k", b"x", If_None_Match="*"))
    assert callable(start(world, "k", b"x", x_amz_acl="private", x_amz_copy_source="/bkt/first"))
    refused = start(world, "k", b"x", x_amz_storage_class="NONE")
    assert isinstance(refused, Reply) and refused.status == 400
    assert isinstance(world.index, SqliteIndex)
    world.index.forget()
    assert callable(start(world, "k", b"x", fresh=False))
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    assert world.ask("PUT", "/bkt", body, query="versioning").status == 200
    assert callable(start(world, "k", b"x"))


def test_storage_that_gains_nothing_is_asked_one_by_one() -> None:
    world = World(MemoryStore())
    world.ask("PUT", "/bkt")
    world.ask("HEAD", "/bkt")
    assert callable(start(world, "k", b"x"))
    world.close()


# batches ------------------------------------------------------------------------------------------------
class FakePool:
    """Runs what it is given when the test says so."""

    def __init__(self, bound: int = 1000) -> None:
        self.bound = bound
        self.outstanding = 0
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def take(self) -> bool:
        """A place."""
        self.outstanding += self.outstanding < self.bound
        return self.outstanding < self.bound

    def give_back(self) -> None:
        """It is free again."""
        self.outstanding -= 1

    def must(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Later."""
        self.jobs.append((work, done))

    def run(self) -> None:
        """One job."""
        work, done = self.jobs.pop(0)
        try:
            outcome = work()
        except RuntimeError as bad:
            outcome = Failed(bad)
        done(outcome)


@pytest.fixture
def clock() -> Clock:
    """The reactor's."""
    return Clock()


def build_batches(clock: Clock, bound: int = 1000) -> tuple[Batches, FakePool, list[list[int]]]:
    """With the batches that were worked on."""
    seen: list[list[int]] = []

    def work(jobs: list[int]) -> list[int]:
        seen.append(jobs)
        if 13 in jobs:
            raise RuntimeError("13")
        return [job * 10 for job in jobs]

    pool = FakePool(bound)
    return Batches(clock, pool, work), pool, seen  # type: ignore[arg-type]


def test_what_comes_in_one_turn_is_one_batch(clock: Clock) -> None:
    """And what comes while two are at work the next one."""
    batches, pool, seen = build_batches(clock)
    answers: list[int] = []
    for turn in ((1, 2, 3), (4,), (5,), (6,)):
        for job in turn:
            assert batches.submit(job, answers.append)
        clock.advance(0)
    assert len(pool.jobs) == AT_WORK == 2
    pool.run()
    assert (seen, answers) == ([[1, 2, 3]], [10, 20, 30])
    pool.run()
    pool.run()
    assert (seen[1:], answers[3:]) == ([[4], [5, 6]], [40, 50, 60])
    assert (pool.jobs, pool.outstanding) == ([], 0)


def test_a_batch_is_bounded_and_so_is_what_waits(clock: Clock) -> None:
    batches, pool, seen = build_batches(clock, bound=MOST + 12)
    taken = [batches.submit(100, lambda _: None) for _ in range(MOST + 20)]
    assert taken.count(False) == 9
    clock.advance(0)
    pool.run()
    pool.run()
    assert [len(jobs) for jobs in seen] == [MOST, 11]


def test_each_hears_of_a_failure_and_nobody_harms_the_next(clock: Clock) -> None:
    batches, pool, _ = build_batches(clock)
    answers: list[Any] = []

    def bad(_: Any) -> None:
        raise ValueError("a fault of ours")

    batches.submit(13, answers.append)
    batches.submit(1, bad)
    batches.submit(2, answers.append)
    clock.advance(0)
    pool.run()
    assert [isinstance(one, Failed) for one in answers] == [True, True]
    batches.submit(3, answers.append)
    clock.advance(0)
    pool.run()
    assert answers[2:] == [30]
    assert pool.outstanding == 0
