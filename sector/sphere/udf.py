"""What user code sees: the context, the forms of its input, the rules for what it returns (pure).

`run` applies one function to one segment of data that lies in memory; the worker process and
`sector.testing.call` share it, so that a function behaves the same with and without a cluster
(spec/sphere.md, "A UDF").
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

GRANULARITIES = ("record", "batch", "segment", "file")
BATCH_BYTES = 16 << 20
"""A batch UDF sees at most about this many bytes at once."""


DTYPE_MAX = 65536
"""Longest text of a dtype: some thousand fields."""


class UdfTypeError(TypeError):
    """The function returned something that is not allowed (error code udf_type)."""


class Sink(Protocol):
    """Where results go. Both calls copy or write before they return."""

    def piece(self, data: bytes | memoryview) -> None:
        """One result without a bucket."""

    def array(self, rows: NDArray[Any]) -> None:
        """One array result without a bucket."""

    def emit(self, bucket: int, data: bytes | memoryview) -> None:
        """One result for a bucket."""

    def scatter(self, rows: NDArray[Any], buckets: NDArray[np.int64]) -> None:
        """Row i goes to bucket buckets[i]; rows of a bucket keep their order."""


@dataclass(slots=True)
class View:
    """One input of a segment: bytes in memory. `offsets`: int64[n+1] relative to the data when it is cut
    into n records by an index; `record_size` > 0 when by size. `path` is the file's; `offset` where the
    data starts in it."""

    data: memoryview
    path: str = ""
    offset: int = 0
    offsets: NDArray[np.int64] | None = None
    record_size: int = 0

    def count(self) -> int:
        """Number of records. A last piece shorter than record_size is a record."""
        if self.offsets is not None:
            return len(self.offsets) - 1
        if self.record_size:
            return -(-len(self.data) // self.record_size)
        return 1

    def record(self, index: int) -> memoryview:
        """Record `index` as a view."""
        if self.offsets is not None:
            return self.data[int(self.offsets[index]) : int(self.offsets[index + 1])]
        if self.record_size:
            return self.data[index * self.record_size : (index + 1) * self.record_size]
        return self.data


@dataclass
class Context:
    """The `ctx` of a user function.

    `job` id and `segment` number; `params` as given to run(); `scratch` = a directory of this worker
    that is emptied when it ends; `path` of the file and `offsets` (int64[n+1], relative to the
    data) of its records where there is an index, tuples of both with several input streams; `objects` =
    a dict that survives between calls in this worker.
    """

    job: str = ""
    segment: int = 0
    params: Any = None
    scratch: str = ""
    path: Any = ""
    offset: Any = 0
    offsets: Any = None
    objects: dict[Any, Any] = field(default_factory=dict)
    buckets: int = 0
    on_log: Callable[[str], None] = lambda text: None
    on_progress: Callable[[float], None] = lambda fraction: None
    sink: Sink | None = None
    record: int = -1

    def log(self, msg: object) -> None:
        """Write a line to the job's log (bounded)."""
        self.on_log(str(msg))

    def progress(self, fraction: float) -> None:
        """Tell how much of the segment is done, 0..1."""
        self.on_progress(min(1.0, max(0.0, float(fraction))))

    def emit(self, bucket: int, data: bytes | bytearray | memoryview) -> None:
        """Send `data` (copied) to a bucket 0..buckets-1. Raises UdfTypeError, IndexError."""
        if not self.buckets or self.sink is None:
            raise UdfTypeError("ctx.emit needs a job with buckets: run(..., buckets=N)")
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise UdfTypeError(f"ctx.emit takes bytes, not {type(data).__name__}")
        number = int(bucket)
        if not 0 <= number < self.buckets:
            raise IndexError(f"bucket {number} is not in 0..{self.buckets - 1}")
        self.sink.emit(number, bytes(data) if isinstance(data, bytearray) else data)


