"""Accounts of the machine, and whether this process may give files to them."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path
from typing import Final, NamedTuple

# capabilities(7): give a file away, and write, read and stamp it afterwards
_NEEDED: Final = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3}
NEEDS: Final = " and ".join((", ".join(list(_NEEDED)[:-1]), list(_NEEDED)[-1]))
ACCOUNT: Final = "run this as the account of the service, which may read it"
_EFFECTIVE: Final = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


class Account(NamedTuple):
    """User and group of files."""

    uid: int
    gid: int


def account(name: str) -> Account | None:
    """The account of that name; None where there is none."""
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    return Account(found.pw_uid, found.pw_gid)


def may_give_files() -> bool:
    """Whether this process can make files of any account and work with them."""
    found = _EFFECTIVE.search(Path("/proc/self/status").read_text())
    held = int(found[1], 16) if found else 0
    return all(held >> bit & 1 for bit in _NEEDED.values())


def keep_owner(fd: int, of: os.stat_result) -> None:
    """What root makes in a directory of a service's account, or in place of a file of that account, is that
    account's: the service has to read it. Nothing happens for others. Raises `OSError`."""
    if os.geteuid() == 0 and of.st_uid != 0:
        os.fchown(fd, of.st_uid, of.st_gid)


def owned_by_another(path: str) -> str:
    """The name of the account that owns it, if this process is root and that is not root's; else ""."""
    if os.geteuid() != 0:
        return ""
    try:
        uid = os.stat(path).st_uid
    except OSError:
        return ""
    if uid == 0:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
