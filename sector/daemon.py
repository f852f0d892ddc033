"""What all services share: logging, the reactor's run, readiness for systemd, clean stop, exit status.

A service is an IService; if it has `ready` (a Deferred) it counts as started when that fires, and if it has
`fatal` (a Deferred) an errback there ends the process. Errors before or after come out as the SectorError.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TextIO

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.error import ReactorNotRunning
from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
    globalLogBeginner,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from sector.clock import steady
from sector.config import Config, LogSection
from sector.errors import SectorError

log = Logger()

STOP_S = 20.0
_NAMES = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warn",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
_LEVELS = {
    "debug": LogLevel.debug,
    "info": LogLevel.info,
    "warn": LogLevel.warn,
    "error": LogLevel.error,
}


# logging --------------------------------------------------------------------------------------------
_CHATTER = ("log_legacy", "twisted.internet.base")
# what ends a line or commands a terminal: names of files and users may hold it
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def one_line(text: str) -> str:
    """`text` without anything that ends a line or commands a terminal; those characters become \\uXXXX."""
    return _CONTROL.sub(_escaped, text)


def _failure_lines(event: dict[str, Any]) -> str:
    failure = event.get("log_failure")
    return failure.getTraceback() if isinstance(failure, Failure) else ""


def human_line(event: dict[str, Any]) -> str:
    """One event for people: time, level, part, text; a traceback below it, indented: no text in a message
    can pass for a line of its own."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.get("log_time", 0.0)))
    level = getattr(event.get("log_level"), "name", "info")
    line = f"{at} {level:<5} {event.get('log_namespace', '-')}: {one_line(formatEvent(event))}\n"
    trace = _failure_lines(event).splitlines()
    return line + "".join(f"    {one_line(part)}\n" for part in trace)


def json_line(event: dict[str, Any]) -> str:
    """One event as a JSON object on one line: time, level, part, text, and its fields."""
    at = event.get("log_time", 0.0)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
    fields = {
        key: value
        for key, value in event.items()
        if not key.startswith("log_") and isinstance(value, str | int | float | bool | None)
    }
    line: dict[str, Any] = {
        "time": stamp,
        "level": getattr(event.get("log_level"), "name", "info"),
        "part": str(event.get("log_namespace", "-")),
        "text": formatEvent(event),
    }
    if fields:
        line["fields"] = fields
    trace = _failure_lines(event)
    if trace:
        line["traceback"] = trace
    return one_line(json.dumps(line, ensure_ascii=False)) + "\n"


@implementer(ILogObserver)
class LineObserver:
    """Writes one line per event; a log that cannot be written never stops the service. What Twisted says of
    ports, factories and its loop is left out unless it is a failure."""

    def __init__(self, stream: TextIO, form: Callable[[dict[str, Any]], str]) -> None:
        self._stream = stream
        self._form = form

    def __call__(self, event: dict[str, Any]) -> None:
        if event.get("log_namespace") in _CHATTER and not (event.get("isError") or "log_failure" in event):
            return
        try:
            self._stream.write(self._form(event))
            self._stream.flush()
        except (OSError, ValueError):
            return


