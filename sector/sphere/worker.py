"""The separate process that runs one user function: light (no Twisted, no C core), limited, alone.

It is started by exec from the spawner with one channel; everything else (limits, code, segments with their
descriptors) comes through that channel. Pickles are read here and nowhere else (spec/sphere.md, "Workers").
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import mmap
import os
import resource
import socket
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

import numpy as np

from sector.sphere import channel, records, udf
from sector.sphere.output import BucketOutput, PlainOutput
from sector.sphere.worker_os import become_subreaper, close_doors, die_with_parent, leave_network

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""What the slave's disk says to results: no fault of the function, another slave may have room."""
TEXT_MAX = 8000
TRACE_MAX = 48000


def confine(hello: dict[str, Any], parent: int) -> bool:
    """Limits, unprivileged user, working directory; after exec, before any user code. Whether the process is
    cut off from the network."""
    sys.setswitchinterval(0.005)
    os.umask(0o077)
    os.chdir(hello["scratch"])
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: hello["memory"],
        resource.RLIMIT_FSIZE: hello["file_size"],
        resource.RLIMIT_NOFILE: hello["files"],
    }
    if hello.get("cpu_s"):
        limits[resource.RLIMIT_CPU] = hello["cpu_s"]
    if hello.get("uid"):
        limits[resource.RLIMIT_NPROC] = hello["processes"]
    for what, value in limits.items():
        if value >= 0:
            _, hard = resource.getrlimit(what)
            top = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (top, top))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when the machine runs out of memory, functions go before its slave
    isolated = False if hello["network"] else leave_network()
    if hello.get("uid"):
        os.setgroups([])
        os.setresgid(hello["gid"], hello["gid"], hello["gid"])
        os.setresuid(hello["uid"], hello["uid"], hello["uid"])
        die_with_parent(parent)  # the kernel clears it when the user changes
    close_doors()
    return isolated


class NotHere(Exception):
    """The slave lacks a module that the function needs, or has another version of it; `kind` is told as the
    type of the error."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Beat(threading.Thread):
    """Tells the supervisor four times a second at most how far the function is, and once a second that the
    process lives."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True, name="beat")
        self.sock = sock
        self.segment = -1
        self.fraction = 0.0

    def run(self) -> None:
        told, at = (-1, 0.0), 0.0
        while True:
            time.sleep(0.25)
            state, now = (self.segment, self.fraction), time.monotonic()
            if self.segment >= 0 and (state != told or now - at >= 1.0):
                told, at = state, now
                try:
                    channel.send(self.sock, {"op": "beat", "segment": state[0], "fraction": state[1]})
                except (channel.Closed, OSError):
                    os._exit(0)


def load_blob(file: BinaryIO) -> dict[str, Any]:
    """{"function", "params", "files"} of a job. Only a worker (and a test of one) opens pickles."""
    import cloudpickle

    blob: dict[str, Any] = cloudpickle.load(file)
    return blob


def sendable(text: str, most: int) -> str:
    """The first `most` characters of a text; what UTF-8 cannot say is escaped."""
    return text[:most].encode("utf-8", "backslashreplace").decode()


def shortened(text: str) -> str:
    """A text of at most `TRACE_MAX` characters and bytes that fit into an answer: its middle is left out."""
    half = TRACE_MAX // 2
    if len(text) <= TRACE_MAX and len(text.encode()) <= 2 * TRACE_MAX:
        return text
    head = text[:half].encode()[:TRACE_MAX].decode("utf-8", "ignore")
    tail = text[half:][-half:].encode()[-TRACE_MAX:].decode("utf-8", "ignore")
    return f"{head}\n...\n{tail}"


