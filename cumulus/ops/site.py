"""What every operation works with: storage, index, users, a clock; made once for each process."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from cumulus.errors import S3Error
from cumulus.index.api import Directory, Index, IndexFailure, OverQuota, Reservation
from cumulus.model import Bucket, Versioning
from cumulus.ops.bin import Bin
from cumulus.ops.hands import Hands
from cumulus.ops.hashing import Hashing
from cumulus.ops.left import leave
from cumulus.ops.names import is_mark, new_version_id
from cumulus.ops.quota import quota_error
from cumulus.ops.told import Told
from cumulus.ops.unhashed import Unhashed
from cumulus.storage.api import Changed, FileStore, Missing, Token

STRIPES: Final = 512
HANDS: Final = 7  # beside the thread that a request has: so many steps may share a sync


class Site:
    """The collaborators of all operations. `opaque_etags`: ETags are random instead of MD5 sums, which
    saves the hashing (setting `etag`). `hashing` hashes large buffers while they are written, `hands` do
    steps of a request beside each other. `stopping`: work in the background ends soon."""

    def __init__(
        self,
        store: FileStore,
        index: Index,
        directory: Directory,
        clock: Callable[[], int],
        *,
        region: str = "us-east-1",
        opaque_etags: bool = False,
        hash_threads: int = 2,
    ) -> None:
        self.store = store
        self.index = index
        self.told = Told(index)
        self.directory = directory
        self.clock = clock
        self.region = region
        self.opaque_etags = opaque_etags
        self.atomic = store.capabilities.atomic_replace
        self.compares = self.atomic and store.capabilities.compares
        self.marks = self.atomic and store.capabilities.directories
        self.hashing = Hashing(hash_threads)
        self.hands = Hands(HANDS)
        self._locks = [threading.Lock() for _ in range(STRIPES)]
        self._stop = threading.Event()
        self.bin = Bin()
        self.alone = False  # no other process reads from the storage
        self.unhashed = Unhashed(lambda: self.stopping)

    @property
    def stopping(self) -> bool:
        """Whether the process ends soon."""
        return self._stop.is_set()

    @stopping.setter
    def stopping(self, so: bool) -> None:
        (self._stop.set if so else self._stop.clear)()

    def pause(self, seconds: float) -> bool:
        """Wait in a thread of the background; True at once when the process ends."""
        return self._stop.wait(seconds)

    def acting(self, user: str) -> Site:
        """The same site, with storage as the user of that name ("" = nobody known) may use it."""
        if not self.store.capabilities.users:
            return self
        site = copy.copy(self)
        site.store = self.store.for_user(user)
        return site

    def close(self) -> None:
        """End the hashing threads, and remove bodies that wait to be discarded; where others may be at them,
        leave word of them instead."""
        self.stopping = True
        self.unhashed.close()
        self.told.close()
        self.hashing.shutdown()
        self.hands.close()
        with contextlib.suppress(IndexFailure):  # else storage still knows of it
            self.told.settle()
        if self.alone:
            self.empty_bin(all_of_it=True)
        else:
            leave(self)

    def lock(self, bucket: str, key: str) -> AbstractContextManager[object]:
        """One lock for changes of a key that take several steps. Between processes if_token decides, or where
        that does not hold there, or the key may have one of two names, the lock is one between processes."""
        if not self.compares or self.has_two_names(key):
            return self.index.alone(bucket, key)
        digest = hashlib.blake2b(f"{bucket}/{key}".encode(), digest_size=4).digest()
        return self._locks[int.from_bytes(digest) % STRIPES]

    def has_two_names(self, key: str) -> bool:
        """Whether what an object holds decides under which name it is stored: "a/" is a directory, or, with
        bytes, an odd name. No condition on the one says what is under the other."""
        return self.marks and is_mark(key)

    def bucket(self, name: str) -> Bucket:
        """Raises `S3Error` NoSuchBucket."""
        bucket = self.index.bucket(name)
        if bucket is None:
            raise S3Error("NoSuchBucket", fields={"BucketName": name[:255]})
        return bucket

    def can_version(self, bucket: Bucket) -> bool:
        """Whether older versions can be kept: by a second name, or because each body has its own. Raises
        `StorageError`."""
        return not self.atomic or self.store.can_link(bucket.name)

    def new_version(self, bucket: Bucket) -> str:
        """The version id of what is published in a bucket now."""
        return new_version_id(self.clock()) if bucket.versioning is Versioning.ENABLED else "null"

    def reserve(self, bucket: str, size: int, objects: int = 1) -> Reservation:
        """Room in the quotas, before something is written. Raises `S3Error` QuotaExceeded, and `Away` while
        the index does not hear of what was written before."""
        self.told.check()
        try:
            return self.index.reserve(bucket, size, objects)
        except OverQuota as error:
            raise quota_error(error, size) from error

    def confirm(self, reservation: Reservation, size: int) -> None:
        """What was reserved is still held, before it is published. Raises `S3Error` QuotaExceeded."""
        try:
            self.index.confirm(reservation)
        except OverQuota as error:
            raise quota_error(error, size) from error

    def hash_later(self, bucket: str, name: str) -> None:
        """Note a file made outside for background work; when too many wait, the next scan brings it again."""
        if not self.opaque_etags:
            self.unhashed.add(bucket, name)

    def discard(self, bucket: str, name: str, size: int) -> bool:
        """Remove a body of `size` bytes that nothing names any more, later: readers may still be at it. False
        when that was to happen already, or too many wait; the sweep finds it again then."""
        return self.bin.put(bucket, name, size)

    def empty_bin(self, *, all_of_it: bool = False) -> int:
        """Remove discarded bodies whose time has come; how many."""
        count = 0
        while (due := self.bin.take(all_of_it=all_of_it)) is not None:
            self.remove(*due)
            count += 1
        return count

    def remove_if(self, bucket: str, name: str, token: Token) -> None:
        """Remove a name that may be gone already, or another's by now."""
        with contextlib.suppress(Missing, Changed):
            self.store.delete(bucket, name, token)

    def remove(self, bucket: str, name: str) -> None:
        """Remove a name that may be gone already."""
        try:
            self.store.delete(bucket, name)
        except Missing:
            return
