"""Connections to SQLite for reading: as many as read at the same time, each used by one thread at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from cumulus.index.api import Away
from cumulus.index.writer import failure

Run = Callable[..., Any]


class Reads(Protocol):
    """Where connections for reading come from."""

    def run(self) -> AbstractContextManager[Run]:
        """`execute` of a connection for the time of the `with`. Raises `Away`, `IndexFailure`."""

    def close(self) -> None:
        """Close them."""


class Readers:
    """`path` must exist. Connections cannot write."""

    def __init__(self, path: str, busy_ms: int) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute(f"PRAGMA busy_timeout = {self._busy_ms}")
        connection.execute("PRAGMA query_only = ON")
        return connection

    @contextmanager
    def run(self) -> Iterator[Run]:
        """`execute` of a connection for the time of the `with`. Raises `Away`, `IndexFailure`."""
        if self._closed:
            raise Away(f"{self._path}: the database is closed")
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            try:
                yield connection.execute
            finally:
                if self._closed:
                    connection.close()
                else:
                    self._idle.append(connection)
        except sqlite3.Error as bad:
            raise failure(bad, self._path) from None

    @contextmanager
    def snapshot(self) -> Iterator[Run]:
        """The same; all statements see the database as it was at the first."""
        with self.run() as run:
            run("BEGIN")
            try:
                yield run
            finally:
                run("COMMIT")

    def one(self, sql: str, values: tuple[Any, ...]) -> Any:
        """The first row, or None: the shortest way, for what every request asks."""
        if self._closed:
            raise Away(f"{self._path}: the database is closed")
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            row = connection.execute(sql, values).fetchone()
        except sqlite3.Error as bad:
            raise failure(bad, self._path) from None
        self._idle.append(connection)
        if self._closed:
            self.close()
        return row

    def close(self) -> None:
        """Close those that are idle; those at work close when they are done."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
