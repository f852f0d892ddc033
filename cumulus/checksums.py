"""S3's checksums: made while data passes, compared with what a client says, combined from those of parts.

Names are S3's in lower case: crc32, crc32c, crc64nvme, sha1, sha256; md5 is there for ETags. A CRC's digest
is big-endian, in documents and headers all are base64. CRC-32 comes from `isal` (20 times as fast as zlib's),
CRC-32C and CRC-64/NVME from `awscrt`, MD5 from the C core, with SHA-256 of the same bytes where the processor
makes both in the time of one; SHA-1, and SHA-256 otherwise, from Python's own library. None holds the
interpreter's lock while it works on a large buffer.
Source: Amazon S3 user guide, "Checking object integrity"; zlib, `crc32_combine` for the idea of `combine`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol

from cumulus.errors import S3Error
from sector._udt.md5 import WITH_SHA256, Md5

Data = bytes | memoryview

# those that objects carry, in the order in which S3 lists them
ALGORITHMS: Final = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")
# bytes of a digest
SIZES: Final = {"md5": 16, "crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}
# reflected polynomials
_POLYNOMIALS: Final = {"crc32": 0xEDB88320, "crc32c": 0x82F63B78, "crc64nvme": 0x9A6C9329AC4BC9B5}
_PREFIX: Final = "x-amz-checksum-"


class MissingLibrary(RuntimeError):
    """The library for a CRC is not installed; the message says which and how to get it."""


class _Hash(Protocol):
    def update(self, data: Data, /) -> None: ...
    def digest(self) -> bytes: ...


Part = Md5 | Callable[[Data], None]
"""What of a `Hasher` one thread may do while others do the rest."""


class _Crc:
    """A CRC in the manner of hashlib."""

    __slots__ = ("_function", "_size", "_value")

    def __init__(self, function: Callable[[Data, int], int], size: int) -> None:
        self._function, self._size, self._value = function, size, 0

    def update(self, data: Data, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


# where the CRCs come from: module, its package
_CRCS: Final = {
    "crc32": ("isal.isal_zlib", "isal>=1.6"),
    "crc32c": ("awscrt.checksums", "awscrt>=0.23"),
    "crc64nvme": ("awscrt.checksums", "awscrt>=0.23"),
}


@lru_cache
def _crc(name: str) -> Callable[[Data, int], int]:
    """A function of (contiguous bytes, the CRC before). Raises `MissingLibrary`."""
    module, package = _CRCS[name]
    try:
        function: Callable[[Data, int], int] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise MissingLibrary(
            f"checksum {name} needs the Python package {package.partition('>')[0]} (pip install '{package}')"
        ) from None
    return function


def _new(name: str) -> _Hash:
    """Raises `ValueError` for a name that is none, `MissingLibrary`."""
    if name in _CRCS:
        return _Crc(_crc(name), SIZES[name])
    if name == "md5":
        return Md5()
    if name in ("sha1", "sha256"):
        return hashlib.new(name, usedforsecurity=False)
    raise ValueError(f"unknown checksum algorithm {name!r}")


class Hasher:
    """Several checksums of one stream of bytes. Raises `ValueError` for an unknown name."""

    __slots__ = ("_digests", "_hashes")

    def __init__(self, names: Iterable[str]) -> None:
        wanted = list(dict.fromkeys(names))
        self._hashes: list[_Hash] = []
        self._digests: dict[str, Callable[[], bytes]] = {}
        if WITH_SHA256 and {"md5", "sha256"} <= set(wanted):
            both = Md5(sha256=True)
            self._hashes.append(both)
            self._digests = {"md5": both.digest, "sha256": both.sha256}
        for name in wanted:
            if name not in self._digests:
                made = _new(name)
                self._hashes.append(made)
                self._digests[name] = made.digest

    @property
    def names(self) -> frozenset[str]:
        """The algorithms."""
        return frozenset(self._digests)

    def update(self, data: Data) -> None:
        """Take in the next bytes; nothing is kept of them."""
        for entry in self._hashes:
            entry.update(data)

    def apart(self) -> list[Part]:
        """What `update` does, as parts that threads may do beside each other, each with all bytes in their
        order. MD5, the slowest, is alone, and as itself: those of several bodies can go on together."""
        md5 = [entry for entry in self._hashes if isinstance(entry, Md5)]
        others = [entry for entry in self._hashes if not isinstance(entry, Md5)]

        def update_others(data: Data) -> None:
            for entry in others:
                entry.update(data)

        return [*md5, update_others] if others else [*md5]

    @property
    def both(self) -> Md5 | None:
        """MD5 with SHA-256, if nothing else is made but CRCs; `update_crcs` with what that has taken in by
        itself."""
        first = self._hashes[0] if self._hashes else None
        if (
            isinstance(first, Md5)
            and first.with_sha256
            and all(type(one) is _Crc for one in self._hashes[1:])
        ):
            return first
        return None

    def update_crcs(self, data: Data) -> None:
        """The next bytes, for all but `both`."""
        for entry in self._hashes[1:]:
            entry.update(data)

    def digest(self, name: str) -> bytes:
        """Of all bytes so far. Raises `KeyError` if `name` was not asked for at the beginning."""
        return self._digests[name]()

    def base64(self, name: str) -> str:
        """As headers and documents carry it."""
        return base64.b64encode(self.digest(name)).decode()

    def hex(self, name: str) -> str:
        """As ETags carry it."""
        return self.digest(name).hex()


def header(algorithm: str) -> str:
    """The header of a checksum: x-amz-checksum-crc32c."""
    return _PREFIX + algorithm


def from_header(name: str) -> str | None:
    """The algorithm whose header it is; None for other headers (x-amz-checksum-mode among them)."""
    name = name.lower()
    algorithm = name.removeprefix(_PREFIX)
    return algorithm if algorithm != name and algorithm in ALGORITHMS else None


def parse_algorithm(text: str) -> str:
    """Our name of what x-amz-checksum-algorithm or x-amz-sdk-checksum-algorithm says (CRC32C). Raises
    `S3Error` InvalidRequest."""
    name = text.strip().lower()
    if name not in ALGORITHMS:
        valid = ", ".join(ALGORITHMS).upper()
        raise S3Error(
            "InvalidRequest",
            f"Checksum algorithm provided is unsupported. Please try again with one of: {valid}.",
        )
    return name


def parse_value(algorithm: str, text: str) -> bytes:
    """The digest that a client sent in base64. Raises `S3Error` InvalidRequest when it cannot be one."""
    try:
        digest = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != SIZES[algorithm]:
        raise S3Error("InvalidRequest", f"Value for {header(algorithm)} header is invalid.")
    return digest


def combines(algorithm: str) -> bool:
    """Whether the checksum of a whole follows from those of its parts (CRCs)."""
    return algorithm in _POLYNOMIALS


def combine(algorithm: str, parts: Sequence[tuple[bytes, int]]) -> bytes:
    """The CRC of what parts of these (digest, length in bytes) give one after the other. Raises `ValueError`
    for an algorithm that does not combine."""
    if not combines(algorithm):
        raise ValueError(f"{algorithm} of a whole does not follow from those of its parts")
    total = 0
    for digest, length in parts:
        total = _multiply(algorithm, _power(algorithm, length), total) ^ int.from_bytes(digest, "big")
    return total.to_bytes(SIZES[algorithm], "big")


def composite(algorithm: str, digests: Sequence[bytes]) -> str:
    """The checksum of checksums of a multipart object: base64, a hyphen, the number of parts."""
    hasher = Hasher([algorithm])
    hasher.update(b"".join(digests))
    return f"{hasher.base64(algorithm)}-{len(digests)}"


def _multiply(algorithm: str, left: int, right: int) -> int:
    """Product of two polynomials modulo the CRC's, all reflected (the highest bit is x^0)."""
    polynomial = _POLYNOMIALS[algorithm]
    bit = 1 << (SIZES[algorithm] * 8 - 1)
    product = 0
    while left:
        if left & bit:
            product ^= right
            left ^= bit
        bit >>= 1
        right = (right >> 1) ^ polynomial if right & 1 else right >> 1
    return product


@lru_cache(maxsize=256)
def _power(algorithm: str, length: int) -> int:
    """x^(8 * length) modulo the CRC's polynomial: what `length` more bytes do to a CRC before them."""
    top = SIZES[algorithm] * 8 - 1
    result, square, bits = 1 << top, 1 << (top - 8), length
    while bits:
        if bits & 1:
            result = _multiply(algorithm, square, result)
        square = _multiply(algorithm, square, square)
        bits >>= 1
    return result
