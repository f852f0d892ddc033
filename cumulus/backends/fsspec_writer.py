"""One object of the fsspec store on its way: a draft beside the objects, which a commit gives its name."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from cumulus.backends.fsspec_link import let_go
from cumulus.backends.fsspec_record import Footer, asked
from cumulus.storage.api import INTERNAL, PIECE, Entry, IfToken, StorageError, WriteStream
from cumulus.storage.names import check_name

if TYPE_CHECKING:
    from cumulus.backends.fsspec_store import FsspecStore


BLOCK: Final = 5 << 20  # bytes that an object store takes at least, at a time,
BLOCKS: Final = 9000  # and how often, with some to spare


def block_of(size: int | None) -> int | None:
    """How much of an upload of that size is held in memory, and sent at a time; None where it is unknown."""
    return None if size is None else max(BLOCK, size // BLOCKS)


class Writer(WriteStream):
    """Writes a draft beside the objects; commit gives it its name. `block` goes to the driver."""

    def __init__(self, store: FsspecStore, bucket: str, name: str, block: int | None = None) -> None:
        self._store = store
        self._options = {} if block is None else {"block_size": block}
        self._bucket = bucket
        self._name = name
        self.size = 0
        self._whole = False
        self.draft, self.file = self._begun()

    def _begun(self) -> tuple[str, Any]:
        name = f"{INTERNAL}/tmp/{time.time_ns():x}-{secrets.token_hex(6)}"
        draft = self._store.path(self._bucket, name)
        with asked(draft):
            return draft, self._store.fs.open(draft, "wb", **self._options)

    def opened(self) -> Any:
        if self.file is None:
            raise StorageError(f"the stream of {self._name!r} is closed")
        return self.file

    def write(self, data: memoryview) -> None:
        file = self.opened()
        with asked(self._name):
            file.write(bytes(data))
        self.size += len(data)

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        self.opened()
        name = name or self._name
        check_name(name)
        entry = self._store.publish(self._bucket, name, self, bytes(meta), if_token)
        self.file = None
        return entry

    def finish(self, footer: Footer) -> None:
        """Put the record behind the body. Once more, since the name was taken meanwhile: behind a copy of the
        body, since drivers cut nothing off."""
        if self._whole:
            former, (self.draft, self.file) = self.draft, self._begun()
            try:
                with asked(self.draft):
                    for start in range(0, self.size, PIECE):
                        self.file.write(self._store.read(former, start, min(start + PIECE, self.size)))
            finally:
                self._remove(former)
        self._store.finish(self.opened(), footer)
        self._whole = True

    def abort(self) -> None:
        if self.file is None:
            return
        file, self.file = self.file, None
        let_go(file)
        self._remove(self.draft)

    def _remove(self, draft: str) -> None:
        with contextlib.suppress(Exception):  # one that stays is swept later
            self._store.fs.rm_file(draft)
