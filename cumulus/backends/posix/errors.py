"""What the kernel's error numbers mean to the floors above: one table."""

from __future__ import annotations

import errno
from types import TracebackType
from typing import Final

from cumulus.storage.api import (
    BadName,
    Forbidden,
    Missing,
    NoSpace,
    ReadOnly,
    StorageError,
    Taken,
    Unavailable,
)

TABLE: Final[dict[int, type[StorageError]]] = {
    errno.ENOENT: Missing,
    errno.ENOTDIR: Taken,
    errno.EISDIR: Taken,
    errno.EEXIST: Taken,
    errno.ENOTEMPTY: Taken,
    errno.ELOOP: Taken,  # a symbolic link, which is never followed
    errno.ENAMETOOLONG: BadName,
    errno.EINVAL: BadName,  # some file systems refuse some characters
    errno.EILSEQ: BadName,
    errno.EXDEV: BadName,  # another file system is mounted within the bucket
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EFBIG: NoSpace,
    errno.EACCES: Forbidden,
    errno.EPERM: Forbidden,
    errno.EROFS: ReadOnly,
}


def storage_error(error: OSError, what: str) -> StorageError:
    """The error to raise for `error`; what the table lacks (EIO, ESTALE, EMFILE, ...) may pass:
    `Unavailable`."""
    kind = TABLE.get(error.errno or 0, Unavailable)
    return kind(f"{what}: {error.strerror or error}")


class translated:
    """Context in which an `OSError` becomes the storage error of the table; `what` opens its message."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise storage_error(error, self.what) from error
