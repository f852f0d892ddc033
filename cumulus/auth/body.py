"""Bodies of requests as their signatures promise them: plain, with a hash, or in aws-chunked framing.

A `BodyRule` comes out of authentication and says what the body has to be; its decoder takes the bytes that
came and gives those of the object, as slices of the same buffers. Each chunk's signature is compared when
the chunk is complete, after its data has been given out: whoever stores it publishes after `finish` only.
The hash of a plain body is made by whoever takes its bytes, beside the other sums, and compared here.
Source: Amazon S3 API reference, "Signature calculations: transferring payload in multiple chunks", and
"including trailing headers".
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cumulus.auth.sigv4 import EMPTY_SHA256, ChunkSigner, same
from cumulus.errors import S3Error

# bytes of a chunk's first line, and of one line after the last chunk
MAX_CHUNK_LINE: Final = 256
MAX_TRAILER_LINE: Final = 4096
MAX_TRAILERS: Final = 16
_HEAD: Final = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?")
_TRAILER: Final = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e\t]*)")
_SIGNATURE: Final = "x-amz-trailer-signature"

Digest = Callable[[str], bytes]
"""A sum of all bytes that a decoder gave, by its algorithm; those of `BodyRule.hashes` at least."""


class BodyDecoder(ABC):
    """One body. `decoded_length` is the object's size where the request says it."""

    decoded_length: int | None
    plain: bool = False  # what is fed is what it gives

    @abstractmethod
    def feed(self, data: memoryview) -> list[memoryview]:
        """The object's bytes among `data`, as slices of it. Raises `S3Error`; the body is refused then."""

    @abstractmethod
    def finish(self, digest: Digest) -> dict[str, str]:
        """The body is complete. Returns the headers that came after it, names in lower case. Raises `S3Error`
        IncompleteBody, XAmzContentSHA256Mismatch, MalformedTrailerError."""


@dataclass(frozen=True, slots=True)
class BodyRule:
    """What a request's head says about its body.

    `framed`: aws-chunked. `signer`: each chunk is signed. `sha256`: the promised hash. `trailers`: names of
    the headers that follow the body. `decoded_length`: bytes of a framed body without its frames."""

    framed: bool = False
    signer: ChunkSigner | None = None
    sha256: bytes | None = None
    trailers: tuple[str, ...] = ()
    decoded_length: int | None = None

    @property
    def hashes(self) -> tuple[str, ...]:
        """Algorithms that have to run over what the decoder gives, for its `finish`."""
        return () if self.sha256 is None else ("sha256",)

    def decoder(self, length: int | None) -> BodyDecoder:
        """For one body of `length` bytes as it stands on the wire, None if that was not declared."""
        return _Framed(self, length) if self.framed else _Plain(self, length)


class _Plain(BodyDecoder):
    """A body that is the object, with or without a promised hash."""

    plain = True

    def __init__(self, rule: BodyRule, length: int | None) -> None:
        self.decoded_length = length
        self._promised = rule.sha256
        self._size = 0

    def feed(self, data: memoryview) -> list[memoryview]:
        self._size += len(data)
        return [data]

    def finish(self, digest: Digest) -> dict[str, str]:
        if self.decoded_length is not None and self._size != self.decoded_length:
            raise _incomplete(f"{self._size} of {self.decoded_length} bytes came.")
        if self._promised is not None and (computed := digest("sha256")) != self._promised:
            raise S3Error(
                "XAmzContentSHA256Mismatch",
                fields={
                    "ClientComputedContentSHA256": self._promised.hex(),
                    "S3ComputedContentSHA256": computed.hex(),
                },
            )
        return {}


def _incomplete(why: str) -> S3Error:
    return S3Error("IncompleteBody", f"The body's framing or length is wrong: {why}")


# what the next bytes of a framed body are
_LINE, _DATA, _AFTER, _TAIL, _DONE = (
    "a chunk's first line",
    "data",
    "the end of a chunk",
    "trailer",
    "nothing",
)


