"""Worker processes of one server: started with the listening socket, watched, started again after a failure,
ended by their process ids.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from cumulus.http.control import Control, adopt
from cumulus.http.metrics import Sample, fewer_users, lasting, total
from sector.errors import SectorError

log = Logger()

LISTENER_FD: Final = 3
CONTROL_FD: Final = 4
SHARES_FD: Final = 5
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_STABLE_S: Final = 30.0
_KILL_S: Final = 30.0  # after a request to end, of a worker that does not answer
ASK_S: Final = 10.0  # how often each is asked whether it is alive, whoever else asks
HANGS_S: Final = 20.0  # for which it may leave that unanswered


class _Watched(ProcessProtocol):
    def __init__(self, ended: Callable[[Any], None]) -> None:
        self._ended = ended

    def processEnded(self, reason: Any) -> None:
        self._ended(reason)


class Worker:
    """One place for a worker process, and who is in it now."""

    def __init__(self, pool: WorkerPool, number: int) -> None:
        self._pool = pool
        self._number = number
        self._pause_s = _FIRST_PAUSE_S
        self._began = 0.0
        self._questions: list[Deferred[Sample | None]] = []
        self._process: Any = None
        self._last_pid = 0
        self._control: Control | None = None
        self._timer: Any = None
        self._killer: Any = None
        self._last: Sample | None = None  # what the process that is in it has said last
        self._before: Sample | None = None  # what those before it have counted, as far as it is known
        self.ready = False
        self.ended: Deferred[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start a process; when the system has no room for one, later again."""
        self._timer = None
        try:
            self._start()
        except OSError as error:
            log.error(
                "worker {number} cannot be started: {why}; again in {pause} s",
                number=self._number,
                why=str(error),
                pause=self._pause_s,
            )
            self._start_later()

    def _start_later(self) -> None:
        self._timer = self._pool.reactor.callLater(self._pause_s, self.start)
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)

    def _start(self) -> None:
        pool = self._pool
        self._began = pool.reactor.seconds()
        ours, theirs = socket.socketpair()
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        # it tells the head that it is ready, not the service manager
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        fds = {0: null, 1: 1, 2: 2, LISTENER_FD: pool.listener.fileno(), CONTROL_FD: theirs.fileno()}
        fds |= pool.fds
        try:
            self._process = pool.reactor.spawnProcess(
                _Watched(self._has_ended), pool.command[0], pool.command, env=environment, childFDs=fds
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(null)
        self._last_pid = self._process.pid
        control = Control(self._heard, lambda: self._lost(control))
        self._control = adopt(pool.reactor, ours, control)
        self._control.say(settings=pool.settings, worker=self._number, **pool.more())

    def _heard(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.ready = True
            self._pool.one_is_ready()
        elif "failed" in message:
            self._pool.one_failed(str(message["failed"]))
        elif "sample" in message and self._questions:
            self._last = self._pool.named(msgspec.convert(message["sample"], Sample, str_keys=True))
            self._questions.pop(0).callback(self._last)

    def _lost(self, control: Control) -> None:
        if control is self._control:  # not that of the process before, whose end is heard late
            self._silent()

    def _silent(self) -> None:
        self._control = None
        questions, self._questions = self._questions, []
        for question in questions:
            question.callback(None)

    def _has_ended(self, reason: Any) -> None:
        pool, pid = self._pool, self._last_pid
        self._process, self.ready = None, False
        self._silent()  # what it has said before may still be read
        self._keep()
        if self._killer is not None:
            self._killer.cancel()
            self._killer = None
        pool.gone(self._number)
        if self.ended is not None:
            self.ended.callback(None)
            return
        if pool.reactor.seconds() - self._began >= _STABLE_S:
            self._pause_s = _FIRST_PAUSE_S
        log.error(
            "worker {number} (process {pid}) ended: {why}; another starts in {pause} s",
            number=self._number,
            pid=pid,
            why=reason.getErrorMessage(),
            pause=self._pause_s,
        )
        self._start_later()

    def _keep(self) -> None:
        """What the process that has ended had counted is not to be taken back."""
        last, self._last = self._last, None
        if last is not None:
            known = [self._before] if self._before is not None else []
            self._before = total([*known, lasting(last)])

    def counted(self) -> list[Sample]:
        """What the processes in this place have counted, the one that runs as it said last."""
        return [one for one in (self._before, self._last) if one is not None]

    def ask(self, patience_s: float = 0.0) -> Deferred[Sample | None]:
        """Its counters; None when it does not answer in `patience_s`, or `answer_s` of the pool."""
        answer: Deferred[Sample | None] = Deferred()
        if self._control is None or not self.ready:
            answer.callback(None)
            return answer
        self._questions.append(answer)
        self._control.say(do="sample")
        half_s = (patience_s or self._pool.answer_s) / 2
        timers: list[Any] = []

        def wait(then: Callable[[], None]) -> None:
            timers.append(self._pool.reactor.callLater(half_s, then))

        def settle(value: Sample | None) -> Sample | None:
            for timer in timers:
                if timer.active():
                    timer.cancel()
            return value

        wait(lambda: wait(self._late))  # if this process stood still, what came meanwhile is read first
        return answer.addBoth(settle)

    def _late(self) -> None:
        """It hangs: what it answers later would fit no question."""
        log.warn("worker {number} (process {pid}) does not answer", number=self._number, pid=self.pid)
        if self._control is not None:
            self._control.close()
        self.ready = False
        self._silent()
        self.signal(signal.SIGTERM)
        if self._killer is None:
            self._killer = self._pool.reactor.callLater(_KILL_S, self._kill)

    def _kill(self) -> None:
        """A reactor that is stuck hears no signal that can be handled."""
        self._killer = None
        log.warn("worker {number} (process {pid}) is killed", number=self._number, pid=self.pid)
        self.signal(signal.SIGKILL)

    def reload(self) -> None:
        """Have it read again what can be read again."""
        if self._control is not None:  # one that has not begun hears it when it does
            self._control.say(do="reload")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process, if it has one."""
        if self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def stop(self) -> Deferred[None]:
        """Have it finish and end; fires when its process is gone."""
        self.ended = Deferred()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._process is None:
            self.ended.callback(None)
        else:
            self.signal(signal.SIGTERM)
        return self.ended


class WorkerPool:
    """`count` processes of `command`, which find the listening socket and the control socket at the
    descriptors named here. `settings` is what each is told first (plain JSON), with what `more` gives when
    it is started. One that does not answer a question for `answer_s` is ended and replaced. They inherit
    `fds` too (theirs -> ours); `gone(number)` is called when one has ended. In all processes that ever run
    `metrics_users` for each place have counters of their own."""

    def __init__(
        self,
        reactor: Any,
        command: Sequence[str],
        listener: socket.socket,
        settings: Any,
        count: int,
        answer_s: float = 2.0,
        fds: Mapping[int, int] | None = None,
        gone: Callable[[int], None] = lambda number: None,
        metrics_users: int = 100,
        more: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._most_users = count * metrics_users
        self._users: dict[str, None] = {}  # who have counters of their own
        self.fds = dict(fds or {})
        self.gone = gone
        self.more = more
        self.reactor = reactor
        self.command = list(command)
        self.listener = listener
        self.settings = settings
        self.answer_s = answer_s
        self.workers = [Worker(self, number) for number in range(count)]
        self.ready: Deferred[None] = Deferred()
        self._watch = LoopingCall(self._ask_all)
        self._watch.clock = reactor

    def start(self) -> None:
        """Start all; `ready` fires when each has said so, or fails with what the first says is wrong."""
        for worker in self.workers:
            worker.start()
        self._watch.start(ASK_S, now=False)

    def _ask_all(self) -> None:
        for worker in self.workers:
            worker.ask(HANGS_S)

    def one_is_ready(self) -> None:
        """A worker serves."""
        if not self.ready.called and all(worker.ready for worker in self.workers):
            self.ready.callback(None)

    def one_failed(self, text: str) -> None:
        """A worker cannot serve."""
        log.error("a worker cannot start: {text}", text=text)
        if not self.ready.called:
            self.ready.errback(SectorError(f"a worker cannot start: {text}"))

    @property
    def up(self) -> int:
        """Workers that serve now."""
        return sum(worker.ready for worker in self.workers)

    async def samples(self) -> list[Sample]:
        """The counters of all that answer."""
        answers = await DeferredList([worker.ask() for worker in self.workers])
        return [sample for _fine, sample in answers if isinstance(sample, Sample)]

    async def counted(self) -> list[Sample]:
        """What all processes have counted since the service began, also those that have ended (as they said
        last) and those that do not answer now: who reads counters takes one that falls for a new one."""
        await self.samples()
        return [sample for worker in self.workers for sample in worker.counted()]

    def named(self, sample: Sample) -> Sample:
        """With counters of those users who have some of their own, whatever processes have ended since."""
        return fewer_users(sample, self._most_users, self._users)

    def reload(self) -> None:
        """Tell all."""
        for worker in self.workers:
            worker.reload()

    async def stop(self, wait_s: float) -> None:
        """End all; those that have not ended after `wait_s` are killed."""
        if self._watch.running:
            self._watch.stop()
        waiting = DeferredList([worker.stop() for worker in self.workers])
        late = self.reactor.callLater(wait_s, self._kill)
        await waiting
        if late.active():
            late.cancel()

    def _kill(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
