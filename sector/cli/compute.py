"""Commands on functions and jobs: sphere run; job list, show, cancel: parse, call Sphere, render."""

from __future__ import annotations

import base64
import json
import sys
import time
from contextlib import suppress
from typing import Any

import click

from sector.cli.calls import call
from sector.cli.files import connection
from sector.cli.main import Shared, shared_options
from sector.cli.render import duration_text, print_json, print_table, say, size_text
from sector.errors import UsageError, printable
from sector.wire.sphere import JobCancel, JobInfo, JobList, JobShow, JobTable, UdfFault

GRANULARITIES = click.Choice(["record", "batch", "segment", "file"])


@click.group()
def sphere() -> None:
    """Run functions over files where they lie.

    \b
    Example:
      sector sphere run words.py:count '/text/*.txt'
    """


@sphere.command(
    short_help="Run a function over files, directories or globs.",
    epilog="\b\nExamples:\n"
    "  sector sphere run dwarfs.py:find /sdss --record-size 100 --granularity batch --output /found/d\n"
    "  sector sphere run words.py:count '/text/*.txt' --output -\n"
    "  sector sphere run terms.py:split /pages --buckets 16 --output /index/part --json",
)
@click.argument("function", metavar="FILE.py:FUNC")
@click.argument("inputs", metavar="INPUT…", nargs=-1, required=True)
@click.option("--record-size", type=click.IntRange(1, 1 << 30), metavar="N", help="Records of N bytes.")
@click.option("--index", is_flag=True, help="Records as in the index (FILE.idx) beside each file.")
@click.option("--granularity", type=GRANULARITIES, help="What the function gets at once.")
@click.option("--dtype", metavar="TYPE", help="NumPy type of a record for granularity batch, such as '<f8'.")
@click.option(
    "--output",
    default="-",
    metavar="PREFIX",
    help="Write cloud files PREFIX.0, PREFIX.1, …; - writes the results to standard output (the default).",
)
@click.option("--buckets", type=click.IntRange(0, 1 << 20), default=0, metavar="N", help="Buckets.")
@click.option("--params", default="null", metavar="JSON", help="What the function sees as ctx.params.")
@click.option("--timeout", type=click.FloatRange(0, 10**7), metavar="S", help="Seconds for one segment.")
@shared_options
@click.pass_obj
def run(
    shared: Shared,
    function: str,
    inputs: tuple[str, ...],
    record_size: int | None,
    index: bool,
    granularity: str | None,
    dtype: str | None,
    output: str,
    buckets: int,
    params: str,
    timeout: float | None,
) -> None:
    """Run FUNC of FILE.py over INPUT: files, directories or globs of the cloud.

    The function is called as FUNC(data, ctx); see the guide of Sphere. Results come in the order of the
    input. The right to execute is needed on the input, the right to write on the output.
    """
    from sector.sphere.blocking import SphereProcess, SphereStream
    from sector.sphere.pack import load_function

    try:
        values = json.loads(params)
    except ValueError as error:
        raise UsageError(f"--params is not JSON: {error}") from None
    prefix = "" if output == "-" else output
    if prefix and not prefix.startswith("/"):
        raise UsageError(f"--output {prefix!r} is no cloud path", hint="begin it with /, or write -")
    found = load_function(function)
    with connection(shared) as cloud:
        stream = SphereStream(
            cloud,
            inputs,
            record_size=record_size or 0,
            index=index,
            granularity=granularity,
            dtype=dtype,
        )
        job = SphereProcess(cloud).run(
            stream,
            found,
            output=prefix or None,
            buckets=buckets,
            params=values,
            timeout=timeout,
            in_order=True,
            progress=shared.bars and (bool(prefix) or not sys.stdout.isatty()),  # a bar would erase results
            on_log=_say_log,
        )
        outputs: list[Any] = []
        for part in job.results():
            if part.path is not None:
                outputs.append(part.path)
            elif shared.json:
                outputs.append(_shown(part.raw))
            else:
                sys.stdout.buffer.write(part.raw)
        status = job.status()
    counts = status.counts
    if shared.json:
        print_json(
            {
                "job": job.id,
                "state": status.state,
                "segments": counts.total,
                "retries": counts.retries,
                "duplicates": counts.duplicates,
                "seconds": counts.seconds,
                "bytes_in": counts.bytes_in,
                "bytes_out": counts.bytes_out,
                "bytes_moved": counts.bytes_moved,
                "output": outputs,
            }
        )
        return
    sys.stdout.flush()
    retries = f", {counts.retries} retries" if counts.retries else ""
    where = f" in {len(outputs)} files {prefix}.*" if prefix else ""
    say(
        f"job {job.id}: {counts.total} segments{retries}, {size_text(counts.bytes_in)} in,"
        f" {size_text(counts.bytes_out)} out{where}, {counts.seconds:.1f} s"
    )


