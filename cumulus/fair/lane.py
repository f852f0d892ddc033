"""Weighted fair sharing of one direction (bytes out, or bytes in) among the transfers of all processes.

Each transfer has a virtual time: its bytes divided by its weight, which is its owner's weight divided by the
owner's transfers. One may be ahead of the last by a quantum, then it is held until the last has come nearer.
So who has work to do gets his share, and nobody waits while nobody is behind.

The last counts only while waiting for it leaves the server's throughput as it was (`trials`): who is slow by
himself is carried along. No thread, no clock, no socket here: times are arguments, in seconds.
"""

from __future__ import annotations

import enum
from math import inf
from typing import Final

from cumulus.fair.board import Board, Places, places
from cumulus.fair.trials import Phase, Trials, Verdict

QUANTUM: Final = 512 * 1024  # bytes by which the transfer of the least weight may be ahead
CREDIT: Final = 32  # quanta that a newcomer may be behind and make up for
DEBT: Final = 40  # quanta that anybody may be ahead and wait for
BACK: Final = 0.5  # of the quantum: who was held goes on when he is ahead by less
WIDEST: Final = 32  # quanta that one may be ahead where many bytes pass between two looks

FRESH_S: Final = 0.3  # figures of another process that are older do not count
NEW_S: Final = 0.2  # a transfer that lasts so long is worth a trial
IDLE: Final = 0.01  # of what each moved on average; who moves less is not worth one
TICK_S: Final = 0.005
QUIET_TICK_S: Final = 0.02
LEAD_S: Final = 0.04  # of the pace of the last: so far one may be ahead where that is more than the quantum
MOST_TURN: Final = 2048 * 1024  # bytes that one of several moves at a time
FEW: Final = 8  # transfers: so many are looked at whenever one would have to wait
KNOWN: Final = 4096  # owners that are remembered
FLOW_S: Final = 10e-6  # more between two looks for each transfer, so that many cost little
PATIENCE_S: Final = (1.0, 64.0)  # who was never held for so long is tried again: at first, once he was in
BANISHED_S: Final = (0.5, 64.0)  # how long one that failed is not tried again: first, at most
SPARE: Final = 0.9  # of what one could take in a trial that failed is what he is waited for from then on
AHEAD: Final = 0.5  # of a trial: who was held for so long has held nobody up
LEAST_PART: Final = 0.05  # of his share; who takes less is not waited for at all
REMEMBER_S: Final = 10.0  # after a pause of less a transfer is what it was (a commit may take long)
BETWEEN_S: Final = 0.2
LONG: Final = CREDIT * QUANTUM  # bytes of a request after which a trial goes on with the next one

(
    _BEAT,
    _FLOOR,
    _LEAST,
    _SERVED,
    _HELD,
    _WAITING,
    _TRIAL,
    _RUNNING,
    _VERDICT,
    _BASE,
    _HOLDS,
    _FLOWS,
    _WEIGHTS,
    _TOP,
    _BEFORE,
    _PHASE,
    _NEWEST,
) = range(17)


class State(enum.Enum):
    """NEW: not waited for and, unless its owner has others that are, not held. TRIED: in a trial. IN: waited
    for, perhaps for a part of its share. OUT: takes next to nothing of its share; carried along."""

    NEW = 0
    TRIED = 1
    IN = 2
    OUT = 3


class Flow:
    """One direction of a connection. `key` names who is charged (a user, an address), with his weight.
    `held`: it has to wait until `Lane.tick` gives it back."""

    __slots__ = (
        "banished_s",
        "came_v",
        "cost",
        "held",
        "held_s",
        "joined",
        "key",
        "left",
        "left_v",
        "mark",
        "part",
        "patience_s",
        "places",
        "ran_ahead",
        "since",
        "state",
        "tried_held_s",
        "tried_v",
        "until",
        "v",
        "wait_began",
        "weight",
    )

    def __init__(self, key: str, weight: float = 1.0) -> None:
        self.joined = False
        self.held = False
        self.wait_began = 0.0
        self.state = State.NEW
        self.v = 0.0
        self.came_v = 0.0  # when its request began
        self.mark = (0.0, 0.0)  # its virtual time, and the bytes of all, when it became NEW
        self.since = 0.0  # of the state
        self.part = 1.0  # of its share that it can take
        self.held_s = 0.0  # in all
        self.tried_held_s = 0.0  # that, and its virtual time, when the trial began
        self.tried_v = 0.0
        self.ran_ahead = -inf  # when it was last held
        self.until = 0.0
        self.banished_s = BANISHED_S[0]
        self.patience_s = PATIENCE_S[0]
        self.left = -inf
        self.left_v = 0.0
        self.charge(key, weight)

    def charge(self, key: str, weight: float) -> None:
        """Whose it is; not while it is joined."""
        self.key = key
        self.weight = weight
        self.places: Places = ()
        self.cost = 1.0 / weight


