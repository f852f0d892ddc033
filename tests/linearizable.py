"""Whether a history of one key could have been made by one object that does one thing at a time.

An operation lies between `begin` and `end`; what ended before another began came before it. The search tries
every operation that may come next, with what has been seen before remembered (Wing and Gong, with Lowe's
memory of states).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Operation(NamedTuple):
    """`what` is put, get, delete; `value` what was put; `condition` "" (none), "*" (If-None-Match: *) or the
    value that the object must have; `status` as answered, `seen` the value that a get found."""

    begin: int
    end: int
    what: str
    value: str
    condition: str
    status: int
    seen: str | None = None


def after(state: str | None, one: Operation) -> tuple[bool, str | None]:
    """Whether the answer fits the state, and the state afterwards."""
    if one.what == "get":
        return (one.status == 404 and state is None) or (one.status == 200 and one.seen == state), state
    if one.status == 409:  # a conflict with others, nothing was done
        return True, state
    if one.condition == "*":
        holds = state is None
    elif one.condition:
        holds = state == one.condition
    else:
        holds = True
    if one.status in (404, 412):
        return not holds and (one.status == 412) == (state is not None), state
    if one.status not in (200, 204) or not holds:
        return False, state
    return True, one.value if one.what == "put" else None


def linearizable(history: Sequence[Operation]) -> bool:
    """Whether there is an order; the key does not exist at the beginning."""
    order = sorted(history)
    everything = (1 << len(order)) - 1
    seen: set[tuple[int, str | None]] = set()
    stack: list[tuple[int, str | None]] = [(0, None)]
    while stack:
        done, state = stack.pop()
        if done == everything:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        left = [number for number in range(len(order)) if not done >> number & 1]
        first_end = min(order[number].end for number in left)
        for number in left:
            if order[number].begin > first_end:
                break  # something ended before this and all that follow began
            fits, then = after(state, order[number])
            if fits:
                stack.append((done | 1 << number, then))
    return False
