"""How many threads a service has."""

from __future__ import annotations

import subprocess
import sys

SERVICE = """
import os
from types import SimpleNamespace
from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from sector.config import LogSection
from sector.daemon import run_service

def threads():
    return len(os.listdir("/proc/self/task"))

class Service:
    running = True

    def startService(self):
        reactor.callLater(0, self.count)

    def count(self):
        import time
        first = threads()
        for _ in range(5):
            deferToThread(time.sleep, 0.05)
        print(first, threads(), flush=True)
        reactor.stop()

    def stopService(self):
        self.running = False

async def make(reactor):
    return Service()

run_service(SimpleNamespace(log=LogSection()), make, name="x")
"""


def test_a_service_has_all_its_threads_from_its_start() -> None:
    """What runs at the same time later adds none."""
    done = subprocess.run(
        [sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=60, check=True
    )
    first, later = done.stdout.split()
    assert first == later, done.stderr
