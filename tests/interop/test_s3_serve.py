"""`cumulus serve` as a process: errors at its start, signals, a crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from running import running
from s3_server import CUMULUS, LOGGED, Server, boto, cumulus, make, serving, started, wait_until
from twisted.internet.defer import ensureDeferred, maybeDeferred
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from cumulus import service
from cumulus.config import Config, parse_config
from cumulus.http.listening import bind_to, listen, listen_on
from cumulus.parts import Parts, open_head, open_parts
from cumulus.service import make_cumulus
from sector.errors import BadConfig, LocalIO, PortInUse, SectorError
from sector.ports import free_ports

until = partial(wait_until, within_s=40)


def refused(directory: Path, *options: str) -> str:
    """The one line with which `cumulus serve` ends."""
    done = subprocess.run(
        [CUMULUS, "serve", str(directory), "--log-format", "json", *options],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode in (1, 2)
    last = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    return last


@contextmanager
def ready_told(where: Path) -> Iterator[None]:
    """A service manager that must be told that the service is ready."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, pytest.MonkeyPatch.context() as patch:
        manager.bind(str(where))
        manager.settimeout(20)
        patch.setenv("NOTIFY_SOCKET", str(where))
        yield
        assert b"READY=1" in manager.recv(4096)


def test_what_is_killed_is_whole_after_the_next_start(tmp_path: Path) -> None:
    """Objects that were acknowledged are there and listed; a connection under way at SIGTERM is finished."""
    directory = tmp_path / "D"
    key, secret = make(directory, LOGGED)
    with ready_told(tmp_path / "notify"), started(directory, key, secret) as server:
        s3 = boto(server)
        s3.create_bucket(Bucket="b-1")
        for number in range(30):
            s3.put_object(Bucket="b-1", Key=f"dir/{number}", Body=b"%d" % number)
        s3.put_object(Bucket="b-1", Key="large", Body=bytes(3_000_000))
        server.process.kill()
        server.process.wait(10)
    with started(directory, key, secret) as server:
        s3 = boto(server)
        listed = s3.list_objects_v2(Bucket="b-1")["Contents"]
        assert {one["Key"] for one in listed} == {*[f"dir/{number}" for number in range(30)], "large"}
        assert s3.get_object(Bucket="b-1", Key="dir/7")["Body"].read() == b"7"
        with socket.create_connection(("127.0.0.1", server.port), 10) as wire:
            wire.sendall(b"PUT /b-1/x HTTP/1.1\r\nHost: s3\r\nContent-Length: 5\r\n\r\nab")
            until(lambda: '"requests_in_flight": 1' in server.admin("load"), "the request begins")
            server.process.send_signal(signal.SIGTERM)
            until(lambda: "cumulus stops" in server.log(), "it hears the signal")
            wire.sendall(b"cde")
            assert b"403 Forbidden" in wire.recv(4096)
        assert server.process.wait(15) == 0
    assert (directory / "data" / "b-1" / "dir" / "7").read_bytes() == b"7"


