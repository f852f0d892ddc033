"""What people type: sizes, durations, times, names."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from sector.errors import UsageError

_DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY: Final = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MOST: Final = 2**62
_LONGEST_S: Final = 100 * 365 * 86400
_EMAIL: Final = re.compile(r"(?=.{3,254}$)[^\s@,;:<>()\"]+@[^\s@,;<>()\"]+")
LAST_NS: Final = 2**63 - 1  # what databases hold: in the year 2262
NEVER: Final = 0


def _short(text: str) -> str:
    """As a message quotes it."""
    return repr(text if len(text) <= 64 else text[:61] + "...")


def parse_size(text: str) -> int:
    """Bytes of "10G" (10^9), "10GB", "10GiB" (2^30) or "1000"; "none" is 0. Raises `UsageError`."""
    if text.lower() == "none":
        return 0
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kmgtp]i?)?b?", text.strip().lower())
    size = 0
    if match:
        unit = match[2] or ""
        size = round(Decimal(match[1]) * (_BINARY.get(unit) or _DECIMAL[unit]))
    if not 0 < size <= _MOST:
        raise UsageError(
            f"{_short(text)} is not a size", hint="write 10G, 512MiB, 1.5T, a number of bytes, or none"
        )
    return size


def parse_count(text: str) -> int:
    """A number of objects, "none" is 0. Raises `UsageError`."""
    if text.lower() == "none":
        return 0
    match = re.fullmatch(r"([0-9]{1,19})([kmg]?)", text.strip().lower())
    if not match or not 0 < int(match[1]) * _DECIMAL[match[2]] <= _MOST:
        raise UsageError(f"{_short(text)} is not a number of objects", hint="write 100000, 100k, or none")
    return int(match[1]) * _DECIMAL[match[2]]


def parse_duration(text: str) -> int:
    """Seconds of "7d", "12h", "90m", "30s", "2w", up to a hundred years. Raises `UsageError`."""
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text.strip().lower())
    if not match or not int(match[1]):
        raise UsageError(f"{_short(text)} is not a time", hint="write 7d, 12h, 90m, 30s or 2w")
    seconds = int(match[1]) * _SECONDS[match[2]]
    if seconds > _LONGEST_S:
        raise UsageError(f"{text!r} is longer than a hundred years", hint="write 36500d or less")
    return seconds


def duration_text(seconds: int) -> str:
    """As `parse_duration` takes it, in the largest unit up to days that fits; "-" for 0."""
    unit = next(unit for unit in ("d", "h", "m", "s") if seconds % _SECONDS[unit] == 0)
    return f"{seconds // _SECONDS[unit]}{unit}" if seconds else "-"


def parse_expiry(text: str, now_ns: int) -> int:
    """Nanoseconds since 1970 of "2027-01-31", "2027-01-31T12:00:00+01:00", "30d" from now, or "never" (0).
    Raises `UsageError`."""
    if text.lower() == "never":
        return NEVER
    if text.lower() == "now":
        return now_ns
    if re.fullmatch(r"[0-9]{1,6}[smhdwSMHDW]", text.strip()):
        return now_ns + parse_duration(text) * 10**9
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        hint = "write 2027-01-31, 30d from now, now, or never"
        raise UsageError(f"{_short(text)} is not a date", hint=hint) from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at.timestamp() <= 0:
        raise UsageError(f"{text!r} is before 1970", hint="use now")
    if (at_ns := int(at.timestamp()) * 10**9) > LAST_NS:
        raise UsageError(f"{text!r} is after 2262-04-11", hint="use never")
    return at_ns


def time_text(at_ns: int) -> str:
    """For people, UTC to the second; "never" for 0."""
    return f"{datetime.fromtimestamp(at_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S}Z" if at_ns else "never"


def check_name(name: str, what: str = "user name") -> str:
    """A name of a user or group as it may stand in files, ACLs, policies and log lines. Raises
    `UsageError`."""
    if not re.fullmatch(r"[^\s\x00-\x1f/:,=#*\"<>]{1,64}", name) or not name.isprintable():
        hint = '1 to 64 characters without blanks and / : , = # * " < >'
        raise UsageError(f"{_short(name)} is no {what}", hint=hint)
    if not name.strip("."):
        raise UsageError(f"{name!r} is no {what}", hint="dots alone are none")
    return name


def check_email(text: str) -> str:
    """An e-mail address as it may stand in ACLs, in lower case, or "" for none. Raises `UsageError`."""
    address = text.strip().lower()
    if address and (not _EMAIL.fullmatch(address) or not address.isprintable()):
        raise UsageError(f"{_short(text)} is no e-mail address", hint="write NAME@HOST, as alice@example.org")
    return address
