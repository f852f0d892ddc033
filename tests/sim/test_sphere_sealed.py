"""Slaves that are lost, stopped or out of reach when all segments of a job with buckets are done."""

from __future__ import annotations

from typing import Any

import pytest
from test_sphere import KB, SphereSim, expected_buckets, parts, scatter, sim, store  # noqa: F401 - a fixture
from twisted.internet.defer import Deferred, fail

from sector import errors
from sector.clock import pause
from sector.sphere.job import JobDriver
from sector.sphere.result import Part
from sector.sphere.stream import SphereStream
from sector.wire.sphere import BucketSeal, BucketState, Route


def bucket_job(sim: SphereSim, output: str = "") -> tuple[JobDriver, list[bytes]]:  # noqa: F811
    """A job whose input is on two slaves each, and its nine buckets."""
    cloud = sim.client()
    contents = store(sim, cloud)
    sim.wait(cloud.replicate("/in", copies=2, wait=True))
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output=output, buckets=9, segment_bytes=30 * KB)
    return driver, expected_buckets(contents, 9)


@pytest.mark.parametrize("back", [False, True], ids=["gone", "restarted"])
def test_a_slave_that_is_lost_before_its_buckets_are_fetched_costs_only_time(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    back: bool,
) -> None:
    """Each bucket comes once, in its order; the job failed when all of its segments were done."""
    driver, expected = bucket_job(sim)
    box, lost = driver.box, []
    assert box is not None
    real = box.of_bucket

    async def of_bucket(item: Any, node: str, row_bytes: int) -> Part:
        if node == "s2" and not lost:
            lost.append(item.bucket)
            sim.kill_slave("s2")
            if back:
                sim.start_slave("s2")
        return await real(item, node, row_bytes)

    monkeypatch.setattr(box, "of_bucket", of_bucket)
    found = parts(sim, driver)
    assert [part.index for part in found] == list(range(9)) and lost == [2]
    assert [part.data for part in found] == expected


