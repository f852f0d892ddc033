"""The plain face of Sphere: calls that block, for scripts and notebooks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from twisted.internet.defer import Deferred

from sector.client.bars import wanted
from sector.client.blocking import Cloud
from sector.errors import SectorError, TimedOut, UsageError
from sector.sphere.job import JobDriver
from sector.sphere.job_request import Options
from sector.sphere.pack import pack
from sector.sphere.result import Part, Status
from sector.sphere.stream import SphereStream
from sector.sphere.talk import Talk
from sector.threads import start_deaf
from sector.wire.sphere import BUCKETS_MAX

__all__ = ["Job", "Part", "SphereProcess", "SphereStream", "Status"]


class Job:
    """A running or finished job. Made by `SphereProcess.run`.

    While nobody waits for it the job goes on in the background, as long as this process lives.
    """

    def __init__(self, cloud: Cloud, driver: JobDriver) -> None:
        self._cloud = cloud
        self._driver = driver
        self._talk: Talk | None = None
        self._bar: threading.Thread | None = None
        self._bar_ends = threading.Event()

    @property
    def id(self) -> str:
        """The job's id, as `sector job show` takes it."""
        return self._driver.id

    def __repr__(self) -> str:
        return f"<Sphere {self.status()}>"

    def status(self) -> Status:
        """How the job stands now."""
        status: Status = self._cloud.wait(self._driver.status)
        return status

    def wait(self, timeout: float | None = None) -> Status:
        """Wait for the end of the job, at most `timeout` seconds; its final status. Raises UdfError (with
        the remote traceback), UdfType, UdfTimeout, JobFailed, Cancelled, TimedOut. Ctrl-C cancels the job."""
        try:
            self._cloud.wait(_limited, self._driver, timeout)
        except KeyboardInterrupt:
            self._cloud.wait(self._driver.cancel, "interrupted by the user")
            raise
        finally:
            if self._driver.ended:
                self._clear()
        return self.status()

    def logs(self) -> list[tuple[int, str]]:
        """(segment, text) of what the function printed or gave to `ctx.log`, as segments ended; of each the
        last 8,000 bytes at most, and of a long job the last 1,000."""
        return list(self._driver.logs)

    def cancel(self) -> None:
        """End the job: its workers are killed."""
        self._cloud.wait(self._driver.cancel)

    def results(self) -> Iterator[Part]:
        """The parts as they come (in the order of input with in_order=True); ends with the job. Raises what
        `wait` raises."""
        number = 0
        while True:
            try:
                part: Part | None = self._cloud.wait(self._driver.part, number)
            except KeyboardInterrupt:
                self._cloud.wait(self._driver.cancel, "interrupted by the user")
                self._clear()
                raise
            except BaseException:
                self._clear()
                raise
            if part is None:
                self._clear()
                return
            yield part
            number += 1

    def draw(self) -> None:
        """Draw a progress bar on standard error until the job ends, or nobody waits for it any more."""
        self._bar = threading.Thread(
            target=_draw, args=(self, self._bar_ends), name="sphere-bar", daemon=True
        )
        start_deaf(self._bar)

    def _clear(self) -> None:
        """The bar goes before anything else is printed; what functions printed is told to its end."""
        self._bar_ends.set()
        if self._bar is not None:
            self._bar.join(2.0)
        if self._talk is not None:
            self._talk.finish()

    @property
    def output(self) -> SphereStream:
        """The job's files as input of the next stage; waits for the end of the job. Raises what `wait`
        raises, and UsageError for a job without output files."""
        self.wait()
        stream: SphereStream = self._cloud.wait(self._driver.output_stream)
        stream.cloud = self._cloud
        return stream


def _limited(driver: JobDriver, seconds: float | None) -> Deferred[None]:
    waiting = driver.ended_deferred()
    if seconds is not None:
        waiting.addTimeout(seconds, driver.clock, lambda *_: _too_late(driver, seconds))
    return waiting


