"""Jobs of many segments: what the driver does for each does not grow with their number."""

from __future__ import annotations

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
