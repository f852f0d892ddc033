"""What ends a command from outside: SIGTERM and SIGHUP do what Ctrl-C does, so that what a command has begun
(a part file, a lease, a job, child processes) goes with it. Only the first of them counts: timeout(1) and a
closing terminal send several, and none may cut the cleaning up short; a second Ctrl-C still does. A signal
that the caller has us ignore, as nohup(1) does, stays ignored. Services have handlers of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

OUTSIDE = (signal.SIGTERM, signal.SIGHUP)
_told: list[int] = []


def install() -> None:
    """From now on they raise KeyboardInterrupt in the main thread."""
    for number in OUTSIDE:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def release() -> None:
    """At the end of the command they do again what they do to any program, unless it ends by one of them."""
    for number in OUTSIDE:
        if not _told and signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if not _told:
        _told.append(number)
        raise KeyboardInterrupt


def by() -> signal.Signals | None:
    """The one that ended this command, None if it was not one of them."""
    return signal.Signals(_told[0]) if _told else None


def status() -> int:
    """Exit status of a command that was interrupted: 128 + the number of the signal."""
    return 128 + (by() or signal.SIGINT)


def printed(main: Callable[[], int | None]) -> int:
    """The exit status of a program that prints a list: `main()`'s, or 1 without a word where the reader of
    standard output has gone, as head(1) does."""
    try:
        status = main() or 0
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


@contextmanager
def handled(handler: Callable[[int], object]) -> Iterator[None]:
    """While a reactor runs in the main thread, which swallows what a handler raises: `handler(number)` is
    called at Ctrl-C, and at the first of the others."""

    def told(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            handler(number)
        elif not _told:
            _told.append(number)
            handler(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *OUTSIDE)}
    mine = [number for number, old in before.items() if old is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, told)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, before[number])
