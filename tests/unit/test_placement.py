"""Topology and placement (design section 5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sector.errors import BadConfig
from sector.master import placement
from sector.master.placement import Candidate
from sector.master.topology import Place, Topology, distance, parse_topology

TOPOLOGY = """
[networks]
"10.0.0.0/8" = "/chicago"
"10.1.0.0/16" = "/chicago/r1"
"10.2.0.0/16" = "/chicago/r2"
"192.168.0.0/16" = "/tokyo/r1"
"fd00::/8" = "/tokyo/r2"
"""


def test_longest_prefix_wins() -> None:
    topology = parse_topology(TOPOLOGY)
    for host, location in (
        ("10.1.2.3", "/chicago/r1"),
        ("10.9.2.3", "/chicago"),
        ("192.168.1.1", "/tokyo/r1"),
        ("fd00::1", "/tokyo/r2"),
        ("fd00::1%eth0", "/tokyo/r2"),
        ("8.8.8.8", "/default"),
        ("a-name", "/default"),
    ):
        assert topology.place(host).location == location


def test_distance() -> None:
    place = parse_topology(TOPOLOGY).place
    a = place("10.1.0.1")
    assert [distance(a, place(h)) for h in ("10.1.0.1", "10.1.0.2", "10.2.0.1", "192.168.0.1")] == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    "text",
    ["x", "[networks]\n'10.0.0.0/99' = '/a'", "[networks]\n'10.0.0.0/8' = 'a'", "other = 1",
     "[networks]\n'10.0.0.0/8' = '/a/b/c'", "[networks]\n'10.0.0.0/8' = 7", "networks = 1"],
)  # fmt: skip
def test_bad_topology_is_named(text: str) -> None:
    with pytest.raises(BadConfig, match=r"topology\.toml"):
        parse_topology(text)


def at(name: str, host: str, *, free: int = 1000, busy: int = 0, usable: bool = True) -> Candidate:
    """A slave at an address."""
    return Candidate(name, parse_topology(TOPOLOGY).place(host), free, busy, usable)


CLIENT = parse_topology(TOPOLOGY).place("10.1.0.9")
NODES = [at("far", "192.168.0.1"), at("near", "10.1.0.1"), at("site", "10.2.0.1"), at("host", "10.1.0.9")]


def test_write_goes_near_then_least_busy_then_most_room() -> None:
    assert placement.for_write(NODES, path="/f", size=1, client=CLIENT) == ["host", "near", "site", "far"]
    assert placement.for_write(NODES, path="/f", size=1, client=CLIENT, near="far")[0] == "far"
    assert "host" not in placement.for_write(NODES, path="/f", size=1, client=CLIENT, exclude=["host"])
    assert placement.for_write(NODES, path="/f", size=1001, client=CLIENT) == []
    same = [at("a", "10.1.0.1", busy=2), at("b", "10.1.0.2", free=1), at("c", "10.1.0.3")]
    assert placement.for_write(same, path="/f", size=1, client=CLIENT) == ["c", "b", "a"]
    down = [at("a", "10.1.0.1", usable=False), at("b", "192.168.0.1")]
    assert placement.for_write(down, path="/f", size=1, client=CLIENT) == ["b"]


def test_equal_slaves_share_the_files() -> None:
    same = [at(f"s{i}", f"10.1.0.{i}") for i in range(4)]
    first = [placement.for_write(same, path=f"/f{i}", size=1, client=CLIENT)[0] for i in range(400)]
    assert all(60 < first.count(node.id) < 140 for node in same)


def test_read_avoids_doubtful_and_excluded() -> None:
    order = placement.for_read(NODES, path="/f", client=CLIENT, exclude=["host"], doubtful=["near"])
    assert order == ["site", "far", "near", "host"]


def test_copy_takes_a_free_host_far_away() -> None:
    holders = [CLIENT]
    assert placement.for_copy(NODES, path="/f", size=1, holders=holders, exclude=())[:2] == ["far", "site"]
    shared = [at("same", "10.1.0.9"), at("other", "10.1.0.8")]
    assert placement.for_copy(shared, path="/f", size=1, holders=holders, exclude=()) == ["other", "same"]


def test_source_is_near_the_target() -> None:
    target = Topology().place("1.1.1.1")
    assert placement.for_source([], target=target, path="/f") == []
    near = parse_topology(TOPOLOGY).place("192.168.0.7")
    assert placement.for_source(NODES, target=near, path="/f")[0] == "far"


def test_drop_keeps_hosts_and_distance() -> None:
    holders = [at("a", "10.1.0.1"), at("b", "10.1.0.1"), at("c", "192.168.0.1"), at("d", "10.2.0.1")]
    assert placement.for_drop(holders, path="/f") in ("a", "b")
    spread = [at("a", "10.1.0.1"), at("b", "10.1.0.2"), at("c", "192.168.0.1")]
    assert placement.for_drop(spread, path="/f") in ("a", "b")


HOSTS = st.sampled_from(["10.1.0.1", "10.1.0.2", "10.2.0.1", "192.168.0.1", "192.168.0.2"])
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        id=st.text("abcdef", min_size=1, max_size=3),
        place=HOSTS.map(parse_topology(TOPOLOGY).place),
        free=st.integers(0, 100),
        busy=st.integers(0, 3),
        usable=st.booleans(),
    ),
    unique_by=lambda c: c.id,
    max_size=8,
)


@given(nodes=CANDIDATES, size=st.integers(0, 100), holders=st.lists(HOSTS, max_size=3))
def test_placement_is_sound(nodes: list[Candidate], size: int, holders: list[str]) -> None:
    """Only usable slaves with room; the order of the input does not matter; no shared host needlessly."""
    places: list[Place] = [parse_topology(TOPOLOGY).place(h) for h in holders]
    by_id = {n.id: n for n in nodes}
    write = placement.for_write(nodes, path="/p", size=size, client=CLIENT)
    copy = placement.for_copy(nodes, path="/p", size=size, holders=places, exclude=())
    fit = {n.id for n in nodes if n.usable and n.free >= size}
    assert set(write) == set(copy) == fit
    assert write == placement.for_write(nodes[::-1], path="/p", size=size, client=CLIENT)
    if copy and any(by_id[i].place.host not in holders for i in fit):
        assert by_id[copy[0]].place.host not in holders
