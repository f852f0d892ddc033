"""Jobs that outlive the process that started them: their driver runs in a process of its own.

The session, the stream and the options go to it through a pipe, as JSON, and the pickled function as it is;
the function is opened only by the workers on the slaves.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, BinaryIO

import msgspec

from sector import errors
from sector.client.blocking import Cloud, connect
from sector.config import ClientSection, Config, client_path
from sector.model import Version, parent
from sector.sphere.blocking import Job
from sector.sphere.job import JobDriver
from sector.sphere.job_request import PROCESS_ENDS, Options, fault_text, process_end
from sector.sphere.result import Part, Status
from sector.sphere.stream import KnownFile, SphereStream, natural_key
from sector.wire.sphere import BLOB_MAX, JobCancel, JobInfo, JobShow

START_S = 120.0
POLL_S = 0.3
HEAD_MAX = 64 << 20


def _stream_json(stream: SphereStream) -> dict[str, Any]:
    return {
        "paths": stream.paths,
        "files": [[f.path, f.size, [f.version.epoch, f.version.counter], f.holders] for f in stream.files],
        "record_size": stream.record_size,
        "index": stream.index,
        "granularity": stream.granularity,
        "dtype": stream.dtype,
        "stage": stream.stage,
        "paired": [_stream_json(part) for part in stream.paired],
    }


def _stream_from(facts: dict[str, Any]) -> SphereStream:
    stream = SphereStream(None, facts["paths"])
    stream.files = tuple(
        KnownFile(path, size, Version(*version), tuple(holders))
        for path, size, version, holders in facts["files"]
    )
    stream.record_size, stream.index = facts["record_size"], facts["index"]
    stream.granularity, stream.dtype, stream.stage = facts["granularity"], facts["dtype"], facts["stage"]
    stream.paired = tuple(_stream_from(part) for part in facts["paired"])
    return stream


def start_detached(cloud: Cloud, stream: SphereStream, blob: bytes, options: Options) -> DetachedJob:
    """Start the driver's process and wait until its job runs. Raises what `JobDriver.start` raises."""
    session = cloud.client.session
    session.loose = False  # it is the driver's from now on
    before = {file.path: file.version for file in _files(cloud, options.output)}
    facts = {
        "client": msgspec.structs.asdict(session.section),
        "path": str(client_path()),
        "stream": _stream_json(stream),
        "options": asdict(options) | {"files": []},
    }
    head = json.dumps(facts).encode()
    environment = {key: value for key, value in os.environ.items() if key != "SECTOR_PASSWORD_FILE"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sector.sphere.detached"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        try:
            for part in (len(head).to_bytes(8, "big"), head, len(blob).to_bytes(8, "big"), blob):
                process.stdin.write(part)
            process.stdin.close()
        except BrokenPipeError:
            pass
        answer = process.stdout.readline()
    process.returncode = 0  # it goes on without us and is not waited for
    try:
        told = json.loads(answer)
    except ValueError:
        raise errors.SectorError("the process that drives the job ended at its start") from None
    if "error" in told:
        raise errors.from_wire(**told["error"])
    return DetachedJob(cloud, str(told["job"]), options, before)


def _files(cloud: Cloud, output: str) -> list[KnownFile]:
    """The files PREFIX.0, PREFIX.1, … that are there now."""
    prefix = output + "."
    try:
        listed = cloud.ls(parent(output))
    except errors.NotFound:
        return []
    found = [
        KnownFile(info.path, info.size, info.version, tuple(info.replicas))
        for info in listed
        if info.path.startswith(prefix) and re.fullmatch("[0-9]+", info.path[len(prefix) :])
    ]
    return sorted(found, key=lambda file: natural_key(file.path))


class DetachedJob(Job):
    """A job that another process drives; the same face as `Job`. `before` = versions of the files that had
    the names of its output when it began: what an earlier job left is no result of this one."""

    def __init__(self, cloud: Cloud, job_id: str, options: Options, before: dict[str, Version]) -> None:
        self._cloud = cloud
        self._id = job_id
        self._options = options
        self._before = before

    @property
    def id(self) -> str:
        return self._id

    def _info(self) -> JobInfo:
        info: JobInfo = self._cloud.call(JobShow(self._id), patience_s=60.0)
        return info

    def status(self) -> Status:
        info = self._info()
        return Status(info.id, info.state, info.stage, info.counts, tuple(info.errors))

    def wait(self, timeout: float | None = None) -> Status:
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.status()).state == "running":
            if until is not None and time.monotonic() > until:
                raise errors.TimedOut(f"job {self._id} is still running after {timeout:g} s")
            time.sleep(POLL_S)
        if status.state == "done":
            return status
        if status.errors:
            fault = status.errors[0]
            if fault.type in PROCESS_ENDS and fault.segment >= 0:
                raise process_end(fault, f"segment {fault.segment}", self._id, self._options.label)
            raise errors.from_wire(fault.code, fault_text(fault), "")
        if status.state == "cancelled":
            raise errors.Cancelled(f"job {self._id} was cancelled")
        raise errors.JobFailed(f"job {self._id} has {status.state}", hint=f"see sector job show {self._id}")

    def cancel(self) -> None:
        self._cloud.call(JobCancel(self._id))

    def logs(self) -> list[tuple[int, str]]:
        """Raises UsageError: what the function printed stays in the process that drives the job."""
        raise errors.UsageError(
            "what the functions of a detached job print is not kept", hint="run it without detach"
        )

    def results(self) -> Iterator[Part]:
        self.wait()
        for number, file in enumerate(self._files()):
            index = int(file.path.rsplit(".", 1)[1])
            segment = -1 if self._options.buckets else index
            yield Part(
                index if self._options.buckets else number,
                segment,
                file.path,
                file.size,
                file.version,
                file.holders,
                fetch=self._cloud.read,
            )

    def _files(self) -> list[KnownFile]:
        found = _files(self._cloud, self._options.output)
        return [file for file in found if file.version != self._before.get(file.path)]

    @property
    def output(self) -> SphereStream:
        status = self.wait()
        return SphereStream.of_files(self._cloud, self._files(), stage=status.stage)


def _read(source: BinaryIO, most: int) -> bytes:
    size = int.from_bytes(source.read(8), "big")
    if size > most:
        raise SystemExit("bad input")
    return source.read(size)


def main() -> None:
    """The driver's process: the job's facts on standard input, {"job"} or {"error"} on standard output."""
    facts = json.loads(_read(sys.stdin.buffer, HEAD_MAX))
    blob = _read(sys.stdin.buffer, BLOB_MAX)
    section = msgspec.convert(facts["client"], ClientSection)
    options = Options(**facts["options"] | {"files": ()})
    try:
        cloud = connect(config=Config(client=section, path=facts["path"], role="client"))
        driver = JobDriver(cloud.client, _stream_from(facts["stream"]), blob, options)
        job_id = cloud.wait(driver.start)
    except errors.SectorError as error:
        _tell({"error": error.as_json()})
        raise SystemExit(1) from None
    _tell({"job": job_id})
    try:
        cloud.wait(driver.wait)
    except errors.SectorError:
        pass  # the master knows; job show tells
    finally:
        cloud.close()


def _tell(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
