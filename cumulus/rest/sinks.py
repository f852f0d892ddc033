"""Where bodies go: small documents are collected, objects and parts stream through to storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cumulus.checksums import Hasher
from cumulus.errors import S3Error
from cumulus.ops.incoming import Incoming
from cumulus.rest import expect
from cumulus.rest.call import Reply, Sink
from cumulus.rest.expect import Expected
from cumulus.rest.request import Request

MAX_DOCUMENT: Final = 1 << 20
MAX_LONG_DOCUMENT: Final = 4 << 20  # a completion of 10,000 parts, a deletion of 1,000 keys


def declared(request: Request) -> int | None:
    """Bytes of the body as the client counts them. Raises `S3Error` MissingContentLength."""
    call, rule = request.call, request.auth.body
    if rule.framed:
        if rule.decoded_length is None:
            raise S3Error("MissingContentLength", "x-amz-decoded-content-length is missing.")
        return rule.decoded_length
    if call.length is None and not call.chunked:
        raise S3Error("MissingContentLength")
    return call.length


class DocumentSink(Sink):
    """Collects a document and checks what was promised of it; `run` then takes it. `promises_object`: the
    checksum headers are of an object, not of the document."""

    promises_object = False

    def __init__(self, request: Request, run: Callable[[bytes], Reply], *, limit: int = MAX_DOCUMENT) -> None:
        """Raises `S3Error` MaxMessageLengthExceeded, InvalidDigest."""
        call = request.call
        self._limit = limit
        if call.length is not None and call.length > 2 * limit:
            raise self._too_long()
        # without a declared length there is no body
        length = 0 if call.length is None and not call.chunked else call.length
        self._hashes = request.auth.body.hashes
        self._decoder = request.auth.body.decoder(length)
        self._expected = Expected() if self.promises_object else expect.read(call.headers)
        self._run = run
        self._data = bytearray()

    def _too_long(self) -> S3Error:
        return S3Error("MaxMessageLengthExceeded", fields={"MaxMessageLengthBytes": str(self._limit)})

    def write(self, data: memoryview) -> None:
        for piece in self._decoder.feed(data):
            self._data += piece
        if len(self._data) > self._limit:
            raise self._too_long()

    def finish(self) -> Reply:
        data = bytes(self._data)
        hasher = Hasher(self._expected.names(*self._hashes))
        hasher.update(data)
        trailers = self._decoder.finish(hasher.digest)
        self._expected.verify(hasher, trailers)
        return self._run(data)

    def abort(self) -> None:
        self._data.clear()


class BodySink(Sink):
    """Streams an object's or part's body through its decoder into storage; `done` publishes it, given the
    checksums to store."""

    def __init__(
        self,
        request: Request,
        incoming: Incoming,
        expected: Expected,
        done: Callable[[Incoming, dict[str, str]], Reply],
    ) -> None:
        self._decoder = request.auth.body.decoder(request.call.length)
        self._incoming = incoming
        self._expected = expected
        self._done = done

    def write(self, data: memoryview) -> None:
        self._incoming.take(self._decoder.feed(data))

    @property
    def receives(self) -> bool:
        return self._decoder.plain and self._incoming.receives

    def receive(self, connection: int, room: memoryview, moment_s: float) -> int:
        count = self._incoming.receive(connection, room, moment_s)
        self._decoder.feed(room[:count])
        return count

    def finish(self) -> Reply:
        incoming = self._incoming
        hasher = incoming.hasher
        trailers = self._decoder.finish(hasher.digest)
        if incoming.expected is not None and incoming.size != incoming.expected:
            raise S3Error("IncompleteBody")
        checksums = self._expected.verify(hasher, trailers)
        reply = self._done(incoming, checksums)
        incoming.close()
        return reply

    def abort(self) -> None:
        self._incoming.abort()
