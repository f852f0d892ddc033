"""Sphere on a simulated cluster: real master, slaves, ledger and driver; only the workers are simulated."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sector import errors
from sector.client.cloud import CloudClient
from sector.master.jobs import register_jobs
from sector.model import Right, Version
from sector.slave import spe_job
from sector.slave.spe import register_spe
from sector.sphere.job import JobDriver
from sector.sphere.job_request import Options, fault_error
from sector.sphere.pack import pack
from sector.sphere.plan import Segment, Source, Span
from sector.sphere.records import encode, from_lengths
from sector.sphere.result import Spool
from sector.sphere.runtime import here
from sector.sphere.stream import SphereStream
from sector.testing.cluster import SimCluster
from sector.testing.workers import SimSpawner
from sector.wire.slave import LocalPublish
from sector.wire.sphere import BucketSeal, BucketState, JobCancel, JobList, JobShow, JobStart, UdfFault

KB = 1000


class SphereSim(SimCluster):
    """A cluster whose slaves run functions, two at once, half a second each."""

    def __init__(self, root: Path, slaves: int = 3, **options: Any) -> None:
        self.spawners: dict[str, SimSpawner] = {}
        super().__init__(root, slaves, **options)

    def start_master(self, **options: Any) -> None:
        super().start_master(**options)
        register_jobs(self.up().hub.rpc, self.up().context)

    def start_slave(self, name: str) -> None:
        super().start_slave(name)
        service = self.slaves[name].service
        assert service is not None
        self.spawners[name] = SimSpawner()
        service.context.spawner = self.spawners[name]
        register_spe(service.rpc, service.context)

    def job(self, cloud: CloudClient, stream: SphereStream, function: Any, **options: Any) -> JobDriver:
        driver = JobDriver(cloud, stream, pack(function, None), Options(**options))
        self.wait(driver.start())
        return driver

    def kill_worker(self) -> bool:
        return any(spawner.made is not None and spawner.made.kill() for spawner in self.spawners.values())


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SphereSim]:
    with SphereSim(tmp_path / "sim", slaves=4, copies=2, seed=seed) as cluster:
        cluster.advance(3)
        yield cluster


def store(sim: SphereSim, cloud: CloudClient, files: int = 6, size: int = 100 * KB) -> list[bytes]:
    contents = [random.Random(n).randbytes(size) for n in range(files)]
    for number, content in enumerate(contents):
        sim.wait(cloud.write(f"/in/f{number}", content))
    return contents


def parts(sim: SphereSim, driver: JobDriver) -> list[Any]:
    found = []
    while (part := sim.wait(driver.part(len(found)))) is not None:
        found.append(part)
    return found


def test_results_come_back_in_order(sim: SphereSim) -> None:
    cloud = sim.client()
    contents = store(sim, cloud)
    driver = sim.job(
        cloud,
        SphereStream(cloud, "/in"),
        lambda data, ctx: bytes(data)[:10] + ctx.path.encode(),
        in_order=True,
    )
    got = [part.data for part in parts(sim, driver)]
    assert got == [c[:10] + f"/in/f{n}".encode() for n, c in enumerate(contents)]
    status = driver.status()
    assert (status.state, status.counts.done, status.counts.total) == ("done", 6, 6)
    assert status.counts.bytes_in == 600 * KB


def damage(sim: SphereSim, node: str, path: str, at: int) -> None:
    """Flip a bit of a replica as a disk does: without a trace in its metadata."""
    native = sim.slaves[node].native(path)
    stamp = native.stat()
    with open(native, "r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), at)
    os.utime(native, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_no_function_sees_a_damaged_replica(sim: SphereSim) -> None:
    """Each file has one bad replica: every segment is computed from a good one, and what was found bad is
    replaced."""
    cloud = sim.client()
    contents = store(sim, cloud, 12, 1500 * KB)
    sim.wait(cloud.replicate("/in", wait=True))
    for number in range(len(contents)):
        path = f"/in/f{number}"
        damage(sim, sim.serving(path)[number % 2], path, 120 * KB * number)
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    assert [part.data for part in parts(sim, driver)] == contents
    sim.until(lambda: all(len(sim.wait(cloud.stat(f"/in/f{n}")).replicas) == 2 for n in range(12)))


def test_the_job_ends_when_no_good_replica_is_left(tmp_path: Path, seed: int) -> None:
    """A file whose only replica is damaged is named; nothing is computed."""
    with SphereSim(tmp_path / "sim", slaves=2, copies=1, seed=seed) as sim:
        sim.advance(3)
        cloud = sim.client()
        store(sim, cloud, 1)
        damage(sim, sim.serving("/in/f0")[0], "/in/f0", 7)
        driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))
        with pytest.raises((errors.Damaged, errors.NotFound), match="/in/f0"):
            parts(sim, driver)


def test_large_results_travel_by_ticket(sim: SphereSim) -> None:
    cloud = sim.client()
    contents = store(sim, cloud, 3, 700 * KB)
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    assert [part.data for part in parts(sim, driver)] == contents


def test_batch_arrays_keep_dtype_and_shape(sim: SphereSim) -> None:
    cloud = sim.client()
    rows = np.arange(30000, dtype="<u4").reshape(-1, 3)
    sim.wait(cloud.write("/rows", rows.tobytes()))
    stream = SphereStream(cloud, "/rows", record_size=12, granularity="batch", dtype="<u4")

    def pick(data: Any, ctx: Any) -> Any:
        return data.reshape(-1, 3)[:, :2].astype("<f8")

    driver = sim.job(cloud, stream, pick, in_order=True, segment_bytes=10000)
    data = np.concatenate([part.data for part in parts(sim, driver)])
    assert data.dtype == np.dtype("<f8")
    assert np.array_equal(data, rows[:, :2].astype("<f8"))
    assert driver.status().counts.total == 12


def test_output_files_feed_the_next_stage(sim: SphereSim) -> None:
    cloud = sim.client()
    contents = store(sim, cloud)
    first = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data)[::-1], output="/out/rev")
    sim.wait(first.wait())
    assert sim.wait(cloud.read("/out/rev.3")) == contents[3][::-1]
    assert sim.wait(cloud.stat("/out/rev.3")).owner == "alice"
    second = sim.job(cloud, first.output_stream(), lambda data, ctx: bytes(data)[::-1], in_order=True)
    assert [part.data for part in parts(sim, second)] == contents
    assert (first.stage, second.stage) == (1, 2)


def scatter(data: Any, ctx: Any) -> Any:
    return data, data[:, 0].astype(np.int64) * ctx.buckets // 256


def expected_buckets(contents: list[bytes], buckets: int) -> list[bytes]:
    rows = np.concatenate([np.frombuffer(c, np.uint8).reshape(-1, 10) for c in contents])
    ids = rows[:, 0].astype(np.int64) * buckets // 256
    return [rows[ids == b].tobytes() for b in range(buckets)]


def test_buckets_become_files_in_order_of_input(sim: SphereSim) -> None:
    cloud = sim.client()
    contents = store(sim, cloud)
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=7, segment_bytes=30 * KB)
    sim.wait(driver.wait())
    assert driver.status().counts.total == 18
    got = [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(7)]
    assert got == expected_buckets(contents, 7)
    assert driver.output_stream().record_size == 10
    assert driver.status().counts.bytes_moved > 0


def test_buckets_without_output_come_back(sim: SphereSim) -> None:
    cloud = sim.client()
    contents = store(sim, cloud)
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, buckets=5)
    assert [part.data for part in parts(sim, driver)] == expected_buckets(contents, 5)


@pytest.mark.parametrize("attempt", range(6))
def test_killed_workers_and_slaves_change_nothing(sim: SphereSim, attempt: int) -> None:
    """Every segment counts once whatever dies."""
    cloud = sim.client()
    contents = store(sim, cloud, 8)
    sim.wait(cloud.replicate("/in", copies=2, wait=True))
    chance = random.Random(attempt)
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=9, segment_bytes=25 * KB)
    sim.advance(chance.uniform(0.1, 2.5))
    killed = sim.kill_worker()
    sim.advance(chance.uniform(0.1, 1.5))
    victim = chance.choice(sorted(sim.slaves))
    sim.kill_slave(victim)
    if attempt % 2:
        sim.advance(chance.uniform(0.5, 6))
        sim.start_slave(victim)
    sim.wait(driver.wait(), 900)
    if sim.slaves[victim].service is None:  # it may have died with the only replica of a sealed bucket
        sim.start_slave(victim)
        sim.advance(3)
    got = [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(9)]
    assert got == expected_buckets(contents, 9)
    counts = driver.status().counts
    assert counts.done == counts.total == 32
    assert counts.retries >= int(killed)
    driver.plan.check_invariants()  # type: ignore[union-attr]


def disk_says(
    monkeypatch: pytest.MonkeyPatch, trouble: dict[str, int], name: str = "create_output_thd"
) -> None:
    """Results of segments meet this errno on these slaves."""
    real = getattr(spe_job, name)

    def fake(path: str, *rest: Any) -> Any:
        for node, code in trouble.items():
            if f"/{node}/" in path:
                raise OSError(code, os.strerror(code), path)
        return real(path, *rest)

    monkeypatch.setattr(spe_job, name, fake)


@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "its disk is full"), (errno.EIO, "Input/output")])
def test_a_slave_whose_disk_is_full_or_fails_is_left_out(
    sim: SphereSim, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    """Its segments run elsewhere, however many it had; the report says why it was left out."""
    cloud = sim.client()
    contents = store(sim, cloud, 12)
    sim.wait(cloud.replicate("/in", copies=2, wait=True))
    disk_says(monkeypatch, {"s1": code, "s3": code})
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data), in_order=True)
    assert [part.data for part in parts(sim, driver)] == contents
    left_out = driver.status().left_out
    assert sorted(left_out) == ["s1", "s3"]
    assert all(says in why and f"slave {node}" in why for node, why in left_out.items())
    info = sim.wait(cloud.call(JobShow(driver.id)))
    assert (info.state, info.left_out) == ("done", left_out)


def test_buckets_of_a_full_slave_go_to_others(sim: SphereSim, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = sim.client()
    contents = store(sim, cloud, 6)
    disk_says(monkeypatch, {"s2": errno.ENOSPC})
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=7, segment_bytes=30 * KB)
    sim.wait(driver.wait(), 900)
    assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(7)] == expected_buckets(contents, 7)
    assert list(driver.status().left_out) == ["s2"]
    assert "s2" not in {item.node for item in driver.book.table.ranges}  # type: ignore[union-attr]
    driver.plan.check_invariants()  # type: ignore[union-attr]


def test_a_job_fails_when_no_slave_has_room(sim: SphereSim, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = sim.client()
    store(sim, cloud)
    disk_says(monkeypatch, dict.fromkeys(("s1", "s2", "s3", "s4"), errno.ENOSPC))
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data))
    with pytest.raises(errors.NoSpace, match="its disk is full"):
        sim.wait(driver.wait())
    info = sim.wait(cloud.call(JobShow(driver.id)))
    assert (info.state, len(info.left_out), info.errors[0].code) == ("failed", 4, "no_space")


def test_the_clients_own_full_disk_is_no_fault_of_a_slave(
    sim: SphereSim, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = sim.client()
    store(sim, cloud, 1)

    def full(self: Spool, offset: int, data: bytes) -> None:
        raise errors.LocalIO("results cannot be kept in /tmp: No space left on device")

    monkeypatch.setattr(Spool, "put_thd", full)
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data)[:9])
    with pytest.raises(errors.LocalIO, match="cannot be kept in /tmp"):
        sim.wait(driver.wait())
    assert driver.status().left_out == {}


def test_a_slave_that_cannot_start_workers_offers_none(sim: SphereSim) -> None:
    """What it ran goes to others; new jobs do not meet it; it comes back when it can."""
    cloud = sim.client()
    contents = store(sim, cloud, 12)
    stream = SphereStream(cloud, "/in")
    driver = sim.job(cloud, stream, lambda data, ctx: bytes(data), in_order=True)
    sim.advance(0.3)
    workers = sim.spawners["s2"].made
    assert workers is not None
    workers.break_down("the process that starts workers has ended")
    assert [part.data for part in parts(sim, driver)] == contents
    sim.advance(3)
    second = sim.job(cloud, stream, lambda data, ctx: bytes(data))
    assert sorted(second.nodes.links) == ["s1", "s3", "s4"]  # type: ignore[union-attr]
    sim.wait(second.wait())
    workers.break_down("")
    sim.advance(3)
    third = sim.job(cloud, stream, lambda data, ctx: bytes(data))
    assert sorted(third.nodes.links) == ["s1", "s2", "s3", "s4"]  # type: ignore[union-attr]
    sim.wait(third.wait())


def test_restarted_bucket_node_keeps_its_ledger(sim: SphereSim) -> None:
    cloud = sim.client()
    contents = store(sim, cloud, 4)
    sim.wait(cloud.replicate("/in", copies=2, wait=True))
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=8, segment_bytes=10 * KB)
    sim.until(lambda: len(driver.plan.done) > 15)  # type: ignore[union-attr]
    sim.kill_slave("s2")
    sim.advance(0.5)
    sim.start_slave("s2")
    sim.wait(driver.wait(), 900)
    got = [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(8)]
    assert got == expected_buckets(contents, 8)
    assert {item.node for item in driver.book.table.ranges} == {"s1", "s2", "s3", "s4"}  # type: ignore[union-attr]


def test_index_cuts_at_records(sim: SphereSim) -> None:
    cloud = sim.client()
    words = [bytes([65 + n % 26]) * (n % 17 + 1) for n in range(3000)]
    sim.wait(cloud.write("/words", b"".join(words)))
    sim.wait(cloud.write("/words.idx", encode(from_lengths(map(len, words)))))
    stream = SphereStream(cloud, "/words", index=True)
    driver = sim.job(cloud, stream, lambda data, ctx: data.lower(), in_order=True, segment_bytes=3000)
    got = [record for part in parts(sim, driver) for record in part.records()]
    assert got == [word.lower() for word in words]
    assert driver.status().counts.total > 5


def test_two_streams_are_paired(sim: SphereSim) -> None:
    cloud = sim.client()
    a, b = np.arange(1000, dtype="<u4"), np.arange(1000, dtype="<u8") * 3
    sim.wait(cloud.write("/a", a.tobytes()))
    sim.wait(cloud.write("/b", b.tobytes()))
    pair = SphereStream(cloud, "/a", record_size=4, granularity="batch") + SphereStream(
        cloud, "/b", record_size=8, granularity="batch"
    )

    def add(data: Any, ctx: Any) -> Any:
        left, right = data
        return left.view("<u4")[:, 0] + right.view("<u8")[:, 0]

    driver = sim.job(cloud, pair, add, in_order=True, segment_bytes=2000)
    assert np.array_equal(np.concatenate([p.data for p in parts(sim, driver)]), a + b)


def test_function_error_has_segment_and_traceback_and_is_not_retried(sim: SphereSim) -> None:
    cloud = sim.client()
    store(sim, cloud)

    def bad(data: Any, ctx: Any) -> None:
        if ctx.path == "/in/f4":
            raise ValueError("no dwarfs in f4")

    driver = sim.job(cloud, SphereStream(cloud, "/in"), bad)
    with pytest.raises(errors.UdfError) as caught:
        sim.wait(driver.wait())
    assert "segment 4" in str(caught.value) and "no dwarfs in f4" in str(caught.value)
    assert "in bad" in str(caught.value)
    assert driver.status().counts.retries == 0
    info = sim.wait(cloud.call(JobShow(driver.id)))
    assert (info.state, info.errors[0].segment) == ("failed", 4)


def test_a_job_that_never_begins_says_why(sim: SphereSim) -> None:
    """What `job show` tells of it is what its caller was told."""
    cloud = sim.client()
    store(sim, cloud)
    with pytest.raises(errors.NotFound, match="no record index"):
        sim.job(cloud, SphereStream(cloud, "/in/f1", index=True), lambda data, ctx: data)
    (listed,) = sim.wait(cloud.call(JobList())).jobs
    info = sim.wait(cloud.call(JobShow(listed.id)))
    assert info.state == "failed"
    (why,) = info.errors
    assert (why.segment, why.record, why.code) == (-1, -1, "not_found")
    assert "/in/f1 has no record index" in why.message and "/in/f1.idx" in why.message


def test_a_crash_is_one_line_and_its_dump_is_kept() -> None:
    fault = UdfFault(0, -1, "signal", "it crashed its worker process (SIGSEGV)", "Fatal Python error: x\n  y")
    segment = Segment(0, (Span(Source("/in/f0", 9, Version(1, 1), ("s1",), 0), 0, 9),))
    error = fault_error(fault, segment, "4f2a", "find")
    assert str(error).splitlines() == [str(error)]
    for part in ("function find", "segment 0", "/in/f0", "SIGSEGV"):
        assert part in error.message
    assert error.hint == "sector job show 4f2a has the crash dump"


def test_rights_are_checked(sim: SphereSim) -> None:
    sim.rights["reader"] = [Right("reader", "/", "r")]
    sim.rights["half"] = [Right("half", "/", "r"), Right("half", "/home", "rwx")]
    cloud = sim.client()
    store(sim, cloud)
    for user in ("reader", "half"):
        other = sim.client(user)
        with pytest.raises(errors.Denied):
            sim.wait(sim.job(other, SphereStream(other, "/in"), lambda data, ctx: b"x").wait())


@pytest.mark.parametrize("output", ["/out/", "/", "/out/" + "n" * 241])
def test_an_output_that_no_file_can_have_is_refused_before_the_job(sim: SphereSim, output: str) -> None:
    """By the driver, and by the master for a driver that does not look."""
    cloud = sim.client()
    store(sim, cloud)
    with pytest.raises(errors.BadPath):
        sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: b"x", output=output)
    with pytest.raises(errors.BadPath):
        sim.wait(cloud.call(JobStart([], here(), 0.0, 1, "f", output)))
    assert sim.wait(cloud.call(JobList())).jobs == []


def test_list_show_cancel(sim: SphereSim) -> None:
    cloud = sim.client()
    store(sim, cloud)
    driver = sim.job(cloud, SphereStream(cloud, "/in", record_size=10), lambda r, c: r, segment_bytes=1000)
    sim.advance(1)
    listed = sim.wait(cloud.call(JobList())).jobs
    assert [(job.id, job.state) for job in listed] == [(driver.id, "running")]
    shown = sim.wait(cloud.call(JobShow(driver.id[:6])))
    assert shown.spes and all(spe.pid for spe in shown.spes)
    stranger = sim.client("mallory")
    for guess in (driver.id, driver.id[:1]):  # jobs of others do not exist, neither id nor owner is told
        for request in (JobShow(guess), JobCancel(guess)):
            with pytest.raises(errors.NotFound) as refused:
                sim.wait(stranger.call(request))
            assert "alice" not in str(refused.value)
    sim.wait(cloud.call(JobCancel(driver.id)))
    with pytest.raises(errors.Cancelled):
        sim.wait(driver.wait())
    sim.advance(1)
    assert all(spawner.made.busy == 0 for spawner in sim.spawners.values() if spawner.made)
    for slave in sim.slaves.values():
        assert not list((slave.root / ".sector" / "sphere").glob("[0-9a-f]*"))


def test_slave_writes_only_the_output_of_its_job(sim: SphereSim) -> None:
    """A slave that was introduced to a job gets no lease for any other path its user may write, and none
    in the name of the user's session."""
    cloud = sim.client()
    store(sim, cloud)
    stream = SphereStream(cloud, "/in", record_size=10)
    driver = sim.job(cloud, stream, lambda r, c: r, output="/out/b", segment_bytes=10 * KB)
    slave = sim.slaves["s1"].service
    assert slave is not None
    job = f"job:{driver.id}/alice"
    session = next(row for row in sim.up().hub.sessions.rows() if row.user == "alice")
    principals = [(job, "/in/x"), (job, "/out/b"), (job, "/out/bad"), (job, "/out/c.0")]
    principals.append((f"user:alice#{session.id.hex()}", "/out/b.0"))
    for principal, path in principals:
        with pytest.raises(errors.Denied):
            sim.wait(slave.master_call(LocalPublish("s1", principal, path, 7, "d")))
    assert not driver.ended  # all of them came while the job ran
    sim.wait(driver.wait(), 900)


