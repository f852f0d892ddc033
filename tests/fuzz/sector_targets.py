"""What Sector parses of things that others wrote. See targets.py."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import get_args

import message_shapes

from sector import frames, tunnel
from sector.config import Role, parse_address, parse_config, parse_rate
from sector.errors import Damaged, Protocol, SectorError
from sector.master.replication import parse_rules
from sector.master.topology import parse_topology
from sector.pki import parse_identity
from sector.rights import parse_letters
from sector.sphere import records, shuffle
from sector.wire import base

ROLES = get_args(Role)
SHOWN = 1 << 20
"""Bytes of a message of which a text is made: that of one of 28 MB takes 400 MB while it is put together."""


def messages(data: bytes) -> None:
    """Bodies of all requests and replies (wire.base.decode); the first two bytes say which. The others are
    the body, and choices by which one is made (message_shapes.py) that is known to be valid or not."""
    cls = message_shapes.type_of(data)
    with contextlib.suppress(Protocol):
        survives(cls, data[2:])
    cls, body, valid = message_shapes.message(data)
    try:
        survives(cls, body)
    except Protocol:
        assert not valid, f"a valid {cls.__name__} was refused: {body[:200]!r}"
    else:
        assert valid, f"a {cls.__name__} out of its bounds was taken: {body[:200]!r}"


def survives(cls: type[base.Message], body: bytes) -> None:
    """It is written and read again as it is. Raises `Protocol` if it is no message of that type."""
    written = passed_on(cls, body)
    try:
        assert passed_on(cls, written) == written
    except Protocol as bad:
        raise AssertionError(f"what a {cls.__name__} is written as is refused: {written[:200]!r}") from bad


def passed_on(cls: type[base.Message], body: bytes) -> bytes:
    """Read and written; it goes at the end, large ones take 100 MB. So that a log may show it, it has a text
    too."""
    value = base.decode(cls, body)
    if len(body) <= SHOWN:
        repr(value)
    return base.encode(value)


def stream(data: bytes) -> None:
    """Frames of the TLS services in pieces (the first byte says how large), and addresses in tunnels."""
    buffer, step = frames.FrameBuffer(), (data[0] if data else 0) + 1
    with contextlib.suppress(Protocol):
        for at in range(1, len(data), step):
            frame = buffer.feed(data[at : at + step])
            if frame is not None:
                number, body = frames.parse_frame(frame)
                assert frames.parse_frame(frames.frame(number, body)[frames._HEAD.size :]) == (number, body)
    assert len(buffer) <= frames.MAX_FRAME + frames._HEAD.size + step
    with contextlib.suppress(ValueError):
        assert tunnel.unpack(tunnel.pack(tunnel.unpack(data))) == tunnel.unpack(data)


def index(data: bytes) -> None:
    """Record indices (.idx) of a file of 1,000 bytes, whole and in part."""
    for part in (False, True):
        with contextlib.suppress(Damaged):
            offsets = records.check(records.decode(data), 1000, part=part)
            assert all(0 <= offset <= 1000 for offset in offsets.tolist())
            assert records.encode(offsets) == data


def ledger(data: bytes) -> None:
    """The exactly-once ledger of a job's buckets: as it is, and with marks and sums that are right."""
    with contextlib.suppress(Damaged):
        entries, good = shuffle.decode_entries(data)
        written = b"".join(map(shuffle.encode_entry, entries))
        assert shuffle.decode_entries(written) == (entries, len(written)) and good <= len(data)
    sealed = b"".join(
        shuffle._MARK + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body
        for body in data.split(b"\xff\x00")
    )
    with contextlib.suppress(Damaged):
        shuffle.decode_entries(sealed)


def text(data: bytes) -> None:
    """Settings, topology, rules of replication, addresses, rates, rights, names in certificates."""
    written = data[1:].decode(errors="replace")
    readers: list[Callable[[str], object]] = [
        *(lambda t, role=role: parse_config(t, role, "/etc/sector/x.toml") for role in ROLES),
        parse_topology,
        parse_rules,
        parse_address,
        parse_rate,
        parse_letters,
        parse_identity,
    ]
    reader = readers[(data[0] if data else 0) % len(readers)]
    promised = ValueError if reader in (parse_letters, parse_rate) else SectorError
    with contextlib.suppress(promised):
        reader(written)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "py_messages": messages,
    "py_stream": stream,
    "py_index": index,
    "py_ledger": ledger,
    "py_text": text,
}
