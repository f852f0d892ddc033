"""Periodic work of a master."""

from __future__ import annotations

from twisted.internet.task import Clock

from sector.master.turns import every


def test_a_turn_that_fails_is_not_the_last_one() -> None:
    """The loop that notices dead slaves must outlive a fault in one turn."""
    clock, turns = Clock(), []

    def turn() -> None:
        turns.append(clock.seconds())
        if len(turns) == 2:
            raise ValueError("a fault of ours")

    loop = every(clock, 1.0, turn)
    clock.pump([1.0] * 4)
    assert turns == [1.0, 2.0, 3.0, 4.0]
    loop.stop()
    clock.pump([1.0] * 2)
    assert len(turns) == 4
