"""How control messages are declared: one frozen msgspec Struct each, with a number that is never reused.

The number is the GMP method of the request (spec/gmp.md section 9) and the tag in a TLS frame. Structs
travel as msgpack arrays; fields are only ever added at the end, with a default; receivers ignore extra
ones. Every variable field has a bound, checked at decode. A malformed body raises `Protocol`.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import msgspec

from sector.errors import Protocol


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all requests and replies. Fields named in `SECRET` do not show in `repr`."""

    SECRET: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = (
            f"{name}=…" if name in self.SECRET else f"{name}={getattr(self, name)!r}"
            for name in self.__struct_fields__
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class Request(Message, frozen=True, array_like=True):
    """Base of requests. `NUMBER`, `REPLY` and `SAFE` (may be repeated) are set by `@request`."""

    NUMBER: ClassVar[int] = 0
    REPLY: ClassVar[type[Message]] = Message
    SAFE: ClassVar[bool] = False


class Ok(Message, frozen=True, array_like=True):
    """The empty reply."""


R = TypeVar("R", bound=type[Request])
M = TypeVar("M", bound=Message)

REGISTRY: dict[int, type[Request]] = {}

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Message], msgspec.msgpack.Decoder[Any]] = {}


def request(number: int, *, reply: type[Message] = Ok, safe: bool = False) -> Any:
    """Class decorator: gives a request its number, its reply and whether it is safe to repeat."""

    def register(cls: R) -> R:
        if number in REGISTRY:
            raise AssertionError(f"message number {number:#x} is taken by {REGISTRY[number].__name__}")
        cls.NUMBER = number
        cls.REPLY = reply
        cls.SAFE = safe
        REGISTRY[number] = cls
        return cls

    return register


def encode(message: msgspec.Struct) -> bytes:
    """The body of `message` as msgpack."""
    return _encoder.encode(message)


def decode(cls: type[M], body: bytes | memoryview) -> M:
    """A checked `cls` from a received body. Raises `Protocol` on any malformed input."""
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = msgspec.msgpack.Decoder(cls)
    try:
        value: M = decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Protocol(f"malformed {cls.__name__}: {error}") from None
    return value
