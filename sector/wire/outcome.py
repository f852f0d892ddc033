"""Codes of the ERROR record on the data channel (spec/security.md): why a receiver refused what it got.

Codes below 1000 belong to the C core; ours are never reused.
"""

from __future__ import annotations

from sector import errors

CODES: dict[str, int] = {
    errors.Cancelled.code: 1000,
    errors.NoSpace.code: 1001,
    errors.LeaseLost.code: 1002,
    errors.Conflict.code: 1003,
    errors.Denied.code: 1004,
    errors.Damaged.code: 1005,
    errors.LocalIO.code: 1006,
    errors.Unavailable.code: 1007,
    errors.NotFound.code: 1008,
    errors.SessionExpired.code: 1009,
    errors.Exists.code: 1010,
    errors.SectorError.code: 1099,
}
_NAMES = {number: code for code, number in CODES.items()}

TEXTS: dict[str, str] = {
    errors.Cancelled.code: "the other side cancelled the transfer",
    errors.NoSpace.code: "the disk of the slave is full",
    errors.LeaseLost.code: "the write lease ended before the file was published; nothing was changed",
    errors.Conflict.code: "the file changed in between; nothing was written",
    errors.Denied.code: "the right to write ended before the file was published",
    errors.Damaged.code: "the data arrived damaged",
    errors.LocalIO.code: "the slave cannot read or write its disk",
    errors.Unavailable.code: "the slave is stopping",
    errors.NotFound.code: "the directory of the file is gone",
    errors.SessionExpired.code: "the session ended before the file was published",
    errors.Exists.code: "a file with this name was created in between",
}


def number_of(error: BaseException) -> int:
    """The ERROR code that stands for `error`."""
    code = error.code if isinstance(error, errors.SectorError) else errors.SectorError.code
    return CODES.get(code, CODES[errors.SectorError.code])


def error_of(number: int, where: str) -> errors.SectorError | None:
    """The exception for an ERROR code of ours that `where` (such as "slave s2") sent; None for others."""
    code = _NAMES.get(number)
    if code is None:
        return None
    return errors.BY_CODE[code](f"{where}: {TEXTS.get(code, 'the transfer was refused')}")
