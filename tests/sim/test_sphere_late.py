"""A segment that two slaves ran: whichever publishes last, the next stage reads its output exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_sphere import KB, SphereSim, expected_buckets, parts, scatter, sim, store  # noqa: F401 - a fixture
from twisted.internet.defer import Deferred

from sector import errors
from sector.client.cloud import CloudClient
from sector.sphere.job import JobDriver
from sector.sphere.stream import SphereStream
from sector.wire.slave import LocalPublish, Publish
from sector.wire.sphere import JobCancel


class Held:
    """A slave whose first request of a kind to the master, for a path that begins so, waits until `go`."""

    def __init__(self, sim: SphereSim, name: str, kind: type[Any], path: str = "/mid/a.0") -> None:  # noqa: F811
        self.waiting = False
        self.path = path
        self.gate: Deferred[None] = Deferred()
        service = sim.slaves[name].service
        assert service is not None
        for owner in (service.context.disk, service.transfers):
            self._wrap(owner, owner._master_call, kind)

    def _wrap(self, owner: Any, ask: Callable[..., Any], kind: type[Any]) -> None:
        async def held(request: Any, **options: Any) -> Any:
            if isinstance(request, kind) and not self.waiting and f"path='{self.path}" in repr(request):
                self.waiting = True
                await self.gate
            return await ask(request, **options)

        owner._master_call = held

    def go(self) -> None:
        self.gate.callback(None)


def cut(sim: SphereSim, cloud: Any, name: str) -> None:  # noqa: F811
    """The slave and the client do not hear each other; the master hears both."""
    here, there = cloud.gmp.address[1], sim.slaves[name].gmp.address[1]  # type: ignore[union-attr]
    sim.hub.blocked |= {(here, there), (there, here)}


@pytest.mark.parametrize("kind", [LocalPublish, Publish])
@pytest.mark.parametrize("when", ["while others run", "after the last one", "in the next stage"])
def test_the_next_stage_reads_what_was_published_last(
    sim: SphereSim,  # noqa: F811
    kind: type[Any],
    when: str,
) -> None:
    """A slave that only its driver could not hear goes on, and publishes after the one that took its place:
    the file that the driver knows is replaced."""
    cloud = sim.client()
    contents = store(sim, cloud, 4)
    for spawner in sim.spawners.values():  # the last segment takes its time
        assert spawner.made is not None
        spawner.made.seconds = lambda task: 240.0 if task.segment == 3 else 0.5
    held = {name: Held(sim, name, kind) for name in sim.slaves}
    first = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: bytes(data)[::-1], output="/mid/a")
    sim.until(lambda: any(one.waiting for one in held.values()))
    slow = next(name for name, one in held.items() if one.waiting)
    for name, one in held.items():
        one.waiting = one.waiting or name != slow
    cut(sim, cloud, slow)
    sim.until(lambda: 0 in first.plan.done, 200)  # type: ignore[union-attr]
    if when == "while others run":
        held[slow].go()
        sim.advance(5)
        assert not first.ended
    sim.hub.blocked.clear()
    sim.wait(first.wait())
    if when == "after the last one":
        held[slow].go()
    second = sim.job(cloud, first.output_stream(), lambda data, ctx: bytes(data)[::-1], in_order=True)
    if when == "in the next stage":
        held[slow].go()
    assert [part.data for part in parts(sim, second)] == contents
    assert sorted(info.path for info in sim.wait(cloud.ls("/mid"))) == [f"/mid/a.{n}" for n in range(4)]
    sim.advance(30)
    assert [sim.wait(cloud.read(part.path)) for part in first.parts] != []


def publishing(sim: SphereSim) -> tuple[CloudClient, JobDriver, list[bytes]]:  # noqa: F811
    """A job whose slave s2 is about to publish a bucket, and its nine buckets."""
    cloud = sim.client()
    contents = store(sim, cloud)
    sim.wait(cloud.replicate("/in", copies=2, wait=True))
    held = Held(sim, "s2", Publish, "/out/b.")
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    driver = sim.job(cloud, stream, scatter, output="/out/b", buckets=9, segment_bytes=30 * KB)
    sim.until(lambda: held.waiting)
    return cloud, driver, expected_buckets(contents, 9)


def test_a_slave_that_stops_while_it_publishes_buckets_cancels_no_job(sim: SphereSim) -> None:  # noqa: F811
    """It says Cancelled of what it was at; that was taken for a user's word."""
    cloud, driver, expected = publishing(sim)
    sim.stop_slave("s2")
    sim.start_slave("s2")
    sim.wait(driver.wait())
    assert driver.status().state == "done"
    assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(9)] == expected


def test_a_job_that_is_cancelled_while_buckets_are_published_is_cancelled(sim: SphereSim) -> None:  # noqa: F811
    """Its slaves say the same then; the master's word is the user's."""
    cloud, driver, _ = publishing(sim)
    sim.wait(cloud.call(JobCancel(driver.id)))
    with pytest.raises(errors.Cancelled, match="cancelled by alice"):
        sim.wait(driver.wait(), 10)
    sim.wait(driver.finished(), 10)
    assert driver.status().state == "cancelled"
