"""What a driver was asked for, the requests it sends for segments, the errors it makes of faults (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sector.errors import SectorError, UdfError, UdfTimeout, UdfType
from sector.model import Version
from sector.sphere.plan import Segment
from sector.sphere.stream import SphereStream
from sector.wire.sphere import Input, Route, SegmentRun, UdfFault


@dataclass(frozen=True)
class Options:
    """What `run` was asked for; see `sector.sphere.blocking.SphereProcess.run`."""

    output: str = ""
    buckets: int = 0
    files: tuple[Any, ...] = ()
    timeout_s: float = 0.0
    in_order: bool = False
    segment_bytes: int | None = None
    label: str = ""


def segment_request(
    job: str,
    udf: bytes,
    stream: SphereStream,
    options: Options,
    segment: Segment,
    attempt: int,
    routes: Sequence[Route],
) -> SegmentRun:
    """The request that runs a segment."""
    output = ""
    if options.output and not options.buckets:
        output = f"{options.output}.{segment.index}"
    inputs = []
    for span in segment.spans:
        version, size, index_holders = span.source.index or (Version(0, 0), 0, ())
        inputs.append(
            Input(
                span.source.path,
                span.source.version,
                span.source.size,
                span.offset,
                span.length,
                span.first,
                span.records,
                span.source.record_size,
                version,
                size,
                list(span.source.holders[:64]),
                list(index_holders[:64]),
            )
        )
    return SegmentRun(
        job,
        segment.index,
        attempt,
        udf,
        inputs,
        stream.granularity,
        stream.dtype,
        output,
        options.buckets,
        list(routes),
    )


def fault_error(fault: UdfFault, segment: Segment) -> SectorError:
    """The exception for a function's fault: where it happened, what, and the remote traceback."""
    span = segment.spans[0]
    where = f"segment {fault.segment}"
    if fault.record >= 0:
        where += f", record {fault.record}"
    where += f" ({span.source.path}"
    where += f" from byte {span.offset})" if span.offset else ")"
    if fault.code == UdfTimeout.code:
        return UdfTimeout(f"{fault.message} ({span.source.path})")
    if fault.code == UdfType.code:
        return UdfType(f"{where}: {fault.message}")
    return UdfError(f"{where}: {fault_text(fault)}")


def fault_text(fault: UdfFault) -> str:
    """What a function raised, with the remote traceback."""
    text = f"{fault.type}: {fault.message}"
    return f"{text}\n{fault.traceback.rstrip()}" if fault.traceback else text
