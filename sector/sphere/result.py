"""What a job gives back: parts, their place in a local spool file, the summary."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sector.errors import LocalIO
from sector.model import Version
from sector.sphere.udf import dtype_from
from sector.wire.sphere import JobCounts, UdfFault


class Spool:
    """A nameless local file for results, so that their number needs no memory. Not for several threads."""

    def __init__(self) -> None:
        fd, name = tempfile.mkstemp(prefix="sphere-")
        os.unlink(name)
        self.fd = fd
        self._size = 0

    def __del__(self) -> None:
        os.close(self.fd)

    def room(self, size: int) -> int:
        """Reserve a range; its offset."""
        at, self._size = self._size, self._size + size
        return at

    def put_thd(self, offset: int, data: bytes) -> None:
        """Write into a reserved range."""
        try:
            while data:
                done = os.pwrite(self.fd, data, offset)
                offset, data = offset + done, data[done:]
        except OSError as error:
            raise LocalIO(f"results cannot be kept in {tempfile.gettempdir()}: {error.strerror}") from None

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of a range."""
        parts = []
        while size:
            block = os.pread(self.fd, min(size, 1 << 26), offset)
            if not block:
                raise LocalIO("the spool of results is shorter than it was")
            parts.append(block)
            offset, size = offset + len(block), size - len(block)
        return b"".join(parts)


@dataclass(frozen=True)
class Part:
    """One part of a result. `index` counts parts (segments or buckets), `segment` is the segment's number
    (-1 for a bucket), `path` the cloud path or None, `data` bytes or a NumPy array (as the function
    returned), read when it is asked for."""

    index: int
    segment: int
    path: str | None
    size: int
    version: Version = Version(0, 0)
    holders: tuple[str, ...] = ()
    dtype: str = ""
    shape: tuple[int, ...] = ()
    pieces: int = 0
    row_bytes: int = 0
    table: int = 0
    spool: Spool | None = field(default=None, repr=False, compare=False)
    at: int = 0
    fetch: Callable[[str], bytes] | None = field(default=None, repr=False, compare=False)

    @property
    def raw(self) -> bytes:
        """The bytes of the part."""
        if self.spool is not None:
            return self.spool.read(self.at, self.size)
        if self.path is not None and self.fetch is not None:
            return self.fetch(self.path)
        return b""

    @property
    def data(self) -> Any:
        """bytes, or an array if the function returned arrays."""
        raw = self.raw
        if self.dtype and self.spool is not None:
            return np.frombuffer(raw, dtype=dtype_from(self.dtype)).reshape(self.shape)
        return raw

    def records(self) -> Iterator[bytes]:
        """The single results that the function returned for this part, one bytes object each; of arrays
        their rows."""
        raw = self.raw
        if self.table and self.spool is not None:
            lengths = np.frombuffer(self.spool.read(self.at + self.size, 8 * self.table), dtype="<i8")
        elif self.dtype and self.spool is not None:
            rows = self.shape[0] if self.shape else 1
            lengths = np.full(rows, self.size // max(1, rows), dtype=np.int64)
        else:
            lengths = np.full(self.pieces, self.row_bytes, dtype=np.int64)
        at = 0
        for length in lengths:
            yield raw[at : at + int(length)]
            at += int(length)


@dataclass(frozen=True)
class Status:
    """How a job stands. `state` "starting", "running", "done", "failed", "cancelled". `left_out` = slaves
    that it does without since their disk was full or failed or its client did not reach them, and why."""

    job: str
    state: str
    stage: int
    counts: JobCounts
    errors: tuple[UdfFault, ...] = ()
    parts: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def fraction(self) -> float:
        """Share of the segments that are done, 0..1."""
        return self.counts.done / self.counts.total if self.counts.total else 0.0

    def __str__(self) -> str:
        c = self.counts
        return f"job {self.job}: {self.state}, {c.done} of {c.total} segments, {c.retries} retries"
