"""Second names of files, which older versions need and not every file system has."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import Final

from cumulus.backends.posix.files import Files
from cumulus.backends.posix.paths import FILE_MODE, Root

NO_LINKS: Final = (errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EMLINK)
_NOT_BETWEEN: Final = (*NO_LINKS, errno.EXDEV)  # some have them within one directory only


def can_link(root: Root, files: Files) -> bool:
    """Whether a file of the bucket can have a second name in another of its directories; that is tried.
    Raises `OSError`."""
    name = f"l{secrets.token_hex(12)}"
    os.close(files.create(root.tmp, name, FILE_MODE))
    try:
        files.link(root.tmp, name, root.meta, name)
    except OSError as error:
        if error.errno not in _NOT_BETWEEN:
            raise
        return False
    finally:
        for directory in (root.tmp, root.meta):
            with contextlib.suppress(FileNotFoundError):
                files.unlink(directory, name)
    return True
