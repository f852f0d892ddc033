"""Starting worker processes when the system has no room for one."""

from __future__ import annotations

import errno
import os
import socket
from itertools import pairwise
from typing import Any

from twisted.internet.task import Clock

from cumulus.http.workers import WorkerPool


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
