"""Kills (-9) one worker of every job while 30 to 70 % of the job's segments are done and the worker is surely
in the middle of a segment.

A program of its own, since it uses the blocking API. It holds the workers of a job with SIGSTOP and lets
them go on for moments only, until the count of done segments is in the window; then it kills one that
`job show` still has at a segment, though it was stopped long enough for anything it had said to be heard.
Prints a line of JSON for each victim; ends when its standard input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

import sector
from sector.wire.sphere import JobList, JobShow

MOMENT_S = 0.05  # how long workers go on between two looks
GLANCE_S = 0.03  # a new worker needs much longer for its imports
SETTLE_S = 0.4  # more than the quarter of a second after which a driver tells the master of a change
LOOKS_MOST = 200


class Job:
    """One job that is held: its workers stand still except in `go_on`."""

    def __init__(self, cloud: sector.Cloud, name: str) -> None:
        self.cloud = cloud
        self.name = name
        self.held: set[int] = set()

    def look(self) -> Any:
        """What `job show` says once everything stands still: each worker is stopped, also those that started
        meanwhile (long before their first segment), and nothing has changed for a while."""
        last, since = None, 0.0
        while True:
            shown = self.cloud.call(JobShow(self.name))
            if shown.state != "running":
                return shown
            news = {spe.pid for spe in shown.spes} - self.held
            for pid in news:
                self.signal(pid, signal.SIGSTOP)
            self.held |= news
            facts = (shown.counts.done, sorted((spe.pid, spe.segment) for spe in shown.spes))
            if facts != last:
                last, since = facts, time.monotonic()
            elif time.monotonic() - since > SETTLE_S:
                return shown
            time.sleep(GLANCE_S)

    @staticmethod
    def counted(shown: Any) -> float:
        """The fraction of segments that are done."""
        return shown.counts.done / shown.counts.total if shown.counts.total else 0.0

    def go_on(self) -> None:
        """Let all workers run for a moment."""
        for pid in self.held:
            self.signal(pid, signal.SIGCONT)
        time.sleep(MOMENT_S)
        for pid in self.held:
            self.signal(pid, signal.SIGSTOP)

    def release(self) -> None:
        """Let all workers run again."""
        for pid in self.held:
            self.signal(pid, signal.SIGCONT)

    def kill(self, victim: Any, shown: Any) -> None:
        """The kill, and a line that says so."""
        os.kill(victim.pid, signal.SIGKILL)
        facts = {"job": self.name, "pid": victim.pid, "segment": victim.segment}
        print(json.dumps(facts | {"done": shown.counts.done, "total": shown.counts.total}), flush=True)

    @staticmethod
    def signal(pid: int, number: int) -> None:
        """A worker may be gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def hunt(self) -> None:
        """Kill one worker in the window; a line also says if the job was over too soon."""
        try:
            for _ in range(LOOKS_MOST):
                shown = self.look()
                part = self.counted(shown)
                if shown.state != "running" or part > 0.7:
                    print(json.dumps({"job": self.name, "missed": part}), flush=True)
                    return
                busy = [spe for spe in shown.spes if spe.segment >= 0]
                if busy and part >= 0.3:
                    self.kill(busy[0], shown)
                    return
                self.go_on()
        finally:
            self.release()


def main(cloud: sector.Cloud) -> None:
    """Watch for jobs until standard input ends."""
    known: set[str] = set()
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        for job in cloud.call(JobList()).jobs:
            if job.id not in known and job.state == "running":
                known.add(job.id)
                Job(cloud, job.id).hunt()


if __name__ == "__main__":
    with sector.connect() as connected:
        main(connected)