def test_a_bucket_that_never_arrives_ends_the_job(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a segment does that is lost again and again."""
    driver, _ = bucket_job(sim)
    box = driver.box
    assert box is not None
    real = box.of_bucket

    async def of_bucket(item: Any, node: str, row_bytes: int) -> Part:
        if item.bucket == 4:
            raise errors.Unavailable("a result did not arrive")
        return await real(item, node, row_bytes)

    monkeypatch.setattr(box, "of_bucket", of_bucket)
    with pytest.raises(errors.JobFailed, match="bucket 4 was lost 5 times, last: a result did not arrive"):
        sim.wait(driver.wait(), 300)


def out_of_reach(
    sim: SphereSim,  # noqa: F811
    driver: JobDriver,
    monkeypatch: pytest.MonkeyPatch,
    slaves: tuple[str, ...],
    until: float = 1e9,
) -> list[str]:
    """The driver does not reach these slaves when it has buckets put together; master and slaves do. Who was
    asked to, call by call."""
    nodes, asked = driver.nodes, []
    assert nodes is not None
    real = nodes.call

    async def silence(node: str) -> None:
        await pause(sim.clock, 15.0)
        raise errors.Unreachable(f"slave {node} does not answer")

    def call(node: str, request: Any, **options: Any) -> Any:
        if isinstance(request, BucketSeal):
            asked.append(node)
        if isinstance(request, (BucketSeal, BucketState)) and node in slaves and sim.clock.seconds() < until:
            return Deferred.fromCoroutine(silence(node))
        return real(node, request, **options)

    monkeypatch.setattr(nodes, "call", call)
    return asked


@pytest.mark.parametrize("output", ["", "/out/b"])
def test_a_job_does_without_a_slave_that_its_client_does_not_reach(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    output: str,
) -> None:
    """Others put its buckets together; the job never ended, and all others did their work every 15 s."""
    driver, expected = bucket_job(sim, output)
    asked = out_of_reach(sim, driver, monkeypatch, ("s2",))
    sim.wait(driver.wait(), 300)
    read = driver.client.read
    assert [sim.wait(read(part.path)) if part.path else part.data for part in driver.parts] == expected
    assert driver.status().left_out == {"s2": "slave s2 does not answer"}
    assert 3 <= asked.count("s2") <= 5


def test_a_minute_without_any_slave_costs_none(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The way to a whole site is out: there is nobody who would be better."""
    driver, expected = bucket_job(sim)
    asked = out_of_reach(sim, driver, monkeypatch, ("s1", "s2", "s3", "s4"), sim.clock.seconds() + 85)
    assert [part.data for part in parts(sim, driver)] == expected
    assert driver.status().left_out == {} and len(asked) > 8


def test_a_job_that_reaches_no_slave_fails(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the end."""
    driver, _ = bucket_job(sim)
    out_of_reach(sim, driver, monkeypatch, ("s1", "s2", "s3", "s4"))
    with pytest.raises(errors.Unreachable, match="does not answer"):
        sim.wait(driver.wait(), 600)
    assert sorted(driver.status().left_out) == ["s1", "s2", "s3", "s4"]


def test_two_short_outages_leave_no_slave_out(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slave has two ranges and puts them together for minutes in between; each range counted, and what it
    did meanwhile did not."""
    driver, expected = bucket_job(sim)
    nodes, book = driver.nodes, driver.book
    assert nodes is not None and book is not None
    real, began = nodes.call, sim.clock.seconds()

    def silent() -> bool:
        return any(at <= sim.clock.seconds() - began < at + 20 for at in (0, 110))

    async def seal(node: str, request: BucketSeal, options: dict[str, Any]) -> Any:
        if silent():
            await pause(sim.clock, 15.0)
            raise errors.Unreachable(f"slave {node} does not answer")
        for _ in range(30):
            await pause(sim.clock, 2.0)
            options["on_progress"](b"")
        if silent():
            raise errors.Unreachable(f"slave {node} does not answer")
        return await real(node, request, **options)

    def call(node: str, request: Any, **options: Any) -> Any:
        if isinstance(request, BucketSeal) and node == "s2":
            return Deferred.fromCoroutine(seal(node, request, options))
        return real(node, request, **options)

    routes = book.routes
    monkeypatch.setattr(book, "routes", lambda: halves(routes()))
    monkeypatch.setattr(nodes, "call", call)
    sim.wait(driver.wait(), 600)
    assert [part.data for part in driver.parts] == expected
    assert driver.status().left_out == {}


def halves(routes: list[Route]) -> list[Route]:
    """The same buckets in two ranges a slave, as after others were lost."""
    found = []
    for route in routes:
        middle = (route.first + route.last) // 2
        found.append(Route(route.first, middle, route.node))
        if middle < route.last:
            found.append(Route(middle + 1, route.last, route.node))
    return found


def test_leases_that_end_again_and_again_end_the_job(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says why; it wrote all buckets of all slaves anew for ever."""
    driver, _ = bucket_job(sim, "/out/b")
    nodes = driver.nodes
    assert nodes is not None
    real, asked = nodes.call, []

    def call(node: str, request: Any, **options: Any) -> Any:
        if isinstance(request, BucketSeal):
            asked.append(node)
            if node == "s2":
                return fail(errors.LeaseLost("the lease on /out/b.3 has ended"))
        return real(node, request, **options)

    monkeypatch.setattr(nodes, "call", call)
    with pytest.raises(errors.JobFailed, match=r"slave s2 were not put together 5 times.*/out/b\.3"):
        sim.wait(driver.wait(), 600)
    assert asked.count("s1") == 5


def test_a_lease_lives_as_long_as_the_sync_of_its_bucket(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full page cache takes minutes to write; the lease of a minute ended meanwhile."""
    service = sim.slaves["s2"].service
    assert service is not None
    pool, slow = service.pool, []
    real = pool.run

    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        done = real(function, *args, **kwargs)
        if function == service.disk.seal_thd:
            slow.append(args[1].path)
            return done.addCallback(lambda record: pause(sim.clock, 200.0).addCallback(lambda _: record))
        return done

    monkeypatch.setattr(pool, "run", run)
    driver, expected = bucket_job(sim, "/out/b")
    sim.wait(driver.wait(), 900)
    assert [sim.wait(driver.client.read(part.path)) for part in driver.parts] == expected
    assert slow and len(slow) == len(set(slow))