class Worker:
    """State of the process: the loaded function, what survives between calls."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.pid = os.getpid()
        self.beat = Beat(sock)
        self.functions: dict[str, tuple[Any, Any]] = {}
        self.objects: dict[Any, Any] = {}
        self.scratch = ""
        self.job = ""
        self.sink: PlainOutput | BucketOutput | None = None

    def forked(self) -> None:
        """In a child that the function forked: what it still writes to the output or the channel, because it
        returns from the function too, is not a result."""
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            for fd in [self.sock.fileno(), *(self.sink.descriptors() if self.sink is not None else [])]:
                os.dup2(null, fd, inheritable=False)
            os.close(null)

    def load(self, message: dict[str, Any], fd: int) -> None:
        """Unpickle a blob: {"function", "params", "files"}."""
        import cloudpickle

        with os.fdopen(fd, "rb") as file:
            try:
                blob = cloudpickle.load(file)
            except ImportError as error:
                remedy = "install it there, or give its files to run(..., files=…)"
                raise NotHere(f"{error} on the slave: {remedy}", "ModuleNotFoundError") from None
            except AttributeError as error:
                if not str(error).startswith("Can't get attribute"):
                    raise
                remedy = "install the version there that the job was made with"
                raise NotHere(f"{error} on the slave: {remedy}", "AttributeError") from None
        for name, data in blob.get("files", {}).items():
            with open(os.path.join(self.scratch, os.path.basename(name)), "wb") as out:
                out.write(data)
        self.functions = {message["udf"]: (blob["function"], blob.get("params"))}

    def segment(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run the function over one segment; the answer for the supervisor."""
        output_fd, rest = fds[0], fds[1:]
        function, params = self.functions[message["udf"]]
        maps: list[mmap.mmap] = []
        views = []
        for spec in message["inputs"]:
            data_fd = rest.pop(0)
            index_fd = rest.pop(0) if spec["indexed"] else -1
            views.append(self.view(spec, data_fd, index_fd, maps))
        buckets = message["buckets"]
        sink: PlainOutput | BucketOutput = (
            BucketOutput(output_fd, buckets, self.scratch) if buckets else PlainOutput(output_fd)
        )
        self.sink = sink
        ctx = udf.Context(
            job=self.job,
            segment=message["segment"],
            params=params,
            scratch=self.scratch,
            objects=self.objects,
            buckets=buckets,
            on_log=self.log,
            on_progress=self.progress,
            sink=sink,
        )
        try:
            udf.run(function, views, ctx, granularity=message["granularity"], dtype=message["dtype"])
            if os.getpid() != self.pid:
                os._exit(0)
            done = sink.finish()
            if sink.trouble is not None:
                raise sink.trouble
        except BaseException as error:
            if sink.trouble is not None and sink.trouble.errno in DISK_ERRORS:
                return {"op": "unfit", "errno": sink.trouble.errno}
            return self.fault(error, ctx.record)
        return {
            "op": "done",
            "segment": message["segment"],
            "kind": done.kind,
            "bytes": done.bytes,
            "table": done.table,
            "pieces": done.pieces,
            "row_bytes": done.row_bytes,
            "dtype": done.dtype,
            "shape": done.shape,
        }

    def view(self, spec: dict[str, Any], fd: int, index_fd: int, maps: list[mmap.mmap]) -> udf.View:
        """Map one input: `at` where the range begins in the descriptor, `length` bytes."""
        data = self.map(fd, spec["at"], spec["length"], maps)
        offsets = None
        if index_fd >= 0:
            raw = self.map(index_fd, spec["index_at"], (spec["records"] + 1) * records.OFFSET_BYTES, maps)
            stored = records.check(records.decode(raw), spec["size"], part=True)
            offsets = stored - spec["offset"]
            if int(offsets[0]) != 0 or int(offsets[-1]) != spec["length"]:
                raise ValueError(f"the record index of {spec['path']} does not fit the segment")
        return udf.View(data, spec["path"], spec["offset"], offsets, spec["record_size"])

    @staticmethod
    def map(fd: int, at: int, length: int, maps: list[mmap.mmap]) -> memoryview:
        """A read-only view of a byte range; an empty one needs no mapping."""
        if length == 0:
            return memoryview(b"")
        start = at - at % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(fd, at - start + length, mmap.MAP_SHARED, mmap.PROT_READ, offset=start)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        maps.append(mapped)
        return memoryview(mapped)[at - start : at - start + length]

    def progress(self, fraction: float) -> None:
        """Keep the newest; the beat thread tells it."""
        self.beat.fraction = fraction

    def log(self, text: str) -> None:
        """A line to the captured output."""
        sys.stderr.write(text[:TEXT_MAX].rstrip("\n") + "\n")

    @staticmethod
    def fault(error: BaseException, record: int) -> dict[str, Any]:
        """An error of the function as text: type, message, traceback; never a pickle."""
        code = "udf_type" if isinstance(error, udf.UdfTypeError) else "udf_error"
        if isinstance(error, NotHere):  # the traceback is ours
            text = sendable(str(error), TEXT_MAX)
            told = {"type": error.kind, "message": text, "traceback": "", "record": -1}
            return {"op": "fault", "code": code, **told}
        try:
            text = str(error)
        except BaseException as broken:
            text = f"(its text cannot be made: {type(broken).__name__})"
        try:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, udf.__file__):
                frames = frames.tb_next
            shown = traceback.format_exception(type(error), error, frames or error.__traceback__, limit=50)
            trace = "".join(shown)
        except BaseException:
            trace = "(the traceback cannot be made)"
        message = sendable(text, TEXT_MAX)[:TEXT_MAX]
        return {
            "op": "fault",
            "code": code,
            "type": "udf_type" if code == "udf_type" else sendable(type(error).__name__, 200),
            "message": message,
            "traceback": shortened(sendable(trace, len(trace))),
            "record": record,
        }

    def serve(self, parent: int) -> None:
        """Until the channel closes."""
        hello, _ = channel.receive(self.sock)
        self.job, self.scratch = hello["job"], hello["scratch"]
        isolated = confine(hello, parent)
        sys.path.insert(0, self.scratch)
        os.register_at_fork(after_in_child=self.forked)
        self.beat.start()
        channel.send(self.sock, {"op": "ready", "isolated": isolated})
        while True:
            message, fds = channel.receive(self.sock)
            self.beat.fraction = 0.0
            self.beat.segment = message.get("segment", -1)
            try:
                if message["op"] == "load":
                    self.load(message, fds.pop(0))
                    answer: dict[str, Any] = {"op": "loaded"}
                else:
                    answer = self.segment(message, fds)
            except BaseException as error:
                answer = self.fault(error, -1)
            if os.getpid() != self.pid:
                os._exit(0)  # a child of the function, which returned from it too: its parent answers
            self.beat.segment = -1
            channel.close_all(fds)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # the function may have put anything in their places
                    stream.flush()
            channel.send(self.sock, answer)


def main(parent: int, fd: int) -> None:
    """Entry after exec: `parent` = pid of the spawner, `fd` = the channel."""
    die_with_parent(parent)
    become_subreaper()
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    np.seterr(all="warn")
    import cloudpickle  # noqa: F401 - loaded before privileges are dropped

    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    try:
        Worker(sock).serve(parent)
    except channel.Closed:
        os._exit(0)
