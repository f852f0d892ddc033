"""The few kernel switches that worker and spawner set on themselves after exec (Linux prctl)."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


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


def leave_network() -> bool:
    """Move into an empty network namespace, in a user namespace of its own when we are not root. False where
    the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        return bool(libc.unshare(_CLONE_NEWNET) == 0)
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:
        return True  # cut off all the same; only the name of the user is unmapped
    return True


def close_doors() -> None:
    """No set-user-id program gives new privileges; no core dump, no ptrace by others."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
