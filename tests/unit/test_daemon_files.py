"""What a service may open."""

from __future__ import annotations

import resource
import subprocess
import sys

SERVICE = """
import resource
from types import SimpleNamespace
from twisted.internet import reactor
from sector.config import LogSection
from sector.daemon import run_service

class Service:
    running = True

    def startService(self):
        print(*resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
        reactor.callLater(0, reactor.stop)

    def stopService(self):
        self.running = False

async def make(reactor):
    return Service()

run_service(SimpleNamespace(log=LogSection()), make, name="x")
"""


def test_a_service_may_have_as_many_files_open_as_the_system_allows_it() -> None:
    """Its connections alone are more than the usual 1,024."""
    done = subprocess.run(
        [sys.executable, "-c", SERVICE],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048)),
    )
    assert done.stdout == "2048 2048\n", done.stderr
