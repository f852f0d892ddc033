"""A bounded pool of threads for the blocking floors, made for little work at each hop.

Work is given and its outcome received in the reactor's thread. Outcomes that are ready at the same time cross
in one wake-up of the reactor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

log = Logger()

Work = Callable[[], Any]
Done = Callable[[Any], None]
_Job = tuple[Work, Done]


class Failed:
    """The outcome of work that raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Pool:
    """`size` threads, started when first needed; at most `queue` jobs wait beside those that run."""

    def __init__(self, reactor: Any, size: int, queue: int, name: str = "cumulus") -> None:
        self._reactor = reactor
        self._size = size
        self._bound = size + queue
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ready: deque[tuple[Done, Any]] = deque()
        self._lock = threading.Lock()
        self._woken = False
        self._idle: list[Deferred[None]] = []
        self._stopped = False
        self.outstanding = 0

    def submit(self, work: Work, done: Done) -> bool:
        """Run `work()` in a thread and `done(outcome)` in the reactor. False, and nothing happens, when too
        much waits already."""
        if self.outstanding >= self._bound or self._stopped:
            return False
        self.must(work, done)
        return True

    def take(self) -> bool:
        """A place for a job that somebody else keeps until it is given here with others; False, and nothing
        happens, when too much waits already. `give_back` it."""
        if self.outstanding >= self._bound or self._stopped:
            return False
        self.outstanding += 1
        return True

    def give_back(self) -> None:
        """Such a job is done."""
        self.outstanding -= 1
        self._tell_idle()

    def must(self, work: Work, done: Done) -> None:
        """The same for what follows from a job that was accepted (the next buffer, giving back)."""
        self.outstanding += 1
        if len(self._threads) < self._size and self.outstanding > len(self._threads):
            self._start_thread()
        self._jobs.put((work, done))

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=self._run_thd, name=f"{self._name}-{len(self._threads)}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _run_thd(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            outcome: Any
            try:
                outcome = work()
            except BaseException as error:
                outcome = Failed(error)
            del job, work  # what it held, a buffer of an upload maybe, goes before anybody hears of the end
            self._hand_back_thd(done, outcome)
            del done, outcome

    def _hand_back_thd(self, done: Done, outcome: Any) -> None:
        with self._lock:
            self._ready.append((done, outcome))
            if self._woken:
                return
            self._woken = True
        self._reactor.callFromThread(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._woken = False
            ready = list(self._ready)
            self._ready.clear()
        for done, outcome in ready:
            self.outstanding -= 1
            try:
                done(outcome)
            except Exception:
                log.failure("a request's next step failed")
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self.outstanding == 0 and self._idle:
            waiting, self._idle = self._idle, []
            for deferred in waiting:
                deferred.callback(None)

    def when_idle(self) -> Deferred[None]:
        """Fires when nothing runs or waits."""
        deferred: Deferred[None] = Deferred()
        if self.outstanding == 0:
            deferred.callback(None)
        else:
            self._idle.append(deferred)
        return deferred

    def stop(self, wait_s: float = 5.0) -> None:
        """End the threads; each is waited for up to `wait_s` (one that hangs in a system call is left)."""
        self._stopped = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(wait_s)
        self._threads.clear()