def test_sighup_opens_the_log_again_and_a_new_key_counts(tmp_path: Path) -> None:
    directory = tmp_path / "D"
    with serving(directory, LOGGED) as server:
        boto(server).list_buckets()
        log = directory / "access.log"
        until(lambda: b"ListBuckets" in log.read_bytes(), "the first line")
        log.rename(directory / "access.log.1")
        server.process.send_signal(signal.SIGHUP)
        until(log.exists, "a new log")
        added = cumulus("user", "add", "bob", "--dir", str(directory))
        bob = Server(directory, server.process, added["access_key"], added["secret_key"])
        bob.port = server.port
        boto(bob).list_buckets()
        until(lambda: b'"user":"bob"' in log.read_bytes(), "a line in the new log")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def has_open(pid: int, name: str) -> bool:
    """Whether the process has a file of that name."""
    with contextlib.suppress(OSError):
        return any(os.readlink(fd).endswith(name) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_while_it_starts_ends_nothing(tmp_path: Path, workers: int) -> None:
    """As by `systemctl reload` while journals are replayed."""
    directory = tmp_path / "D"
    (port,) = free_ports(1)
    key, secret = make(directory, LOGGED.replace("port = 0", f"port = {port}", 1))
    command = [CUMULUS, "serve", str(directory), "--log-format", "json", f"--workers={workers}"]
    with (directory / "serve.log").open("wb") as log, running(command, stdout=log, stderr=log) as process:
        opened = partial(has_open, process.pid, "/cumulus.db")
        wait_until(opened, "it opens its database", within_s=20, every_s=0.001)
        process.send_signal(signal.SIGHUP)
        server = Server(directory, process, key, secret)
        server.wait()
        assert boto(server).list_buckets()["Buckets"] == []
        assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("workers", [1, 2])
def test_who_comes_while_it_starts_or_stops_is_refused(tmp_path: Path, workers: int) -> None:
    """He may go to another server; what was under way ends well."""
    directory = tmp_path / "D"
    (port,) = free_ports(1)
    settings = LOGGED.replace("port = 0", f"port = {port}", 1)
    key, secret = make(directory, settings)
    early: list[bool] = []

    def look(_config: Config) -> Parts:
        early.append(listens(port))
        raise BadConfig("it has been looked at")

    told: list[Failure] = []
    config = parse_config(f"[server]\nport = {port}\nworkers = {workers}\n", "cumulus.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "open_parts" if workers == 1 else "open_head", look)
        patch.setattr(service, "deferToThread", maybeDeferred)
        ensureDeferred(service.make_server(config, MemoryReactorClock())).addErrback(told.append)
    assert early == [False] and told[0].check(BadConfig)
    with started(directory, key, secret, f"--workers={workers}") as server:
        boto(server).create_bucket(Bucket="b-1")
        s3 = boto(server, signature_version="s3v4")
        url = s3.generate_presigned_url("put_object", {"Bucket": "b-1", "Key": "x"})
        with socket.create_connection(("127.0.0.1", port), 10) as wire:
            head = f"PUT {url.partition(str(port))[2]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            wire.sendall(f"{head}Content-Length: 200000\r\n\r\n".encode() + bytes(100_000))
            until(lambda: json.loads(server.admin("load"))["requests_in_flight"] == 1, "the request begins")
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not listens(port), "nobody can connect any more", within_s=5)
            assert server.process.poll() is None
            wire.sendall(bytes(100_000))
            assert b"200 OK" in wire.recv(4096)
        assert server.process.wait(20) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_idle_connections_leave_files_for_requests(tmp_path: Path, workers: int) -> None:
    """With few open files allowed: the first client goes on, further ones are told that there are too many
    and served when some have gone; or at once, in place of those that say nothing."""
    directory = tmp_path / "D"
    key, secret = make(directory, LOGGED)
    limit = ("prlimit", "--nofile=160:160")
    with started(directory, key, secret, "--workers", str(workers), before=limit) as server:
        s3 = boto(server)
        s3.create_bucket(Bucket="b-1")
        s3.put_object(Bucket="b-1", Key="large", Body=bytes(300_000))
        url = boto(server, signature_version="s3v4").generate_presigned_url("list_buckets")
        who = f"GET {url.partition(str(server.port))[2]} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
        idle, told = [], []
        for _ in range(220):  # those of nobody would make room for the others
            idle.append(socket.create_connection(("127.0.0.1", server.port), 10))
            with contextlib.suppress(ConnectionError):
                idle[-1].sendall(who.encode())
                told.append(idle[-1].recv(4096))
        assert sum(b"200 OK" in one for one in told) >= 57 * workers - 1
        until(lambda: json.loads(server.admin("load"))["connections"] == 57 * workers, "they are open")
        assert any(b"503" in one and b"SlowDown" in one for one in told)
        for number in range(3):
            assert len(s3.get_object(Bucket="b-1", Key="large")["Body"].read()) == 300_000
            s3.put_object(Bucket="b-1", Key=f"{number}", Body=bytes(100_000))
        for each in idle:
            each.close()
        until(lambda: json.loads(server.admin("load"))["connections"] < 57, "they are gone")
        assert len(boto(server).get_object(Bucket="b-1", Key="2")["Body"].read()) == 100_000
        silent = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(300)]
        for _ in range(5):
            assert len(boto(server).get_object(Bucket="b-1", Key="2")["Body"].read()) == 100_000
        for each in silent:
            each.close()
        assert "EMFILE" not in server.log() and "the limit of open files is too low" in server.log()