def dtype_text(dtype: Any) -> str:
    """A NumPy dtype as text that `dtype_from` reads (no pickle). Raises UdfTypeError for one of objects, or
    one whose text is longer than `DTYPE_MAX`."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise UdfTypeError("arrays of Python objects cannot travel; use a fixed dtype")
    text = kind.str if kind.names is None else repr(_facts(kind))
    if len(text) > DTYPE_MAX:
        raise UdfTypeError(
            f"an array of {len(kind.names or ())} fields cannot travel: its type is a text of {len(text)}"
            f" characters, at most {DTYPE_MAX} are allowed; return fewer fields, or bytes"
        )
    return text


def _facts(kind: np.dtype[Any]) -> Any:
    """A dtype as literals: the usual list of fields, or a dict when they have gaps or another order in memory
    (as in `rows[["id", "mag"]]`)."""
    if kind.subdtype is not None:
        return _facts(kind.subdtype[0]), kind.subdtype[1]
    if kind.names is None or kind.fields is None:
        return kind.str
    with contextlib.suppress(TypeError, ValueError):
        if np.dtype(kind.descr) == kind:
            return kind.descr
    fields = [kind.fields[name] for name in kind.names]
    return {
        "names": list(kind.names),
        "formats": [_facts(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "itemsize": kind.itemsize,
    }


def dtype_from(text: str) -> np.dtype[Any]:
    """The dtype of `dtype_text`. Raises ValueError on anything else."""
    import ast

    try:
        kind = _made(ast.literal_eval(text) if text.startswith(("[", "{")) else text)
    except (TypeError, SyntaxError, KeyError, RecursionError, MemoryError) as error:
        raise ValueError(f"bad dtype {text[:100]!r}: {error}") from None
    if kind.hasobject:
        raise ValueError("a dtype with objects is not allowed")
    return kind


def _made(facts: Any) -> np.dtype[Any]:
    """The dtype of `_facts`."""
    if isinstance(facts, list):
        facts = [tuple(item) for item in facts]
    elif isinstance(facts, tuple):
        base, shape = facts
        facts = (_made(base), shape)
    elif isinstance(facts, dict):
        facts = {**facts, "formats": [_made(item) for item in facts["formats"]]}
    made: np.dtype[Any] = np.dtype(facts)
    return made


def unmasked(rows: NDArray[Any]) -> NDArray[Any]:
    """The array. Raises UdfTypeError when values of it are masked: the mask would not travel."""
    if isinstance(rows, np.ma.MaskedArray) and b"\1" in np.ma.getmaskarray(rows).tobytes():
        raise UdfTypeError(
            "the function returned an array with masked values, which cannot travel; return"
            " rows.compressed() or rows.filled(value)"
        )
    return rows


def check_result(result: Any, sink: Sink, buckets: int) -> None:
    """Pass what a function returned to the sink. Raises UdfTypeError for what is not allowed."""
    if result is None:
        return
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], np.ndarray) and buckets:
        _scatter(result[0], result[1], sink, buckets)
        return
    if buckets:
        raise UdfTypeError(
            f"the function returned {type(result).__name__}; with buckets return (rows, bucket_ids) or use"
            " ctx.emit(bucket, data)"
        )
    if isinstance(result, (bytes, bytearray, memoryview)):
        sink.piece(bytes(result) if isinstance(result, bytearray) else result)
    elif isinstance(result, np.ndarray):
        dtype_text(result.dtype)
        sink.array(unmasked(result))
    elif isinstance(result, Iterable) and not isinstance(result, (str, dict)):
        for item in result:
            if not isinstance(item, (bytes, bytearray, memoryview)):
                raise UdfTypeError(f"the function yielded {type(item).__name__}; only bytes are allowed")
            sink.piece(bytes(item) if isinstance(item, bytearray) else item)
    else:
        raise UdfTypeError(
            f"the function returned {type(result).__name__}; allowed are None, bytes, a NumPy array, an"
            " iterable of bytes"
        )


def _scatter(rows: NDArray[Any], ids: Any, sink: Sink, buckets: int) -> None:
    numbers = np.asarray(ids)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise UdfTypeError(f"bucket_ids must be int[n], not {numbers.dtype}[{numbers.ndim} dimensions]")
    if rows.ndim < 1 or len(numbers) != len(rows):
        raise UdfTypeError(f"{len(numbers)} bucket_ids for {len(rows) if rows.ndim else 1} rows")
    dtype_text(unmasked(rows).dtype)
    if len(numbers) == 0:
        return
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= buckets:
        raise IndexError(f"bucket {low if low < 0 else high} is not in 0..{buckets - 1}")
    sink.scatter(rows, numbers.astype(np.int64, copy=False))


def batch(view: memoryview, record_size: int, dtype: str = "") -> NDArray[Any]:
    """A read-only array over whole records: uint8[n, record_size], or [n] of `dtype`."""
    flat = np.frombuffer(view, dtype=np.uint8)
    flat.flags.writeable = False
    if not dtype:
        return flat.reshape(-1, record_size)
    return flat.view(dtype_from(dtype))


def calls(views: list[View], granularity: str, dtype: str = "") -> Iterator[tuple[int, Any]]:
    """The (first record, data) of each call for a segment; several views are paired by position."""
    one = len(views) == 1
    if granularity in ("segment", "file"):
        yield 0, views[0].data if one else tuple(view.data for view in views)
        return
    count = min(view.count() for view in views)
    if any(view.count() != count for view in views):
        raise UdfTypeError("the paired input streams have different numbers of records")
    if granularity == "record":
        for index in range(count):
            if one:
                yield index, bytes(views[0].record(index))
            else:
                yield index, tuple(bytes(view.record(index)) for view in views)
        return
    width = max(view.record_size for view in views)
    if any(not view.record_size or len(view.data) % view.record_size for view in views):
        raise UdfTypeError("batch granularity needs record_size, and a size that is a multiple of it")
    step = max(1, BATCH_BYTES // width)
    for first in range(0, count, step):
        last = min(count, first + step)
        arrays = tuple(
            batch(view.data[first * view.record_size : last * view.record_size], view.record_size, dtype)
            for view in views
        )
        yield first, arrays[0] if one else arrays


def run(
    function: Callable[[Any, Context], Any],
    views: list[View],
    ctx: Context,
    *,
    granularity: str,
    dtype: str = "",
) -> None:
    """Apply the function to all records of a segment; results go to ctx.sink. What the function raises
    passes through, with ctx.record = the record (or first record of the batch) it was given."""
    assert ctx.sink is not None
    one = len(views) == 1
    ctx.path = views[0].path if one else tuple(view.path for view in views)
    ctx.offset = views[0].offset if one else tuple(view.offset for view in views)
    ctx.offsets = views[0].offsets if one else tuple(view.offsets for view in views)
    ctx.record = -1
    total = max(1, min(view.count() for view in views))
    step = max(1, total // 100)
    for first, data in calls(views, granularity, dtype):
        if granularity in ("record", "batch"):
            ctx.record = first
            if first and (granularity == "batch" or first % step == 0):
                ctx.on_progress(first / total)
        check_result(function(data, ctx), ctx.sink, ctx.buckets)
    ctx.record = -1
