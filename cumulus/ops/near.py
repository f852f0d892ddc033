"""The site as far as it answers without waiting: from memory, and from storage that has everything at hand.

The HTTP floor asks it in its own thread, which must never wait; whatever it cannot tell is asked again in a
thread of the pool. So a request for a small object that is read often costs no change of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, cast

from cumulus.index.api import Directory, Index
from cumulus.model import Bucket, Credential
from cumulus.ops.site import Site
from cumulus.storage.api import Entry, FileStore, ObjectStream, Token


class NotNow(Exception):
    """The answer needs waiting; nothing has been done."""


class _Far:
    """Everything else of an interface."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotNow(name)


class _NearStore(_Far):
    def __init__(self, store: FileStore) -> None:
        self._store = store
        self.capabilities = store.capabilities

    def open_read(self, bucket: str, name: str, token: Token | None = None) -> ObjectStream:
        stream = self._store.open_now(bucket, name) if token is None else None
        if stream is None or stream.entry.meta is None:  # made outside: it may have to be read and hashed
            if stream is not None:
                stream.close()
            raise NotNow("open_read")
        return stream

    def stat(self, bucket: str, name: str) -> Entry:
        stream = self.open_read(bucket, name)
        stream.close()
        return stream.entry


class _NearIndex(_Far):
    def __init__(self, index: Index, quick: Callable[[Bucket], bool]) -> None:
        self._index = index
        self._quick = quick

    def bucket(self, name: str) -> Bucket:
        found = self._index.bucket_now(name)
        if found is None or not self._quick(found):
            raise NotNow("bucket")
        return found


class _NearDirectory(_Far):
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def credential(self, access_key: str) -> Credential:
        found = self._directory.credential_now(access_key)
        if found is None:
            raise NotNow("credential")
        return found


class NearSite(Site):
    """A site for reading. What would have to wait raises `NotNow`, before anything is changed. `quick` says
    whether what a bucket's documents say is quickly read."""

    def __init__(self, site: Site, quick: Callable[[Bucket], bool]) -> None:
        self.store = cast(Any, _NearStore(site.store))
        self.index = cast(Any, _NearIndex(site.index, quick))
        self.directory = cast(Any, _NearDirectory(site.directory))
        self.clock = site.clock
        self.region = site.region
        self.opaque_etags = site.opaque_etags
        self.atomic = site.atomic
        self.compares = site.compares
        self.marks = site.marks
