"""Where buckets of plain files are: in DIR/data, on a disk of their own there, or in a directory elsewhere;
and what there is to do about one that cannot be reached, or that the database does not know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cumulus.backends.posix.paths import BARE
from cumulus.errors import S3Error
from cumulus.model import Bucket
from cumulus.ops.names import check_bucket_name
from cumulus.storage.api import FileStore, StorageError

REACH: Final = "run this as the account of the service, and check owner, mode and disk"


def _note(store: str, bucket: str) -> Path:
    """The file that says that a disk has been mounted on the bucket's directory."""
    return Path(store, "mounted", bucket)


def way_back(url: str, bucket: Bucket) -> str:
    """What to do about a bucket of that storage that cannot be reached."""
    kind, _, store = url.partition(":")
    if kind != "posix":
        return "see that its storage can be reached"
    remove = f"cumulus bucket remove {bucket.name}"
    if bucket.path:
        return f"mount it; or restore it; or {remove} --forget"
    note = _note(store, bucket.name)
    if os.path.lexists(note):
        return f"mount it; or, if that will never be done again, remove {note}, then {remove} --delete-data"
    if not os.path.lexists(Path(store, "data", bucket.name)):
        return f"restore its directory; or {remove} --delete-data"
    return REACH


def without_links(store: FileStore, path: str, buckets: Iterable[Bucket]) -> list[str]:
    """Buckets with a disk of their own that has no hard links, as far as that can be tried."""
    found = []
    for bucket in buckets:
        if bucket.path or os.path.lexists(_note(path, bucket.name)):
            with contextlib.suppress(StorageError):
                if not store.can_link(bucket.name):
                    found.append(bucket.name)
    return found


def unknown(store: Path, known: set[str]) -> list[tuple[str, str]]:
    """Names of buckets that a newer database may have had, in order: there are files under them; or a
    directory elsewhere, which comes with the name, is theirs."""
    found = {one.name: "" for one in (store / "data").glob("*") if _has_something(one)}
    found |= {one.name: _adopted(one) for one in (store / "adopted").glob("*")}
    return sorted((name, path) for name, path in found.items() if name not in known and _can_be_bucket(name))


def _adopted(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").removesuffix(BARE)
    except OSError:
        return f"what {file} has"


def _has_something(path: Path) -> bool:
    try:
        return next(path.iterdir(), None) is not None
    except NotADirectoryError:
        return False
    except OSError:
        return True


def _can_be_bucket(name: str) -> bool:
    try:
        check_bucket_name(name)
    except S3Error:
        return False
    return True
