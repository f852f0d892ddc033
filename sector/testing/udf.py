"""Run a user function without a cluster, by the same rules as on a slave.

>>> from sector.testing import call
>>> def upper(data, ctx):
...     return bytes(data).upper()
>>> call(upper, b"stars").data
b'STARS'
>>> def parity(rows, ctx):
...     return rows, rows[:, 0] % 2
>>> call(parity, bytes([1, 2, 3, 4]), record_size=1, granularity="batch", buckets=2).buckets
{0: b'\\x02\\x04', 1: b'\\x01\\x03'}
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sector.sphere import records, udf
from sector.sphere.output import BucketOutput, PlainOutput


@dataclass
class CallResult:
    """What a function returned for one segment. `data` = bytes, or an array if it returned arrays (None:
    nothing); `pieces` = single results; `buckets` = bytes by bucket (empty ones left out); `log` its
    messages; `progress` the last fraction it told."""

    data: Any = None
    pieces: list[bytes] = field(default_factory=list)
    buckets: dict[int, bytes] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    progress: float = 0.0


def call(
    f: Callable[[Any, udf.Context], Any],
    data: Any,
    *,
    record_size: int = 0,
    offsets: Sequence[int] | None = None,
    granularity: str | None = None,
    dtype: Any = None,
    buckets: int = 0,
    params: Any = None,
    path: str = "/test",
    objects: dict[Any, Any] | None = None,
    job: str = "0" * 16,
    segment: int = 0,
) -> CallResult:
    """Apply `f` to `data` (bytes or an array; a tuple of them for several input streams) as a slave does.

    The options are those of `SphereStream` and `SphereProcess.run`. Raises what the function raises, and
    `sector.sphere.udf.UdfTypeError` for a result that is not allowed."""
    inputs = data if isinstance(data, tuple) else (data,)
    index = None if offsets is None else np.asarray(offsets, dtype=np.int64)
    views = []
    for item in inputs:
        raw = item.tobytes() if isinstance(item, np.ndarray) else bytes(item)
        if index is not None:
            records.check(index, len(raw))
        views.append(udf.View(memoryview(raw), path, 0, index, record_size))
    kind = granularity or ("record" if record_size or index is not None else "file")
    if kind not in udf.GRANULARITIES:
        raise ValueError(f"granularity {kind!r} is not known")
    result = CallResult()

    def progress(fraction: float) -> None:
        result.progress = fraction

    with tempfile.TemporaryDirectory(prefix="sphere-") as scratch, tempfile.TemporaryFile() as out:
        sink: PlainOutput | BucketOutput = (
            BucketOutput(out.fileno(), buckets, scratch) if buckets else PlainOutput(out.fileno())
        )
        ctx = udf.Context(
            job=job,
            segment=segment,
            params=params,
            scratch=scratch,
            objects={} if objects is None else objects,
            buckets=buckets,
            on_log=result.log.append,
            on_progress=progress,
            sink=sink,
        )
        text = "" if dtype is None else udf.dtype_text(dtype)
        udf.run(f, views, ctx, granularity=kind, dtype=text)
        done = sink.finish()
        raw = os.pread(out.fileno(), done.bytes, 0)
        table = np.frombuffer(os.pread(out.fileno(), 8 * done.table, done.bytes), dtype="<i8")
    if buckets:
        result.buckets = {i: piece for i, piece in enumerate(_split(raw, table)) if piece}
        return result
    if done.kind == "none":
        return result
    lengths = table if done.table else np.full(done.pieces, done.bytes // max(1, done.pieces))
    result.pieces = list(_split(raw, lengths)) if not done.dtype else []
    result.data = raw
    if done.dtype:
        result.data = np.frombuffer(raw, dtype=udf.dtype_from(done.dtype)).reshape(done.shape)
    return result


def _split(raw: bytes, lengths: Any) -> Iterator[bytes]:
    at = 0
    for length in lengths:
        yield raw[at : at + int(length)]
        at += int(length)
