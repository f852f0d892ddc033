"""The audit log: who changed what, by a command or on the admin page. One JSON object a line, only added to.

Fields: `time` (UTC), `who` (the user of the page, or the account of the machine that ran the command), `at`
(the address, or "command"), `what`. It holds no secrets.
"""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cumulus.common_file import json_line, locked
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


def note(path: Path, who: str, at: str, what: str) -> None:
    """Add a line, also behind one that a full disk has cut; the file is made with mode 0600. Raises
    `LocalIO`."""
    now = datetime.now(UTC)
    text = [one.encode(errors="backslashreplace").decode() for one in (who, at, what)]  # who: of any locale
    line = Line(f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z", *text)
    data = json_line(line)
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
