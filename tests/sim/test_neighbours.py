"""Slaves of a job that cannot reach each other over UDP: their requests go through the master."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_sphere import SphereSim, expected_buckets, scatter, store

from sector import errors
from sector.clock import pause
from sector.gmp.api import Peer
from sector.model import Version
from sector.rpc import Caller
from sector.slave.neighbours import ASK_S
from sector.sphere.stream import SphereStream
from sector.wire.base import encode
from sector.wire.slave import Delete, Forward, Forwarded
from sector.wire.sphere import BucketOffer, RangeFetch


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SphereSim]:
    with SphereSim(tmp_path / "sim", slaves=3, copies=1, seed=seed) as cluster:
        cluster.advance(3)
        yield cluster


def service(sim: SphereSim, name: str) -> Any:
    found = sim.slaves[name].service
    assert found is not None
    return found


def cut(sim: SphereSim) -> None:
    """No message passes between slaves any more; all reach the master and the clients."""
    ports = [slave.service.gmp.address[1] for slave in sim.slaves.values() if slave.service is not None]
    sim.hub.blocked.update(itertools.permutations(ports, 2))


def buckets(sim: SphereSim, cloud: Any, output: str) -> Any:
    stream = SphereStream(cloud, "/in", record_size=10, granularity="batch")
    return sim.job(cloud, stream, scatter, output=output, buckets=6, segment_bytes=50_000)


def forwarded(sim: SphereSim) -> list[str]:
    """Slaves that were sent Forwarded from now on, one entry each time."""
    seen: list[str] = []
    hub = sim.up().hub
    call = hub.call_slave

    def watch(slave_id: str, request: Any, *rest: Any) -> Any:
        if isinstance(request, Forwarded):
            seen.append(slave_id)
        return call(slave_id, request, *rest)

    hub.call_slave = watch  # type: ignore[method-assign]
    return seen


def test_a_shuffle_goes_on_through_the_master_and_comes_back(sim: SphereSim) -> None:
    """The first request waits for UDP, the others do not; after `udp_retry_s` UDP is asked again."""
    cloud = sim.client()
    contents = store(sim, cloud)
    seen = forwarded(sim)
    cut(sim)
    began = sim.clock.seconds()
    sim.wait(buckets(sim, cloud, "/out/a").wait())
    data = service(sim, "s1").config.data
    assert sim.clock.seconds() - began < data.udp_wait_s + ASK_S + 15.0
    assert [sim.wait(cloud.read(f"/out/a.{b}")) for b in range(6)] == expected_buckets(contents, 6)
    assert len(seen) > 3
    sim.hub.blocked.clear()
    sim.advance(data.udp_retry_s + 1)
    del seen[:]
    sim.wait(buckets(sim, cloud, "/out/b").wait())
    assert [sim.wait(cloud.read(f"/out/b.{b}")) for b in range(6)] == expected_buckets(contents, 6)
    assert not seen


def test_a_slow_neighbour_is_waited_for(sim: SphereSim) -> None:
    """Its endpoint acknowledges, so its program is what is slow: nothing goes around."""
    cloud = sim.client()
    contents = store(sim, cloud)
    seen = forwarded(sim)
    for name in sim.slaves:
        slave = service(sim, name)
        handler = slave.gmp._handlers[BucketOffer.NUMBER]

        def later(call: Any, handler: Any = handler) -> Any:
            return pause(sim.clock, 8.0).addCallback(lambda _: handler(call))

        slave.gmp.register(BucketOffer.NUMBER, later)
    sim.wait(buckets(sim, cloud, "/out/a").wait(), 900)
    assert [sim.wait(cloud.read(f"/out/a.{b}")) for b in range(6)] == expected_buckets(contents, 6)
    assert not seen


def test_a_master_passes_on_only_what_slaves_ask_one_another(sim: SphereSim) -> None:
    """A slave gets no command to another one through the master, nor can it speak for a third."""
    calls, node = sim.up().slaves, service(sim, "s1")
    peer = Peer(*node.gmp.address, 1)
    caller = Caller("slave:s1", peer, node.gmp.instance, 5.0, lambda percent: None)
    for slave_id, method in (("s1", Delete.NUMBER), ("s2", RangeFetch.NUMBER)):
        with pytest.raises(errors.Denied):
            sim.wait(calls.forward(Forward(slave_id, "s3", method, b""), caller))
    with pytest.raises(errors.Unreachable):
        sim.wait(calls.forward(Forward("s1", "s9", RangeFetch.NUMBER, b""), caller))


def test_a_slave_takes_forwarded_requests_from_masters_only(sim: SphereSim) -> None:
    """And only those of slaves that take part in the job."""
    hub = sim.up().hub
    ask = RangeFetch("0" * 16, "/in/f0", Version(1, 1), 0, 1)
    for method, body, wanted in (
        (RangeFetch.NUMBER, encode(ask), errors.Unavailable),
        (RangeFetch.NUMBER, b"\xc1", errors.Protocol),
        (Delete.NUMBER, b"", errors.Denied),
    ):
        with pytest.raises(wanted):
            sim.wait(hub.call_slave("s2", Forwarded(hub.epoch, "s1", method, body)))