class Lane:
    """`number` of the direction on the board. Figures for metrics: `served` bytes, `holds`, `held_s`."""

    def __init__(self, board: Board, number: int) -> None:
        self._board = board
        self._number = number
        self._columns = board.lane(number)
        self._mine = self._columns[board.column]
        self._others = [cells for cells in self._columns if cells is not self._mine]
        self._trials = Trials()
        self._flows: dict[Flow, None] = {}
        self._held: dict[Flow, None] = {}
        self._known: dict[str, float] = {}  # owners of transfers that are waited for, and when that was last
        self._limit = inf
        self._floor = inf
        self._ahead = float(QUANTUM)
        self._look_at = 0.0
        self._pace = 0.0  # of the last one's virtual time, a second
        self._paced_at = (0.0, inf)
        self._urgent = False
        self._phase = Phase.NORMAL
        self._contended = -inf  # when somebody was held last
        self._trial = 0
        self._trial_began = 0.0
        self._trial_ended = 0.0  # inf while it runs
        self.served = 0
        self.holds = 0
        self.held_s = 0.0

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def holding(self) -> int:
        """Transfers that wait now."""
        return len(self._held)

    def turn(self, flow: Flow, most: int) -> int:
        """Bytes that it should move at a time: few enough for others to have their turn, and no more than
        half of the lead that it may have."""
        if self._mine[_FLOWS] <= 1 and self._floor == inf:
            return most
        return min(most, MOST_TURN, max(QUANTUM // 2, int(BACK * self._ahead / flow.cost)))

    def alone(self, flow: Flow, now: float) -> bool:
        """Whether it is in the first part of a request of the only owner at work: those do not wait for one
        another (`_may_hold`), so it may move much at a time."""
        return flow.v - flow.came_v < LONG * flow.cost and self._only_owner(flow, now)

    # transfers --------------------------------------------------------------------------------------------
    def join(self, flow: Flow, now: float) -> None:
        """It has something to move from now on."""
        flow.places = places(f"{self._number} {flow.key}")
        start = self._start(now)
        if start < inf:  # between two requests of a connection little passes, and what it lags stays
            flow.v = max(flow.v, start - CREDIT * self._ahead if now - flow.left < BETWEEN_S else start)
        if not self._still_tried(flow, now):
            if flow.state is State.TRIED or now - flow.left > REMEMBER_S:
                flow.state = State.OUT if flow.until > now else State.NEW
                flow.since = now
            if now - flow.left > REMEMBER_S:
                self._mine[_NEWEST] = now
            flow.tried_v, flow.tried_held_s = flow.v, flow.held_s
        flow.ran_ahead = max(flow.ran_ahead, flow.since)
        flow.came_v = flow.v
        flow.mark = (flow.v, self._total())
        flow.joined = True
        self._flows[flow] = None
        if flow.state is not State.OUT:
            self._board.add(flow.places, 1)
        self._price(flow)

    def _still_tried(self, flow: Flow, now: float) -> bool:
        """Its request ended in a trial and the next one begins in the same: large objects may take less time
        than a trial, and who fetches one after another would never come to its end. Small ones are not
        shared out: to wait for one another between them costs more than it gives."""
        running = self._trial_began > 0 and self._trial_ended == inf
        return (
            flow.state is State.TRIED
            and running
            and self._trial_began <= flow.since
            and now - flow.left < BETWEEN_S
        )

    def _start(self, now: float) -> float:
        """The virtual time of those who are at work."""
        self._look(now)
        return min([self._floor] if self._floor < inf else self._fresh(_BASE, now), default=inf)

    def _price(self, flow: Flow) -> None:
        """Virtual time for a byte: those who are carried along take nothing from their owner's others."""
        flow.cost = max(1, self._board.count(flow.places)) / (flow.weight * flow.part)

    def leave(self, flow: Flow, now: float) -> None:
        """It has nothing to move any more."""
        if not flow.joined:
            return
        flow.joined = False
        flow.left, flow.left_v = now, flow.v
        if flow.held:
            self._release(flow, now)
        if flow.state is not State.OUT:
            self._board.add(flow.places, -1)
        del self._flows[flow]
        self._mine[_FLOWS] = len(self._flows)
        if not self._flows:
            self._publish(now, inf, inf, inf)
            self._mine[_BEAT] = 0.0
            self._pace, self._paced_at = 0.0, (0.0, inf)

    def took(self, flow: Flow, count: int, now: float) -> bool:
        """It moved `count` bytes; whether it may go on. If not, a later `tick` gives it back."""
        self.served += count
        flow.v += count * flow.cost
        if flow.v <= self._limit and now < self._look_at:
            return True
        if now >= self._look_at or len(self._flows) <= FEW:
            self._look(now)
        if flow.v <= self._limit or self._phase is Phase.FREE or not self._may_hold(flow, now):
            return True
        self._hold(flow, now)
        return False

    def _may_hold(self, flow: Flow, now: float) -> bool:
        """A newcomer runs free until it was tried, but not each new connection of somebody who is known.
        Where only one owner is at work, his short requests do not wait for one another."""
        if self.alone(flow, now):
            return False
        return flow.state is not State.NEW or now - self._known.get(flow.key, -inf) < REMEMBER_S

    def _only_owner(self, flow: Flow, now: float) -> bool:
        return self._board.count(flow.places) >= sum(self._fresh(_FLOWS, now))

    def _hold(self, flow: Flow, now: float) -> None:
        flow.held = True
        flow.wait_began = flow.ran_ahead = now
        self._held[flow] = None
        self.holds += 1
        border = self._floor + BACK * self._ahead
        self._urgent = any(one.v <= border for one in self._held)
        if flow.state in (State.NEW, State.OUT):  # it takes all that it is given
            self._turn(flow, State.IN, now)
            flow.part, flow.banished_s = 1.0, BANISHED_S[0]

    def _release(self, flow: Flow, now: float) -> None:
        flow.held = False
        flow.ran_ahead = now
        self.held_s += now - flow.wait_began
        flow.held_s += now - flow.wait_began
        del self._held[flow]

    def _turn(self, flow: Flow, state: State, now: float) -> None:
        change = (flow.state is State.OUT) - (state is State.OUT)
        if change:
            self._board.add(flow.places, change)
        flow.state = state
        flow.since = now
        flow.mark = (flow.v, self._total())

    # what all see -----------------------------------------------------------------------------------------
    def _fresh(self, cell: int, now: float) -> list[float]:
        """That figure of each process that is at work."""
        return [cells[cell] for cells in self._columns if now - cells[_BEAT] < FRESH_S]

    def _total(self) -> float:
        """Bytes that all have moved so far."""
        return sum(cells[_SERVED] for cells in self._columns)

    def _publish(self, now: float, floor: float, base: float, least: float) -> None:
        mine = self._mine
        mine[_FLOOR], mine[_BASE], mine[_LEAST] = floor, base, least
        mine[_SERVED], mine[_FLOWS] = self.served, len(self._flows)
        mine[_HELD], mine[_HOLDS] = len(self._held), self.holds
        mine[_BEAT] = now

    def _look(self, now: float) -> None:
        """Compare with the others, and carry along who is not waited for."""
        floor = base = least = inf
        weights, top = 0.0, -inf
        for flow in self._flows:
            if flow.state is State.OUT:
                continue
            base = min(base, flow.v)
            if flow.state is not State.NEW:
                floor, top = min(floor, flow.v), max(top, flow.v)
                least = min(least, 1 / flow.cost)
                weights += 1 / flow.cost
        self._mine[_WEIGHTS], self._mine[_TOP] = weights, top
        self._publish(now, floor, base, least)
        for cells in self._others:
            if now - cells[_BEAT] < FRESH_S:
                floor = min(floor, cells[_FLOOR])
                least = min(least, cells[_LEAST])
        self._floor = floor
        if floor < inf:
            self._ahead = max(QUANTUM / least, min(WIDEST * QUANTUM / least, LEAD_S * self._pace))
            self._carry(floor)
        self._limit = floor + self._ahead
        self._look_at = now + 0.001 + len(self._flows) * FLOW_S

    def _carry(self, floor: float) -> None:
        """Who is not waited for falls behind by little only; nobody is ahead by so much that he starves."""
        poor, rich = floor - CREDIT * self._ahead, floor + DEBT * self._ahead
        for flow in self._flows:
            least = floor if flow.state is State.OUT else poor if flow.state is State.NEW else -inf
            if not least <= flow.v <= rich:
                inside = max(least, min(flow.v, rich))
                flow.mark = (flow.mark[0] + inside - flow.v, flow.mark[1])
                flow.v = inside

    # now and then -----------------------------------------------------------------------------------------
    def pause(self) -> float:
        """Seconds until the next `tick`, while there are transfers."""
        if self._urgent:
            return 0.0
        busy = self._held or self._trials.running or self._phase is Phase.FREE
        return (TICK_S if busy else QUIET_TICK_S) + 4 * FLOW_S * len(self._flows)

    def tick(self, now: float) -> list[Flow]:
        """Those that waited and go on now."""
        self._urgent = False
        self._follow(now)
        waiting = 0
        holds = sum(self._fresh(_HELD, now)) > 0
        if holds:
            self._contended = now
        if len(self._known) > KNOWN:
            self._known.clear()
        for flow in self._flows:
            self._price(flow)
            self._age(flow, now, holds)
            waiting += self._candidate(flow, now)
        self._mine[_WAITING] = waiting
        self._look(now)
        self._measure(now)
        self._lead(now)
        border = self._floor + BACK * self._ahead
        free = self._phase is Phase.FREE
        going = [flow for flow in self._held if free or flow.v <= border or flow.state is State.NEW]
        for flow in going:
            self._release(flow, now)
        return going

    def _measure(self, now: float) -> None:
        """How fast those at work advance: what passes between two looks must fit into the quantum."""
        at, floor = self._paced_at
        self._paced_at = now, self._floor
        if now > at and floor < inf and self._floor < inf:
            self._pace = max((self._floor - floor) / (now - at), 0.9 * self._pace)

    def _age(self, flow: Flow, now: float, holds: bool) -> None:
        state = flow.state
        if state is State.IN:
            self._known[flow.key] = now
            if flow.held or not holds:
                flow.ran_ahead = now
            unproven = now - self._contended > PATIENCE_S[0] and now - flow.since > PATIENCE_S[0]
            patience_s = PATIENCE_S[0] if self._phase is Phase.SLUMP else flow.patience_s
            if unproven or (flow.part == 1.0 and now - flow.ran_ahead > patience_s):
                self._turn(flow, State.NEW, now)
                flow.part, flow.ran_ahead = 1.0, now
        elif state is State.TRIED and now - flow.since > 6 * NEW_S:
            self._turn(flow, State.NEW, now)

    def _lead(self, now: float) -> None:
        """The first process at work runs the trials."""
        first = next((cells for cells in self._columns if now - cells[_BEAT] < FRESH_S), self._mine)
        mine, trials = self._mine, self._trials
        if first is not mine:
            mine[_RUNNING] = 0.0
            trials.running = False
            return
        last = max(int(cells[_TRIAL]) for cells in self._columns)
        if last > trials.number:
            trials.lead_from(last)
        holds = sum(cells[_HOLDS] for cells in self._columns)
        waiting, holding = int(sum(self._fresh(_WAITING, now))), sum(self._fresh(_HELD, now)) > 0
        reach = self._floor, sum(self._fresh(_WEIGHTS, now))
        newest = max(cells[_NEWEST] for cells in self._columns)
        trials.step(now, self._total(), holds, waiting, holding, reach, newest)
        mine[_PHASE] = float(trials.phase)
        mine[_VERDICT], mine[_BEFORE] = float(trials.verdict), trials.before
        mine[_TRIAL] = float(trials.number)
        mine[_RUNNING] = float(trials.running)

    def _follow(self, now: float) -> None:
        """Take part in a trial that has begun; draw the consequence of one that is over."""
        cells = max(self._columns, key=_trial_of)
        number = int(cells[_TRIAL])
        self._phase = Phase(int(cells[_PHASE]))
        if self._phase is Phase.FREE and self._trial_ended == inf:
            self._end_trial(now)
        if number != self._trial and cells[_RUNNING]:
            self._trial, self._trial_began, self._trial_ended = number, now, inf
            for flow in self._flows:
                flow.tried_v = flow.v
                flow.tried_held_s = flow.held_s + (now - flow.wait_began if flow.held else 0.0)
                if self._candidate(flow, now) or (flow.state is State.NEW and now - flow.since < NEW_S):
                    self._turn(flow, State.TRIED, now)
                    flow.part = 1.0
        elif number != self._trial and int(cells[_VERDICT]) == Verdict.STUCK:
            self._trial = number
            self._known.clear()
            for flow in self._flows:
                flow.part = 1.0
                self._turn(flow, State.NEW, now)
        elif number == self._trial and not cells[_RUNNING]:
            if self._trial_began:
                if self._trial_ended == inf:
                    self._end_trial(now)
                verdict = Verdict(int(cells[_VERDICT]))
                before, weights = cells[_BEFORE], sum(self._fresh(_WEIGHTS, now))
                top = max(self._fresh(_TOP, now), default=-inf)
                for flow in self._flows:
                    self._judge(flow, verdict, (before, weights, top), now)
            self._trial_began = self._trial_ended = 0.0

    def _end_trial(self, now: float) -> None:
        """What each has done in it, before all run free or it is judged."""
        self._trial_ended = now
        lasted = max(1e-9, now - self._trial_began)
        for flow in self._flows:
            held_s = flow.held_s + (now - flow.wait_began if flow.held else 0.0) - flow.tried_held_s
            flow.tried_held_s = held_s / lasted
            flow.tried_v = (flow.v - flow.tried_v) / lasted

    def _candidate(self, flow: Flow, now: float) -> bool:
        """Whether to try waiting for it, or for more of its share than now: not for those who take next to
        nothing."""
        if flow.state is State.NEW:
            due = now - flow.since >= NEW_S
        else:
            due = now >= flow.until and (flow.state is State.OUT or flow.part < 1.0)
        if not due or flow.state is State.TRIED:
            return False
        v, total = flow.mark
        average = (self._total() - total) / max(1.0, sum(self._fresh(_FLOWS, now)))
        return (flow.v - v) / flow.cost >= IDLE * average

    def _judge(self, flow: Flow, verdict: Verdict, what_was: tuple[float, float, float], now: float) -> None:
        """Who held the others up in a trial that went badly is waited for only as far as he could follow,
        also if he was in before. Before all moved so much a second; the weights of all; who is first."""
        before, weights, top = what_was
        if flow.since > self._trial_ended:  # it came later
            return
        ahead = flow.tried_held_s > AHEAD
        if flow.state is State.TRIED:
            flow.ran_ahead = now
        elif flow.state is not State.IN or verdict is not Verdict.BAD or ahead:
            return
        if verdict is Verdict.VOID:
            self._turn(flow, State.NEW, now)
        elif verdict is Verdict.GOOD or ahead:
            self._turn(flow, State.IN, now)
            flow.patience_s = PATIENCE_S[1]
        else:
            flow.part = min(1.0, SPARE * self._could_take(flow, before, weights))
            flow.v = max(flow.v, top - BACK * self._ahead)
            self._turn(flow, State.OUT if flow.part < LEAST_PART else State.IN, now)
            flow.part = flow.part if flow.state is State.IN else 1.0
            self._price(flow)
            flow.patience_s = PATIENCE_S[0]
            flow.until = now + flow.banished_s
            flow.banished_s = min(BANISHED_S[1], 2 * flow.banished_s)

    def _could_take(self, flow: Flow, before: float, weights: float) -> float:
        """Which part of its weight it has to have so that the others, who wait for it, can take together what
        it leaves of the rate `before`: how it advanced in the trial by how they then would."""
        moved = flow.tried_v / flow.cost
        left, others = before - moved, weights - 1 / flow.cost
        return flow.part * moved * flow.cost * others / left if left > 0 and others > 0 else 1.0


def _trial_of(cells: memoryview[float]) -> float:
    return float(cells[_TRIAL])
