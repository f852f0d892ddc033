"""What is below a bucket in Sector, in order: names, pages of a directory, where what is internal ends."""

from __future__ import annotations

from typing import Final

from cumulus.storage.api import INTERNAL
from sector import errors
from sector.client.cloud import CloudClient
from sector.model import FileInfo
from sector.wire.files import List

ROOT: Final = "/s3"
_LAST: Final = "\U0010ffff"
META: Final = f"{INTERNAL}/meta"  # of a bucket: where sidecars are


def name_of(bucket: str, info: FileInfo) -> str:
    """The storage name of a file in a bucket."""
    return info.path[len(f"{ROOT}/{bucket}/") :]


async def files(client: CloudClient, bucket: str, after: str, prefix: str, limit: int) -> list[FileInfo]:
    """Those of a bucket whose names are greater than `after` and begin with `prefix`, in order."""
    wanted: list[FileInfo] = []
    root, start, more = f"{ROOT}/{bucket}", max(after, _before(prefix)), limit > 0
    while more and len(wanted) < limit:
        size = min(5000, max(100, limit - len(wanted) + 1))
        page = await client.call(List(root, True, f"{root}/{start}" if start else "", size))
        more = page.more and bool(page.entries)
        for info in page.entries:
            start = name_of(bucket, info)
            if start > prefix and not start.startswith(prefix):
                more = False
                break
            if (skip := _hidden(start, prefix)) is not None:
                start, more = skip, True  # on behind what is internal
                break
            if info.kind == "file" and start > after and start.startswith(prefix):
                wanted.append(info)
                if len(wanted) == limit:
                    break
    return wanted


async def page_of(path: str, after: str, client: CloudClient) -> tuple[list[FileInfo], bool]:
    """Some of what is below a directory, and whether there is more."""
    try:
        found = await client.call(List(path, True, after, 1000))
    except (errors.NotFound, errors.NotDirectory):
        return [], False
    return list(found.entries), found.more and bool(found.entries)


async def below(client: CloudClient, path: str) -> list[FileInfo]:
    """What is in a directory; nothing where there is none."""
    try:
        return await client.ls(path)
    except (errors.NotFound, errors.NotDirectory):
        return []


def _before(prefix: str) -> str:
    """A name less than all that begin with `prefix`, with few between."""
    if not prefix or prefix[-1] == "\0":
        return prefix[:-1]
    last = ord(prefix[-1]) - 1
    return prefix[:-1] + chr(0xD7FF if last == 0xDFFF else last) + _LAST


def _hidden(name: str, prefix: str) -> str | None:
    """Behind which name to go on when this one is not to be listed; a key may be next to what is internal."""
    if name.startswith(f"{INTERNAL}/") and not prefix.startswith(f"{INTERNAL}/"):
        return max(name, f"{INTERNAL}/{_LAST}")
    if name.startswith(f"{META}/"):
        return max(name, f"{META}/{_LAST}")
    return None
