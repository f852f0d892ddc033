"""cumulus.auth.body: what a request's head promises about its body is what the body has to be."""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from base64 import b64encode

import pytest
from cumulus_signing import MAY, People, call, signed
from hypothesis import given, settings
from hypothesis import strategies as st

from cumulus.auth.body import MAX_CHUNK_LINE, MAX_TRAILER_LINE, BodyDecoder, BodyRule
from cumulus.auth.sigv4 import EMPTY_SHA256, ChunkSigner, Scope
from cumulus.auth.verify import AuthSettings, authenticate
from cumulus.checksums import Hasher
from cumulus.errors import S3Error

SIGNER = ChunkSigner(b"k" * 32, "20130524T000000Z", Scope("20130524", "us-east-1"), "0" * 64)
CRC = b64encode(zlib.crc32(b"hello world").to_bytes(4, "big")).decode()


def rule(headers: dict[str, str]) -> BodyRule:
    """Of an anonymous request."""
    return authenticate(call("PUT", "/b/k", headers), People(), AuthSettings(), MAY).body


def run(decoder: BodyDecoder, wire: bytes, step: int = 0) -> tuple[bytes, dict[str, str]]:
    """Data and trailers of a body that comes in pieces of `step` bytes (0: at once)."""
    data = bytearray()
    for at in range(0, len(wire), step or len(wire) or 1):
        for piece in decoder.feed(memoryview(wire)[at : at + (step or len(wire))]):
            data += piece
    return bytes(data), decoder.finish(lambda name: hashlib.new(name, data).digest())


def refusal(decoder: BodyDecoder, wire: bytes, step: int = 0) -> S3Error:
    with pytest.raises(S3Error) as caught:
        run(decoder, wire, step)
    return caught.value


def frame(
    pieces: list[bytes], trailers: dict[str, str] | None = None, signer: ChunkSigner | None = None
) -> bytes:
    """A body in chunks, as clients write it."""
    out, previous = bytearray(), signer.seed if signer else ""
    for piece in [*pieces, b""]:
        line = f"{len(piece):x}"
        if signer is not None:
            previous = signer.chunk(previous, hashlib.sha256(piece).hexdigest())
            line += f";chunk-signature={previous}"
        out += line.encode() + b"\r\n" + (piece + b"\r\n" if piece else b"")
    lines = "".join(f"{name}:{value}\n" for name, value in (trailers or {}).items())
    out += lines.replace("\n", "\r\n").encode()
    if signer is not None and trailers:
        out += f"x-amz-trailer-signature:{signer.trailer(previous, lines.encode())}\r\n".encode()
    return bytes(out + b"\r\n")


# plain bodies


def test_a_plain_body_is_itself() -> None:
    """Slices of what came, no copies; the length counts where it was declared."""
    data = memoryview(b"hello world")
    decoder = rule({}).decoder(11)
    assert [piece is data for piece in decoder.feed(data)] == [True]
    assert (decoder.finish(Hasher([]).digest), decoder.decoded_length) == ({}, 11)
    assert run(BodyRule().decoder(None), b"x" * 10, 3) == (b"x" * 10, {})
    for wire in (b"hello", b"hello world!"):
        assert refusal(BodyRule().decoder(11), wire).code == "IncompleteBody"


def test_a_promised_hash() -> None:
    """Is compared, also when nobody signed it; a body whose hash nobody made is not taken."""
    digest = hashlib.sha256(b"hello world").digest()
    for headers in ({"x-amz-content-sha256": digest.hex()}, {"x-amz-content-sha256": digest.hex().upper()}):
        assert rule(headers).hashes == ("sha256",)
        assert run(rule(headers).decoder(11), b"hello world", 2) == (b"hello world", {})
        error = refusal(rule(headers).decoder(11), b"hello World")
        assert (error.code, error.status) == ("XAmzContentSHA256Mismatch", 400)
        assert error.fields["ClientComputedContentSHA256"] == digest.hex()
        assert error.fields["S3ComputedContentSHA256"] == hashlib.sha256(b"hello World").hexdigest()
        decoder = rule(headers).decoder(11)
        decoder.feed(memoryview(b"hello world"))
        with pytest.raises(KeyError):
            decoder.finish(Hasher(["md5"]).digest)
    assert run(rule({"x-amz-content-sha256": EMPTY_SHA256}).decoder(0), b"") == (b"", {})


