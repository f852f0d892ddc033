"""The access log: one JSON object a line for each request, written in batches by a thread of the pool.

All workers add to one file (`cumulus.common_file`).
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Any, Final

import msgspec
from twisted.logger import Logger

from cumulus.common_file import Cut, append, json_line
from cumulus.http.metrics import Metrics
from cumulus.http.pool import Failed, Pool

log = Logger()

WAITING_MAX: Final = 20_000  # lines; what comes when so many wait is counted and dropped
FLUSH_S: Final = 0.2


class Record(msgspec.Struct, omit_defaults=True):
    """One request. `time` is when its first byte came (UTC), `total_ms` until its reply was sent,
    `turn_ms` from the last byte of the request to the first of the reply. No signature, no query."""

    time: str
    id: str
    peer: str
    method: str
    status: int
    bytes_in: int
    bytes_out: int
    total_ms: float
    turn_ms: float
    user: str = ""
    key_id: str = ""
    bucket: str = ""
    key: str = ""
    operation: str = ""
    error: str = ""
    agent: str = ""


class AccessLog:
    """Appends records to the file at `path` ("" = nowhere); `reopen` after it was moved away."""

    def __init__(self, path: str, pool: Pool, reactor: Any, metrics: Metrics) -> None:
        self._path = path
        self._pool = pool
        self._reactor = reactor
        self._metrics = metrics
        self._waiting: list[Record] = []
        self._writing = False
        self._timer: Any = None
        self._fd = -1
        self._complained = False
        if path:
            self._fd = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def add(self, record: Record) -> None:
        """Have it written soon."""
        if self._fd < 0:
            return
        if len(self._waiting) >= WAITING_MAX:
            self._metrics.plain["access_log_dropped_total"] += 1
            return
        self._waiting.append(record)
        if self._timer is None and not self._writing:
            self._timer = self._reactor.callLater(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        batch, self._waiting = self._waiting, []
        fd = self._fd
        self._writing = True
        self._pool.must(lambda: self._write_thd(fd, batch), self._written)

    def _write_thd(self, fd: int, batch: list[Record]) -> tuple[int, str]:
        """How many lines could not be written, and why."""
        lines = b"".join(json_line(record) for record in batch)
        try:
            append(fd, lines)
        except OSError as bad:
            return lines.count(b"\n", bad.whole if isinstance(bad, Cut) else 0), str(bad)
        return 0, ""

    def _written(self, outcome: tuple[int, str] | Failed) -> None:
        self._writing = False
        dropped, why = (0, str(outcome.error)) if isinstance(outcome, Failed) else outcome
        self._metrics.plain["access_log_dropped_total"] += dropped
        if why and not self._complained:
            log.error("the access log cannot be written: {why}", why=why)
        self._complained = bool(why)
        if self._waiting and self._timer is None:
            self._timer = self._reactor.callLater(FLUSH_S, self._flush)

    def reopen(self) -> None:
        """Go on in a new file of the same name (after a rotation)."""
        if self._fd < 0:
            return
        try:
            fresh = self._open()
        except OSError as bad:
            log.error("the access log cannot be opened again: {why}", why=str(bad))
            return
        os.dup2(fresh, self._fd, inheritable=False)
        os.close(fresh)

    def close(self) -> None:
        """Write what waits and close; after the pool has become idle."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd >= 0:
            _dropped, why = self._write_thd(self._fd, self._waiting)
            if why:
                log.error("the access log cannot be written: {why}", why=why)
            os.close(self._fd)
            self._fd = -1
        self._waiting = []


def stamp(seconds: float) -> str:
    """UTC with milliseconds, as in RFC 3339."""
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
