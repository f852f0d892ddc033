"""What a storage name is (storage API): checked once at the door of each backend."""

from __future__ import annotations

import re
from typing import Final

from cumulus.storage.api import BadName

MAX_SEGMENT = 255  # bytes of UTF-8, as in Linux's file systems
MAX_NAME = 1024  # as S3's keys; what lies deeper in a directory of others is no object
_WHO: Final = re.compile(r"(?<=://)[^/]*@")


def check_name(name: str) -> list[str]:
    """The segments of a storage name. Raises `BadName` for one that is empty, absolute, not UTF-8, holds a
    zero byte, or has a segment that is empty, ".", ".." or too long."""
    segments = name.split("/")
    for segment in segments:
        if segment in ("", ".", ".."):
            raise BadName(f"{name!r} has a segment {segment!r}")
        if "\0" in segment:
            raise BadName(f"{name!r} holds a zero byte")
    try:
        longest = max(len(segment.encode()) for segment in segments)
    except UnicodeEncodeError:
        raise BadName(f"{name!r} is not Unicode text") from None
    if longest > MAX_SEGMENT:
        raise BadName(f"a segment of {name[:40]!r}... has {longest} bytes, more than {MAX_SEGMENT}")
    return segments


def check_bucket(bucket: str) -> str:
    """The bucket's name, fit to be one directory. Raises `BadName`."""
    if len(check_name(bucket)) != 1 or bucket.startswith("."):
        raise BadName(f"{bucket!r} cannot name a bucket")
    return bucket


def may_be_bucket(name: str) -> bool:
    """Whether `check_bucket` lets a name pass."""
    try:
        check_bucket(name)
    except BadName:
        return False
    return True


def below(prefix: str, after: str) -> bool:
    """Whether no name that begins with `prefix` is greater than `after`."""
    return after >= prefix and not after.startswith(prefix)


def without_secret(url: str) -> str:
    """A URL as it may be shown: without user and password."""
    return _WHO.sub("", url)
