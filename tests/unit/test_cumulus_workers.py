"""Worker processes: starting them when the system has no room for one, and what they say."""

from __future__ import annotations

import errno
import os
import socket
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from cumulus.config import parse_config
from cumulus.http.control import Control
from cumulus.http.metrics import Metrics, Sample
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
