"""What a trial of waiting for somebody is found to have cost."""

from __future__ import annotations

from itertools import pairwise

from cumulus.fair.trials import DOUBT_S, FREE_S, LONGEST_S, Phase, Trials, Verdict

STEP_S = 0.01


class Server:
    """Time passes for the trials, and bytes by what is said."""

    def __init__(self) -> None:
        self.trials = Trials()
        self.now = 50.0
        self.moved = 0.0
        self.holds = 0.0
        self.newest = 50.0  # somebody came: trials are compared with what is moved while nobody waits

    def step(self, rate: float) -> None:
        self.now += STEP_S
        self.moved += rate * STEP_S
        self.holds += self.trials.running and self.trials.phase is not Phase.FREE
        self.trials.step(self.now, self.moved, self.holds, 1, True, newest=self.newest)

    def trial(self, held: float, *free: float) -> Verdict:
        """One in which `held` bytes/s are moved, and `free`, in parts of one length, while nobody waits."""
        for _ in range(5000):
            self.step(1e9)
            if self.trials.running:
                break
        self.newest = self.now
        while self.trials.phase is not Phase.FREE:
            assert self.trials.running
            self.step(held)
        began = self.now
        while self.trials.running:
            self.step(free[min(len(free) - 1, int((self.now - began) / FREE_S * len(free)))])
        return self.trials.verdict


def test_buffers_that_fill_are_not_taken_for_a_faster_server() -> None:
    """Whoever waited is given at once what his empty buffers hold."""
    assert Server().trial(0.9e9, 2e9, 1e9) is Verdict.GOOD


def test_what_goes_badly_once_is_tried_again() -> None:
    server = Server()
    assert server.trial(0.6e9, 1e9) is Verdict.VOID
    again = server.now
    assert server.trial(0.9e9, 1e9) is Verdict.GOOD
    assert server.now - again < 2 * (LONGEST_S + FREE_S)
    assert server.trial(0.6e9, 1e9) is Verdict.VOID  # what was doubted then is forgotten
    server.now += DOUBT_S
    assert server.trial(0.6e9, 1e9) is Verdict.VOID


def test_what_goes_badly_twice_is_bad_and_the_next_trial_waits_for_the_cost_of_both() -> None:
    server = Server()
    assert server.trial(0.6e9, 1e9) is Verdict.VOID
    assert server.trial(0.6e9, 1e9) is Verdict.BAD
    ended = server.now
    server.trial(0.9e9, 1e9)
    assert server.now - ended > 10 * 2 * LONGEST_S * 0.4


def test_what_stops_the_server_needs_no_second_trial() -> None:
    assert Server().trial(0.1e9, 1e9) is Verdict.BAD


def test_pauses_after_bad_trials_grow() -> None:
    server = Server()
    ends = []
    for _ in range(4):
        assert server.trial(0.1e9, 1e9) is Verdict.BAD
        ends.append(server.now)
    pauses = [later - sooner for sooner, later in pairwise(ends)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2 * pauses[0]
