"""A slave of a job that answers for what it was not asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from test_sphere import SphereSim, parts, sim, store  # noqa: F401 - a fixture

from sector.slave.spe import Spe
from sector.slave.spe_seal import Sealing
from sector.sphere.stream import SphereStream
from sector.wire.sphere import SegmentDone, UdfFault

LIES: dict[str, dict[str, Any]] = {
    "another segment": {"segment": 5},
    "a segment that is not there": {"segment": 10**6},
    "an error of another segment": {"fault": [UdfFault(10**6, -1, "ValueError", "lie", "")]},
    "another file": {"path": "/in/f5", "kind": "bytes"},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("output", ["", "/out/a"])
def test_each_segment_counts_once_whoever_lies(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    output: str,
) -> None:
    """The others do what the liar was asked for."""
    cloud = sim.client()
    contents = store(sim, cloud, 6)
    liar = sim.serving("/in/f0")[0]
    real = Spe._hand_over

    async def lying(self: Spe, *args: Any) -> SegmentDone:
        done = await real(self, *args)
        return msgspec.structs.replace(done, **LIES[lie]) if self.node == liar else done

    monkeypatch.setattr(Spe, "_hand_over", lying)
    stream = SphereStream(cloud, "/in")
    driver = sim.job(cloud, stream, lambda data, ctx: bytes(data), in_order=True, output=output)
    found = parts(sim, driver)
    read = [sim.wait(cloud.read(part.path)) if part.path else part.data for part in found]
    assert read == contents and [part.segment for part in found] == list(range(6))


def test_buckets_are_those_that_were_asked_for(
    sim: SphereSim,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slave that once names others than its own is asked again."""
    cloud = sim.client()
    contents = store(sim, cloud, 6)
    real, lied = Sealing.run, []

    async def lying(self: Sealing) -> Any:
        sealed = await real(self)
        if not lied:
            lied.append(sealed[0].bucket)
            sealed = [msgspec.structs.replace(sealed[0], bucket=(sealed[0].bucket + 3) % 8), *sealed[1:]]
        return sealed

    monkeypatch.setattr(Sealing, "run", lying)

    def spread(data: Any, ctx: Any) -> None:
        ctx.emit(ctx.segment, bytes(data))

    driver = sim.job(cloud, SphereStream(cloud, "/in"), spread, buckets=8)
    assert [part.data for part in parts(sim, driver)] == [*contents, b"", b""]
    assert lied
