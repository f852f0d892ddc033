"""The few kernel switches that worker and spawner set on themselves after exec (Linux prctl)."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl option {option}")


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends; end at once if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(0)


def become_subreaper() -> None:
    """What descendants leave running becomes our child."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def close_doors() -> None:
    """No set-user-id program gives new privileges; no core dump, no ptrace by others."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
