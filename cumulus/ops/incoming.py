"""Bytes of an object or part on their way in: room in the quotas, checksums, storage.

Room for the declared size is reserved before the first byte; a body of unknown size holds more as it grows.
Whatever ends it otherwise than by `close` after publishing gives all back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cumulus.checksums import Hasher
from cumulus.errors import S3Error
from cumulus.index.api import OverQuota, Reservation
from cumulus.ops.cores import elsewhere
from cumulus.ops.hashing import Line
from cumulus.ops.quota import quota_error
from cumulus.ops.site import Site
from cumulus.storage.api import Entry, IfToken, ObjectStream, RangeStream

STEP: Final = 16 << 20  # by which a reservation of unknown size grows
BESIDE: Final = 128 << 10  # buffers of at least this are hashed in another thread meanwhile


class Incoming:
    """One body. `size` is what came so far. Not for several threads at once."""

    def __init__(
        self,
        site: Site,
        bucket: str,
        name: str,
        *,
        size: int | None,
        limit: int,
        algorithms: Iterable[str],
        objects: int = 1,
    ) -> None:
        """Raises `S3Error` EntityTooLarge, QuotaExceeded and storage errors; nothing is held then."""
        self._site = site
        self._limit = limit
        self._stream: ObjectStream | RangeStream | None = None
        self.expected = size
        self.size = 0
        if size is not None and size > limit:
            raise self._too_large(size)
        self._hasher = Hasher(algorithms)
        self._lines: list[Line] = []  # what is hashed in other threads
        self.reservation: Reservation | None = site.reserve(bucket, size or 0, objects)
        try:
            self._stream = self._open(bucket, name)
        except BaseException:
            self.abort()
            raise

    def _open(self, bucket: str, name: str) -> ObjectStream | RangeStream:
        """Where the bytes go. Raises storage errors."""
        return self._site.store.open_write(bucket, name, self.expected)

    def _too_large(self, size: int) -> S3Error:
        return S3Error(
            "EntityTooLarge", fields={"ProposedSize": str(size), "MaxSizeAllowed": str(self._limit)}
        )

    def write(self, data: memoryview) -> None:
        """`take` of one piece."""
        self.take([data])

    def take(self, pieces: Sequence[memoryview]) -> None:
        """Take the next bytes; they must stay as they are until the next call returns. Raises `S3Error`
        EntityTooLarge, QuotaExceeded, IncompleteBody (more came than was declared) and storage errors; the
        caller then aborts."""
        stream, count = self._stream, sum(map(len, pieces))
        if stream is None:
            raise S3Error("InternalError")
        self.size += count
        if self.size > self._limit:
            raise self._too_large(self.size)
        if self.expected is None:
            self._hold()
        elif self.size > self.expected:
            raise S3Error("IncompleteBody", "More bytes came than were declared.")
        behind = self._hash(pieces, count)
        with elsewhere(self._lines[0].core if len(self._lines) == 1 else -1):
            for piece in pieces:
                stream.write(piece)
            for line in self._lines:
                line.wait(behind)

    @property
    def receives(self) -> bool:
        """Whether `receive` may be called: of a body of known size whose sums are made in one pass, which
        storage takes that way."""
        stream, both = self._stream, self._hasher.both
        return stream is not None and stream.receives and self.expected is not None and both is not None

    def receive(self, connection: int, room: memoryview, moment_s: float) -> int:
        """Receive the next bytes, as `cumulus.rest.call.Sink.receive`. Raises storage errors; the caller then
        aborts."""
        stream, both = self._stream, self._hasher.both
        if stream is None or both is None or self.expected is None:
            raise S3Error("InternalError")
        for line in self._lines:
            line.wait()
        count = stream.receive(connection, both, room[: self.expected - self.size], moment_s)
        self._hasher.update_crcs(room[:count])
        self.size += count
        return count

    def _hash(self, pieces: Sequence[memoryview], count: int) -> int:
        """Hash pieces, or begin to. How many of what was given to each line may be under way when the call
        returns: the last, but nothing of the calls before."""
        if not self._hasher.names:
            return 0
        if count >= BESIDE:
            if not self._lines:
                self._lines = [self._site.hashing.line(update) for update in self._hasher.apart()]
            for line in self._lines:
                line.put(pieces)
            return 1
        for line in self._lines:
            line.wait()
        for piece in pieces:
            self._hasher.update(piece)
        return 0

    @property
    def hasher(self) -> Hasher:
        """Over all that came."""
        for line in self._lines:
            line.wait()
        return self._hasher

    def _hold(self) -> None:
        held = self.reservation
        if held is None or self.size <= held.bytes:
            return
        more = max(STEP, self.size - held.bytes)
        try:
            try:
                self._site.index.grow(held, more)
            except OverQuota:  # a whole step does not fit; what is needed may
                self._site.index.grow(held, self.size - held.bytes)
        except OverQuota as error:
            raise quota_error(error, self.size) from error

    def place(self, name: str, meta: bytes, if_token: IfToken) -> Entry:
        """Publish what came (`cumulus.ops.publish.Place`). Raises also `S3Error` QuotaExceeded, when what was
        reserved was lost."""
        if not isinstance(self._stream, ObjectStream):
            raise S3Error("InternalError")
        self.confirm()
        return self._stream.commit(meta, if_token, name)

    def confirm(self) -> None:
        """What was reserved is still held. Raises `S3Error` QuotaExceeded."""
        if self.reservation is not None:
            self._site.confirm(self.reservation, self.size)

    def close(self) -> None:
        """It was published, and its reservation was settled with the index."""
        self.reservation = None
        self.abort()

    def abort(self) -> None:
        """Forget what was written and give the room back. Twice is once."""
        for line in self._lines:
            line.forget()
        stream, self._stream = self._stream, None
        held, self.reservation = self.reservation, None
        try:
            if stream is not None:
                stream.close()
        finally:
            if held is not None:
                self._site.index.release(held)
