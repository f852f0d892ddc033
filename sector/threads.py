"""Threads that leave the process's signals to others.

Python runs signal handlers in the main thread only. A signal that the kernel hands to another thread (one
that has just begun, or that changed its mask) wakes nobody: a main thread that waits on a lock goes on
waiting, and Ctrl-C does nothing until that wait is over.
"""

from __future__ import annotations

import signal
import threading

_OF_A_FAULT = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}


def start_deaf(thread: threading.Thread) -> None:
    """Start a thread to which, and to the threads it starts, no signal goes that is meant for the process.
    Processes it starts inherit that: let another thread do it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _OF_A_FAULT)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
