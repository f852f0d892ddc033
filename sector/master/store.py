"""The master's database: one file of SQLite, one writer thread, reads beside it (design section 12).

Rules of `namespace.py` and `reconcile.py` run inside a transaction: `store.write(rule)` calls `rule(tx)` in
the writer thread, under BEGIN IMMEDIATE, together with the other writes of up to 5 ms; the Deferred fires
when the commit is on disk. A rule that raises changes nothing. `store.read(rule)` runs in reader threads.
Without a reactor all runs at once in the caller (tests, migrations).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, create_engine, delete, event, func, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from sector.errors import BadConfig, Busy, Conflict, LocalIO, NoSpace, SectorError
from sector.master.models import Base, SessionRecord
from sector.master.sessions import SessionRow
from sector.master.store_tx import SqlTx
from sector.master.store_work import E, T
from sector.model import Right
from sector.revisions import UnknownRevision, create_private, make_tables, revision_of, upgrade

log = Logger()
V = TypeVar("V")
Rule = Callable[[SqlTx], V]
BATCH_S = 0.005
QUEUE_LIMIT = 50_000
READERS = 2
MIGRATIONS = Path(__file__).with_name("migrations")
HEAD = "0004"  # the newest revision there


class Writing(Deferred[V]):
    """The outcome of a write. Nobody can take back what the writer thread has been given: a cancel does not
    end the wait for it, so that whoever asked also does what has to follow a commit."""

    def cancel(self) -> None:
        """Changes nothing."""


class Store(Protocol):
    """What the master needs of its database. `open` first, `close` last."""

    def open(self) -> None:
        """Lock, migrate, start (once). Raises `Conflict` when another master has it, `LocalIO`."""

    def write(self, rule: Rule[V]) -> Deferred[V]:
        """Run the rule in a transaction; fires after the commit. A SectorError of the rule errbacks. A cancel
        changes nothing."""

    def read(self, rule: Rule[V]) -> Deferred[V]:
        """Run a rule that only reads, on the state of the last commit."""

    def session_add(self, row: SessionRow) -> Deferred[None]:
        """Keep a login session."""

    def session_all(self) -> Deferred[list[SessionRow]]:
        """All sessions that are kept."""

    def session_drop(self, ids: Iterable[bytes]) -> Deferred[None]:
        """Forget sessions by id."""

    def close(self) -> Deferred[None]:
        """Fires when what was asked before is written and the threads are gone."""


def _on_connect(read_only: bool) -> Callable[[Any, Any], None]:
    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        for line in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "PRAGMA foreign_keys=ON",
            "PRAGMA busy_timeout=10000",
            "PRAGMA temp_store=MEMORY",
            f"PRAGMA query_only={'ON' if read_only else 'OFF'}",
        ):
            connection.execute(line)

    return prepare


def make_engine(path: Path, *, read_only: bool = False) -> Engine:
    """An engine whose transactions begin as BEGIN (readers) or BEGIN IMMEDIATE (the writer)."""
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=QueuePool,
        pool_size=READERS if read_only else 1,
        max_overflow=0,
        connect_args={"check_same_thread": False, "timeout": 10.0},
    )
    event.listen(engine, "connect", _on_connect(read_only))
    begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def migrate(engine: Engine, path: Path) -> None:
    """Bring the database to the newest schema; an older one is copied beside it first. Raises `BadConfig`
    when another version of the program wrote it."""
    with engine.connect() as connection:
        now = revision_of(connection)
    if now == HEAD:
        return
    if now is not None:
        backup = path.with_name(f"{path.name}.{now}.bak")
        backup.unlink(missing_ok=True)
        create_private(backup)
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("VACUUM INTO ?", (str(backup),))
        finally:
            raw.close()
    with engine.begin() as connection:
        if now is None:
            make_tables(connection, Base.metadata, HEAD)
            return
        try:
            upgrade(connection, MIGRATIONS)
        except UnknownRevision as bad:
            raise BadConfig(f"{path}: was written by another version: {bad}") from None


def _translated(error: Exception) -> Exception:
    """Errors of the database as ours."""
    if isinstance(error, SectorError) or not isinstance(error, SQLAlchemyError):
        return error
    text = str(getattr(error, "orig", error))
    if "disk is full" in text or "full" in text.split():
        return NoSpace("the disk of the master's database is full", hint="free space on the master")
    return LocalIO(f"the master's database failed: {text}")


class SqlStore:
    """Implements `Store` on one SQLite file. `reactor` None = no threads."""

    def __init__(self, path: str | os.PathLike[str], reactor: Any = None) -> None:
        self.path = Path(path)
        self._reactor = reactor
        self._jobs: queue.Queue[tuple[Rule[Any], Deferred[Any]] | None] = queue.Queue(QUEUE_LIMIT)
        self._thread: threading.Thread | None = None
        self._pool: ThreadPool | None = None
        self._lock: int | None = None
        self._writer: Engine | None = None
        self._reader: Engine | None = None
        self._ended: Deferred[None] | None = None
        self.commits = 0
        self.writes = 0

    # life ---------------------------------------------------------------------------------------------
    def open(self) -> None:
        if self._writer is not None:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            self._close_to_others()
            self._writer = make_engine(self.path)
            migrate(self._writer, self.path)
        except BadConfig:
            self._free_lock()
            raise
        except (OSError, SQLAlchemyError) as error:
            self._free_lock()
            raise LocalIO(f"the master's database {self.path} cannot be opened: {error}") from None
        self._reader = make_engine(self.path, read_only=True)
        if self._reactor is not None:
            self._pool = ThreadPool(READERS, READERS, name="master-db-read")
            self._pool.start()
            self._thread = threading.Thread(target=self._run_thd, name="master-db-write", daemon=True)
            self._thread.start()

    def _take_lock(self) -> None:
        name = self.path.with_name(self.path.name + ".lock")
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise Conflict(
                f"another master uses the database {self.path}", hint="stop it, or give this one its own"
            ) from None
        self._lock = lock

    def _close_to_others(self) -> None:
        """Names, rights and sessions are in the log and in copies of older revisions too."""
        create_private(self.path)
        os.chmod(self.path, 0o600)
        for file in self.path.parent.iterdir():
            with contextlib.suppress(OSError):  # an administrator's copy, say, which is not ours
                if file.name.startswith(self.path.name) and file.is_file():
                    file.chmod(0o600)

    def _free_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def close(self) -> Deferred[None]:
        if self._ended is not None:
            return succeed(None)
        self._ended = Deferred()
        if self._thread is not None and self._pool is not None:
            self._jobs.put(None)
        else:
            self._finish()
        return self._ended

    def _finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._pool is not None:
            self._pool.stop()
        for engine in (self._reader, self._writer):
            if engine is not None:
                engine.dispose()
        self._free_lock()
        assert self._ended is not None
        self._ended.callback(None)

    # running rules ------------------------------------------------------------------------------------
    def write(self, rule: Rule[V]) -> Deferred[V]:
        if self._ended is not None or self._writer is None:
            return fail(Busy("the master is stopping"))
        if self._thread is None:
            outcome: list[Any] = []
            self._commit(self._writer, [(rule, None)], outcome)
            return _fired(outcome[0][1])
        waiting: Deferred[V] = Writing()
        try:
            self._jobs.put_nowait((rule, waiting))
        except queue.Full:
            return fail(Busy("the master's database has too much to write"))
        return waiting

    def read(self, rule: Rule[V]) -> Deferred[V]:
        if self._ended is not None or self._reader is None:
            return fail(Busy("the master is stopping"))
        if self._pool is None:
            try:
                return succeed(self._read_thd(rule))
            except Exception:
                return fail(Failure())
        found: Deferred[V] = deferToThreadPool(self._reactor, self._pool, self._read_thd, rule)
        return found

    def _read_thd(self, rule: Rule[V]) -> V:
        assert self._reader is not None
        try:
            with self._reader.begin() as connection:
                return rule(SqlTx(connection))
        except Exception as error:
            raise _translated(error) from None

    def _run_thd(self) -> None:
        """The writer thread: take what waits, for at most BATCH_S, and commit it at once."""
        assert self._writer is not None
        ended = False
        while not ended:
            job = self._jobs.get()
            batch: list[tuple[Rule[Any], Any]] = []
            outcome: list[tuple[Any, Any]] = []
            if job is None:
                break
            batch.append(job)
            ended = self._commit(self._writer, batch, outcome)
            self._reactor.callFromThread(_deliver, outcome)
        self._reactor.callFromThread(self._finish)

    def _next(self, deadline: float) -> tuple[Rule[Any], Any] | None:
        """The next job while the batch is young, None = the end; else raises queue.Empty."""
        if self._thread is None or time.monotonic() >= deadline:
            raise queue.Empty
        return self._jobs.get_nowait()

    def _commit(
        self, engine: Engine, batch: list[tuple[Rule[Any], Any]], outcome: list[tuple[Any, Any]]
    ) -> bool:
        """Run `batch` and whatever waits behind it in one transaction; (Deferred, result or Failure) go to
        `outcome`. True when the end was asked for."""
        ended = False
        try:
            with engine.begin() as connection:
                deadline = time.monotonic() + BATCH_S
                for rule, waiting in batch:  # grows while it runs
                    outcome.append((waiting, _run_rule(connection, rule)))
                    if len(outcome) == len(batch) and not ended:
                        try:
                            more = self._next(deadline)
                        except queue.Empty:
                            break
                        if more is None:
                            ended = True
                        else:
                            batch.append(more)
        except Exception as error:
            failure = Failure(_translated(error))
            outcome[:] = [(waiting, failure) for _, waiting in batch]
        self.commits += 1
        self.writes += len(batch)
        return ended

    # sessions -----------------------------------------------------------------------------------------
    def session_add(self, row: SessionRow) -> Deferred[None]:
        values = {
            "id": row.id,
            "user": row.user,
            "secret_wrapped": row.secret_wrapped,
            "key_id": row.key_id,
            "rights_epoch": row.rights_epoch,
            "expires": row.expires,
            "cidr": row.cidr,
            "roles": msgspec.json.encode(row.roles).decode(),
            "rights": msgspec.json.encode(row.rights).decode(),
            "via": row.via,
            "via_epoch": row.via_epoch,
        }

        def add(tx: SqlTx) -> None:
            tx.connection.execute(delete(SessionRecord).where(SessionRecord.id == row.id))
            tx.connection.execute(insert(SessionRecord).values(**values))

        return self.write(add)

    def session_all(self) -> Deferred[list[SessionRow]]:
        def load(tx: SqlTx) -> list[SessionRow]:
            rows = tx.connection.execute(select(SessionRecord.__table__)).all()
            return [
                SessionRow(
                    row.id,
                    row.user,
                    row.secret_wrapped,
                    row.key_id,
                    row.rights_epoch,
                    row.expires,
                    row.cidr,
                    msgspec.json.decode(row.roles, type=tuple[str, ...]),
                    msgspec.json.decode(row.rights, type=tuple[Right, ...]),
                    row.via,
                    row.via_epoch,
                )
                for row in rows
            ]

        return self.read(load)

    def session_drop(self, ids: Iterable[bytes]) -> Deferred[None]:
        doomed = list(ids)

        def drop(tx: SqlTx) -> None:
            for session_id in doomed:
                tx.connection.execute(delete(SessionRecord).where(SessionRecord.id == session_id))

        return self.write(drop)


def _run_rule(connection: Connection, rule: Rule[Any]) -> Any:
    """The rule's result, or a Failure when it refused; then its savepoint is rolled back."""
    savepoint = connection.begin_nested()
    try:
        tx = SqlTx(connection)
        result = rule(tx)
        tx.flush()
        savepoint.commit()
        return result
    except Exception as error:
        savepoint.rollback()
        return Failure(_translated(error))


def _fired(result: Any) -> Deferred[Any]:
    return fail(result) if isinstance(result, Failure) else succeed(result)


def _deliver(outcome: Sequence[tuple[Deferred[Any], Any]]) -> None:
    for waiting, result in outcome:
        if isinstance(result, Failure):
            waiting.errback(result)
        else:
            waiting.callback(result)


# rules on the database as a whole -----------------------------------------------------------------------
def is_empty(tx: SqlTx) -> bool:
    """Whether the namespace has neither entries nor tombstones."""
    tables = (E, T)
    return not any(tx.connection.execute(select(func.count()).select_from(t)).scalar() for t in tables)


__all__ = ["Rule", "SqlStore", "SqlTx", "Store", "is_empty", "make_engine", "migrate"]
