"""What a driver was asked for, the requests it sends for segments, the errors it makes of faults (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sector.errors import JobFailed, SectorError, UdfError, UdfTimeout, UdfType, Unavailable
from sector.model import Version
from sector.sphere.plan import Segment
from sector.sphere.stream import SphereStream
from sector.wire.sphere import BucketSeal, Input, Route, SealDone, SegmentDone, SegmentRun, UdfFault

PROCESS_ENDS = ("signal", "exit")
"""Types of faults where the function took its worker process with it."""


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


def check_reach(segments: Sequence[Segment], refused: Mapping[str, str]) -> None:
    """Raises `Unavailable` when no slave that has a file takes part in the job: it could not be read."""
    for segment in segments:
        for span in segment.spans:
            holders = span.source.holders
            if holders and all(node in refused for node in holders):
                raise Unavailable(
                    f"{span.source.path} is on no slave that can run this job: {refused[holders[0]]}"
                )


def check_answer(request: SegmentRun, done: SegmentDone, node: str) -> None:
    """Raises `Unavailable` when a slave answers for another segment or file than it was asked for: another
    slave can do it. What it was asked for counts as done once, and no other does by its word."""
    named = {done.segment, *(fault.segment for fault in done.fault)}
    path = request.output if not done.fault and not request.buckets and done.kind != "none" else ""
    if named != {request.segment} or done.path != path:
        raise Unavailable(
            f"slave {node} was asked for segment {request.segment} and answered for another one"
        )


def check_sealed(request: BucketSeal, done: SealDone, node: str) -> None:
    """The same for buckets that were put together."""
    asked = range(request.first, request.last + 1)
    paths = [f"{request.output}.{bucket}" if request.output else "" for bucket in asked]
    said = [(item.bucket, item.path) for item in done.sealed]
    if said != list(zip(asked, paths, strict=True)):
        raise Unavailable(f"slave {node} was asked for its buckets and answered for others")


def fault_error(fault: UdfFault, segment: Segment, job: str, label: str) -> SectorError:
    """The exception for a function's fault: where it happened, what, and the remote traceback. One that
    ended its process is told in one line: the dump of a crash is in the record of the job."""
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
    if fault.type in PROCESS_ENDS:
        return process_end(fault, where, job, label)
    return UdfError(f"{where}: {fault_text(fault)}")


def process_end(fault: UdfFault, where: str, job: str, label: str) -> UdfError:
    """The error of a function that took its process with it, in one line."""
    hint = f"sector job show {job} has the crash dump" if fault.traceback else ""
    return UdfError(f"function {label}, {where}: {fault.message}", hint=hint)


def failure_fault(error: BaseException) -> UdfFault:
    """The record of a job that failed for another reason than its function: segment -1."""
    if isinstance(error, SectorError):
        text = error.message + (f" ({error.hint})" if error.hint else "")
        return UdfFault(-1, -1, type(error).__name__, text[:8192], "", error.code)
    return UdfFault(-1, -1, type(error).__name__, str(error)[:8192] or "cancelled", "", JobFailed.code)


def fault_text(fault: UdfFault) -> str:
    """What a function raised, with the remote traceback; else what ended the job."""
    if fault.segment < 0:
        return fault.message
    text = f"{fault.type}: {fault.message}"
    return f"{text}\n{fault.traceback.rstrip()}" if fault.traceback else text
