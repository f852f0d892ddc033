"""A segment that is lost again and again: the job's error says what to look for."""

from __future__ import annotations

from typing import Any

import pytest
from test_sphere import SphereSim, sim, store  # noqa: F401 - a fixture
from twisted.internet.defer import Deferred, fail

from sector import errors
from sector.sphere.stream import SphereStream


def test_the_last_loss_comes_with_its_hint(sim: SphereSim) -> None:  # noqa: F811
    cloud = sim.client()
    store(sim, cloud, 1)

    def killed(task: Any, progress: Any) -> Deferred[Any]:
        text = f"worker 7 was killed by SIGKILL at segment {task.segment}"
        return fail(errors.Unavailable(text, hint="look for a lack of memory on the slave"))

    for spawner in sim.spawners.values():
        assert spawner.made is not None
        spawner.made.run = killed  # type: ignore[method-assign]
    driver = sim.job(cloud, SphereStream(cloud, "/in"), lambda data, ctx: b"x")
    with pytest.raises(errors.JobFailed, match=r"lost 5 times, last: worker 7 .*\(look for a lack of memory"):
        sim.wait(driver.wait())
