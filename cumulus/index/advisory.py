"""One writer of a key at a time, in all servers on one PostgreSQL (see `cumulus.index.keys`)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

import psycopg

from cumulus.index.api import Away
from cumulus.index.keys import STRIPES, stripe_of
from cumulus.index.postgres_pool import Connection, Target
from cumulus.index.postgres_silence import Silent

PATIENCE_S: Final = 30.0
_FIRST_S, _LONGEST_S = 0.002, 0.05  # pauses between two tries
_RETRY_S: Final = 0.5  # after the database was found away
_KIND: Final = 0x4375  # of advisory locks; beside it is the stripe


class AdvisoryKeys:
    """Advisory locks of PostgreSQL, all of this process by one connection, and gone with it. Threads of this
    process wait for each other before they ask; the database is asked again and again, so that a thread that
    waits for one key keeps nobody from another."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ours = [threading.Lock() for _ in range(STRIPES)]
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._down: Away | None = None
        self._down_until = 0.0

    @contextlib.contextmanager
    def of(self, bucket: str, key: str) -> Iterator[None]:
        """Held inside. Raises `Away`."""
        number = stripe_of(bucket, key)
        with self._ours[number]:
            connection = self._take(number)
            try:
                yield
            finally:
                self._give(connection, number)

    def _take(self, number: int) -> Connection:
        end, pause = time.monotonic() + PATIENCE_S, _FIRST_S
        while True:
            with self._lock:
                if self._down is not None and time.monotonic() < self._down_until:
                    raise Away(str(self._down))  # each of those who wait here would try for seconds
                try:
                    connection = self._connected()
                    asked = connection.execute(f"SELECT pg_try_advisory_lock({_KIND}, {number})").fetchone()
                except (psycopg.Error, Away) as error:
                    self._end()
                    away = Away(f"the database is away: {error}")
                    if isinstance(error, Away | Silent):  # and not a connection that was cut: the next holds
                        self._down, self._down_until = away, time.monotonic() + _RETRY_S
                    raise away from error
                self._down = None
            if asked is not None and asked[0]:
                return connection
            if time.monotonic() >= end:
                raise Away("another server has been changing this key for long")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)

    def _give(self, connection: Connection, number: int) -> None:
        """Nothing is to be done when the connection has ended meanwhile: what it held is free."""
        with self._lock:
            if connection is not self._connection:
                return
            try:
                connection.execute(f"SELECT pg_advisory_unlock({_KIND}, {number})")
            except psycopg.Error:
                self._end()

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._target.connect_current()
        return self._connection

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Give back the connection; nothing is held any more."""
        with self._lock:
            self._end()
