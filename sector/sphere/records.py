"""Record index files: `X.idx` beside `X`, N + 1 little-endian int64 offsets for N records (pure).

The first offset is 0, the last is the size of `X`, none is smaller than the one before
(design.md section 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from sector.errors import Damaged

OFFSET_BYTES = 8
OFFSET = np.dtype("<i8")
SUFFIX = ".idx"
Offsets = NDArray[np.int64]


def index_path(path: str) -> str:
    """Path of the index of `path`."""
    return path + SUFFIX


def record_count(index_size: int) -> int:
    """Number of records of an index file of `index_size` bytes. Raises `Damaged`."""
    if index_size < OFFSET_BYTES or index_size % OFFSET_BYTES:
        raise Damaged(f"a record index of {index_size} bytes is not a whole number of offsets")
    return index_size // OFFSET_BYTES - 1


def fixed(size: int, record_size: int) -> Offsets:
    """Offsets of records of `record_size` bytes in a file of `size` bytes; a shorter last one counts."""
    if record_size <= 0:
        raise ValueError("record_size must be positive")
    offsets = np.arange(0, size, record_size, dtype=np.int64)
    return np.append(offsets, np.int64(size))


def delimited(chunks: Iterable[bytes], delimiter: bytes = b"\n") -> Iterator[Offsets]:
    """Offsets of records that end with `delimiter`, in parts: 0 first, then each record's end. What
    follows the last delimiter is a record too."""
    if not delimiter:
        raise ValueError("the delimiter is empty")
    yield np.zeros(1, dtype=np.int64)
    position, tail, last = 0, b"", 0
    for chunk in chunks:
        data = tail + chunk
        base = position - len(tail)
        found, at = [], data.find(delimiter)
        while at >= 0:
            at += len(delimiter)
            last = base + at
            found.append(last)
            at = data.find(delimiter, at)
        position += len(chunk)
        keep = min(len(delimiter) - 1, position - last)
        tail = data[len(data) - keep :] if keep else b""
        if found:
            yield np.array(found, dtype=np.int64)
    if position > last:
        yield np.array([position], dtype=np.int64)


def from_lengths(lengths: Iterable[int] | NDArray[np.int64]) -> Offsets:
    """Offsets of records with these lengths."""
    sizes = np.fromiter(lengths, dtype=np.int64) if not isinstance(lengths, np.ndarray) else lengths
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def encode(offsets: Offsets) -> bytes:
    """The bytes of an index file."""
    return np.ascontiguousarray(offsets, dtype=OFFSET).tobytes()


def decode(raw: bytes | memoryview) -> Offsets:
    """Offsets (a view, not a copy) from the bytes of an index file or a part of one."""
    if len(raw) % OFFSET_BYTES:
        raise Damaged(f"a record index of {len(raw)} bytes is not a whole number of offsets")
    return np.frombuffer(raw, dtype=OFFSET)


def check(offsets: Offsets, size: int, *, part: bool = False) -> Offsets:
    """Return `offsets` if they fit a file of `size` bytes; `part` = a slice of an index. Raises `Damaged`."""
    if len(offsets) == 0:
        raise Damaged("the record index is empty")
    if not part and (int(offsets[0]) != 0 or int(offsets[-1]) != size):
        raise Damaged(f"the record index does not span the {size} bytes of its file")
    if int(offsets[0]) < 0 or int(offsets[-1]) > size or bool(np.any(offsets[1:] < offsets[:-1])):
        raise Damaged("the offsets of the record index are not in order")
    return offsets