def test_a_slave_makes_no_ledgers_or_buckets_on_demand(sim: SphereSim) -> None:
    """The driver of a job is a stranger: numbers beyond the job's own stage and buckets are refused before
    anything is made for them."""
    cloud = sim.client()
    store(sim, cloud)
    driver = sim.job(cloud, SphereStream(cloud, "/in", record_size=10), lambda r, c: r, segment_bytes=1000)
    slave = sim.slaves["s1"].service
    assert slave is not None and driver.nodes is not None
    folder = sim.slaves["s1"].root / ".sector" / "sphere" / driver.id
    sim.until(folder.is_dir)
    before = sorted(folder.iterdir())
    for request in (
        BucketState(driver.id, 77),
        BucketSeal(driver.id, 77, 0, 0, 1),
        BucketSeal(driver.id, driver.stage, 0, 0, 2**32 - 1),
        BucketSeal(driver.id, driver.stage, 0, 5, 4),
    ):
        with pytest.raises(errors.Conflict):
            sim.wait(driver.nodes.call("s1", request))
    assert sorted(folder.iterdir()) == before
    sim.wait(driver.wait(), 900)


def test_job_survives_a_restart_of_the_master(sim: SphereSim) -> None:
    cloud = sim.client()
    contents = store(sim, cloud)
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=4, segment_bytes=20 * KB)
    sim.advance(0.7)
    sim.kill_master()
    sim.advance(2)
    sim.start_master()
    sim.wait(driver.wait(), 900)
    assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(4)] == expected_buckets(contents, 4)
    assert sim.wait(cloud.call(JobShow(driver.id))).state == "done"


