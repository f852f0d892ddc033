"""A bounded pool of threads for the blocking floors, made for little work at each hop.

Work is given and its outcome received in the reactor's thread. Outcomes that are ready at the same time cross
in one wake-up of the reactor.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

log = Logger()

Work = Callable[[], Any]
Done = Callable[[Any], None]
_Job = tuple[Work, Done, bool]
_SPARE: Final = 8  # one of so many threads is for reading alone


class _Hand:
    """How a thread is woken; `thread` has still to be started."""

    __slots__ = ("thread", "wake")

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class Failed:
    """The outcome of work that raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Pool:
    """`size` threads, started when first needed; at most `queue` jobs wait beside those that run.

    One thread is woken at a time, the one that has been idle for the shortest time; it wakes the next if
    there is more than it takes. So jobs that are done at once are done by one thread after the other.

    Jobs that change something never have all threads of a pool that `reads`: what all of them may have to
    wait for (a database that somebody has locked, a disk) keeps nobody from reading.
    """

    def __init__(
        self, reactor: Any, size: int, queue: int, name: str = "cumulus", *, reads: bool = True
    ) -> None:
        self._reactor = reactor
        self._size = size
        self._bound = size + queue
        self._name = name
        self._jobs: deque[_Job] = deque()
        self._held: deque[_Job] = deque()  # those that change something and have to wait for others
        self._changing = 0  # threads at such jobs
        self._changers = max(1, size - max(1, size // _SPARE)) if reads else size  # at most
        self._hands: list[_Hand] = []  # of the idle threads
        self._coming = False  # a thread was woken and has not taken a job yet
        self._threads: list[threading.Thread] = []
        self._ready: deque[tuple[Done, Any]] = deque()
        self._lock = threading.Lock()
        self._woken = False
        self._idle: list[Deferred[None]] = []
        self._stopped = False
        self.outstanding = 0

    def submit(self, work: Work, done: Done, *, changes: bool = False) -> bool:
        """Run `work()` in a thread and `done(outcome)` in the reactor; `changes`: it may change something.
        False, and nothing happens, when too much waits already."""
        if self.outstanding >= self._bound or self._stopped:
            return False
        self.must(work, done, changes=changes)
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

    def must(self, work: Work, done: Done, *, changes: bool = False) -> None:
        """The same for what follows from a job that was accepted (the next buffer, giving back). When
        there is no thread and the system gives none, the outcome is `Failed`."""
        self.outstanding += 1
        with self._lock:
            self._jobs.append((work, done, changes))
            hand = self._another()
        try:
            self._wake(hand)
        except RuntimeError as bad:
            self._hand_back_thd(done, Failed(bad))

    def _another(self) -> _Hand | None:
        """Who is to come for what waits; None: somebody is on his way, and sees to it that others follow, or
        all are at work. The lock is held."""
        waits = bool(self._jobs) or (bool(self._held) and self._changing < self._changers)
        if self._coming or not waits or self._stopped:
            return None
        if self._hands:
            self._coming = True
            return self._hands.pop()
        if len(self._threads) == self._size:
            return None
        self._coming = True
        hand = _Hand()
        name = f"{self._name}-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._run_thd, args=(hand,), name=name, daemon=True))
        hand.thread = self._threads[-1]
        return hand

    def _next(self) -> _Job | None:
        """What a thread is to do. The lock is held."""
        while self._held or self._jobs:
            free = self._changing < self._changers
            if self._held and free:
                job = self._held.popleft()
            elif self._jobs:
                job = self._jobs.popleft()
            else:
                return None
            if job[2] and not free:
                self._held.append(job)
                continue
            self._changing += job[2]
            return job
        return None

    def _wake(self, hand: _Hand | None) -> None:
        """Raises `RuntimeError` when it is the first thread and cannot be had."""
        if hand is None:
            return
        thread, hand.thread = hand.thread, None
        if thread is not None:
            try:
                thread.start()
            except RuntimeError:
                with self._lock:
                    self._threads.remove(thread)
                    self._coming = False
                    if not self._threads:
                        self._jobs.clear()
                        raise
                return  # those at work take what waits
        hand.wake.release()

    def _run_thd(self, hand: _Hand) -> None:
        hand.wake.acquire()
        coming, changed = True, False
        while True:
            with self._lock:
                if coming:
                    self._coming = coming = False
                self._changing -= changed
                job, changed = self._next(), False
                other = self._another()
                if job is None:
                    if self._stopped:
                        return
                    self._hands.append(hand)
            self._wake(other)
            if job is None:
                hand.wake.acquire()
                coming = True
                continue
            work, done, changed = job
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
        with self._lock:
            self._stopped = True
            hands, self._hands = self._hands, []
        for hand in hands:
            hand.wake.release()
        for thread in self._threads:
            thread.join(wait_s)
        self._threads.clear()
