"""One of several servers on one database does what is to be done once: an advisory lock in PostgreSQL, which
ends with the connection that has it."""

from __future__ import annotations

import threading
from typing import Final

import psycopg

from cumulus.index.api import IndexFailure
from cumulus.index.postgres_pool import Connection, Target

_LOCK: Final = 0x43756D756C7573  # "Cumulus"


class Leader:
    """Tries to lead each time it is asked, and keeps the lock from then on."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._leads = False

    def leads(self) -> bool:
        """Whether this process leads now; False when the database is away."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._target.connect_current()
                question = "SELECT true" if self._leads else f"SELECT pg_try_advisory_lock({_LOCK})"
                found = self._connection.execute(question).fetchone()
                self._leads = found is not None and bool(found[0])
            except (psycopg.Error, IndexFailure):
                self._end()
            return self._leads

    def _end(self) -> None:
        self._leads = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Let another one lead."""
        with self._lock:
            self._end()