class Bridge(logging.Handler):
    """What the standard `logging` is told (by code that knows no Twisted, by libraries) becomes an event like
    all others. Arguments by name are its fields, and an exception its failure."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = LogLevel.levelWithName(_NAMES.get(record.levelno, "info"))
            fields: dict[str, Any] = dict(record.args) if isinstance(record.args, Mapping) else {}
            fields = {key: value for key, value in fields.items() if not key.startswith("log_")}
            error = record.exc_info
            if error and error[1] is not None:
                fields["log_failure"] = Failure(error[1], error[0], error[2])
            text = record.getMessage().replace("{", "{{").replace("}", "}}")
            Logger(namespace=record.name).emit(level, text, **fields)
        except Exception:
            self.handleError(record)


def start_logging(settings: LogSection, log_format: str | None = None, stream: TextIO | None = None) -> None:
    """Send all events to standard error: human lines on a terminal, else JSON lines; once a process."""
    out = stream or sys.stderr
    form = log_format or settings.format
    if form == "auto":
        form = "human" if out.isatty() else "json"
    observer: Any = LineObserver(out, human_line if form == "human" else json_line)
    level: Any = LogLevelFilterPredicate(_LEVELS[settings.level])
    filtered: Any = FilteringLogObserver(observer, [level])
    globalLogBeginner.beginLoggingTo([filtered], redirectStandardIO=False, discardBuffer=True)
    logging.getLogger().addHandler(Bridge())


# readiness ------------------------------------------------------------------------------------------
def notify(**fields: str | int) -> None:
    """Tell the service manager (systemd's NOTIFY_SOCKET protocol); nothing without one."""
    where = os.environ.get("NOTIFY_SOCKET")
    if not where:
        return
    address = "\0" + where[1:] if where.startswith("@") else where
    text = "\n".join(f"{key}={value}" for key, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            channel.sendto(text.encode(), address)
    except OSError as bad:
        log.debug("cannot notify {where}: {why}", where=where, why=str(bad))


def all_descriptors() -> None:
    """As many open files as the system allows this process: connections alone may be more than the usual
    1,024, which are for programs that use select(2) (getrlimit(2), RLIMIT_NOFILE)."""
    with contextlib.suppress(OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _all_threads(reactor: Any) -> None:
    """Start all threads of the reactor's pool with it. A pool that grows by what happens to run at the same
    time still grows after days, and looks as if threads were leaked."""
    pool = reactor.getThreadPool()
    pool.adjustPoolsize(minthreads=pool.max, maxthreads=pool.max)


# the run --------------------------------------------------------------------------------------------
Make = Callable[[Any], Awaitable[Any]]


class _Run:
    """One service from its start to its end in a reactor."""

    def __init__(self, reactor: Any, make: Make, name: str) -> None:
        self._reactor = reactor
        self._make = make
        self._name = name
        self._service: Any = None
        self._starting: Deferred[None] | None = None
        self._stopping = False
        self._ready = False
        self.error: BaseException | None = None
        self.signal = 0  # that ended it

    def begin(self) -> None:
        # `make` may give the last of them another meaning
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._told_to_end)
        self._starting = ensureDeferred(self._start())
        self._starting.addErrback(self._failed)

    async def _start(self) -> None:
        self._service = await self._make(self._reactor)
        fatal = getattr(self._service, "fatal", None)
        if isinstance(fatal, Deferred):
            fatal.addErrback(self._failed)
        self._service.startService()
        ready = getattr(self._service, "ready", None)
        if isinstance(ready, Deferred):
            await _once(ready)
        self._ready = True
        log.info("{name} is ready, process {pid}", name=self._name, pid=os.getpid())
        notify(READY=1, MAINPID=os.getpid(), STATUS=f"{self._name} is ready")

    def _told_to_end(self, number: int, _frame: object) -> None:
        """The first signal counts; a further one changes nothing."""
        if not self.signal:
            self.signal = number
            self._reactor.callFromThread(self._end)

    def _end(self) -> None:
        with contextlib.suppress(ReactorNotRunning):  # it ends already
            self._reactor.stop()

    def _failed(self, failure: Failure) -> None:
        if self._stopping:
            return
        self.error = failure.value
        if not isinstance(failure.value, SectorError):
            log.failure("{name} failed", failure, name=self._name)
        if self._reactor.running:
            self._reactor.stop()

    def stop(self) -> Deferred[None]:
        """Runs before the reactor's shutdown; takes at most STOP_S."""
        self._stopping = True
        notify(STOPPING=1)
        if self._ready or self.error is None:  # else the error says all
            log.info("{name} stops", name=self._name)
        if self._starting is not None and not self._starting.called:
            self._starting.cancel()
        if self._service is None or not self._service.running:
            done: Deferred[None] = Deferred()
            done.callback(None)
            return done
        stopped: Deferred[None] = ensureDeferred(self._stop_service())
        stopped.addTimeout(STOP_S, self._reactor)
        stopped.addErrback(
            lambda failure: log.failure("{name} did not stop cleanly", failure, name=self._name)
        )
        return stopped

    async def _stop_service(self) -> None:
        result = self._service.stopService()
        if result is not None:
            await result


def _once(deferred: Deferred[Any]) -> Deferred[Any]:
    """Wait for a Deferred that others look at too."""
    result: Deferred[Any] = Deferred()

    def pass_on(value: Any) -> Any:
        if not result.called:
            result.callback(value)
        return None if isinstance(value, Failure) else value

    deferred.addBoth(pass_on)
    return result


def run_service(config: Config, make: Make, *, name: str, log_format: str | None = None) -> None:
    """Run a service until SIGTERM, SIGINT or SIGHUP. `make(reactor)` builds it (it may be async, for parts
    that must be open before). Raises the SectorError that kept it from running or ended it, and
    `KeyboardInterrupt` when it has ended after SIGINT (exit status 130, as of every command)."""
    from twisted.internet import reactor

    start_logging(config.log, log_format)
    all_descriptors()
    running: Any = steady(reactor)
    _all_threads(running)
    run = _Run(running, make, name)
    running.callWhenRunning(run.begin)
    running.addSystemEventTrigger("before", "shutdown", run.stop)
    running.run()
    if isinstance(run.error, SectorError):
        raise run.error
    if run.error is not None:
        raise SectorError(f"{name} failed: {type(run.error).__name__}: {run.error}", hint="see its log")
    if run.signal == signal.SIGINT:
        raise KeyboardInterrupt