def test_what_the_head_says() -> None:
    """Kinds of bodies, as values."""
    assert rule({"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}) == BodyRule()
    assert not rule({"content-encoding": "gzip", "x-amz-decoded-content-length": "5"}).framed
    assert not rule({"content-encoding": "aws-chunked"}).framed
    found = rule({
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-trailer": "X-Amz-Checksum-CRC32, ", "x-amz-decoded-content-length": "11",
    })  # fmt: skip
    assert found == BodyRule(True, None, None, ("x-amz-checksum-crc32",), 11)
    # an anonymous client of botocore: frames without any signature
    unsigned = {"content-encoding": "gzip, aws-chunked", "x-amz-trailer": "x-amz-checksum-crc32"}
    assert rule(unsigned) == BodyRule(True, None, None, ("x-amz-checksum-crc32",), None)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, "InvalidRequest"),
        ({"x-amz-content-sha256": "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"}, "NotImplemented"),
        ({"x-amz-content-sha256": "abc"}, "InvalidArgument"),
        (
            {
                "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                "x-amz-decoded-content-length": "-1",
            },
            "InvalidArgument",
        ),
    ],
)
def test_heads_that_are_refused(headers: dict[str, str], code: str) -> None:
    """Signed chunks without a signature, an algorithm that we lack, no hash, no number."""
    with pytest.raises(S3Error) as caught:
        rule(headers)
    assert caught.value.code == code


def test_trailers_count_only_where_they_are_signed_with_the_chunks() -> None:
    """x-amz-trailer beside chunks whose kind has no trailer allows none."""
    headers = {"x-amz-trailer": "x-amz-checksum-crc32"}
    kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    request, now_ns = signed("PUT", "http://s3.example.org/b/k", headers, payload=kind)
    found = authenticate(request, People(), AuthSettings(), now_ns).body
    assert found.framed and found.signer is not None and found.trailers == ()
    assert "key" not in repr(found.signer)


# frames

PIECES = st.lists(st.binary(min_size=1, max_size=50), max_size=4)


@settings(max_examples=60)
@given(pieces=PIECES, step=st.integers(0, 40), kind=st.sampled_from(["signed", "signed+", "plain", "plain+"]))
def test_what_was_framed_comes_out(pieces: list[bytes], step: int, kind: str) -> None:
    """In pieces of any size, with and without signatures and trailers."""
    whole = b"".join(pieces)
    signer = SIGNER if kind.startswith("signed") else None
    trailers = {"x-amz-checksum-crc32": CRC, "x-amz-meta-end": "1"} if kind.endswith("+") else {}
    wire = frame(pieces, trailers, signer)
    made = BodyRule(True, signer, None, tuple(trailers), len(whole))
    assert run(made.decoder(len(wire)), wire, step) == (whole, trailers)


@settings(max_examples=120)
@given(pieces=PIECES, place=st.integers(0, 1000), by=st.integers(1, 255), trailed=st.booleans())
def test_no_byte_of_a_signed_body_may_change(pieces: list[bytes], place: int, by: int, trailed: bool) -> None:
    """Data, sizes, signatures, trailers, line ends: refused, or (case of hex digits, a blank) the same."""
    trailers = {"x-amz-checksum-crc32": CRC} if trailed else {}
    wire = bytearray(frame(pieces, trailers, SIGNER))
    wire[place % len(wire)] ^= by
    made = BodyRule(True, SIGNER, None, tuple(trailers), sum(map(len, pieces)))
    with contextlib.suppress(S3Error):
        assert run(made.decoder(len(wire)), bytes(wire), 7) == (b"".join(pieces), trailers)


@settings(max_examples=60)
@given(pieces=PIECES, cut=st.integers(1, 400), trailed=st.booleans())
def test_a_body_that_ends_early(pieces: list[bytes], cut: int, trailed: bool) -> None:
    """Cut anywhere, it is incomplete, whether or not its length was declared."""
    trailers = {"x-amz-checksum-crc32": CRC} if trailed else {}
    wire = frame(pieces, trailers, SIGNER)
    made = BodyRule(True, SIGNER, None, tuple(trailers))
    assert refusal(made.decoder(None), wire[: -min(cut, len(wire))]).code == "IncompleteBody"