def _say_log(segment: int, text: str) -> None:
    """What a function printed goes to standard error, each line with its segment."""
    for line in text.splitlines():
        say(f"segment {segment}: {line}")


def _shown(raw: bytes) -> Any:
    """A result in JSON: text where it is text, else base64."""
    with suppress(UnicodeDecodeError):
        return raw.decode()
    return {"base64": base64.b64encode(raw).decode()}


@click.group()
def job() -> None:
    """List, show and cancel jobs.

    \b
    Examples:
      sector job list
      sector job show 4f2a
    """


@job.command("list", epilog="\b\nExample:\n  sector job list --json | jq '.[0].id'")
@shared_options
@click.pass_obj
def list_jobs(shared: Shared) -> None:
    """Your jobs, newest first; all jobs for an administrator."""
    table: JobTable = call(shared, JobList())
    if shared.json:
        print_json([_listed(info) for info in table.jobs])
        return
    rows = [
        (
            info.id,
            info.user,
            info.state,
            info.stage,
            f"{info.counts.done}/{info.counts.total}",
            info.counts.retries,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(info.started)),
            duration_text(info.counts.seconds),
            info.label[:30],
        )
        for info in table.jobs
    ]
    heads = ("job", "user", "state", "stage", "segments", "retries", "started", "took", "function")
    print_table(heads, rows, right=(3, 4, 5))


@job.command(epilog="\b\nExample:\n  sector job show 4f2a --json")
@click.argument("job_id", metavar="ID")
@shared_options
@click.pass_obj
def show(shared: Shared, job_id: str) -> None:
    """One job: segments, worker processes, slaves left out, errors. ID may be cut short."""
    info: JobInfo = call(shared, JobShow(job_id[:16]))
    if shared.json:
        print_json(_detailed(info))
        return
    c = info.counts
    click.echo(f"job {info.id}  {printable(info.label)}  of {info.user}: {info.state}, stage {info.stage}")
    click.echo(f"segments {c.done} of {c.total}, {c.failed} failed, {c.retries} retries, {c.seconds:.1f} s")
    if info.spes:
        print_table(
            ("node", "pid", "segment", "progress"),
            [(s.node, s.pid, "-" if s.segment < 0 else s.segment, f"{s.progress:.0%}") for s in info.spes],
            right=(1, 2, 3),
        )
    for node, why in sorted(info.left_out.items()):
        click.echo(f"left out: {printable(why)}" if node in why else f"left out: {node}: {printable(why)}")
    for error in info.errors:
        where = f"segment {error.segment}" if error.segment >= 0 else "job"
        where += f", record {error.record}" if error.record >= 0 else ""
        click.echo(f"{where}: {error.type}: {printable(error.message)}")
        if error.traceback:
            click.echo(printable(error.traceback.rstrip(), "\n\t"))


@job.command(epilog="\b\nExample:\n  sector job cancel 4f2a")
@click.argument("job_id", metavar="ID")
@shared_options
@click.pass_obj
def cancel(shared: Shared, job_id: str) -> None:
    """End a job; its workers are killed."""
    info: JobInfo = call(shared, JobShow(job_id[:16]), JobCancel(job_id[:16]), JobShow(job_id[:16]))
    if shared.json:
        print_json({"id": info.id, "state": info.state})
        return
    say(f"job {info.id} is {info.state}")


def _listed(info: JobInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "user": info.user,
        "state": info.state,
        "stage": info.stage,
        "label": info.label,
        "started": info.started,
        "ended": info.ended or None,
        "segments": {"total": info.counts.total, "done": info.counts.done, "failed": info.counts.failed},
        "retries": info.counts.retries,
    }


def _detailed(info: JobInfo) -> dict[str, Any]:
    """`job show --json` (spec/sphere.md); an idle worker has segment null."""
    spes = [
        {
            "node": spe.node,
            "pid": spe.pid,
            "segment": None if spe.segment < 0 else spe.segment,
            "progress": spe.progress,
        }
        for spe in info.spes
    ]
    faults = [_fault(error) for error in info.errors]
    return _listed(info) | {"spes": spes, "left_out": info.left_out, "errors": faults}


def _fault(fault: UdfFault) -> dict[str, Any]:
    return {
        "segment": None if fault.segment < 0 else fault.segment,
        "record": None if fault.record < 0 else fault.record,
        "type": fault.type,
        "message": fault.message,
        "traceback": fault.traceback,
    }
