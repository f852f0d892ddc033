"""CRC32C of the 1 MiB blocks of files at rest, with the same definition as the data channel (udt.h).

Uses the C core where it is built; else a vectorised table version (about 200 MB/s). Blocking: call it in a
thread pool.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

BLOCK_BYTES = 1 << 20
_POLYNOMIAL = 0x82F63B78
_LANE = 1024


@functools.cache
def _byte_table() -> Any:
    import numpy as np

    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ np.uint32(_POLYNOMIAL), crc >> 1).astype(np.uint32)
    return crc


@functools.cache
def _shift_tables(doublings: int) -> Any:
    """uint32[4, 256]: the effect of `_LANE << doublings` zero bytes on each byte of a CRC register."""
    import numpy as np

    byte = _byte_table()
    if doublings == 0:
        bits = (np.uint32(1) << np.arange(32, dtype=np.uint32)).astype(np.uint32)
        for _ in range(_LANE):
            bits = (bits >> np.uint32(8)) ^ byte[bits & np.uint32(0xFF)]
    else:
        half = _shift_tables(doublings - 1)
        bits = _shift(half, _shift(half, (np.uint32(1) << np.arange(32, dtype=np.uint32)).astype(np.uint32)))
    tables = np.zeros((4, 256), dtype=np.uint32)
    index = np.arange(256, dtype=np.uint32)
    for lane in range(4):
        for bit in range(8):
            tables[lane] ^= np.where((index >> np.uint32(bit)) & 1, bits[8 * lane + bit], 0).astype(np.uint32)
    return tables


def _shift(tables: Any, crc: Any) -> Any:
    return (
        tables[0][crc & 0xFF]
        ^ tables[1][(crc >> 8) & 0xFF]
        ^ tables[2][(crc >> 16) & 0xFF]
        ^ tables[3][(crc >> 24) & 0xFF]
    )


def crc32c_tables(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C of `data` without the C core: lanes of 1024 bytes side by side, then folded pairwise."""
    import numpy as np

    byte = _byte_table()
    view = np.frombuffer(data, dtype=np.uint8)
    lanes = 1 << max(0, (len(view) // _LANE).bit_length() - 1) if len(view) >= _LANE else 0
    crc = 0xFFFFFFFF
    done = 0
    while lanes:
        part = view[done : done + lanes * _LANE].reshape(lanes, _LANE)
        state = np.zeros(lanes, dtype=np.uint32)
        state[0] = crc
        for column in np.ascontiguousarray(part.T):
            state = (state >> np.uint32(8)) ^ byte[(state ^ column) & np.uint32(0xFF)]
        doublings = 0
        while len(state) > 1:
            state = _shift(_shift_tables(doublings), state[0::2]) ^ state[1::2]
            doublings += 1
        crc = int(state[0])
        done += lanes * _LANE
        rest = (len(view) - done) // _LANE
        lanes = 1 << (rest.bit_length() - 1) if rest else 0
    table = byte.tolist()
    for value in view[done:].tolist():
        crc = (crc >> 8) ^ table[(crc ^ value) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _core() -> Callable[[Any], int] | None:
    try:
        from sector._udt._ffi import ffi, lib
    except ImportError:
        return None

    def run(data: Any) -> int:
        return int(lib.udt_crc32c(0, ffi.from_buffer("uint8_t[]", data), len(data)))

    return run


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C (Castagnoli) of `data` (at most some MiB at once)."""
    core = _core()
    return core(data) if core is not None and len(data) else crc32c_tables(data)


def block_crcs(fd: int, offset: int, length: int, stop: Callable[[], bool] = lambda: False) -> list[int]:
    """CRC32C of each 1 MiB block of `length` bytes from `offset` of an open file.

    Raises EOFError if the file is shorter, OSError as pread does, InterruptedError once `stop()` is true.
    """
    crcs: list[int] = []
    buffer = bytearray(min(BLOCK_BYTES, max(1, length)))
    view = memoryview(buffer)
    done = 0
    while done < length:
        if stop():
            raise InterruptedError("stopped")
        want = min(BLOCK_BYTES, length - done)
        have = 0
        while have < want:
            got = os.preadv(fd, [view[have:want]], offset + done + have)
            if got == 0:
                raise EOFError(f"the file ends at {offset + done + have}, {offset + length} was expected")
            have += got
        crcs.append(crc32c(view[:want]))
        done += want
    return crcs


def content_digest(crcs: Sequence[int], size: int) -> bytes:
    """The 32-byte content digest: SHA-256 over the little-endian block CRCs and the size as u64 (udt.h)."""
    return hashlib.sha256(struct.pack(f"<{len(crcs)}IQ", *crcs, size)).digest()
