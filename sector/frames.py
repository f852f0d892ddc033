"""Frames of a TLS channel, pure: bytes in, requests and replies out (spec/security.md, TLS channels).

A u32 length (big-endian) and that many bytes of msgpack: a request [number, body], a reply [0, body] or a
refusal [1, [code, message, hint]]; at most 64 KiB.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from sector import errors

MAX_FRAME = 64 * 1024
_HEAD = struct.Struct(">I")


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """How an error travels."""

    code: Annotated[str, Meta(max_length=64)]
    message: Annotated[str, Meta(max_length=16384)]
    hint: Annotated[str, Meta(max_length=1024)] = ""


_outer = msgspec.msgpack.Decoder(tuple[Annotated[int, Meta(ge=0, le=0xFFFFFFFF)], msgspec.Raw])


def frame(number: int, body: bytes) -> bytes:
    """A frame with its length in front. Raises `Protocol` over 64 KiB."""
    inner = msgspec.msgpack.encode((number, msgspec.Raw(body)))
    if len(inner) > MAX_FRAME:
        raise errors.Protocol(f"a message of {len(inner)} bytes is over the limit of {MAX_FRAME}")
    return _HEAD.pack(len(inner)) + inner


def parse_frame(inner: bytes) -> tuple[int, bytes]:
    """(number, body) of a frame without its length. Raises `Protocol`."""
    try:
        number, raw = _outer.decode(inner)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as bad:
        raise errors.Protocol(f"malformed frame: {bad}") from None
    return number, bytes(raw)


class FrameBuffer:
    """Cuts a byte stream into frames; holds at most one frame and refuses a longer one at its length."""

    def __init__(self) -> None:
        self._have = bytearray()

    def __len__(self) -> int:
        return len(self._have)

    def feed(self, data: bytes) -> bytes | None:
        """The frame that `data` completes, if any. Raises `Protocol` when the length is 0 or over the
        limit, or when bytes follow a frame (one request at a time)."""
        self._have += data
        if len(self._have) < _HEAD.size:
            return None
        (length,) = _HEAD.unpack_from(self._have)
        if not 0 < length <= MAX_FRAME:
            raise errors.Protocol(f"frame length {length} is not allowed")
        if len(self._have) < _HEAD.size + length:
            return None
        if len(self._have) > _HEAD.size + length:
            raise errors.Protocol("bytes follow a frame: one request at a time")
        inner = bytes(self._have[_HEAD.size :])
        self._have.clear()
        return inner
