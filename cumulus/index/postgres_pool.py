"""Connections to PostgreSQL: as many as are used at the same time, up to a limit, each by one thread at a
time. When the server is away, one attempt at a time is made to reach it; the other callers hear at once.
"""

from __future__ import annotations

import functools
import re
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import LockNotAvailable, QueryCanceled
from psycopg.errors import ReadOnlySqlTransaction as ReadOnly

from cumulus.index.api import Away, IndexFailure
from cumulus.index.postgres_silence import Silence, Silent, Watched
from cumulus.index.readers import Run
from cumulus.index.revision import HEAD, PROGRAM
from cumulus.secrets import check_private
from sector.errors import BadConfig, LocalIO

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
CONNECTIONS: Final = 8
OLDEST: Final = 130000  # the first version that is served: 13
_RETRY_S: Final = 0.5  # after a failed attempt to connect
_BUSY_S: Final = 15.0  # for a free connection
_INSTEAD_S: Final = 2.0  # for one of ours, where the server gives no more
_PAUSE_S: Final = 0.01
_PATIENCE: Final = {
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
# What every connection needs. A server that hangs in the middle of a transaction is cut off, and plans go by
# the indexes, whose order listings need.
_SETTINGS: Final = (
    ("statement_timeout", "60s"),
    ("lock_timeout", "20s"),
    ("idle_in_transaction_session_timeout", "30s"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
)
_PLACE = re.compile(r"\?(\d*)")


@functools.cache
def dollars(sql: str) -> str:
    """SQL with SQLite's placeholders (?, ?1) as PostgreSQL has them ($1)."""
    count = 0

    def place(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"${found.group(1) or count}"

    return _PLACE.sub(place, sql)


def one_line(bad: BaseException) -> str:
    """What PostgreSQL or libpq says, on one line."""
    text = bad.diag.message_primary if isinstance(bad, psycopg.Error) else None
    text = re.sub(r"\s+", " ", text or str(bad)).strip()
    return re.sub(r"^connection (failed|is bad): ", "", text) or type(bad).__name__


class Target:
    """Where the database is: `postgresql://USER@HOST:PORT/NAME` as libpq reads it, and its password's file
    ("" = as libpq finds one: PGPASSFILE, ~/.pgpass). `sync` False: commits are not waited for. Raises
    `BadConfig`, `LocalIO`."""

    def __init__(self, url: str, password_file: str = "", *, sync: bool = True) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as bad:
            raise BadConfig(
                f"{url!r} names no database: {one_line(bad)}", hint="write postgresql://USER@HOST:PORT/NAME"
            ) from None
        if given.pop("password", None) is not None:
            raise BadConfig(
                "[database] url has a password in it", hint="write it to a file and give password_file"
            )
        self._given = {**_PATIENCE, "application_name": PROGRAM, **given}
        self._password_file = Path(password_file) if password_file else None
        self._sync = sync
        self._silence = Silence(lambda: self._open())
        self.where = url.partition("?")[0]
        self._password()

    def __repr__(self) -> str:
        return f"Target({self.where!r})"

    def _password(self) -> dict[str, str]:
        path = self._password_file
        if path is None:
            return {}
        check_private(path)
        try:
            return {"password": path.read_text(encoding="utf-8").rstrip("\n")}
        except (OSError, UnicodeDecodeError) as bad:
            raise LocalIO(f"{path}: {getattr(bad, 'strerror', None) or 'is not UTF-8 text'}") from None

    def connect(self) -> Connection:
        """A new connection, each statement of which is a transaction; placeholders are $1. Raises `Away`,
        `IndexFailure` (a database that cannot be used)."""
        return self._connect(cursor_factory=psycopg.RawCursor)

    def connect_current(self) -> Connection:
        """The same, if the tables are still those that this program knows. Raises as `connect`."""
        made = self.connect()
        try:
            found = made.execute("SELECT version_num FROM alembic_version").fetchone()
        except psycopg.Error:  # what is wrong with it the next statement says
            return made
        if found is not None and found[0] != HEAD:
            made.close()
            what = f"has tables of revision {found[0]}, and this program knows {HEAD}"
            raise Away(f"{self.where}: {what}: stop it, and start the version that the other servers have")
        return made

    def connect_plain(self) -> Connection:
        """A new connection as SQLAlchemy wants it."""
        made = self._connect()
        made.autocommit = False
        return made

    def _open(self, **options: Any) -> Watched:
        """Raises `psycopg.Error`, `LocalIO`."""
        given: dict[str, Any] = {**self._given, **self._password(), **options}
        return Watched.connect(autocommit=True, **given)

    def _connect(self, **options: Any) -> Connection:
        try:
            connection = self._open(**options)
            connection.is_silent = self._silence.is_silent
        except psycopg.Error as bad:
            raise Away(f"{self.where}: {one_line(bad)}") from None
        try:
            self._prepare(connection)
        except psycopg.Error as bad:
            connection.close()
            raise Away(f"{self.where}: {one_line(bad)}") from None
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: Connection) -> None:
        connection.prepare_threshold = 2
        if connection.info.server_version < OLDEST:
            version = connection.info.server_version // 10000
            raise IndexFailure(
                f"{self.where}: is PostgreSQL {version}, and {OLDEST // 10000} or later is needed"
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise IndexFailure(f"{self.where}: has the encoding {encoding}, and UTF8 is needed")
        wanted = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS)
        durable = f"set_config('synchronous_commit', '{'on' if self._sync else 'off'}', false)"
        weaker = "WHERE current_setting('synchronous_commit') = 'off'" if self._sync else ""
        connection.execute(f"SELECT {wanted}")
        connection.execute(f"SELECT {durable} {weaker}")


def failure(bad: psycopg.Error, where: str) -> IndexFailure:
    """PostgreSQL's error as ours: what may pass is `Away`, also a server that only reads (another one has
    taken over, or will)."""
    passing = isinstance(bad, psycopg.OperationalError | psycopg.InterfaceError | ReadOnly)
    return (Away if passing else IndexFailure)(f"{where}: {one_line(bad)}")


def lacks(target: Target, tables: str, rows: str) -> str:
    """Which of the two the database lacks, its tables or anything in them; "" for none. Raises `Away`,
    `IndexFailure`."""
    try:
        with target.connect() as connection:
            found = connection.execute(
                "SELECT to_regclass('alembic_version') IS NULL OR to_regclass('users') IS NULL"
            ).fetchone()
            if found == (True,):
                return tables
            found = connection.execute(
                "SELECT EXISTS (SELECT 1 FROM users) OR EXISTS (SELECT 1 FROM buckets)"
            ).fetchone()
            return "" if found == (True,) else rows
    except psycopg.Error as bad:
        raise failure(bad, target.where) from None


def note(target: Target, asked: str, statement: str) -> None:
    """Execute the statement unless the question is answered with yes; an error leaves it to others."""
    with suppress(psycopg.Error, IndexFailure), target.connect() as connection:
        if connection.execute(asked).fetchone() != (True,):
            connection.execute(statement)


class _Nothing:
    """The answer to a question about a text that PostgreSQL cannot hold."""

    rowcount = 0

    def fetchone(self) -> None:
        """No row."""
        return None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """No rows."""
        return []


def _runner(connection: Connection) -> Run:
    def run(sql: str, values: Sequence[Any] = ()) -> Any:
        if any(type(value) is str and "\0" in value for value in values):
            if sql.lstrip().startswith("SELECT"):
                return _Nothing()
            raise IndexFailure("the database cannot hold a text with a zero byte")
        return connection.execute(dollars(sql), values)

    return run


class Pool:
    """At most `most` connections to `target`; has what `cumulus.index.readers.Readers` has."""

    def __init__(self, target: Target, most: int = CONNECTIONS) -> None:
        self.target = target
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._room = threading.BoundedSemaphore(most)
        self._closed = False
        self._attempt = threading.Lock()
        self._down: Away | None = None
        self._down_until = 0.0

    def _connect(self) -> Connection:
        """Raises `Away` at once while another thread tries, or when one has just failed."""
        down = self._down
        if down is not None and time.monotonic() < self._down_until:
            raise Away(str(down))
        if not self._attempt.acquire(blocking=down is None, timeout=-1):
            raise Away(str(down))
        try:
            if down is None and self._down is not None:  # it failed while we waited for our turn
                raise Away(str(self._down))
            made = self.target.connect_current()
        except Away as bad:
            self._down, self._down_until = bad, time.monotonic() + _RETRY_S
            raise
        finally:
            self._attempt.release()
        self._down = None
        return made

    def _connect_or_wait(self) -> Connection:
        """A new connection; where none can be had, as others have all that the server gives, the next of ours
        that is free. Raises as `_connect`."""
        try:
            return self._connect()
        except Away as bad:
            end = time.monotonic() + _INSTEAD_S
            while self._used and time.monotonic() < end:
                time.sleep(_PAUSE_S)
                if found := self._take():
                    return found
            raise bad

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for the time of the `with`. Raises `Away`, `IndexFailure`."""
        if self._closed:
            raise Away(f"{self.target.where}: the database is closed")
        if not self._room.acquire(timeout=_BUSY_S):
            raise Away(f"{self.target.where}: all connections are busy")
        connection: Connection | None = None
        try:
            connection = self._take() or self._connect_or_wait()
            self._used.add(connection)
            yield connection
        except psycopg.Error as bad:
            away = failure(bad, self.target.where)
            if isinstance(bad, ReadOnly | Silent) and connection is not None:
                connection.close()
                if isinstance(bad, Silent) and isinstance(away, Away):  # nobody else waits to find that out
                    self._down, self._down_until = away, time.monotonic() + _RETRY_S
                self._let_go()  # a new connection finds the server that writes, if the URL names several
            raise away from None
        finally:
            if connection is not None:
                self._used.discard(connection)
                self._give_back(connection)
            self._room.release()

    def _take(self) -> Connection | None:
        """An idle one of which the server has not let go meanwhile."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not connection.closed:
                waiting = select.poll()
                waiting.register(connection.fileno(), select.POLLIN)
                if not waiting.poll(0):
                    return connection
            connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        idle = psycopg.pq.TransactionStatus.IDLE
        if self._closed or connection.closed or connection.info.transaction_status != idle:
            connection.close()
        else:
            self._idle.append(connection)
            if self._closed:
                self.close()

    @contextmanager
    def run(self) -> Iterator[Run]:
        """`execute` of a connection; each statement is a transaction."""
        with self.connection() as connection:
            yield _runner(connection)

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """`execute` inside a transaction, which is durable at the end of the `with` or undone."""
        with self.connection() as connection, connection.transaction():
            yield _runner(connection)

    def one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        with self.run() as run:
            return run(sql, values).fetchone()

    def repeat(self, work: Callable[[Run], T]) -> T:
        """Work that may be done twice: once more when the server went away in the middle, not when it was
        there and took too long."""
        try:
            with self.run() as run:
                return work(run)
        except Away as bad:
            if isinstance(bad.__context__, LockNotAvailable | QueryCanceled):
                raise
            with self.run() as run:
                return work(run)

    def close(self) -> None:
        """Close those that are idle; those at work close when they are done."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        with suppress(IndexError):  # another thread has taken the last
            while self._idle:
                self._idle.pop().close()
