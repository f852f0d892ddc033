"""Rules of a slave's transfers, and the gate between reports and publishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, ensureDeferred

from sector import errors
from sector.slave.core import START_S, SlaveCore, is_final, retry_delay
from sector.slave.gate import Gate


def ident(number: int) -> bytes:
    """A ticket id."""
    return number.to_bytes(16, "big")


def test_a_lower_epoch_is_refused() -> None:
    core = SlaveCore("s1", 4)
    core.command(5)
    core.command(5)
    with pytest.raises(errors.Conflict, match="epoch 4"):
        core.command(4)
    core.joined(1)
    core.command(1)


def test_a_ticket_is_used_once() -> None:
    core = SlaveCore("s1", 4)
    first = core.begin(ident(1), "read", "/a", 10, 0.0)
    with pytest.raises(errors.Conflict, match="used before"):
        core.begin(ident(1), "read", "/a", 10, 0.0)
    core.end(first, 1.0, 10, True)
    with pytest.raises(errors.Conflict):
        core.begin(ident(1), "read", "/a", 10, 1.0)
    core.begin(ident(1), "read", "/a", 10, 1.1 + 2 * START_S)
    core.check_invariants()


def test_used_tickets_are_forgotten_in_order() -> None:
    """Looking for old ones costs the same however many there are."""
    core = SlaveCore("s1", 4)

    class Counting(dict[bytes, float]):
        looks = 0

        def __getitem__(self, key: bytes) -> float:
            Counting.looks += 1
            return super().__getitem__(key)

    core._used = Counting()
    for number in range(2000):
        core.end(core.begin(ident(number), "read", "/a", 1, number * 0.1), number * 0.1, 1, True)
    assert Counting.looks < 3 * 2000
    assert len(core._used) <= 2 * START_S / 0.1 + 2
    assert ident(1999) in core._used
    core.check_invariants()


def test_one_copy_of_a_path_comes_in_at_a_time() -> None:
    core = SlaveCore("s1", 4)
    first = core.begin(ident(1), "replica", "/a", 10, 0.0)
    with pytest.raises(errors.Busy, match="already"):
        core.begin(ident(2), "replica", "/a", 10, 0.0)
    core.begin(ident(3), "replica", "/b", 10, 0.0)
    core.end(first, 1.0, 10, True)
    core.begin(ident(4), "replica", "/a", 10, 1.0)


def test_the_number_of_transfers_is_limited() -> None:
    core = SlaveCore("s1", 2)
    core.begin(ident(1), "read", "/a", 1, 0.0)
    second = core.begin(ident(2), "write", "/b", 1, 0.0)
    with pytest.raises(errors.Busy):
        core.begin(ident(3), "read", "/c", 1, 0.0)
    assert core.busy_with("/b")
    assert not core.busy_with("/a")
    core.end(second, 1.0, 1, False)
    core.begin(ident(3), "read", "/c", 1, 1.0)
    assert core.counters()["transfers_failed"] == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0, 500)), max_size=60))
def test_invariants_hold_under_any_order(steps: list[tuple[int, bool, float]]) -> None:
    core = SlaveCore("s1", 3)
    now = 0.0
    for number, begin, later in steps:
        now += later
        try:
            if begin:
                core.begin(ident(number), "read", "/a", 1, now)
            elif ident(number) in core.open:
                core.end(core.open[ident(number)], now, 1, True)
        except (errors.Conflict, errors.Busy):
            pass
        core.check_invariants()


def test_only_clear_refusals_end_a_publish() -> None:
    for final in (errors.LeaseLost, errors.Conflict, errors.Denied, errors.Exists, errors.NotFound):
        assert is_final(final("no"))
    for passing in (errors.TimedOut, errors.Unreachable, errors.Busy, errors.ReadOnly, errors.SectorError):
        assert not is_final(passing("later"))


def test_delays_grow_to_a_bound() -> None:
    assert retry_delay(0, 1.0) == 0.25
    assert retry_delay(100, 1.0) == 5.0
    assert retry_delay(100, 0.0) == 2.5


def test_alone_waits_for_those_inside_and_holds_others_back() -> None:
    """A report's last part sees every publish that began before it, and none begins meanwhile."""
    gate = Gate()
    story: list[str] = []
    turns = {name: Deferred[None]() for name in ("a", "b", "alone", "c")}

    async def shared(name: str) -> None:
        async with gate.shared():
            story.append(f"+{name}")
            await turns[name]
            story.append(f"-{name}")

    async def alone() -> None:
        async with gate.alone():
            story.append("+alone")
            await turns["alone"]
            story.append("-alone")

    ensureDeferred(shared("a"))
    ensureDeferred(shared("b"))
    ensureDeferred(alone())
    ensureDeferred(shared("c"))
    turns["a"].callback(None)
    turns["b"].callback(None)
    turns["alone"].callback(None)
    turns["c"].callback(None)
    assert story == ["+a", "+b", "-a", "-b", "+alone", "-alone", "+c", "-c"]
