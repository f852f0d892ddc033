"""Worker processes: starting them when the system has no room for one, and what they say."""

from __future__ import annotations

import errno
import os
import socket
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from cumulus.config import parse_config
from cumulus.http.control import Control
from cumulus.http.metrics import Metrics, Sample, total
from cumulus.http.workers import WorkerPool
from sector.errors import BadConfig


class Full(Clock):
    """A reactor that cannot fork."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: list[float] = []

    def spawnProcess(self, *_words: Any, **_options: Any) -> Any:
        """As fork(2) when there are too many processes."""
        self.tries.append(self.seconds())
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_worker_that_cannot_be_forked_is_tried_again_and_again() -> None:
    """Ever more seldom, and no descriptor is left from a try."""
    reactor = Full()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool = WorkerPool(reactor, ["none"], listener, {}, 1)
        before = len(os.listdir("/proc/self/fd"))
        pool.start()
        reactor.pump([0.1] * 400)
        assert len(os.listdir("/proc/self/fd")) == before
    pauses = [b - a for a, b in pairwise(reactor.tries)]
    assert len(pauses) > 5 and all(a <= b + 0.2 for a, b in pairwise(pauses))
    assert pauses[-1] < 11


def test_the_counters_of_as_many_users_as_there_may_be_arrive() -> None:
    """With the longest names and large figures. Each end took a longer line for a fault, and left."""
    most = 10_000
    with pytest.raises(BadConfig):  # no more
        parse_config(f"[admin]\nmetrics_users = {most + 1}\n", "cumulus.toml")
    metrics = Metrics(most)
    for number in range(most):
        metrics.of_user(f"{number:05}" + "\U0001d51e" * 59, 2**60, 2**60)
    heard: list[dict[str, Any]] = []
    lost: list[str] = []
    worker, head = (
        Control(heard.append, lambda: lost.append("worker")),
        Control(heard.append, lambda: lost.append("head")),
    )
    said = StringTransport()
    worker.makeConnection(said)
    head.makeConnection(StringTransport())
    worker.say(sample=msgspec.to_builtins(metrics.sample(), str_keys=True))
    line = said.value()
    for at in range(0, len(line), 1 << 16):  # as it comes from a socket
        head.dataReceived(line[at : at + (1 << 16)])
    assert not lost and not getattr(head.transport, "disconnecting", False)
    found = msgspec.convert(heard[0]["sample"], Sample, str_keys=True)
    assert len(found.users) == most


def test_no_counter_falls_when_workers_end_again_and_again() -> None:
    """Each process has other users; who came first keep counters of their own, and how many is bounded."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool = WorkerPool(Full(), ["none"], listener, {}, 2, metrics_users=3)
    before: dict[str, tuple[int, int, int]] = {}
    for turn in range(6):
        for number, worker in enumerate(pool.workers):
            metrics = Metrics(3)
            for _ in range(2):
                for name in range(5):
                    metrics.of_user(f"{turn + number}-{name}", 10, 1)
                worker._questions.append(Deferred())
                said = msgspec.to_builtins(metrics.sample(), str_keys=True)
                worker._heard({"sample": said})
                now = total(sample for each in pool.workers for sample in each.counted()).users
                assert all(a >= b for name in before for a, b in zip(now[name], before[name], strict=True))
                before = now
            worker._keep()
    assert len(before) == 2 * 3 + 1
    assert sum(count[0] for count in before.values()) == 6 * 2 * 2 * 5
