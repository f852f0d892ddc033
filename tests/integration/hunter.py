"""Kills (-9) one busy worker of every running job when 30 to 70 % of its segments are done, once per stage.

A program of its own, since it uses the blocking API. Prints the pid of each victim; ends when its standard
input ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Any

import sector
from sector.wire.sphere import JobList, JobShow


def hunt(cloud: sector.Cloud) -> None:
    """Watch all jobs until standard input ends."""
    stages: set[tuple[str, int]] = set()
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        for job in cloud.call(JobList()).jobs:
            key = (job.id, job.stage)
            if job.state == "running" and key not in stages and in_window(job):
                shown = cloud.call(JobShow(job.id))
                if in_window(shown) and kill_one(shown):
                    stages.add(key)


def in_window(job: Any) -> bool:
    """Whether 30 to 70 % of the segments are done."""
    return bool(job.counts.total) and 0.3 <= job.counts.done / job.counts.total <= 0.7


def kill_one(job: Any) -> bool:
    """Kill a busy worker of the job."""
    for spe in job.spes:
        if spe.pid and spe.segment >= 0:
            try:
                os.kill(spe.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            print(spe.pid, flush=True)
            return True
    return False


if __name__ == "__main__":
    with sector.connect() as connected:
        hunt(connected)