def plain(wire: bytes, length: int | None = None, trailers: tuple[str, ...] = ()) -> S3Error:
    return refusal(BodyRule(True, None, None, trailers, length).decoder(None), wire)


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (b"", "IncompleteBody"),
        (b"x\r\n", "IncompleteBody"),
        (b"\r\n", "IncompleteBody"),
        (b"-1\r\n", "IncompleteBody"),
        (b"0x5\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        (b"5\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        (b"5;x=y\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        (b"5;chunk-signature=" + b"0" * 64 + b"\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        (b"5\r\nhelloX\r\n0\r\n\r\n", "IncompleteBody"),
        (b"5\r\nhello0\r\n\r\n", "IncompleteBody"),
        (b"5\r\nhello\r\n0\r\n\r\n\r\n\r\n\r\n", "IncompleteBody"),
        (b"5\r\nhello\r\n0\r\n\r\nmore", "IncompleteBody"),
        (b"5\r\nhello\r\n0\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "IncompleteBody"),
        (b"5\r\nhello\r\n0\r\nx-amz-meta-a:1\r\n\r\n", "MalformedTrailerError"),
        (b"5\r\nhello\r\n0\r\nwhat\r\n\r\n", "MalformedTrailerError"),
        (b"5\r\nhello\r\n0\r\nx-amz-trailer-signature:0\r\n\r\n", "MalformedTrailerError"),
        (b"11111111111111111\r\n", "IncompleteBody"),
        (b"1" * (MAX_CHUNK_LINE + 1), "IncompleteBody"),
        (b"0\r\n" + b"a" * (MAX_TRAILER_LINE + 1), "IncompleteBody"),
    ],
)
def test_frames_that_are_refused(wire: bytes, code: str) -> None:
    """At once or byte by byte, the same error; nothing unbounded is kept."""
    assert plain(wire).code == code
    assert refusal(BodyRule(True).decoder(None), wire, 1).code == code


def test_lengths() -> None:
    """Announced and sent have to agree, in data and on the wire; too large a chunk is refused at its head."""
    wire = frame([b"hello"])
    assert run(BodyRule(True, decoded_length=5).decoder(len(wire)), wire) == (b"hello", {})
    assert plain(wire, 6).message.endswith("5 bytes of data came, 6 were announced.")
    error = plain(b"6\r\n", 5)
    assert (error.code, error.fields) == ("InvalidChunkSizeError", {"BadChunkSize": "6"})
    assert refusal(BodyRule(True).decoder(len(wire) + 1), wire).code == "IncompleteBody"
    assert run(BodyRule(True).decoder(None), wire + b"\r\n\r\n") == (b"hello", {})


def test_announced_trailers_have_to_come() -> None:
    """Each once, and no others."""
    name = "x-amz-checksum-crc32"
    error = plain(frame([b"hello"]), 5, (name,))
    assert (error.code, name in error.message) == ("MalformedTrailerError", True)
    for lines in (
        f"{name}:a\r\n{name}:b\r\n",
        "x-amz-checksum-sha1:a\r\n",
        f"{name}:a\x00\r\n",
        f"{name} :a\r\n",
    ):
        wire = b"0\r\n" + lines.encode() + b"\r\n"
        assert plain(wire, 0, (name,)).code == "MalformedTrailerError"
    many = tuple(f"x-{i}" for i in range(17))
    assert plain(frame([], dict.fromkeys(many, "1")), 0, many).code == "MalformedTrailerError"
    loose = f"0\r\n{name.upper()}: a \r\n\r\n".encode()
    assert run(BodyRule(True, trailers=(name,)).decoder(None), loose) == (b"", {name: "a"})


def test_signed_trailers_need_their_signature() -> None:
    """Left out, wrong, or followed by another header."""
    name = "x-amz-checksum-crc32"
    wire = frame([b"hello"], {name: "a"}, SIGNER)
    made = BodyRule(True, SIGNER, None, (name,), 5)
    at = wire.index(b"x-amz-trailer-signature")
    assert refusal(made.decoder(None), wire[:at] + b"\r\n").code == "IncompleteBody"
    assert refusal(made.decoder(None), wire[:at] + b"\r\n\r\n\r\n").code == "IncompleteBody"
    assert (
        refusal(made.decoder(None), wire[: at + 24] + b"0" * 64 + b"\r\n\r\n").code == "SignatureDoesNotMatch"
    )
    late = wire[:-2] + b"x-amz-checksum-crc32:b\r\n\r\n"
    assert refusal(made.decoder(None), late).code == "MalformedTrailerError"


def test_chunks_cannot_be_moved() -> None:
    """Each is signed together with the one before it."""
    lines = frame([b"a" * 9, b"b" * 9], None, SIGNER).split(b"\r\n")
    swapped = b"\r\n".join([*lines[2:4], *lines[0:2], *lines[4:]])
    made = BodyRule(True, SIGNER, None, (), 18)
    assert refusal(made.decoder(None), swapped).code == "SignatureDoesNotMatch"
    dropped = b"\r\n".join([*lines[0:2], *lines[4:]])
    assert refusal(BodyRule(True, SIGNER).decoder(None), dropped).code == "SignatureDoesNotMatch"
