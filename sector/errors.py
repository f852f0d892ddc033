"""The error tree: one class per stable code, each with a one-line message and a hint what to do.

A code travels over the wire and stands in ``--json`` output; the class docstring says what it means to a
user. Codes are never reused.
"""

from __future__ import annotations

from typing import ClassVar


class SectorError(Exception):
    """Something failed; `code` is stable, `message` says what and where, `hint` what to do."""

    code: ClassVar[str] = "failed"
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint

    def __str__(self) -> str:
        return self.message

    def as_json(self) -> dict[str, str]:
        """The value of "error" in a ``--json`` refusal."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


class UsageError(SectorError):
    """The call itself is wrong (exit status 2)."""

    code = "usage"


class BadConfig(UsageError):
    """A configuration file has an error; the message names file and key."""

    code = "bad_config"


class BadPath(UsageError):
    """A path is not absolute, has `.` or `..`, a name over 255 bytes, or lies under /.sector."""

    code = "bad_path"


class NotFound(SectorError):
    """No such file or directory."""

    code = "not_found"
    default_hint = "check the name; sector ls lists a directory"


class Exists(SectorError):
    """The target exists already."""

    code = "exists"
    default_hint = "choose another name, or remove or replace what is there"


class IsDirectory(SectorError):
    """A file was wanted, a directory is there."""

    code = "is_directory"
    default_hint = "name a file in it"


class NotDirectory(SectorError):
    """A directory was wanted, a file is there."""

    code = "not_directory"
    default_hint = "choose another path"


class NotEmpty(SectorError):
    """The directory has entries."""

    code = "not_empty"
    default_hint = "use rm -r to remove a directory with all that is in it"


class Denied(SectorError):
    """The user has no right to do this."""

    code = "denied"
    default_hint = "ask an administrator for the right (sector grant)"


class LoginRefused(SectorError):
    """Wrong user name, password or address; which one is not told."""

    code = "login_refused"
    default_hint = "check user name and password"


class SessionExpired(SectorError):
    """The session has ended or was closed by an administrator."""

    code = "session_expired"
    default_hint = "log in again: sector login"


class NotAllowed(SectorError):
    """The node is not on the allow-list."""

    code = "not_allowed"
    default_hint = "an administrator must add the node: sector acl slave add NAME"


class LeaseHeld(SectorError):
    """Another writer holds the file."""

    code = "lease_held"
    default_hint = "try again when the other writer has finished"


class LeaseLost(SectorError):
    """The write lease ended before the file was published; nothing was changed."""

    code = "lease_lost"
    default_hint = "write the file again"


class Conflict(SectorError):
    """The state changed in between."""

    code = "conflict"
    default_hint = "read the current state and try again"


class NoSpace(SectorError):
    """No slave has room for the file, or a disk is full."""

    code = "no_space"
    default_hint = "free space or add a slave"


class Unavailable(SectorError):
    """No running slave holds a good replica, or too few slaves run."""

    code = "unavailable"
    default_hint = "see sector node list; try again when the slaves are back"


class Unreachable(SectorError):
    """The other side does not answer."""

    code = "unreachable"
    default_hint = "check the address and that the service runs"


class SecurityAway(Unreachable):
    """The master answers, but its security server does not: no logins, joins, or changes of users."""

    code = "security_away"
    default_hint = "files stay reachable; an administrator starts the security server"


class TimedOut(SectorError):
    """No answer before the deadline; it is not known whether the request took effect."""

    code = "timeout"


class ReadOnly(SectorError):
    """The master serves reads only (it rebuilds its database)."""

    code = "read_only"
    default_hint = "wait until the rebuild has ended: sector status"


class Damaged(SectorError):
    """Data arrived or was read with a wrong checksum."""

    code = "damaged"


class Cancelled(SectorError):
    """Cancelled by the user."""

    code = "cancelled"


class Protocol(SectorError):
    """The peer sent something that is not allowed; versions may differ."""

    code = "protocol"


class Busy(SectorError):
    """The service is at a limit."""

    code = "busy"
    default_hint = "try again later"


class PortInUse(SectorError):
    """The port is taken by another process."""

    code = "port_in_use"
    default_hint = "stop the other process or choose another port"


class JobFailed(SectorError):
    """A Sphere job ended in an error."""

    code = "job_failed"


class UdfError(JobFailed):
    """A user function raised, exited or crashed; the message has the remote traceback."""

    code = "udf_error"


class UdfType(JobFailed):
    """A user function returned a value of a kind that is not allowed."""

    code = "udf_type"


class UdfTimeout(JobFailed):
    """A user function ran longer than allowed on one segment."""

    code = "udf_timeout"


class LocalIO(SectorError):
    """A file on this machine cannot be read or written."""

    code = "local_io"


def _tree(base: type[SectorError]) -> dict[str, type[SectorError]]:
    found = {base.code: base}
    for sub in base.__subclasses__():
        found.update(_tree(sub))
    return found


BY_CODE: dict[str, type[SectorError]] = _tree(SectorError)


def from_wire(code: str, message: str, hint: str) -> SectorError:
    """The exception for an error that came over the wire; an unknown code becomes a plain SectorError."""
    return BY_CODE.get(code, SectorError)(message, hint=hint)


def printable(text: str, keep: str = "") -> str:
    """Text from elsewhere (names, messages) for a terminal: what would move the cursor or change colours is
    escaped, but for the characters of `keep`."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
