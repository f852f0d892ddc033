"""What a user is told who has reached a quota. Pure."""

from __future__ import annotations

from cumulus.errors import S3Error
from cumulus.index.api import OverQuota

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def _unit(size: int) -> int:
    unit = 0
    while size >= 1000 ** (unit + 1) and unit < len(_UNITS) - 1:
        unit += 1
    return unit


def size_text(size: int, beside: int = 0) -> str:
    """Bytes with a unit: "9.8 GB", "512 B". The unit is that of `beside`, so that both can be compared at a
    glance, unless too little would be left of the figure."""
    unit = max(_unit(size), _unit(beside))
    if size and size * 20 < 1000**unit:
        unit = _unit(size)
    return f"{size / 1000**unit:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def quota_error(over: OverQuota, asked: int) -> S3Error:
    """QuotaExceeded with the figures in the text and in the document."""
    whose = over.name if over.scope == "user" else f"{over.scope} {over.name}"
    if over.what == "bytes":
        sizes = (over.used, over.reserved, over.limit)
        used, reserved, limit = (size_text(value, over.limit) for value in sizes)
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
