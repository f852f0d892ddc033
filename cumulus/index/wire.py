"""How a worker process asks the head for the index: frames on a Unix socket, one row a call.

A frame is its length (4 bytes, big-endian) and MessagePack: [number, name, arguments] asks, [number, kind,
value] answers; kind "" is a result, else the name of an error. TELL is not answered: how much of it was taken
in is seen in shared memory (`cumulus.index.tide`). Both ends are of one version of the program.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from cumulus.index.api import (
    Away,
    Change,
    Damaged,
    IndexFailure,
    NameTaken,
    NoSuch,
    OverQuota,
    Put,
    Remove,
    Reservation,
    StillUsed,
    Upload,
    Usage,
)
from cumulus.model import Bucket, Credential, Part, User

TELL: Final = "tell"
MOST: Final = 64 * 2**20  # bytes of a frame
_LENGTH: Final = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()

Scope = Literal["user", "group", "bucket"]
How = Literal["now", "commit", "pool"]


class Altered(msgspec.Struct, frozen=True, array_like=True):
    """One change: one of the two."""

    put: Put | None = None
    remove: Remove | None = None


class Held(msgspec.Struct, frozen=True, array_like=True):
    """One of several reservations, or why it is none: the kind and value of an error in an answer."""

    reservation: Reservation | None = None
    kind: str = ""
    value: msgspec.Raw = msgspec.Raw(b"\xc0")  # nothing


class Method(NamedTuple):
    """`how` it is served: now, in the thread that reads; with the next commit; or in a pool of threads."""

    how: How
    arguments: Any
    result: Any
    directory: bool = False


METHODS: Final[dict[str, Method]] = {
    "credential": Method("now", tuple[str], Credential | None, True),
    "user": Method("now", tuple[str], User | None, True),
    "by_email": Method("now", tuple[str], User | None, True),
    "members": Method("now", tuple[str], list[str] | None, True),
    "group_id": Method("now", tuple[str], str | None, True),
    "bucket": Method("now", tuple[str], Bucket | None),
    "buckets": Method("pool", tuple[str | None], list[Bucket]),
    "brief_buckets": Method("pool", tuple[str | None], list[Bucket]),
    "add_bucket": Method("pool", tuple[Bucket], None),
    "set_bucket": Method("pool", tuple[Bucket, list[str]], None),
    "drop_bucket": Method("pool", tuple[str], None),
    "apply": Method("commit", tuple[list[Altered], bool], None),
    "join": Method("now", tuple[()], int | None),
    "catch_up": Method("pool", tuple[()], None),
    "sync": Method("pool", tuple[()], None),
    "reserve": Method("now", tuple[str, int, int], Reservation),
    "reserve_all": Method("now", tuple[list[tuple[str, int]]], list[Held]),
    "grow": Method("now", tuple[Reservation, int], Reservation),
    "release": Method("now", tuple[Reservation], None),
    "usage": Method("pool", tuple[Scope, str], Usage),
    "recount": Method("pool", tuple[str], None),
    "add_upload": Method("pool", tuple[Upload], None),
    "set_upload": Method("pool", tuple[Upload], None),
    "put_part": Method("pool", tuple[str, Part, Reservation | None], int),
    "claim_upload": Method("pool", tuple[str, str, float], bool),
    "drop_upload": Method("pool", tuple[str, Put | None, str], bool),
}
ARGUMENTS: Final = {name: msgspec.msgpack.Decoder(method.arguments) for name, method in METHODS.items()}
RESULTS: Final = {name: msgspec.msgpack.Decoder(method.result) for name, method in METHODS.items()}
TOLD: Final = msgspec.msgpack.Decoder(tuple[Put])  # the arguments of TELL
_HEAD: Final = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw])
_ERRORS: Final[dict[str, type[IndexFailure]]] = {
    kind.__name__: kind for kind in (IndexFailure, Away, Damaged, NameTaken, NoSuch, StillUsed)
}
_quota = msgspec.msgpack.Decoder(tuple[str, str, Literal["bytes", "objects"], int, int, int])


def frame(number: int, name: str, value: Any) -> bytes:
    """Raises `IndexFailure` when it is too long."""
    body = _encoder.encode((number, name, value))
    if len(body) > MOST:
        raise IndexFailure(f"a message of {len(body)} bytes is too long for the index")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts what comes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, str, msgspec.Raw]]:
        """Those that are complete now. Raises `IndexFailure` for anything that is none."""
        self._buffer += data
        found, at = [], 0
        while len(self._buffer) - at >= 4:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > MOST:
                raise IndexFailure(f"a message of {length} bytes is too long for the index")
            if len(self._buffer) - at - 4 < length:
                break
            try:
                found.append(_HEAD.decode(bytes(self._buffer[at + 4 : at + 4 + length])))
            except (msgspec.DecodeError, ValueError) as bad:
                raise IndexFailure(f"a message of the index cannot be read: {bad}") from None
            at += 4 + length
        del self._buffer[:at]
        return found


def counters(path: Path) -> Path:
    """Where the counters are, beside the socket."""
    return path.with_name(path.name + ".told")


def error_value(bad: BaseException) -> tuple[str, Any]:
    """(kind, value) of an error in an answer."""
    if isinstance(bad, OverQuota):
        return "OverQuota", (bad.scope, bad.name, bad.what, bad.used, bad.reserved, bad.limit)
    kind = type(bad).__name__
    if kind in _ERRORS:
        return kind, str(bad)
    return "IndexFailure", f"{kind}: {bad}"


def error(kind: str, value: msgspec.Raw) -> IndexFailure:
    """Inverse of `error_value`."""
    if kind == "OverQuota":
        return OverQuota(*_quota.decode(value))
    return _ERRORS.get(kind, IndexFailure)(msgspec.msgpack.decode(value, type=str))


def to_held(found: Reservation | IndexFailure) -> Held:
    """What was reserved, or why nothing was, as it travels."""
    if isinstance(found, Reservation):
        return Held(found)
    kind, value = error_value(found)
    return Held(None, kind, msgspec.Raw(_encoder.encode(value)))


def held(found: Held) -> Reservation | OverQuota | NoSuch:
    """Inverse of `to_held`. Raises what is neither of them."""
    if found.reservation is not None:
        return found.reservation
    bad = error(found.kind, found.value)
    if isinstance(bad, OverQuota | NoSuch):
        return bad
    raise bad


def altered(change: Change) -> Altered:
    """A change as it travels."""
    return Altered(put=change) if isinstance(change, Put) else Altered(remove=change)


def change(one: Altered) -> Change:
    """Inverse of `altered`. Raises `IndexFailure`."""
    found = one.put or one.remove
    if found is None:
        raise IndexFailure("a change of nothing")
    return found
