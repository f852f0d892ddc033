"""The one thread that writes to SQLite: what waits at the same time shares one transaction (group commit).

A piece of work runs in the writer's thread with a `Tx`. If it raises, its own changes are undone and its
caller gets the error; the others of the transaction are not touched. Callers return after the commit. Work
for which nobody waits gathers for some milliseconds; while the database fails it is kept and tried again,
behind that of callers, who are to hear of it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from cumulus.index.api import Away, Damaged, IndexFailure

T = TypeVar("T")
Deltas = dict[str, list[int]]  # bucket -> [bytes, objects, held bytes] to add
WAITING = 10_000  # pieces of work that may wait; beyond it callers wait to hand theirs over
BATCH = 512  # pieces of work in one transaction
GATHER_S = 0.01  # for which work gathers that nobody waits for
RETRY_S = 0.5  # after which it is tried again when the database has failed
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# of a quota of the file system that is used up (EDQUOT) SQLite says that it cannot write
_FULL = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_CANTOPEN,
)


def failure(bad: sqlite3.Error, path: str) -> IndexFailure:
    """SQLite's error as ours: `Away` where the file or its disk is to blame (locked, full, I/O; a disk that
    fails may also look like a damaged file), and not a statement."""
    if getattr(bad, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
        return Damaged(f"{path}: {bad}")
    kind = Away if isinstance(bad, sqlite3.OperationalError) else IndexFailure
    return kind(f"{path}: {bad}")


class Tx:
    """One piece of work in a transaction. `run` executes SQL. `after` are called once it is committed."""

    __slots__ = ("after", "deltas", "now_ns", "run", "settled")

    def __init__(self, run: Callable[..., Any], now_ns: int) -> None:
        self.run = run
        self.now_ns = now_ns
        self.deltas: Deltas = {}
        self.settled: list[int] = []  # reservations that end with the commit
        self.after: list[Callable[[], None]] = []

    def charge(self, bucket: str, size: int, objects: int, held: int = 0) -> None:
        """Add to the ledger of the bucket (negative: take from it)."""
        delta = self.deltas.setdefault(bucket, [0, 0, 0])
        delta[0] += size
        delta[1] += objects
        delta[2] += held


class _Job(Generic[T]):
    __slots__ = (
        "_done", "error", "finished", "frees", "lazy", "reads", "result", "soon", "told", "tx", "work",
    )  # fmt: skip

    def __init__(
        self,
        work: Callable[[Tx], T],
        reads: bool,
        told: Callable[[BaseException | None], None] | None,
        soon: bool = False,
        lazy: bool = False,
        frees: bool = False,
    ) -> None:
        self.work = work
        self.frees = frees
        self.soon = soon
        self.lazy = lazy
        self.told = told
        self.finished = False
        self.reads = reads
        self.result: T | None = None
        self.error: BaseException | None = None
        self.tx: Tx | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self) -> T:
        with self._done:
            pass
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]

    def finish(self) -> None:
        self.finished = True
        if self.told is not None:
            self.told(self.error)
        self._done.release()


class Writer:
    """`connect` opens the connection in the writer's thread. `flush` runs at the end of each transaction with
    the sums of its deltas; `committed` after it, with those and the reservations that end; `turned` after
    each batch, with the error of the database if it has failed. `sync` false: the connection never syncs.
    `make_room` is asked when the disk is full, for what frees room; False: there is none to be made."""

    def __init__(
        self,
        path: str,
        connect: Callable[[], sqlite3.Connection],
        flush: Callable[[Tx, Deltas], None],
        committed: Callable[[Deltas, list[int]], None],
        clock: Callable[[], int] = time.time_ns,
        sync: bool = True,
        turned: Callable[[IndexFailure | None], None] = lambda bad: None,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self._path = path
        self._turned = turned
        self._make_room = make_room
        self._sync = sync
        self._synced = True  # the connection's setting
        self._connect = connect
        self._flush = flush
        self._committed = committed
        self._clock = clock
        self._queue: deque[_Job[Any]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._idle = False
        self._urgent = False  # somebody waits for what is in the queue
        self._hurried = 0  # who waits for work without being in the queue
        self._gather_until = 0.0  # monotonic seconds
        self._failing = False  # the last transaction could not be made
        self.commits = 0  # transactions so far
        self._thread = threading.Thread(target=self._run, name="cumulus-writer", daemon=True)
        self._thread.start()

    def do(
        self, work: Callable[[Tx], T], *, reads: bool = False, soon: bool = False, frees: bool = False
    ) -> T:
        """Run `work` in the writer's thread and return what it returns, durable; with `soon` committed, but
        durable only with a later one or `sync`. With `reads` it changes nothing and waits for no commit. What
        `frees` room is done even when the disk is full. Raises what it raises, and `Away`."""
        job = _Job(work, reads, None, soon, frees=frees)
        self._hand_over(job)
        return job.wait()

    def submit(
        self,
        work: Callable[[Tx], T],
        told: Callable[[BaseException | None], None],
        *,
        soon: bool = False,
        lazy: bool = False,
        frees: bool = False,
    ) -> None:
        """As `do`, but return at once; `told` is called in the writer's thread, after the commit, with the
        error or None, and must neither wait nor raise. `lazy`: nobody waits for it, and it is not given up
        when the database fails, but tried again until `close`. Raises `Away` when the database is closed."""
        self._hand_over(_Job(work, False, told, soon, lazy, frees))

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """Inside, nothing that comes gathers: somebody waits for it."""
        with self._changed:
            self._hurried += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._hurried -= 1

    def sync(self) -> None:
        """Make durable what was committed with `soon`: all of it is in the write-ahead log, or has been
        synced on its way from there to the file. Raises `Away`."""
        try:
            fd = os.open(self._path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as bad:
            raise Away(f"{self._path}: {bad.strerror}") from bad
        try:
            os.fdatasync(fd)
        except OSError as bad:
            raise Away(f"{self._path}: {bad.strerror}") from bad
        finally:
            os.close(fd)

    def _hand_over(self, job: _Job[Any]) -> None:
        with self._changed:
            while len(self._queue) >= WAITING and not self._closed and (job.lazy or not self._failing):
                self._changed.wait()
            if self._closed:
                raise Away(f"{self._path}: the database is closed")
            self._queue.append(job)
            self._urgent = self._urgent or not job.lazy
            if self._idle and (self._urgent or self._hurried or len(self._queue) in (1, BATCH)):
                self._changed.notify_all()

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _take(self) -> list[_Job[Any]]:
        with self._changed:
            while not self._closed and (pause := self._pause()) != 0:
                self._idle = True
                self._changed.wait(pause)
            self._idle = False
            full = len(self._queue) >= WAITING
            if self._failing and self._urgent and len(self._queue) > BATCH:
                self._queue = deque(sorted(self._queue, key=lambda job: job.lazy))  # each kind in its order
            jobs = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._urgent = any(not job.lazy for job in self._queue)
            if full:
                self._changed.notify_all()
            return jobs

    def _pause(self) -> float | None:
        """Seconds for which there is nothing to do; None: until something comes."""
        if not self._queue:
            return None
        if self._urgent or (not self._failing and (self._hurried or len(self._queue) >= BATCH)):
            return 0
        return max(0, self._gather_until - time.monotonic())

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while jobs := self._take():
            error: IndexFailure | None = None
            while jobs:
                failed: IndexFailure | None = None
                again: list[_Job[Any]] = []
                try:
                    connection = connection or self._connect()
                    self._batch(connection, jobs)
                except sqlite3.Error as bad:
                    failed, again = failure(bad, self._path), self._once_more(jobs, bad)
                except Exception as bad:
                    failed = IndexFailure(f"{self._path}: {type(bad).__name__}: {bad}")
                if connection is not None and connection.in_transaction:
                    connection.rollback()
                left = [job for job in jobs if job not in again]
                if failed is not None and left:
                    error = failed
                    self._fail(left, failed)
                if again and connection is not None:
                    with contextlib.suppress(sqlite3.Error):  # the log may begin anew, where it has room
                        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                jobs = again
            self._gather_until = time.monotonic() + (RETRY_S if error else GATHER_S)
            self._failing = error is not None
            self._turned(error)
        if connection is not None:
            connection.close()

    def _once_more(self, jobs: Sequence[_Job[Any]], bad: sqlite3.Error) -> list[_Job[Any]]:
        """On a full disk, what makes room, if there is a little that can be let go for it."""
        if getattr(bad, "sqlite_errorcode", 0) not in _FULL:
            return []
        freeing = [job for job in jobs if job.frees and not job.finished]
        if not freeing or not self._make_room():
            return []
        for job in freeing:
            job.error = None
        return freeing

    def _fail(self, jobs: Sequence[_Job[Any]], error: IndexFailure) -> None:
        """The database did not do it: who waits is told, what nobody waits for comes again."""
        left = [job for job in jobs if not job.finished]
        with self._changed:
            keep = not self._closed
            self._queue.extendleft(job for job in reversed(left) if job.lazy and keep)
        for job in left:
            if not (job.lazy and keep):
                job.error = error
                job.finish()

    def _batch(self, connection: sqlite3.Connection, jobs: list[_Job[Any]]) -> None:
        now_ns = self._clock()
        writes = []
        for job in jobs:
            if job.reads:
                self._attempt(job, Tx(connection.execute, now_ns))
                job.finish()
            else:
                writes.append(job)
        if writes:
            self._transaction(connection, writes, now_ns)

    def _transaction(self, connection: sqlite3.Connection, jobs: list[_Job[Any]], now_ns: int) -> None:
        self._ask_for_sync(connection, not all(job.soon for job in jobs))
        connection.execute("BEGIN IMMEDIATE")
        sums: Deltas = {}
        settled: list[int] = []
        for job in jobs:
            job.tx = tx = Tx(connection.execute, now_ns)
            connection.execute("SAVEPOINT one")
            if self._attempt(job, tx):
                connection.execute("RELEASE one")
            else:
                connection.execute("ROLLBACK TO one")
                connection.execute("RELEASE one")
                continue
            settled += tx.settled
            for bucket, delta in tx.deltas.items():
                total = sums.setdefault(bucket, [0, 0, 0])
                for place, number in enumerate(delta):
                    total[place] += number
        self._flush(Tx(connection.execute, now_ns), sums)
        connection.execute("COMMIT")
        self.commits += 1
        self._committed(sums, settled)
        for job in jobs:
            if job.error is None and job.tx is not None:
                for call in job.tx.after:
                    call()
        for job in jobs:
            job.finish()

    def _ask_for_sync(self, connection: sqlite3.Connection, wanted: bool) -> None:
        """Whether the next commit is durable when it ends. Without, the log is synced by the next one that
        is, by `sync`, and before it is moved into the file."""
        if self._sync and wanted is not self._synced:
            connection.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._synced = wanted

    def _attempt(self, job: _Job[Any], tx: Tx) -> bool:
        try:
            job.result = job.work(tx)
        except sqlite3.Error as bad:
            ours = failure(bad, self._path)
            if isinstance(ours, Away):
                raise  # all that wait get it
            job.error = ours
        except Exception as bad:
            job.error = bad
        return job.error is None
