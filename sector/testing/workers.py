"""Workers of a simulated slave: user functions run in this process, segments take simulated time."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, fail

from sector.clock import Clock, Timer
from sector.errors import Cancelled, Unavailable
from sector.sphere import records, udf
from sector.sphere.output import BucketOutput, PlainOutput
from sector.sphere.tasks import Done, Fault, Outcome, Progress, Task
from sector.sphere.worker import load_blob
from sector.wire.sphere import SpeState, UdfFault


@dataclass(eq=False)
class _Running:
    task: Task
    result: Deferred[Outcome]
    progress: Progress
    timer: Timer | None = None
    pid: int = 0


class SimWorkers:
    """Implements `sector.sphere.tasks.Workers` on a simulated clock. `seconds(task)` says how long a segment
    takes; `kill()` ends a running worker as kill -9 does; `break_down()` the process that starts them."""

    def __init__(self, clock: Clock, slots: int, seconds: Callable[[Task], float]) -> None:
        self.clock = clock
        self.slots = slots
        self.seconds = seconds
        self.active: list[_Running] = []
        self.queue: list[_Running] = []
        self.stopped = False
        self.broken = ""
        self._watchers: list[Callable[[str], None]] = []
        self._pid = 1000

    @property
    def busy(self) -> int:
        return len(self.active)

    def run(self, task: Task, progress: Progress) -> Deferred[Outcome]:
        if self.broken:
            return fail(Unavailable(self.broken))
        entry: _Running
        result: Deferred[Outcome] = Deferred(lambda _: self._drop(entry))
        entry = _Running(task, result, progress)
        self.queue.append(entry)
        self._next()
        return result

    def _next(self) -> None:
        while self.queue and len(self.active) < self.slots and not self.stopped:
            entry = self.queue.pop(0)
            self._pid += 1
            entry.pid = self._pid
            self.active.append(entry)
            entry.timer = self.clock.callLater(self.seconds(entry.task), self._finish, entry)
            entry.progress(0.0, entry.pid)

    def _finish(self, entry: _Running) -> None:
        self.active.remove(entry)
        try:
            outcome: Outcome = _call(entry.task, entry.pid)
        except Exception as error:
            trace = traceback.format_exc()
            fault = UdfFault(entry.task.segment, -1, type(error).__name__, str(error), trace)
            outcome = Fault(fault, entry.pid, "")
        self._next()
        entry.result.callback(outcome)

    def _drop(self, entry: _Running) -> None:
        if entry in self.queue:
            self.queue.remove(entry)
        if entry in self.active:
            self.active.remove(entry)
            assert entry.timer is not None
            entry.timer.cancel()

    def kill(self) -> bool:
        """End one running worker; its segment is lost. False when none runs."""
        if not self.active:
            return False
        entry = self.active[0]
        self._drop(entry)
        self._next()
        entry.result.errback(Unavailable(f"worker {entry.pid} was killed by SIGKILL"))
        return True

    def watch(self, changed: Callable[[str], None]) -> None:
        self._watchers.append(changed)

    def break_down(self, why: str) -> None:
        """All workers are lost and none can be started for now; "" = again they can."""
        self.broken = why
        for entry in [*self.active, *self.queue] if why else []:
            self._drop(entry)
            entry.result.errback(Unavailable(why))
        for changed in self._watchers:
            changed(why)

    def cancel(self, job: str, segment: int, attempt: int) -> bool:
        for entry in [*self.active, *self.queue]:
            task = entry.task
            if (task.job, task.segment, task.attempt) == (job, segment, attempt):
                self._drop(entry)
                entry.result.errback(Cancelled("cancelled"))
                self._next()
                return True
        return False

    def end_job(self, job: str) -> None:
        for entry in [*self.active, *self.queue]:
            if entry.task.job == job:
                self._drop(entry)
                entry.result.errback(Cancelled("the job has ended"))

    def states(self, job: str, node: str) -> list[SpeState]:
        return [SpeState(node, e.pid, e.task.segment, 0.0) for e in self.active if e.task.job == job]

    def stop(self) -> None:
        self.stopped = True
        for entry in [*self.active, *self.queue]:
            self._drop(entry)
            entry.result.errback(Cancelled("the slave stops"))


@dataclass
class SimSpawner:
    """Stands for `sector.sphere.spawner.Spawner` in a simulated slave."""

    seconds: Callable[[Task], float] = lambda task: 0.5
    made: SimWorkers | None = None

    def workers(self, reactor: Any, slots: int, scratch: str, limits: Any) -> SimWorkers:
        """The workers of the slave."""
        self.made = SimWorkers(reactor, slots, self.seconds)
        return self.made


def _call(task: Task, pid: int) -> Done:
    with open(task.blob, "rb") as file:
        blob = load_blob(file)
    views = []
    for item in task.inputs:
        data = memoryview(os.pread(item.fd, item.length, item.at))
        offsets = None
        if item.index_fd >= 0:
            raw = os.pread(item.index_fd, 8 * (item.records + 1), item.index_at)
            offsets = records.decode(raw) - item.offset
        views.append(udf.View(data, item.path, item.offset, offsets, item.record_size))
    with tempfile.TemporaryDirectory(prefix="sphere-") as scratch:
        sink: PlainOutput | BucketOutput = (
            BucketOutput(task.output_fd, task.buckets, scratch)
            if task.buckets
            else PlainOutput(task.output_fd)
        )
        ctx = udf.Context(
            job=task.job,
            segment=task.segment,
            params=blob.get("params"),
            scratch=scratch,
            buckets=task.buckets,
            sink=sink,
        )
        udf.run(blob["function"], views, ctx, granularity=task.granularity, dtype=task.dtype)
        done = sink.finish()
    return Done(
        done.kind, done.bytes, done.table, done.pieces, done.row_bytes, done.dtype, done.shape, pid, ""
    )
