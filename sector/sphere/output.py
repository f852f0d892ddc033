"""How a worker writes results to its output descriptor (spec/sphere.md, "Workers").

The file has the data first, then a table of int64 lengths: one per piece for plain results (left out when all
pieces are equally long), one per bucket for bucket output, whose data lies in order of buckets. Memory is
bounded: bucket output beyond `limit` bytes goes to runs in a temporary file and is merged at the end.
"""

from __future__ import annotations

import io
import os
import tempfile
from array import array
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sector.sphere.udf import UdfTypeError, dtype_text

BUFFER = 1 << 20
COPY = 8 << 20


@dataclass(slots=True)
class Summary:
    """What lies in the output. `kind` "none", "bytes", "array", "buckets"; `table` = number of lengths
    behind the data; `row_bytes` = length of all records if equal, else 0."""

    kind: str = "none"
    bytes: int = 0
    table: int = 0
    pieces: int = 0
    row_bytes: int = 0
    dtype: str = ""
    shape: list[int] = field(default_factory=list)


class _Raw(io.FileIO):
    """A descriptor to write to; keeps the first error of its disk."""

    trouble: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.trouble = self.trouble or error
            raise


class _Sink:
    """What both kinds of output have: `trouble` = an error of the slave's disk, whatever the function made of
    it."""

    def __init__(self) -> None:
        self._raws: list[_Raw] = []

    def _open(self, fd: int) -> io.BufferedWriter:
        """A buffered file over a descriptor, which it owns."""
        raw = _Raw(fd, "wb")
        self._raws.append(raw)
        return io.BufferedWriter(raw, BUFFER)

    @property
    def trouble(self) -> OSError | None:
        return next((raw.trouble for raw in self._raws if raw.trouble is not None), None)


class _Widths:
    """Whether all records have the same length."""

    NONE, VARIOUS = -1, -2

    def __init__(self) -> None:
        self.width = self.NONE

    def add(self, width: int) -> None:
        if self.width == self.NONE:
            self.width = width
        elif self.width != width:
            self.width = self.VARIOUS

    @property
    def value(self) -> int:
        return max(0, self.width)