def test_silent_driver_loses_its_job(sim: SphereSim) -> None:
    cloud = sim.client()
    store(sim, cloud)
    driver = sim.job(cloud, SphereStream(cloud, "/in", record_size=10), lambda r, c: r, segment_bytes=300)
    sim.hub.blocked.add((cloud.gmp.address[1], 7002))
    other = sim.client()
    sim.until(lambda: sim.wait(other.call(JobShow(driver.id))).state == "lost", 120)


def test_nothing_to_do(sim: SphereSim) -> None:
    cloud = sim.client()
    sim.wait(cloud.write("/empty", b""))
    driver = sim.job(cloud, SphereStream(cloud, "/empty", record_size=10), lambda r, c: r)
    sim.wait(driver.wait())
    assert parts(sim, driver) == []
    with pytest.raises(errors.NotFound):
        sim.job(cloud, SphereStream(cloud, "/none/*"), lambda r, c: r)


def test_slaves_of_a_job_are_introduced_to_each_other(sim: SphereSim) -> None:
    """A shuffle's first message between any two needs no HELLO (spec/gmp.md 5.3); one more joins later."""
    cloud = sim.client()
    store(sim, cloud)
    driver = sim.job(cloud, SphereStream(["/in"]), lambda data, ctx: None)
    sim.advance(1)

    def known(name: str) -> set[tuple[str, int]]:
        service = sim.slaves[name].service
        assert service is not None
        return {(peer.host, peer.port) for peer in service.gmp.introduced}

    where = {name: slave.service.gmp.address for name, slave in sim.slaves.items() if slave.service}
    for name in where:
        assert known(name) == set(where.values()) - {where[name]}
    sim.wait(driver.cancel())
