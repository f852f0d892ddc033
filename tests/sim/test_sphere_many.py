"""Jobs of many segments: what the driver does for each does not grow with their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_sphere import SphereSim, parts, sim  # noqa: F401 - a fixture

from sector.sphere.job import JobDriver
from sector.sphere.job_request import Options
from sector.sphere.pack import pack
from sector.sphere.stream import SphereStream


class Counted(dict[int, Any]):
    """Counts how often it is asked."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def test_results_in_order_are_found_without_counting_from_the_first(sim: SphereSim) -> None:  # noqa: F811
    """`sphere run` takes them so; ten thousand small files made it ask a hundred million times."""
    cloud = sim.client()
    content = b"".join(b"%05d" % number for number in range(500))
    sim.wait(cloud.write("/in", content))

    def odd(record: bytes, ctx: Any) -> bytes | None:
        return record if int(record) % 3 else None

    for spawner in sim.spawners.values():
        assert spawner.made is not None
        spawner.made.seconds = lambda task: 0.01
    stream = SphereStream(cloud, "/in", record_size=5)
    driver = JobDriver(cloud, stream, pack(odd, None), Options(in_order=True, segment_bytes=5))
    driver.by_segment = counted = Counted()
    sim.wait(driver.start())
    got = [part.data for part in parts(sim, driver)]
    assert got == [b"%05d" % number for number in range(500) if number % 3]
    assert counted.asked < 20 * 500


def test_a_slave_may_hold_more_buckets_than_one_answer_names(tmp_path: Path, seed: int) -> None:
    """`sphere run --buckets` takes up to a million."""
    count = 66_000

    def spread(record: bytes, ctx: Any) -> None:
        ctx.emit(int(record) * 13 % ctx.buckets, record)

    with SphereSim(tmp_path / "sim", slaves=1, copies=1, seed=seed) as cluster:
        cluster.advance(3)
        cloud = cluster.client()
        cluster.wait(cloud.write("/in", b"".join(b"%05d" % (number * 999) for number in range(100))))
        driver = cluster.job(cloud, SphereStream(cloud, "/in", record_size=5), spread, buckets=count)
        cluster.wait(driver.wait())
        assert len(driver.parts) == count
        found = {part.index: part.data for part in driver.parts if part.size}
        assert found == {number * 999 * 13 % count: b"%05d" % (number * 999) for number in range(100)}
