"""The audit log: who changed what, by a command or on the admin page. One JSON object a line, only added to.

Fields: `time` (UTC), `who` (the user of the page, or the account of the machine that ran the command), `at`
(the address, or "command"), `what`. It holds no secrets.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cumulus.common_file import json_line, locked
from cumulus.unix import keep_owner
from sector.errors import LocalIO

COMMAND = "command"


class Line(msgspec.Struct, frozen=True):
    """One line."""

    time: str
    who: str
    at: str
    what: str


def account() -> str:
    """The account of the machine that runs this program, and who became it by sudo."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    behind = os.environ.get("SUDO_USER", "")
    return f"{name} (sudo by {behind})" if behind and behind != name else name


def _open(path: Path) -> int:
    """One that root makes, by a command, is the service's to add to as well."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            keep_owner(fd, os.stat(path.parent))
        except BaseException:
            os.close(fd)
            raise
        return fd
    return os.open(path, flags | os.O_CREAT, 0o600)


def note(path: Path, who: str, at: str, what: str) -> None:
    """Add a line, also behind one that a full disk has cut; the file is made with mode 0600. Raises
    `LocalIO`."""
    now = datetime.now(UTC)
    text = [one.encode(errors="backslashreplace").decode() for one in (who, at, what)]  # who: of any locale
    line = Line(f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z", *text)
    data = json_line(line)
    try:
        fd = _open(path)
        try:
            with locked(fd):
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    data = b"\n" + data
                while data:
                    data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
    except OSError as bad:
        raise LocalIO(f"the audit log {path}: {bad.strerror}") from None
