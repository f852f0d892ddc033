"""Slave side of the workers: start, limit, feed, time out and kill them (spec/sphere.md, "Workers").

At most `slots` worker processes; a worker serves one job and is kept for its next segment. Waiting segments
of several jobs take turns. A function that fails gives a `Fault`; a worker that is lost without fault of
the function (killed from outside, silent) raises `Unavailable`, so that another SPE tries.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector.clear import clear_thd
from sector.clock import Timer
from sector.errors import Busy, Cancelled, SectorError, Unavailable
from sector.sphere import channel
from sector.sphere.keeper import Reader, SpawnerKeeper
from sector.sphere.spawner import Spawner
from sector.sphere.tasks import Done, Fault, Outcome, Progress, Task, WorkerLimits, pick_user
from sector.sphere.udf import DTYPE_MAX
from sector.wire.sphere import SpeState, UdfFault

log = Logger()
LOG_KEEP = 64 << 10
LOG_SHOWN = 8000
DUMP_HEAD = "Fatal Python error: "
FLOOD_BYTES, FLOOD_S = 256 << 10, 0.05
"""A function that prints more at a time waits for so long: nobody sees more than the end of it."""
START_S = 60.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
OUTSIDE_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


@dataclass(eq=False)
class _Waiting:
    task: Task
    result: Deferred[Outcome]
    progress: Progress


@dataclass(eq=False)
class _Worker:
    number: int
    job: str
    scratch: str
    sock: socket.socket
    out: int
    printed: int = 0
    printed_at: float = 0.0
    pause: Timer | None = None
    readers: list[Reader] = field(default_factory=list)
    pid: int = 0
    ready: bool = False
    loaded: str = ""
    current: _Waiting | None = None
    begun: float = 0.0
    heard: float = 0.0
    cpu: float = -1.0
    fraction: float = 0.0
    tail: bytearray = field(default_factory=bytearray)
    verdict: str = ""
    idle_since: float = 0.0
    gone: bool = False


class Supervisor:
    """All workers of a slave."""

    def __init__(
        self, reactor: Any, spawner: Spawner, *, slots: int, scratch: str, limits: WorkerLimits
    ) -> None:
        self.reactor = reactor
        self.slots = max(1, slots)
        self.scratch = scratch
        self.limits = limits
        self.uid, self.gid = pick_user(limits.user)
        self.workers: dict[int, _Worker] = {}
        self.queues: dict[str, deque[_Waiting]] = {}
        self.turn: deque[str] = deque()
        self.broken = ""
        self._next = 0
        self._told = False
        self._timer: Timer | None = None
        self._watchers: list[Callable[[str], None]] = []
        self._keeper = SpawnerKeeper(reactor, spawner, self._from_spawner, self._break, self._mend)
        clear_thd(scratch)
        os.makedirs(scratch, mode=0o711)
        os.chmod(scratch, 0o711)

    # -- for the slave ---------------------------------------------------------------------------
    @property
    def busy(self) -> int:
        """Segments that run now."""
        return sum(1 for worker in self.workers.values() if worker.current is not None)

    def waiting(self, job: str | None = None) -> int:
        """Segments that wait for a worker."""
        return sum(len(queue) for name, queue in self.queues.items() if job in (None, name))

    def run(self, task: Task, progress: Progress) -> Deferred[Outcome]:
        """Run a segment when its turn comes. `progress(fraction, pid)` about once a second, also while it
        waits (pid 0). Errbacks with `Unavailable`, `Busy`, `Cancelled`, OSError (the disk does not take the
        results); cancelling kills the worker."""
        if self.broken:
            return fail(Unavailable(self.broken))
        if self.waiting(task.job) > 4 * self.slots + 8:
            return fail(Busy("too many segments of this job wait here"))
        result: Deferred[Outcome] = Deferred(lambda _: self._cancelled(entry))
        entry = _Waiting(task, result, progress)
        if task.job not in self.queues:
            self.queues[task.job] = deque()
            self.turn.append(task.job)
        self.queues[task.job].append(entry)
        self._schedule()
        return result

    def cancel(self, job: str, segment: int, attempt: int) -> bool:
        """Stop one attempt; its Deferred errbacks with `Cancelled`. False when it is not here."""
        for entry in [*self.queues.get(job, ()), *self._current(job)]:
            if entry.task.segment == segment and entry.task.attempt == attempt:
                self._drop(entry, Cancelled(f"segment {segment} was cancelled"))
                return True
        return False

    def end_job(self, job: str) -> None:
        """Kill all workers of a job; its segments end with `Cancelled`."""
        for entry in [*self.queues.get(job, ()), *self._current(job)]:
            self._drop(entry, Cancelled(f"job {job} has ended"))
        for worker in list(self.workers.values()):
            if worker.job == job:
                self._kill(worker)

    def states(self, job: str, node: str) -> list[SpeState]:
        """The worker processes of a job."""
        return [
            SpeState(node, w.pid, w.current.task.segment if w.current else -1, w.fraction)
            for w in self.workers.values()
            if w.job == job and w.pid and not w.gone
        ]

    def watch(self, changed: Callable[[str], None]) -> None:
        """`changed(why)` when no worker can be started any more, `changed("")` when it can be again."""
        self._watchers.append(changed)

    def stop(self) -> None:
        """Kill all workers and the spawner; pending segments end with `Cancelled`."""
        self.broken = "the slave stops"
        for job in list(self.queues):
            self.end_job(job)
        for worker in list(self.workers.values()):
            self._kill(worker)
            self._forget(worker)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self.queues.clear()
        self._keeper.stop()
        clear_thd(self.scratch)

    # -- choosing --------------------------------------------------------------------------------
    def _current(self, job: str) -> list[_Waiting]:
        return [w.current for w in self.workers.values() if w.job == job and w.current is not None]

    def _schedule(self) -> None:
        """Give waiting segments to workers, one job after the other."""
        if self.broken:
            return
        if self._timer is None or not self._timer.active():
            self._timer = self.reactor.callLater(1.0, self._tick)
        idle_turns = 0
        while self.turn and idle_turns < len(self.turn):
            job = self.turn[0]
            if not self.queues[job]:
                self.turn.popleft()
                del self.queues[job]
                continue
            self.turn.rotate(-1)
            worker = self._worker_for(job)
            if worker is None:
                idle_turns += 1
                continue
            idle_turns = 0
            worker.current = self.queues[job].popleft()
            worker.begun = worker.heard = self.reactor.seconds()
            worker.fraction, worker.cpu, worker.verdict = 0.0, -1.0, ""
            worker.tail.clear()
            if worker.ready:
                self._feed(worker)

    def _worker_for(self, job: str) -> _Worker | None:
        """An idle worker of the job, or a new one if a slot is free (an idle one of others makes room)."""
        idle = [w for w in self.workers.values() if w.current is None and not w.gone]
        for worker in idle:
            if worker.job == job:
                return worker
        living = [w for w in self.workers.values() if not w.gone]
        if len(living) >= self.slots:
            if not idle:
                return None
            self._kill(min(idle, key=lambda w: w.idle_since))
        return self._spawn(job)

    def _spawn(self, job: str) -> _Worker | None:
        self._next += 1
        number = self._next
        scratch = os.path.join(self.scratch, f"w{number}")
        ours, theirs = channel.pair()
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        try:
            os.mkdir(scratch, 0o700)
            if self.uid:
                os.chown(scratch, self.uid, self.gid)
            message = {"op": "spawn", "id": number, "scratch": scratch}
            self._keeper.send(message, [theirs.fileno(), write])
        except (OSError, channel.Closed) as error:
            channel.close_all([read])
            ours.close()
            self._refuse(job, f"no worker can be started: {error}")
            return None
        finally:
            theirs.close()
            os.close(write)
        ours.setblocking(False)
        worker = _Worker(number, job, scratch, ours, read)
        self.workers[number] = worker
        worker.readers = [
            Reader(ours.fileno(), lambda: self._from_worker(worker), "worker"),
            Reader(read, lambda: self._printed(worker), "worker output"),
        ]
        for reader in worker.readers:
            self.reactor.addReader(reader)
        limits = self.limits
        hello = {
            "job": job,
            "scratch": scratch,
            "memory": limits.memory,
            "file_size": limits.file_size,
            "files": limits.files,
            "processes": limits.processes,
            "cpu_s": limits.cpu_s,
            "uid": self.uid,
            "gid": self.gid,
            "network": limits.network,
        }
        channel.send(ours, hello)
        return worker

    # -- talking ---------------------------------------------------------------------------------
    def _feed(self, worker: _Worker) -> None:
        """Send the code if the worker has other code, else the segment."""
        assert worker.current is not None
        task = worker.current.task
        try:
            if worker.loaded != task.udf:
                fd = os.open(task.blob, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    channel.send(worker.sock, {"op": "load", "udf": task.udf, "segment": task.segment}, [fd])
                finally:
                    os.close(fd)
                worker.loaded = task.udf
                return
            fds = [task.output_fd]
            inputs = []
            for item in task.inputs:
                fds.append(item.fd)
                if item.index_fd >= 0:
                    fds.append(item.index_fd)
                inputs.append(
                    {
                        "path": item.path,
                        "at": item.at,
                        "offset": item.offset,
                        "length": item.length,
                        "size": item.size,
                        "record_size": item.record_size,
                        "records": item.records,
                        "indexed": item.index_fd >= 0,
                        "index_at": item.index_at,
                    }
                )
            message = {
                "op": "run",
                "udf": task.udf,
                "segment": task.segment,
                "granularity": task.granularity,
                "dtype": task.dtype,
                "buckets": task.buckets,
                "inputs": inputs,
            }
            channel.send(worker.sock, message, fds)
        except (OSError, channel.Closed, ValueError) as error:
            worker.verdict = f"the worker cannot be reached: {error}"
            self._kill(worker)

    def _from_worker(self, worker: _Worker) -> None:
        try:
            message, fds = channel.receive(worker.sock)
        except BlockingIOError:
            return
        except (channel.Closed, OSError):
            self._remove(worker, worker.readers[0])
            return  # its end is told by the spawner
        channel.close_all(fds)
        worker.heard = self.reactor.seconds()
        current = worker.current
        try:
            self._handle(worker, current, message)
        except (KeyError, TypeError, ValueError) as error:
            worker.verdict = f"the worker sent nonsense: {error!r}"
            self._kill(worker)

    def _handle(self, worker: _Worker, current: _Waiting | None, message: dict[str, Any]) -> None:
        kind = message["op"]
        if kind == "ready":
            worker.ready = True
            if not message["isolated"] and not self.limits.network and not self._told:
                self._told = True
                log.warn("the kernel gives workers no network namespace: functions can use the network")
            worker.begun = worker.heard
            if current is not None:
                self._feed(worker)
        elif kind == "beat" and current is not None:
            worker.fraction = min(1.0, max(0.0, float(message["fraction"])))
        elif kind == "loaded" and current is not None:
            self._feed(worker)
        elif kind == "done" and current is not None:
            shape = [int(n) for n in message["shape"]]
            self._drain(worker)
            done = Done(
                str(message["kind"]),
                int(message["bytes"]),
                int(message["table"]),
                int(message["pieces"]),
                int(message["row_bytes"]),
                str(message["dtype"])[:DTYPE_MAX],
                shape[:32],
                worker.pid,
                self._log_of(worker),
            )
            self._free(worker)
            current.result.callback(done)
            self._schedule()
        elif kind == "unfit" and current is not None:
            code = int(message["errno"])
            self._free(worker)
            current.result.errback(Failure(OSError(code, os.strerror(code))))
            self._schedule()
        elif kind == "fault" and current is not None:
            self._drain(worker)
            fault = UdfFault(
                current.task.segment,
                int(message["record"]),
                str(message["type"])[:250],
                str(message["message"])[:8000],
                str(message["traceback"])[:60000],
                "udf_type" if message["code"] == "udf_type" else "udf_error",
            )
            worker.loaded = ""
            self._finish(worker, current, Fault(fault, worker.pid, self._log_of(worker)))

    def _finish(self, worker: _Worker, current: _Waiting, outcome: Outcome) -> None:
        self._free(worker)
        current.result.callback(outcome)
        self._schedule()

    def _free(self, worker: _Worker) -> None:
        worker.current = None
        worker.idle_since = self.reactor.seconds()

    def _printed(self, worker: _Worker) -> None:
        """The function has printed something. One that does nothing else must not keep the slave from its
        work."""
        now = self.reactor.seconds()
        if now - worker.printed_at >= FLOOD_S:
            worker.printed, worker.printed_at = 0, now
        worker.printed += self._drain(worker, 1)
        if worker.printed >= FLOOD_BYTES and worker.pause is None:
            self._remove(worker, worker.readers[1])
            worker.pause = self.reactor.callLater(FLOOD_S, self._listen, worker)

    def _listen(self, worker: _Worker) -> None:
        worker.pause = None
        self.reactor.addReader(worker.readers[1])

    def _drain(self, worker: _Worker, times: int = 16) -> int:
        """Take what the function printed; keep the last `LOG_KEEP` bytes. How much it was."""
        took = 0
        for _ in range(times):
            try:
                data = os.read(worker.out, 65536)
            except BlockingIOError:
                return took
            except OSError:
                data = b""
            if not data:
                if len(worker.readers) > 1:
                    self._remove(worker, worker.readers[1])
                return took
            took += len(data)
            worker.tail += data
            if len(worker.tail) > LOG_KEEP:
                del worker.tail[: len(worker.tail) - LOG_KEEP]
        return took

    @staticmethod
    def _log_of(worker: _Worker) -> str:
        text = bytes(worker.tail[-LOG_SHOWN:]).decode("utf-8", "replace")
        return text

    # -- ends ------------------------------------------------------------------------------------
    def _from_spawner(self, message: dict[str, Any]) -> None:
        worker = self.workers.get(message["id"])
        if worker is None:
            return
        if message["op"] == "started":
            worker.pid = message["pid"]
            if worker.gone:
                self._kill(worker)
        else:
            self._exited(worker, message["status"], message["why"])

    def _exited(self, worker: _Worker, status: int, why: str) -> None:
        if not worker.gone:  # what it sent before it ended still counts
            worker.gone = True
            for _ in range(8):
                before = worker.current
                self._from_worker(worker)
                if before is None or worker.current is not before:
                    break
        self._drain(worker)
        current = worker.current
        worker.current = None
        self._forget(worker)
        if current is not None:
            self._report_exit(worker, current, status, why)
        self._schedule()

    def _report_exit(self, worker: _Worker, current: _Waiting, status: int, why: str) -> None:
        task, tail = current.task, self._log_of(worker)
        if worker.verdict == "timeout":
            text = f"the function ran longer than {task.timeout_s:g} s on segment {task.segment}"
            fault = UdfFault(task.segment, -1, "udf_timeout", text, tail, "udf_timeout")
            current.result.callback(Fault(fault, worker.pid, tail))
        elif worker.verdict or why:
            current.result.errback(Unavailable(worker.verdict or f"no worker could be started: {why}"))
        elif not worker.ready:
            current.result.errback(
                Unavailable(f"the worker ended at its start (status {status}): {tail[-500:]}")
            )
        elif status < 0 and -status in OUTSIDE_SIGNALS:
            name = signal.Signals(-status).name
            text = f"worker {worker.pid} was killed by {name} at segment {task.segment}"
            current.result.errback(Unavailable(text, hint="look for a lack of memory on the slave"))
        else:
            if status < 0:
                name = signal.Signals(-status).name if -status in signal.valid_signals() else str(-status)
                kind, text = "signal", f"it crashed its worker process ({name})"
            else:
                kind, text = "exit", f"it ended its worker process with exit status {status}"
            printed, dump = _cut_dump(bytes(worker.tail).decode("utf-8", "replace"))
            fault = UdfFault(task.segment, -1, kind, text, dump)
            current.result.callback(Fault(fault, worker.pid, printed[-LOG_SHOWN:]))

    def _cancelled(self, entry: _Waiting) -> None:
        self._drop(entry, Cancelled(f"segment {entry.task.segment} was cancelled"))

    def _drop(self, entry: _Waiting, error: SectorError) -> None:
        queue = self.queues.get(entry.task.job)
        if queue is not None and entry in queue:
            queue.remove(entry)
        for worker in list(self.workers.values()):
            if worker.current is entry:
                worker.current = None
                self._kill(worker)
        if not entry.result.called:
            entry.result.errback(Failure(error))
        if not self.broken:
            self.reactor.callLater(0, self._schedule)

    def _kill(self, worker: _Worker) -> None:
        """Ask the spawner, its parent, to kill it; the exit message follows."""
        worker.gone = True
        with contextlib.suppress(channel.Closed, OSError):
            self._keeper.send({"op": "kill", "id": worker.number})

    def _remove(self, worker: _Worker, reader: Reader) -> None:
        self.reactor.removeReader(reader)

    def _forget(self, worker: _Worker) -> None:
        if self.workers.pop(worker.number, None) is None:
            return
        for reader in worker.readers:
            self._remove(worker, reader)
        if worker.pause is not None and worker.pause.active():
            worker.pause.cancel()
        worker.sock.close()
        os.close(worker.out)
        worker.out = -1
        # a function may have left a million files
        self.reactor.callInThread(clear_thd, worker.scratch)

    def _refuse(self, job: str, why: str) -> None:
        """What waits of a job goes elsewhere."""
        queue = self.queues.get(job, deque())
        pending = list(queue)
        queue.clear()
        for entry in pending:
            if not entry.result.called:
                entry.result.errback(Failure(Unavailable(why)))

    def _break(self, why: str) -> None:
        """The spawner is gone and its workers with it."""
        self.broken = why
        current = [w.current for w in self.workers.values() if w.current is not None]
        for worker in list(self.workers.values()):
            worker.current = None
            self._forget(worker)
        for changed in self._watchers:
            changed(why)
        for job in list(self.queues):
            self._refuse(job, why)
        for entry in current:
            if not entry.result.called:
                entry.result.errback(Failure(Unavailable(why)))

    def _mend(self) -> None:
        """There is another spawner."""
        self.broken = ""
        for changed in self._watchers:
            changed("")
        self._schedule()

    # -- time ------------------------------------------------------------------------------------
    def _tick(self) -> None:
        now = self.reactor.seconds()
        for worker in list(self.workers.values()):
            if worker.gone:
                continue
            current = worker.current
            if current is None:
                if now - worker.idle_since > self.limits.idle_s:
                    self._kill(worker)
                continue
            self._check_time(worker, current, now)
        for queue in list(self.queues.values()):
            for entry in list(queue):
                entry.progress(0.0, 0)
        if self.workers or self.queues:
            self._timer = self.reactor.callLater(1.0, self._tick)

    def _check_time(self, worker: _Worker, current: _Waiting, now: float) -> None:
        limit = current.task.timeout_s
        if worker.ready and limit and now - worker.begun > limit:
            worker.verdict = "timeout"
            self._kill(worker)
            return
        if not worker.ready and now - worker.begun > START_S:
            worker.verdict = f"the worker did not start within {START_S:g} s"
            self._kill(worker)
            return
        if now - worker.heard > self.limits.silence_s:
            used = _cpu_seconds(worker.pid)
            if used <= worker.cpu:
                worker.verdict = f"worker {worker.pid} was silent for {self.limits.silence_s:g} s"
                self._kill(worker)
                return
            worker.cpu = used
            worker.heard = now
        current.progress(worker.fraction, worker.pid)


def _cut_dump(text: str) -> tuple[str, str]:
    """(what the function printed, the crash dump of faulthandler behind it or "")."""
    at = text.rfind(DUMP_HEAD)
    return (text, "") if at < 0 else (text[:at], text[at:])


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process so far; 0 when unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
    except (OSError, IndexError, ValueError):
        return 0.0