class PlainOutput(_Sink):
    """Results without buckets, written as they come."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.file = self._open(os.dup(fd))
        self.bytes = 0
        self.lengths = array("q")
        self.count = 0
        self.widths = _Widths()
        self.dtype = ""
        self.shape: list[int] = []

    def descriptors(self) -> list[int]:
        """What it writes to."""
        return [] if self.file.closed else [self.file.fileno()]

    def piece(self, data: bytes | memoryview) -> None:
        if self.dtype:
            raise UdfTypeError("the function returned arrays and bytes; only one kind is allowed")
        self._length(data.nbytes if isinstance(data, memoryview) else len(data))
        self.file.write(data)

    def array(self, rows: NDArray[Any]) -> None:
        dtype, shape = dtype_text(rows.dtype), list(rows.shape)
        if self.count and not self.dtype:
            raise UdfTypeError("the function returned bytes and arrays; only one kind is allowed")
        if not self.dtype:
            self.dtype, self.shape = dtype, shape
        elif dtype != self.dtype or len(shape) != len(self.shape) or not shape or shape[1:] != self.shape[1:]:
            raise UdfTypeError(f"arrays of different kinds: {self.dtype}{self.shape} and {dtype}{shape}")
        else:
            self.shape[0] += shape[0]
        flat = np.ascontiguousarray(rows)
        self._length(flat.nbytes)
        if flat.nbytes:
            self.file.write(flat.reshape(-1).view(np.uint8).data)

    def emit(self, bucket: int, data: bytes | memoryview) -> None:
        raise UdfTypeError("ctx.emit needs a job with buckets: run(..., buckets=N)")

    def scatter(self, rows: NDArray[Any], buckets: NDArray[np.int64]) -> None:
        raise UdfTypeError("bucket_ids need a job with buckets: run(..., buckets=N)")

    def finish(self) -> Summary:
        """Write the table; the output is complete."""
        table = 0
        if self.lengths and not self.dtype:
            self.file.write(self.lengths.tobytes())
            table = len(self.lengths)
        self.file.close()
        kind = "none" if not self.count else "array" if self.dtype else "bytes"
        row = self.widths.value
        if self.dtype:
            width = 0 if self.dtype.startswith(("[", "{")) else np.dtype(self.dtype).itemsize
            row = width * int(np.prod(self.shape[1:])) if width and len(self.shape) > 1 else 0
        return Summary(kind, self.bytes, table, self.count, row, self.dtype, self.shape)

    def _length(self, size: int) -> None:
        self.bytes += size
        self.widths.add(size)
        if self.lengths:
            self.lengths.append(size)
        elif self.count and self.widths.width == _Widths.VARIOUS:
            first = (self.bytes - size) // self.count
            self.lengths.extend([first] * self.count)
            self.lengths.append(size)
        self.count += 1


class BucketOutput(_Sink):
    """Results for buckets, grouped in memory, spilled in runs, merged in order of buckets."""

    def __init__(self, fd: int, buckets: int, scratch: str, limit: int = 64 << 20) -> None:
        super().__init__()
        self.fd = fd
        self.buckets = buckets
        self.scratch = scratch
        self.limit = limit
        self.parts: dict[int, bytearray] = {}
        self.held = 0
        self.bytes = 0
        self.records = 0
        self.widths = _Widths()
        self.runs: list[NDArray[np.int64]] = []
        self.spill: io.BufferedWriter | None = None

    def descriptors(self) -> list[int]:
        """What it writes to."""
        return [] if self.spill is None or self.spill.closed else [self.spill.fileno()]

    def piece(self, data: bytes | memoryview) -> None:
        raise UdfTypeError("with buckets return (rows, bucket_ids) or use ctx.emit(bucket, data)")

    def array(self, rows: NDArray[Any]) -> None:
        raise UdfTypeError("with buckets return (rows, bucket_ids) or use ctx.emit(bucket, data)")

    def emit(self, bucket: int, data: bytes | memoryview) -> None:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        self._part(bucket).extend(data)
        self.widths.add(size)
        self.records += 1
        self._grown(size)

    def scatter(self, rows: NDArray[Any], buckets: NDArray[np.int64]) -> None:
        count = len(rows)
        keys = buckets.astype(np.uint16) if self.buckets <= 65536 else buckets
        order = np.argsort(keys, kind="stable")
        flat = np.ascontiguousarray(rows)
        if flat.nbytes == 0:
            return
        sorted_rows = flat.reshape(count, -1).view(np.uint8).reshape(count, -1)[order]
        counts = np.bincount(buckets, minlength=0)
        width = sorted_rows.shape[1]
        self.widths.add(width)
        self.records += count
        view = sorted_rows.reshape(-1).data
        at = 0
        for bucket in np.flatnonzero(counts):
            size = int(counts[bucket]) * width
            self._part(int(bucket)).extend(view[at : at + size])
            at += size
        self._grown(count * width)

    def finish(self) -> Summary:
        """Merge and write the table; the output is complete."""
        with self._open(os.dup(self.fd)) as out:
            if self.runs:
                self._run()
                total = self._merge(out)
            else:
                total = self._flush(out)
            out.write(total.astype("<i8").tobytes())
        if self.spill is not None:
            self.spill.close()
        return Summary("buckets", self.bytes, self.buckets, self.records, self.widths.value)

    def _part(self, bucket: int) -> bytearray:
        part = self.parts.get(bucket)
        if part is None:
            part = self.parts[bucket] = bytearray()
        return part

    def _grown(self, size: int) -> None:
        self.bytes += size
        self.held += size
        if self.held > self.limit:
            self._run()

    def _flush(self, out: Any) -> NDArray[np.int64]:
        lengths = np.zeros(self.buckets, dtype=np.int64)
        for bucket in sorted(self.parts):
            lengths[bucket] = len(self.parts[bucket])
            out.write(self.parts[bucket])
        self.parts.clear()
        self.held = 0
        return lengths

    def _run(self) -> None:
        if self.spill is None:
            fd, name = tempfile.mkstemp(dir=self.scratch or None)
            os.unlink(name)
            self.spill = self._open(fd)
        self.runs.append(self._flush(self.spill))

    def _merge(self, out: io.BufferedWriter) -> NDArray[np.int64]:
        assert self.spill is not None
        self.spill.flush()
        base = np.cumsum([0] + [int(run.sum()) for run in self.runs[:-1]])
        starts = [
            start + np.concatenate(([0], np.cumsum(run)[:-1]))
            for start, run in zip(base, self.runs, strict=True)
        ]
        total = np.sum(self.runs, axis=0)
        fd = self.spill.fileno()
        for bucket in np.flatnonzero(total):
            for start, run in zip(starts, self.runs, strict=True):
                at, left = int(start[bucket]), int(run[bucket])
                while left:
                    block = os.pread(fd, min(left, COPY), at)
                    if not block:
                        raise OSError("the spill file is shorter than written")
                    out.write(block)
                    at += len(block)
                    left -= len(block)
        return cast("NDArray[np.int64]", total)
