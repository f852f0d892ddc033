"""Times as requests and policies write them, as nanoseconds since 1970 (UTC). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final

SECOND: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BASIC: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)
_EXTENDED: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d)(?:\.\d{1,9})?)?(?:Z|\+00:00))?", re.ASCII
)


def _ns(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _fields(match: re.Match[str] | None) -> int:
    if match is None:
        raise ValueError("not a time")
    year, month, day, hour, minute, second = (int(digits or 0) for digits in match.groups())
    return _ns(datetime(year, month, day, hour, minute, second, tzinfo=UTC))


@lru_cache(maxsize=64)
def parse_basic(text: str) -> int:
    """YYYYMMDDTHHMMSSZ, as signatures have it. Raises `ValueError`."""
    return _fields(_BASIC.fullmatch(text))


def parse_iso(text: str) -> int:
    """ISO 8601 with hyphens: a day, or a time in UTC with or without a fraction (which counts as nothing).
    Raises `ValueError`."""
    return _fields(_EXTENDED.fullmatch(text))


def parse_http(text: str) -> int:
    """A date as in the header Date (RFC 1123, or a similar form). Raises `ValueError`."""
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        raise ValueError("not a date") from None
    try:
        return _ns(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except OverflowError:
        raise ValueError("not a date") from None


def _moment(ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=ns // 1000)


def basic(ns: int) -> str:
    """Inverse of `parse_basic`."""
    return _moment(ns).strftime("%Y%m%dT%H%M%SZ")


def iso(ns: int) -> str:
    """With hyphens, seconds and Z."""
    return _moment(ns).strftime("%Y-%m-%dT%H:%M:%SZ")
