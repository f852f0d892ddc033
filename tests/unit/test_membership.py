"""Slaves come, fall silent and return (design section 12: suspect 3 s, lost 10 s)."""

from __future__ import annotations

import pytest

from sector.errors import NotFound
from sector.master.membership import Changed, Load, Membership, Node, Times
from sector.master.topology import Place
from sector.model import Address


def node(name: str = "s1", instance: int = 1, now: float = 0.0) -> Node:
    """A slave that joins."""
    return Node(
        name, Place("10.0.0.1"), instance, Address("10.0.0.1", 1), Address("10.0.0.1", 2), 7, "/d", 1, now
    )


def test_silence_makes_suspect_then_lost() -> None:
    members = Membership(Times())
    assert members.join(node()) == Changed("s1", "", "up")
    assert members.tick(2.9) == []
    assert members.tick(3.0) == [Changed("s1", "up", "suspect")]
    assert members.tick(5.0) == [] and members.up() == [] and len(members.alive()) == 1
    assert members.tick(10.0) == [Changed("s1", "suspect", "lost")]
    assert members.tick(20.0) == [] and members.alive() == []
    members.check_invariants()


def test_times_are_configurable() -> None:
    members = Membership(Times(heartbeat_s=0.1, suspect_s=0.3, lost_s=0.5))
    members.join(node())
    assert members.tick(0.6) == [Changed("s1", "up", "lost")]


def test_heartbeat_brings_back() -> None:
    """A suspect is simply up again; a lost one owes a report, since its content was given up."""
    members = Membership(Times())
    members.join(node())
    members.get("s1").reported, members.get("s1").want_report = True, False
    members.tick(4.0)
    assert members.heartbeat("s1", Load(free=5), 4.5) == Changed("s1", "suspect", "up")
    assert members.get("s1").reported
    members.tick(30.0)
    assert members.heartbeat("s1", Load(free=5), 31.0) == Changed("s1", "lost", "up")
    assert not members.get("s1").reported and members.get("s1").want_report


def test_unknown_slave_has_to_join() -> None:
    with pytest.raises(NotFound):
        Membership(Times()).heartbeat("s1", Load(), 0.0)


def test_new_instance_replaces_the_old() -> None:
    members = Membership(Times())
    members.join(node())
    members.get("s1").want_report = False
    members.tick(11.0)
    assert members.join(node(instance=2, now=12.0)) == Changed("s1", "lost", "up")
    assert members.get("s1").instance == 2 and members.get("s1").want_report


def test_promised_space_counts_until_the_next_heartbeat() -> None:
    members = Membership(Times())
    members.join(node())
    assert not members.candidates()[0].usable
    members.heartbeat("s1", Load(free=100, transfers=1), 1.0)
    members.grant("s1", 60)
    members.grant("s1", 60)
    members.grant("nobody", 1)
    seen = members.candidates()[0]
    assert (seen.free, seen.busy, seen.usable) == (0, 3, True)
    members.heartbeat("s1", Load(free=40, transfers=3), 2.0)
    assert (members.candidates()[0].free, members.candidates()[0].busy) == (40, 3)