def test_errors_at_the_start_are_one_line(tmp_path: Path) -> None:
    directory = tmp_path / "D"
    make(directory, LOGGED)
    settings = directory / "cumulus.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings.write_text(f"[server]\nport = 0\n[admin]\nport = {port}\n")
        assert f"cannot listen on 127.0.0.1 port {port}" in refused(directory)
        with pytest.raises(
            PortInUse, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        ):
            listen_on("127.0.0.1", port)
    first = bind_to("127.0.0.1", 0)
    port = first.getsockname()[1]
    with first, bind_to("127.0.0.1", port) as second:
        listen(first)
        with pytest.raises(PortInUse, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen(second)
    with pytest.raises(LocalIO, match=r"cannot listen on 192\.0\.2\.1 port 1"):
        listen_on("192.0.2.1", 1)
    with pytest.raises(LocalIO, match="not a host port 1: there is no such host"):
        listen_on("not a host", 1)
    settings.write_text("[server]\nprot = 1\n")
    assert "did you mean port" in refused(directory, "--check-config")
    settings.write_text('[log]\naccess = "one.log"\naudit = "one.log"\n')
    assert "access and audit name the same file" in refused(directory, "--check-config")
    settings.write_text(LOGGED)
    assert cumulus("serve", str(directory), "--check-config")["ok"] is True


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """The certificate, the access log, the storage."""
    make(tmp_path / "D", LOGGED)
    where = str(tmp_path / "D" / "cumulus.toml")

    def attempt(text: str) -> None:
        config = parse_config(LOGGED + text, where)
        parts = open_parts(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            try:
                make_cumulus(config, MemoryReactorClock(), parts.gateway, listener)
            finally:
                parts.close()

    def wrong(text: str) -> str:
        with pytest.raises(SectorError) as caught:
            attempt(text)
        return str(caught.value)

    assert "no.pem: No such file" in wrong('[tls]\ncert = "no.pem"\nkey = "no.pem"\n')
    assert "tape" in wrong('[storage]\nbackend = "tape"\n')
    (tmp_path / "D" / "access.log").mkdir()
    assert "cannot open the access log" in wrong("")


def children(pid: int) -> set[int]:
    """Process ids of its children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(word) for word in text.split()}


def test_two_workers_are_one_service_and_one_may_die(tmp_path: Path) -> None:
    """What one has written the other reads and lists at once; the ledger is one; a worker that is killed is
    replaced and what it had reserved is given back."""
    directory = tmp_path / "D"
    with serving(directory, LOGGED, "--workers", "2") as server:
        workers = children(server.process.pid)
        assert len(workers) == 2
        s3 = boto(server)
        s3.create_bucket(Bucket="b-2")
        cumulus("quota", "set", "--bucket", "b-2", "--bytes", "1000", "--dir", str(directory))

        def put(number: int) -> int:
            try:
                s3.put_object(Bucket="b-2", Key=f"k{number:02}", Body=bytes(100))
            except s3.exceptions.ClientError as refused:
                return 0 if refused.response["Error"]["Code"] == "QuotaExceeded" else 1000
            assert s3.get_object(Bucket="b-2", Key=f"k{number:02}")["Body"].read() == bytes(100)
            return 1

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(put, range(24))) == 10
        assert len(s3.list_objects_v2(Bucket="b-2")["Contents"]) == 10
        assert 'operation="PutObject",status="200"} 10' in server.admin("metrics")
        os.kill(min(workers), signal.SIGKILL)
        until(lambda: len(children(server.process.pid) - {min(workers)}) == 2, "another worker")
        until(lambda: '"status": "ok"' in server.admin("health"), "all serve")
        assert s3.get_object(Bucket="b-2", Key=s3.list_objects_v2(Bucket="b-2")["Contents"][0]["Key"])
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_store_in_memory_has_one_process(tmp_path: Path) -> None:
    config = parse_config('[storage]\nbackend = "memory"\n', str(tmp_path / "cumulus.toml"))
    with pytest.raises(BadConfig, match="lives in one process"):
        open_head(config)


def test_a_service_in_the_background(tmp_path: Path) -> None:
    """It serves when the command returns; a second one is refused; stop waits for the end; a port in use is
    told in one line. Settings that became wrong meanwhile do not keep it from being stopped."""
    directory = tmp_path / "D"
    make(directory, LOGGED)
    began = cumulus("serve", str(directory), "--detach")
    try:
        assert "S3 on 127.0.0.1" in Path(began["log"]).read_text()
        assert began["s3"] is None and began["page"] is None  # the settings name no port
        again = subprocess.run([CUMULUS, "serve", str(directory), "--detach"], capture_output=True, text=True)
        assert again.returncode == 1 and "runs already" in again.stderr
    finally:
        (directory / "cumulus.toml").write_text("[broken")  # by somebody who edits them
        assert cumulus("stop", str(directory)) == {"stopped": began["pid"]}
    said = [json.loads(line) for line in Path(began["log"]).read_text().splitlines()]
    port = next(line["fields"]["port"] for line in said if "admin_port" in line.get("fields", {}))
    with socket.socket() as visitor:
        assert visitor.connect_ex(("127.0.0.1", port))
    gone = subprocess.run([CUMULUS, "stop", str(directory)], capture_output=True, text=True)
    assert gone.returncode == 1 and "no service runs" in gone.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (directory / "cumulus.toml").write_text(LOGGED.replace("port = 0", f"port = {port}", 1))
        failed = subprocess.run(
            [CUMULUS, "serve", str(directory), "--detach"], capture_output=True, text=True
        )
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1 and str(port) in failed.stderr


def test_what_lies_in_the_directory_is_not_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started where a folder has a package's name, all processes are of what is installed."""
    directory = tmp_path / "D"
    make(directory, LOGGED)
    for name in ("cumulus", "sector", "twisted"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a folder of somebody')\n")
    monkeypatch.chdir(tmp_path)
    began = cumulus("serve", str(directory), "--detach", "--workers", "2")
    try:
        assert len(children(began["pid"])) == 2
    finally:
        assert cumulus("stop", str(directory)) == {"stopped": began["pid"]}
    assert "a folder of somebody" not in Path(began["log"]).read_text()


COUNTING = """import atexit, gc, os
def tell():
    open(os.path.join(os.environ["COUNTED"], str(os.getpid())), "w").write(str(gc.get_freeze_count()))
atexit.register(tell)
"""


def sockets(pid: int) -> int:
    """How many a process has open."""
    names = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return sum(name.startswith("socket:") for name in names)


def shares_of_connections(server: Server, count: int) -> list[int]:
    """So many connections, each answered once and kept: how many each worker has of them."""
    top = server.process.pid
    workers = [int(word) for word in Path(f"/proc/{top}/task/{top}/children").read_text().split()]
    before = [sockets(pid) for pid in workers]
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: s3\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 ")
        return [sockets(pid) - had for pid, had in zip(workers, before, strict=True)]


def test_workers_have_as_many_connections_each_and_no_long_pauses(tmp_path: Path) -> None:
    """Full passes of the collector leave out what is there from the start, in the head and in each worker:
    such a pass would hold all requests of a process up."""
    (tmp_path / "sitecustomize.py").write_text(COUNTING)
    (tmp_path / "counted").mkdir()
    key, secret = make(tmp_path / "D", "[server]\nport = 0\nworkers = 2\n[admin]\nport = 0\n")
    environment = {"PYTHONPATH": str(tmp_path), "COUNTED": str(tmp_path / "counted")}
    with started(tmp_path / "D", key, secret, environment=environment) as server:
        pid, shares = server.process.pid, shares_of_connections(server, 16)
    assert sum(shares) == 16 and min(shares) >= 4, shares
    counts = {int(path.name): int(path.read_text()) for path in (tmp_path / "counted").iterdir()}
    assert len(counts) == 3 and pid in counts
    assert all(count > 20_000 for count in counts.values()), counts


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_clean_stop_is_0_and_ctrl_c_is_130(
    tmp_path: Path, workers: int, number: signal.Signals, wanted: int
) -> None:
    """As of all commands. Ctrl-C reaches the workers, too, and a second one changes nothing."""
    with serving(tmp_path / "cloud", LOGGED, f"--workers={workers}") as server:
        if number == signal.SIGINT:
            for pid in children(server.process.pid) if workers > 1 else ():
                os.kill(pid, number)
            server.process.send_signal(number)
        server.process.send_signal(number)
        assert server.process.wait(25) == wanted
        assert "stops" in server.log()
