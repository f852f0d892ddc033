"""One object of the fsspec store on its way: a draft beside the objects, which a commit gives its name."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from cumulus.backends.fsspec_record import asked
from cumulus.storage.api import INTERNAL, Entry, IfToken, StorageError, WriteStream
from cumulus.storage.names import check_name

if TYPE_CHECKING:
    from cumulus.backends.fsspec_store import FsspecStore


class Writer(WriteStream):
    """Writes a draft beside the objects; commit gives it its name."""

    def __init__(self, store: FsspecStore, bucket: str, name: str) -> None:
        self._store = store
        self._bucket = bucket
        self._name = name
        self.draft = store.path(bucket, f"{INTERNAL}/tmp/{time.time_ns():x}-{secrets.token_hex(6)}")
        self._size = 0
        with asked(self.draft):
            self.file: Any = store.fs.open(self.draft, "wb")

    def opened(self) -> Any:
        if self.file is None:
            raise StorageError(f"the stream of {self._name!r} is closed")
        return self.file

    def write(self, data: memoryview) -> None:
        file = self.opened()
        with asked(self._name):
            file.write(bytes(data))
        self._size += len(data)

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        file = self.opened()
        name = name or self._name
        check_name(name)
        entry = self._store.publish(self._bucket, name, self.draft, file, self._size, bytes(meta), if_token)
        self.file = None
        return entry

    def abort(self) -> None:
        if self.file is None:
            return
        file, self.file = self.file, None
        try:
            with asked(self.draft):
                file.close()
                self._store.fs.rm_file(self.draft)
        except StorageError:
            return  # a draft that stays is swept later