class _Framed(BodyDecoder):
    """Chunks of aws-chunked: hex size, signature, data; an empty one at the end, then headers."""

    def __init__(self, rule: BodyRule, length: int | None) -> None:
        self.decoded_length = rule.decoded_length
        self._length = length
        self._signer = rule.signer
        self._previous = rule.signer.seed if rule.signer else ""
        self._promised = ""
        self._hash = hashlib.sha256()
        self._declared = rule.trailers
        self._trailers: dict[str, str] = {}
        self._trailer_signed = False
        self._state = _LINE
        self._line = bytearray()
        self._left = self._size = self._wire = self._blank = 0

    def feed(self, data: memoryview) -> list[memoryview]:
        self._wire += len(data)
        out: list[memoryview] = []
        at, end = 0, len(data)
        while at < end:
            if self._state is _DATA:
                piece = data[at : at + self._left]
                at += len(piece)
                out.append(piece)
                self._take(piece)
            else:
                at = self._read_line(data, at)
        return out

    def finish(self, digest: Digest) -> dict[str, str]:
        if self._state is not _DONE or self._line:
            raise _incomplete(f"it ends where {self._state} should be.")
        if self._length is not None and self._wire != self._length:
            raise _incomplete(f"{self._wire} of {self._length} bytes came.")
        if self.decoded_length is not None and self._size != self.decoded_length:
            raise _incomplete(f"{self._size} bytes of data came, {self.decoded_length} were announced.")
        missing = set(self._declared) - set(self._trailers)
        if missing:
            raise S3Error("MalformedTrailerError", f"Announced, but not sent: {', '.join(sorted(missing))}.")
        return self._trailers

    def _take(self, piece: memoryview) -> None:
        """Data of the present chunk."""
        self._size += len(piece)
        self._left -= len(piece)
        if self._signer is not None:
            self._hash.update(piece)
        if not self._left:
            self._check_chunk(self._hash.hexdigest() if self._signer else "")
            self._state = _AFTER

    def _check_chunk(self, sha256: str) -> None:
        if self._signer is None:
            return
        signature = self._signer.chunk(self._previous, sha256)
        if not same(signature, self._promised):
            raise S3Error("SignatureDoesNotMatch", "The signature of a chunk does not fit.")
        self._previous = signature

    def _read_line(self, data: memoryview, at: int) -> int:
        """Up to the end of a line or of `data`; returns where the next byte is."""
        limit = MAX_TRAILER_LINE if self._state is _TAIL else MAX_CHUNK_LINE
        piece = bytes(data[at : at + limit + 1])
        newline = piece.find(b"\n")
        self._line += piece if newline < 0 else piece[:newline]
        if len(self._line) > limit:
            raise _incomplete(f"{self._state} is longer than {limit} bytes.")
        if newline < 0:
            return at + len(piece)
        line = bytes(self._line)
        self._line.clear()
        self._end_line(line)
        return at + newline + 1

    def _end_line(self, line: bytes) -> None:
        if self._state is _TAIL:
            self._trailer(line.removesuffix(b"\r"))
        elif not line.endswith(b"\r"):
            raise _incomplete(f"{self._state} has no CR LF.")
        elif self._state is _LINE:
            self._chunk(line[:-1])
        elif line == b"\r":
            # after a chunk comes a chunk; after the end nothing but one empty line
            if self._state is _DONE:
                self._too_much()
            self._state = _LINE if self._state is _AFTER else _DONE
        else:
            raise _incomplete(f"there are bytes where {self._state} should be.")

    def _too_much(self) -> None:
        self._blank += 1
        if self._blank > 2:
            raise _incomplete("there are bytes after its end.")

    def _chunk(self, line: bytes) -> None:
        """A chunk's first line."""
        match = _HEAD.fullmatch(line)
        if match is None or (match[2] is None) is not (self._signer is None):
            raise _incomplete("a chunk's first line cannot be read.")
        self._left = int(match[1], 16)
        if self.decoded_length is not None and self._size + self._left > self.decoded_length:
            raise S3Error("InvalidChunkSizeError", fields={"BadChunkSize": str(self._left)})
        self._promised = (match[2] or b"").decode()
        if self._left:
            self._hash = hashlib.sha256()
            self._state = _DATA
        else:
            self._check_chunk(EMPTY_SHA256)
            self._state = _TAIL

    def _trailer(self, line: bytes) -> None:
        """A line after the empty chunk. The headers' signature may have an empty line before it."""
        if not line:
            awaited = self._signer is not None and self._declared and not self._trailer_signed
            if awaited and self._trailers:
                self._too_much()
            else:
                self._state = _DONE
            return
        match = _TRAILER.fullmatch(line.decode("latin-1"))
        if match is None or self._trailer_signed or len(self._trailers) >= MAX_TRAILERS:
            raise S3Error("MalformedTrailerError")
        name, value = match[1].lower(), match[2].strip(" \t")
        if name == _SIGNATURE and self._signer is not None:
            self._check_trailer(value)
        elif name in self._declared and name not in self._trailers:
            self._trailers[name] = value
        else:
            raise S3Error(
                "MalformedTrailerError", f"{name} was not announced in x-amz-trailer, or came twice."
            )

    def _check_trailer(self, signature: str) -> None:
        assert self._signer is not None
        text = "".join(f"{name}:{value}\n" for name, value in self._trailers.items()).encode("latin-1")
        if not same(self._signer.trailer(self._previous, text), signature):
            raise S3Error(
                "SignatureDoesNotMatch", "The signature of the headers after the body does not fit."
            )
        self._trailer_signed = True
