"""How equally an S3 server treats clients that want all it has.

Each client is a process of its own with one connection and large buffers, as fast as curl. All wait at a
barrier, then move one object each, the same one or one of their own. Their rates are compared over the time
in which all are active. With `--weights` two users compete instead: one connection against sixteen.

    python benchmarks/cumulus/fairness.py --clients 32 --size 512 --workers 2
    python benchmarks/cumulus/fairness.py --url http://127.0.0.1:9000 --key ACCESS:SECRET --mode up

Without `--url` a Cumulus is started in a directory of its own. The result is JSON on standard output: rates
in MB/s, `cv` (coefficient of variation) and `farthest` (from the mean) in percent, `total` of all clients
together until the last one is answered (uploads: after its sync), `alone` of one client that moves the same
bytes, one object after another.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import hmac
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MB = 10**6
CHUNK = 128 << 10  # about what curl reads and writes at a time
MARK_S = 0.01
BUCKET = "fairness"
HEAVY_UP = 8000 * MB


@dataclass(frozen=True)
class Key:
    """Of a user."""

    access: str
    secret: str


@dataclass(frozen=True)
class Server:
    """Where it listens, and the process to be looked at, if it is ours."""

    host: str
    port: int
    pid: int = 0


# one request ---------------------------------------------------------------------------------------------
def head(server: Server, key: Key, method: str, path: str, length: int) -> bytes:
    """A request's head, signed (Signature Version 4, payload unsigned)."""
    now = datetime.now(UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    host = f"{server.host}:{server.port}"
    payload = "UNSIGNED-PAYLOAD"
    signed = "host;x-amz-content-sha256;x-amz-date"
    canonical = f"{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{payload}\nx-amz-date:{stamp}\n\n"
    digest = hashlib.sha256(f"{canonical}{signed}\n{payload}".encode()).hexdigest()
    scope = f"{day}/us-east-1/s3/aws4_request"
    secret = f"AWS4{key.secret}".encode()
    for part in (day, "us-east-1", "s3", "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nx-amz-date: {stamp}\r\n"
        f"x-amz-content-sha256: {payload}\r\n"
        f"Authorization: AWS4-HMAC-SHA256 Credential={key.access}/{scope}, SignedHeaders={signed}, "
        f"Signature={signature}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


class Client:
    """One connection; `marks` are (time, bytes moved so far), `answered` when the last answer was whole: that
    of an upload comes after its sync."""

    def __init__(self, server: Server, key: Key) -> None:
        self.server = server
        self.key = key
        self.sock = socket.create_connection((server.host, server.port), 60)
        self.buffer = memoryview(bytearray(CHUNK))
        self.marks: list[tuple[float, int]] = []
        self.moved = 0
        self.answered = 0.0

    def _mark(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self.marks[-1][0] >= MARK_S:
            self.marks.append((now, self.moved))

    def _reply(self) -> tuple[int, bytes]:
        """Length of the body, and what of it came with the head."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.sock.recv(65536)
            if not part:
                raise SystemExit("the server has ended the connection")
            data += part
        text, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = text.decode("latin-1").split("\r\n")
        if first.split()[1] not in ("200", "204"):
            raise SystemExit(f"{first}: {rest[:300]!r}")
        length = [line.split(":")[1] for line in lines if line.lower().startswith("content-length:")]
        return int(length[0]) if length else 0, rest

    def get(self, path: str) -> None:
        """Read an object and forget it."""
        self.sock.sendall(head(self.server, self.key, "GET", path, 0))
        length, rest = self._reply()
        left = length - len(rest)
        self.moved += len(rest)
        self._mark(force=True)
        while left:
            count = self.sock.recv_into(self.buffer, min(left, CHUNK))
            if not count:
                raise SystemExit("the server has cut a download")
            left -= count
            self.moved += count
            self._mark()
        self._mark(force=True)
        self.answered = self.marks[-1][0]

    def put(self, path: str, size: int, end: float = inf) -> None:
        """Write an object of `size` bytes; at the time `end` the upload is broken off."""
        self.sock.sendall(head(self.server, self.key, "PUT", path, size))
        self._mark(force=True)
        left = size
        while left:
            count = self.sock.send(self.buffer[: min(left, CHUNK)])
            left -= count
            self.moved += count
            self._mark()
            if self.marks[-1][0] > end:
                self.sock.close()
                return
        self._mark(force=True)
        length, rest = self._reply()
        while len(rest) < length:
            part = self.sock.recv(65536)
            if not part:
                raise SystemExit("the server has cut an answer")
            rest += part
        self.answered = time.monotonic()

    def until(self, deadline_s: float, path: str, size: int) -> None:
        """Again and again, up if there is a size."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            self.put(path, size, end) if size else self.get(path)


def at(marks: list[tuple[float, int]], when: float) -> float:
    """Bytes moved until then."""
    index = bisect_right(marks, (when, 1 << 62))
    if index == 0 or index == len(marks):
        return float(marks[min(index, len(marks) - 1)][1])
    (before, low), (after, high) = marks[index - 1], marks[index]
    return low + (high - low) * (when - before) / max(after - before, 1e-9)


# many clients --------------------------------------------------------------------------------------------
def together(
    makers: list[Callable[[], Client]], work: list[Callable[[Client], None]]
) -> tuple[list[list[Any]], float]:
    """Each in a process of its own, behind a barrier; their marks, and when the last one was answered."""
    gate_out, gate_in = os.pipe()
    children: list[tuple[int, Connection]] = []
    for make, do in zip(makers, work, strict=True):
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            os.close(gate_in)
            _child(make, do, gate_out, theirs)
        theirs.close()
        children.append((pid, ours))
    os.close(gate_out)
    for _pid, pipe in children:
        pipe.recv()
    os.close(gate_in)  # the barrier: all read its end
    marks, answered = [], 0.0
    for pid, pipe in children:
        told = pipe.recv()
        os.waitpid(pid, 0)
        if isinstance(told, str):
            raise SystemExit(told)
        marks.append(told[0])
        answered = max(answered, told[1])
    return marks, answered


def _child(make: Callable[[], Client], do: Callable[[Client], None], gate: int, pipe: Connection) -> None:
    try:
        client = make()
        pipe.send("ready")
        os.read(gate, 1)
        client.marks.append((time.monotonic(), 0))
        do(client)
        pipe.send((client.marks, client.answered))
    except BaseException as bad:
        pipe.send(f"a client failed: {bad}")
    os._exit(0)


def compare(marks: list[list[tuple[float, int]]], settle_s: float = 0.0) -> tuple[list[float], float]:
    """Rates over the time all were active (bytes/s), and that time."""
    begin = max(one[1][0] for one in marks) + settle_s
    end = min(one[-1][0] for one in marks)
    if end <= begin:
        raise SystemExit("at no time all clients were active: take larger objects")
    return [(at(one, end) - at(one, begin)) / (end - begin) for one in marks], end - begin


def figures(rates: list[float]) -> dict[str, Any]:
    """Spread of rates."""
    mean = statistics.mean(rates)
    return {
        "cv": round(100 * statistics.pstdev(rates) / mean, 2),
        "farthest": round(100 * max(abs(rate / mean - 1) for rate in rates), 2),
        "rates": [round(rate / MB, 2) for rate in rates],
    }


def equal(
    server: Server, key: Key, clients: int, size: int, mode: str, alone_too: bool = True
) -> dict[str, Any]:
    """`mode`: down-same, down-own or up. `alone_too`: also how fast one client moves all of it."""
    up = mode == "up"
    paths = [f"/{BUCKET}/{'up' if up else 'object'}-{number}" for number in range(clients)]
    if mode == "down-same":
        paths = [paths[0]] * clients
    if not up:
        client = Client(server, key)
        client.marks.append((0.0, 0))
        for path in dict.fromkeys(paths):
            client.put(path, size)

    def one(path: str) -> Callable[[Client], None]:
        return lambda client: client.put(path, size) if up else client.get(path)

    def one_after_another(client: Client) -> None:
        for path in paths:
            one(path)(client)

    def new() -> Client:
        return Client(server, key)

    alone, alone_end = together([new], [one_after_another]) if alone_too else ([], 0.0)
    with watched(server.pid) as peak:
        marks, end = together([new] * clients, [one(path) for path in paths])
    rates, lasted = compare(marks)
    begin = max(one[1][0] for one in marks)
    total = clients * size / (end - begin)
    beside = {}
    if alone:
        single = clients * size / (alone_end - alone[0][0][0])
        beside = {"alone": round(single / MB, 1), "total_of_alone": round(total / single, 3)}
    return (
        figures(rates)
        | beside
        | {
            "mode": mode,
            "seconds_together": round(lasted, 2),
            "total": round(total / MB, 1),
            "server_pss_mb": round(peak[0] / MB, 1),
        }
    )


def weights(server: Server, light: Key, heavy: Key, size: int, seconds: float, up: bool) -> dict[str, Any]:
    """`heavy` with one connection against `light` with sixteen. What `heavy` uploads is so large that it is
    not ended within the time: while an upload is synced nothing moves that could be shared."""
    path = f"/{BUCKET}/object-0"
    client = Client(server, light)
    client.marks.append((0.0, 0))
    client.put(path, size)
    keys = [light] * 16 + [heavy]

    def work(number: int) -> Callable[[Client], None]:
        target = f"/{BUCKET}/weight-{number}" if up else path
        large = HEAVY_UP if number == 16 else size
        return lambda client: client.until(seconds, target, large if up else 0)

    def new(key: Key) -> Callable[[], Client]:
        return lambda: Client(server, key)

    marks, _ = together([new(key) for key in keys], [work(number) for number in range(17)])
    rates, lasted = compare(marks, seconds / 4)
    return {
        "mode": "weights-up" if up else "weights-down",
        "seconds_together": round(lasted, 2),
        "ratio": round(rates[-1] / sum(rates[:-1]), 3),
        "total": round(sum(rates) / MB, 1),
        "rates": [round(rate / MB, 2) for rate in rates],
    }


# our own server ------------------------------------------------------------------------------------------
def _memory(pid: int) -> int:
    """Bytes of a process and its children; a page that several have counts once (PSS)."""
    total = 0
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total = 1024 * int(text.split("\nPss:")[1].split()[0])
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            total += _memory(int(child))
    return total


@contextlib.contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """The most memory that it and its children held meanwhile."""
    peak = [0]
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.25):
            peak[0] = max(peak[0], _memory(pid))

    thread = threading.Thread(target=look)
    if pid:
        thread.start()
    try:
        yield peak
    finally:
        over.set()
        if pid:
            thread.join()
    if pid and not peak[0]:
        raise SystemExit(f"the memory of process {pid} cannot be read")


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group with so many bytes of memory, page cache and all, for who joins it. Needs root."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    old = [path for _, names, path in lines if "memory" in names.split(",")]
    if old:
        above, name = Path(f"/sys/fs/cgroup/memory{old[0]}"), "memory.limit_in_bytes"
    else:
        above, name = Path(f"/sys/fs/cgroup{lines[0][2]}"), "memory.max"
    group = above / f"cumulus-{os.getpid()}"
    group.mkdir()
    try:
        (group / name).write_text(str(limit))
        yield group
    finally:
        end = time.monotonic() + 20
        while (group / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.1)
        group.rmdir()


@contextlib.contextmanager
def own_server(
    directory: Path, workers: int, by: str, total_rate: str, group: Path | None = None
) -> Iterator[tuple[Server, Key, Key]]:
    """A Cumulus with the users light (weight 1) and heavy (weight 3), perhaps in a control group."""
    command = [sys.executable, "-m", "cumulus.cli"]

    def join() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def run(*words: str) -> str:
        done = subprocess.run(
            [*command, *words],
            check=True,
            capture_output=True,
            text=True,
            preexec_fn=join if words[0] == "serve" else None,
        )
        return done.stdout

    run("init", str(directory))
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        port, admin = free.getsockname()[1], other.getsockname()[1]
    server = f'[server]\nport = {port}\nworkers = {workers}\ntotal_rate = "{total_rate}"\n'
    others = f'[admin]\nport = {admin}\n[fair]\nby = "{by}"\n'
    (directory / "cumulus.toml").write_text(server + others)
    keys = []
    for name, weight in (("light", "1"), ("heavy", "3")):
        made = json.loads(
            run("user", "add", name, "--weight", weight, "--admin", "--dir", str(directory), "--json")
        )
        keys.append(Key(made["access_key"], made["secret_key"]))
    began = json.loads(run("serve", str(directory), "--detach", "--json"))
    try:
        yield Server("127.0.0.1", port, int(began["pid"])), keys[0], keys[1]
    finally:
        run("stop", str(directory))


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="another S3 server; without it a Cumulus is started")
    parser.add_argument("--key", default="", help="ACCESS:SECRET at --url")
    parser.add_argument("--heavy-key", default="", help="ACCESS:SECRET of a user of weight 3 at --url")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--size", type=int, default=512, help="of an object, in MB")
    parser.add_argument("--workers", type=int, default=2)
    modes = ["down-same", "down-own", "up", "weights-down", "weights-up"]
    parser.add_argument("--mode", action="append", choices=modes, help="may be repeated; all if not given")
    parser.add_argument("--seconds", type=float, default=12.0, help="for which weights are measured")
    parser.add_argument("--by", default="user", help="[fair] by of our own server")
    parser.add_argument("--total-rate", default="", help="[server] total_rate of our own server")
    parser.add_argument("--memory", type=int, default=0, help="MB that our own server may use, 0 = no limit")
    parser.add_argument("--dir", help="where the directory of our own server is made")
    told = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fairness-", dir=told.dir))
    results = []
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        if told.url:
            where = urlsplit(told.url)
            server = Server(where.hostname or "", where.port or 80)
            light = Key(*told.key.split(":"))
            heavy = Key(*(told.heavy_key or told.key).split(":"))
        else:
            group = stack.enter_context(memory_group(told.memory << 20)) if told.memory else None
            server, light, heavy = stack.enter_context(
                own_server(directory / "s3", told.workers, told.by, told.total_rate, group)
            )
        maker = Client(server, light)
        maker.sock.sendall(head(server, light, "PUT", f"/{BUCKET}", 0))
        with contextlib.suppress(SystemExit):  # it may be there already
            maker._reply()
        for mode in told.mode or modes:
            if mode.startswith("weights"):
                up = mode == "weights-up"
                results.append(weights(server, light, heavy, told.size * MB, told.seconds, up))
            else:
                results.append(equal(server, light, told.clients, told.size * MB, mode, not told.memory))
    about = {"clients": told.clients, "size_mb": told.size, "workers": told.workers, "url": told.url or "own"}
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()}
    print(json.dumps({"settings": about, "machine": machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