def _too_late(driver: JobDriver, timeout: float) -> Any:
    raise TimedOut(f"job {driver.id} is still running after {timeout:g} s", hint="wait again, or cancel it")


class SphereProcess:
    """Runs functions over streams of a cloud.

    >>> cloud = sector.connect()                                           # doctest: +SKIP
    >>> stream = sector.SphereStream(cloud, "/sdss/*.dat", record_size=100)   # doctest: +SKIP
    >>> job = sector.SphereProcess(cloud).run(stream, find_brown_dwarf)    # doctest: +SKIP
    >>> for part in job.results(): print(part.index, len(part.data))       # doctest: +SKIP
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def run(
        self,
        stream: SphereStream,
        f: Callable[..., Any],
        output: str | None = None,
        buckets: int = 0,
        params: Any = None,
        files: tuple[str | os.PathLike[str], ...] = (),
        timeout: float | None = None,
        in_order: bool = False,
        detach: bool = False,
        *,
        segment_bytes: int | None = None,
        progress: bool | None = None,
        on_log: Callable[[int, str], None] | None = None,
    ) -> Job:
        """Run `f(data, ctx)` over every segment of `stream` and return the job.

        `output` = prefix of cloud files for the results: PREFIX.i of segment i, or of bucket i when
        `buckets` > 0; without it the results come back to this process. `params` is `ctx.params`; `files`
        are small local files that lie in `ctx.scratch`, modules among them can be imported. `timeout` =
        seconds that the function may take for one segment. `in_order` = results in the order of the input.
        Returns as soon as the job runs; on a terminal a progress bar is drawn meanwhile. With `detach`
        (and `output`) the job is driven by a process of its own on this machine and goes on when this one
        ends. `segment_bytes` = about how large segments are (default: by the amount of data, 8 to 128 MB).
        `on_log(segment, text)` hears what the function printed, in a thread of its own (see `Job.logs`).
        Raises Denied (no execute right), NotFound (no input), UsageError, Unavailable.
        """
        if not 0 <= buckets <= BUCKETS_MAX:
            raise UsageError(f"a job has 0 to {BUCKETS_MAX} buckets, not {buckets}")
        if detach and not output:
            raise UsageError("a detached job needs output files", hint="give run(..., output=PREFIX)")
        if detach and on_log is not None:
            raise UsageError("on_log hears nothing of a detached job", hint="run it without detach")
        options = Options(
            output=output or "",
            buckets=buckets,
            files=tuple(files),
            timeout_s=float(timeout or 0.0),
            in_order=in_order,
            segment_bytes=segment_bytes,
            label=getattr(f, "__qualname__", type(f).__name__),
        )
        blob = pack(f, params, options.files)
        if detach:
            from sector.sphere.detached import start_detached

            return start_detached(self._cloud, stream, blob, options)
        driver = JobDriver(self._cloud.client, stream, blob, options)
        driver.fetch = self._cloud.read
        talk = Talk(on_log) if on_log is not None else None
        if talk is not None:
            driver.on_log = talk.put
            driver.watchers.append(lambda: talk.close() if driver.ended else None)
        try:
            self._cloud.wait(driver.start)
        except BaseException:
            if talk is not None:
                talk.close()
            raise
        job = Job(self._cloud, driver)
        job._talk = talk
        if wanted() if progress is None else progress:
            job.draw()
        return job


def _draw(job: Job, ends: threading.Event) -> None:
    """A progress bar on standard error until the job ends or `ends` is set."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("segments"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"job {job.id[:8]}", total=None)
        while not ends.is_set():
            try:
                status = job.status()
            except SectorError:  # the connection was closed meanwhile
                return
            bar.update(task, total=status.counts.total or None, completed=status.counts.done)
            if status.state in ("done", "failed", "cancelled"):
                return
            ends.wait(0.25)
