"""cumulus.checksums: published values, combined CRCs, what clients may send."""

from __future__ import annotations

import base64
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cumulus import checksums
from cumulus.checksums import Hasher, MissingLibrary, combine, composite, from_header, header, parse_value
from cumulus.errors import S3Error
from sector._udt.md5 import Md5

CRCS = ("crc32", "crc32c", "crc64nvme")

# check values of the catalogue of CRCs and of FIPS 180 and RFC 1321, of "123456789" and of "abc"
KNOWN = [
    ("crc32", b"123456789", "cbf43926"),
    ("crc32c", b"123456789", "e3069283"),
    ("crc64nvme", b"123456789", "ae8b14860a799888"),
    ("md5", b"abc", "900150983cd24fb0d6963f7d28e17f72"),
    ("sha1", b"abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
    ("sha256", b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
]


def of(name: str, data: bytes) -> bytes:
    hasher = Hasher([name])
    hasher.update(data)
    return hasher.digest(name)


@pytest.mark.parametrize(("name", "data", "value"), KNOWN)
def test_published_values(name: str, data: bytes, value: str) -> None:
    """Given at once and byte by byte, as hex, base64 and bytes."""
    hasher = Hasher([name])
    for at in range(len(data)):
        hasher.update(memoryview(data)[at : at + 1])
    assert hasher.hex(name) == value == of(name, data).hex()
    assert hasher.base64(name) == base64.b64encode(bytes.fromhex(value)).decode()
    assert hasher.names == {name}
    assert len(hasher.digest(name)) == checksums.SIZES[name]


def test_several_at_once() -> None:
    """Each as if it were alone; one that was not asked for is not there."""
    names = [name for name, _, _ in KNOWN if name != "md5"]
    hasher = Hasher(names)
    hasher.update(b"123456789")
    assert {name: hasher.digest(name) for name in names} == {name: of(name, b"123456789") for name in names}
    with pytest.raises(KeyError):
        hasher.digest("md5")


@pytest.mark.parametrize("beside", [checksums.WITH_SHA256, False])
@pytest.mark.parametrize("asked", ["md5", "sha256 crc32", "sha256 md5 sha256 crc64nvme", "crc32 md5", ""])
def test_apart_is_as_together(asked: str, beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that have each had all bytes leave the sums of a whole, also on a processor that does not make
    MD5 and SHA-256 together."""
    names = asked.split()
    monkeypatch.setattr(checksums, "WITH_SHA256", beside)
    hasher = Hasher(names)
    monkeypatch.setattr(checksums, "WITH_SHA256", False)
    whole = Hasher(names)
    for part in hasher.apart():
        for piece in (b"1234", b"56789"):
            (part.update if isinstance(part, Md5) else part)(piece)
    whole.update(b"123456789")
    assert [hasher.digest(name) for name in names] == [whole.digest(name) for name in names]
    assert hasher.names == set(names)


@pytest.mark.parametrize("name", CRCS)
@given(pieces=st.lists(st.binary(max_size=300), max_size=6))
def test_combined_is_of_the_whole(name: str, pieces: list[bytes]) -> None:
    """Also of no part, of one, and of empty ones."""
    parts = [(of(name, piece), len(piece)) for piece in pieces]
    assert combine(name, parts) == of(name, b"".join(pieces))


@pytest.mark.parametrize("name", CRCS)
def test_combined_of_large_parts(name: str) -> None:
    """Lengths beyond 16 bits, of different size."""
    pieces = [bytes([i]) * (5 << 20 >> i) for i in range(3)]
    assert combine(name, [(of(name, piece), len(piece)) for piece in pieces]) == of(name, b"".join(pieces))


def test_hashes_do_not_combine() -> None:
    """They have composites: the hash of the parts' hashes."""
    with pytest.raises(ValueError, match="sha256"):
        combine("sha256", [])
    assert [checksums.combines(name) for name in checksums.ALGORITHMS] == [True, True, True, False, False]
    digests = [of("sha256", b"a"), of("sha256", b"b")]
    whole = base64.b64encode(of("sha256", b"".join(digests))).decode()
    assert composite("sha256", digests) == f"{whole}-2"


def test_headers() -> None:
    """Names of headers and back; x-amz-checksum-mode and -algorithm are no checksums."""
    assert [from_header(header(name)) for name in checksums.ALGORITHMS] == list(checksums.ALGORITHMS)
    assert from_header("X-Amz-Checksum-CRC32C") == "crc32c"
    for other in ("x-amz-checksum-mode", "x-amz-checksum-algorithm", "x-amz-checksum-md5", "crc32", "etag"):
        assert from_header(other) is None


def test_what_clients_say() -> None:
    """Names in capitals; an unknown one is refused with the list of those that there are."""
    assert checksums.parse_algorithm("CRC64NVME") == "crc64nvme"
    for wrong in ("MD5", "", "CRC16"):
        with pytest.raises(S3Error, match="CRC32, CRC32C, CRC64NVME, SHA1, SHA256") as caught:
            checksums.parse_algorithm(wrong)
        assert caught.value.code == "InvalidRequest"
    assert parse_value("crc32", "y/Q5Jg==").hex() == "cbf43926"


@pytest.mark.parametrize("text", ["", "y/Q5Jg", "y/Q5Jg=", "AAAA", "y/Q5Jh==?", "é", "y_Q5Jg=="])
def test_values_that_are_none(text: str) -> None:
    """Not base64, or of another length."""
    with pytest.raises(S3Error, match="x-amz-checksum-crc32 header") as caught:
        parse_value("crc32", text)
    assert caught.value.code == "InvalidRequest"


def test_unknown_name() -> None:
    """A mistake of the program, not of a client."""
    with pytest.raises(ValueError, match="crc16"):
        Hasher(["crc16"])


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("crc64nvme", "awscrt.checksums", "awscrt"), ("crc32", "isal.isal_zlib", "isal")],
)
def test_without_the_library(name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says what to install; the hashes do without."""
    monkeypatch.setitem(sys.modules, module, None)
    checksums._crc.cache_clear()
    with pytest.raises(MissingLibrary, match=f"{name} needs the Python package {package} "):
        Hasher([name])
    Hasher(["sha1", "sha256", "md5"])
    monkeypatch.undo()
    Hasher([name])
