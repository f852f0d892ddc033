"""What a user is told who has reached a quota. Pure."""

from __future__ import annotations

from cumulus.errors import S3Error
from cumulus.index.api import OverQuota

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size_text(size: int) -> str:
    """Bytes with a unit: "9.8 GB", "512 B", "10 GB"."""
    value, unit = float(size), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value /= 1000
        unit += 1
    text = f"{value:.1f}".removesuffix(".0") if unit else str(size)
    return f"{text} {_UNITS[unit]}"


def quota_error(over: OverQuota, asked: int) -> S3Error:
    """QuotaExceeded with the figures in the text and in the document."""
    whose = over.name if over.scope == "user" else f"{over.scope} {over.name}"
    if over.what == "bytes":
        used, reserved, limit = (size_text(value) for value in (over.used, over.reserved, over.limit))
        text = f"Quota of {whose} reached: {used} used + {reserved} being written, limit {limit}."
    else:
        text = (
            f"Quota of {whose} reached: {over.used} objects + {over.reserved} being written, "
            f"limit {over.limit} objects."
        )
    fields = {
        "Scope": over.scope,
        "Name": over.name,
        "What": over.what,
        "Used": str(over.used),
        "Reserved": str(over.reserved),
        "Requested": str(asked if over.what == "bytes" else 1),
        "Limit": str(over.limit),
    }
    return S3Error("QuotaExceeded", text, fields=fields)
