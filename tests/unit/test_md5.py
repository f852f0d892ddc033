"""MD5 of the C core: as hashlib's, alone and several streams side by side."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sector._udt.md5 import WITH_SHA256, Md5, update_together

PIECES = st.lists(st.binary(max_size=200), max_size=5)


def of(data: bytes) -> bytes:
    """As hashlib has it."""
    return hashlib.md5(data, usedforsecurity=False).digest()


@given(pieces=PIECES)
def test_one_stream(pieces: list[bytes]) -> None:
    """In any pieces, of any kind of buffer; a digest in between changes nothing."""
    stream, whole = Md5(), b"".join(pieces)
    assert stream.digest() == of(b"")
    for piece in pieces:
        stream.update(memoryview(bytearray(piece)))
        stream.digest()
    assert stream.digest() == of(whole)


def test_sha256_beside_it() -> None:
    """Where the processor has it; where it has not, and where nobody asked for it, that is said."""
    if WITH_SHA256:
        stream = Md5(sha256=True)
        assert stream.sha256() == hashlib.sha256(b"").digest()
        stream.update(b"hello " * 100)
        stream.sha256()
        update_together([(stream, [b"wor", b"ld" * 5000]), (Md5(), [b"x" * 9000])])
        whole = b"hello " * 100 + b"wor" + b"ld" * 5000
        assert (stream.digest(), stream.sha256()) == (of(whole), hashlib.sha256(whole).digest())
    else:
        with pytest.raises(RuntimeError, match="no instructions for SHA-256"):
            Md5(sha256=True)
    with pytest.raises(RuntimeError, match="without SHA-256"):
        Md5().sha256()


@given(bodies=st.lists(st.tuples(st.binary(max_size=70), PIECES), max_size=12))
def test_several_streams(bodies: list[tuple[bytes, list[bytes]]]) -> None:
    """However many, each from where it was, of unequal lengths."""
    streams = []
    for before, _ in bodies:
        streams.append(Md5())
        streams[-1].update(before)
    update_together((stream, pieces) for stream, (_, pieces) in zip(streams, bodies, strict=True))
    assert [stream.digest() for stream in streams] == [
        of(before + b"".join(pieces)) for before, pieces in bodies
    ]


def test_buffers_are_let_go() -> None:
    """What was taken in can be changed in size again."""
    data = bytearray(1000)
    stream = Md5()
    stream.update(data)
    update_together([(stream, [memoryview(data)[:500], memoryview(data)[500:]])])
    data.clear()
    assert stream.digest() == of(bytes(2000))
