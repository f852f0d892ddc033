"""Byte ranges of an object: the Range header, x-amz-copy-source-range and partNumber. Pure."""

from __future__ import annotations

import re

from cumulus.errors import S3Error
from cumulus.model import ObjectMeta

_RANGE = re.compile(r"bytes=(\d{0,100})-(\d{0,100})", re.IGNORECASE)  # clients send 2^64 - 1 for "the end"


def read_range(text: str, size: int) -> tuple[int, int] | None:
    """(offset, length) of a Range header; None when it is to be ignored (not understood, several ranges, or
    backwards), so that the whole object is sent. Raises `S3Error` InvalidRange when it lies outside."""
    match = _RANGE.fullmatch(text.replace(" ", ""))
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if first == "":
        length = min(int(last), size)
        if length == 0:
            raise _outside(text, size)
        return size - length, length
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        raise _outside(text, size)
    end = min(int(last), size - 1) if last else size - 1
    return start, end - start + 1


def _outside(text: str, size: int) -> S3Error:
    return S3Error(
        "InvalidRange",
        fields={"RangeRequested": text[:100], "ActualObjectSize": str(size)},
        headers=[("Content-Range", f"bytes */{size}")],
    )


def copy_range(text: str, size: int) -> tuple[int, int]:
    """(offset, length) of x-amz-copy-source-range, both ends given and inside. Raises InvalidArgument (in S3
    also for one that lies outside)."""
    match = _RANGE.fullmatch(text)
    if match is None or "" in match.groups():
        raise _wrong(text, "x-amz-copy-source-range must be bytes=FIRST-LAST.")
    first, last = (int(value) for value in match.groups())
    if first > last:
        raise _wrong(text, "x-amz-copy-source-range must be bytes=FIRST-LAST.")
    if last >= size:
        raise _wrong(text, f"Range specified is not valid for source object of size: {size}")
    return first, last - first + 1


def _wrong(text: str, why: str) -> S3Error:
    fields = {"ArgumentName": "x-amz-copy-source-range", "ArgumentValue": text[:100]}
    return S3Error("InvalidArgument", why, fields=fields)


def part_range(meta: ObjectMeta, number: int) -> tuple[int, int]:
    """(offset, length) of one part; an object of one piece is its own part 1. Raises InvalidPartNumber
    (416)."""
    if not meta.parts and number == 1:
        return 0, meta.size
    offset = 0
    for part in meta.parts:
        if part.number == number:
            return offset, part.size
        offset += part.size
    raise S3Error("InvalidPartNumber", fields={"PartNumberRequested": str(number)})
