"""Servers that the S3 benchmarks measure, each started in a directory of its own on loopback and stopped by
its process: Cumulus, versitygw, MinIO, a sink, nginx, sshd, GridFTP."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sector.bench.common import program
from sector.errors import SectorError
from sector.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
CUMULUS = Path(sys.executable).with_name("cumulus")
READY_S = 40.0
STOP_S = 30.0
REGION = "us-east-1"
KEY, SECRET = "benchmarks", "benchmarks-on-loopback"  # of the peers; Cumulus draws its own
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Served:
    """A server that runs. `folder` is its own directory; `data` is where a peer without S3 serves files."""

    name: str
    port: int
    folder: Path
    process: subprocess.Popen[bytes]
    key: str = KEY
    secret: str = SECRET
    bucket: str = "bench"
    data: Path | None = None

    @property
    def url(self) -> str:
        """Where HTTP is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """For clients that read keys from it; nothing of what AWS's tools find in ours."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def cpu_s(self) -> float:
        """Processor time of the server and all its processes, in s."""
        return sum(cpu_of(pid) for pid in family(self.process.pid))

    def rss_mb(self) -> float:
        """Memory of all its processes, in MB of 10^6 bytes; shared pages count in each."""
        return sum(rss_of(pid) for pid in family(self.process.pid)) / 1e6


# ---- processes -----------------------------------------------------------------------------------
def family(pid: int) -> list[int]:
    """A process and those below it."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(word) for word in (task / "children").read_text().split()]
    return found


def cpu_of(pid: int) -> float:
    """User and system time of a process and of those it has waited for; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / TICKS


def rss_of(pid: int) -> int:
    """Bytes in memory; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    """Until it is ready. Raises SectorError with the end of its log when it ends or takes too long."""
    end = time.monotonic() + READY_S
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            said = log.read_text(errors="replace").strip()[-300:] if log.exists() else ""
            raise SectorError(f"{name} did not start: {said}")
        time.sleep(0.02)


def listening(port: int) -> bool:
    """Whether something takes connections there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def healthy(port: int, page: str) -> bool:
    """Whether a page is answered with 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def serves(admin: int) -> bool:
    """Whether all workers of a Cumulus with that admin port take requests: its port listens earlier, and
    whoever asks then waits for seconds."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/health", timeout=2) as answer:
            return bool(json.load(answer)["status"] == "ok")
    except OSError:
        return False


@contextmanager
def running(
    name: str,
    command: list[str],
    folder: Path,
    port: int,
    environment: Mapping[str, str] | None = None,
    ready: Callable[[], bool] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that listens on a port and can work when `ready` says so; ended at the end. Raises
    SectorError when it does not start."""
    log = folder / f"{name}.log"
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
    except OSError as error:
        raise SectorError(f"{command[0]}: {error.strerror}") from None
    try:
        wait_for(ready or (lambda: listening(port)), process, name, log)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it by SIGTERM, by SIGKILL when that takes too long."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def peer_program(name: str) -> str:
    """Path of a peer: in SECTOR_S3_PEERS, in build/peers/bin, or of the system. Raises SectorError."""
    places = [
        os.environ.get("SECTOR_S3_PEERS"),
        str(ROOT / "build" / "peers" / "bin"),
        os.environ.get("PATH"),
    ]
    found = shutil.which(name, path=os.pathsep.join(place for place in [*places, "/usr/sbin"] if place))
    if found is None:
        raise SectorError(f"there is no program {name}", hint="./dev bench cumulus installs or builds it")
    return found


# ---- S3 servers ----------------------------------------------------------------------------------
def cumulus_settings(port: int, admin: int, more: str = "", workers: int = 2) -> str:
    """The settings of all figures; `more` adds sections."""
    return f"[server]\nport = {port}\nworkers = {workers}\n[admin]\nport = {admin}\n{more}"


@dataclass(frozen=True)
class Origin:
    """A Cumulus that was made and never served, to be copied: servers that know the same user and key."""

    directory: Path
    key: str
    secret: str

    def copy(self, directory: Path, settings: str) -> None:
        """One of them, with settings of its own."""
        shutil.copytree(self.directory, directory)
        (directory / "cumulus.toml").write_text(settings)


def origin(folder: Path) -> Origin:
    """`cumulus init`. Raises SectorError."""
    directory = folder / "origin"
    command = [str(CUMULUS), "init", str(directory), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SectorError(f"cumulus init failed: {(done.stdout + done.stderr).strip()[-300:]}")
    found = json.loads(done.stdout)
    return Origin(directory, found["access_key"], found["secret_key"])


@contextmanager
def cumulus(
    folder: Path,
    more: str = "",
    environment: Mapping[str, str] | None = None,
    name: str = "cumulus",
    workers: int = 2,
    user: Origin | None = None,
) -> Iterator[Served]:
    """Ours, with two workers, everything synced. `more`: further sections of the settings; `user`: whose keys
    it knows, else a new one's."""
    port, admin = free_ports(2)
    first = user or origin(folder)
    directory = folder / name
    first.copy(directory, cumulus_settings(port, admin, more, workers))
    command = [str(CUMULUS), "serve", str(directory), "--log-format", "json"]
    with running(name, command, folder, port, environment, lambda: serves(admin)) as process:
        yield Served(name, port, folder, process, first.key, first.secret)


@contextmanager
def versitygw(folder: Path) -> Iterator[Served]:
    """S3 over POSIX, in Go; it does not sync what it acknowledges."""
    (port,) = free_ports(1)
    (folder / "data").mkdir()
    address = f"127.0.0.1:{port}"
    command = [peer_program("versitygw"), "--port", address, "--keep-alive", "--quiet"]
    environment = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    with running(
        "versitygw", [*command, "posix", str(folder / "data")], folder, port, environment
    ) as process:
        yield Served("versitygw", port, folder, process)


@contextmanager
def minio(folder: Path) -> Iterator[Served]:
    """One server, one directory."""
    (port,) = free_ports(1)
    command = [peer_program("minio"), "server", "--quiet", "--address", f"127.0.0.1:{port}"]
    environment = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
    environment |= {"HOME": str(folder), "MINIO_UPDATE": "off"}
    whole = [*command, str(folder / "data")]
    with running(
        "minio", whole, folder, port, environment, lambda: healthy(port, "/minio/health/ready")
    ) as process:
        yield Served("minio", port, folder, process)


@contextmanager
def sink(folder: Path) -> Iterator[Served]:
    """Neither hashes nor writes: what a client can do at best."""
    (port,) = free_ports(1)
    with running("sink", [program("s3sink"), str(port)], folder, port) as process:
        yield Served("sink", port, folder, process)


# ---- peers without S3 ----------------------------------------------------------------------------
NGINX = """daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log;
{user}events {{ worker_connections 512; }}
http {{ access_log off; sendfile on; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}/data; }} }}
"""
SSHD = """Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""


@contextmanager
def nginx(folder: Path) -> Iterator[Served]:
    """Files by sendfile."""
    (port,) = free_ports(1)
    (folder / "data").mkdir()
    settings = folder / "nginx.conf"
    user = "user root; " if os.geteuid() == 0 else ""
    settings.write_text(NGINX.format(folder=folder, port=port, user=user))
    command = [peer_program("nginx"), "-c", str(settings), "-e", str(folder / "error.log")]
    with running("nginx", command, folder, port) as process:
        yield Served("nginx", port, folder, process, data=folder / "data")


@contextmanager
def sshd(folder: Path) -> Iterator[Served]:
    """OpenSSH with keys made for this run."""
    (port,) = free_ports(1)
    (folder / "data").mkdir()
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=30
        )
    settings = folder / "sshd.conf"
    settings.write_text(SSHD.format(folder=folder, port=port))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with running("sshd", [peer_program("sshd"), "-D", "-e", "-f", str(settings)], folder, port) as process:
        yield Served("sshd", port, folder, process, data=folder / "data")


@contextmanager
def gridftp(folder: Path) -> Iterator[Served]:
    """Globus GridFTP, anonymous, data in the clear."""
    (port,) = free_ports(1)
    data = folder / "data"
    data.mkdir()
    command = [peer_program("globus-gridftp-server"), "-p", str(port), "-aa", "-no-detach"]
    if os.geteuid() == 0:
        command += ["-anonymous-user", "nobody"]
        os.chown(data, pwd.getpwnam("nobody").pw_uid, -1)
        for place in (folder, *folder.parents):
            if place.stat().st_mode & 0o001 == 0 and place.owner() == "root":
                place.chmod(place.stat().st_mode | 0o011)
    with running("gridftp", command, folder, port) as process:
        yield Served("gridftp", port, folder, process, data=data)


SERVERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Served]]] = {
    "cumulus": cumulus,
    "versitygw": versitygw,
    "minio": minio,
    "sink": sink,
    "nginx": nginx,
    "scp": sshd,
    "gridftp": gridftp,
}
NEEDS = {
    "versitygw": "versitygw",
    "minio": "minio",
    "nginx": "nginx",
    "scp": "sshd",
    "gridftp": "globus-url-copy",
}


def why_missing(name: str) -> str | None:
    """Why a server cannot run here, or None."""
    try:
        if name in NEEDS:
            peer_program(NEEDS[name])
    except SectorError as error:
        return str(error)
    return None


class Site:
    """Servers that are started when they are asked for first, and stay until `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = contextlib.ExitStack()
        self._served: dict[str, Served] = {}

    def get(self, name: str) -> Served:
        """A server by its name; S3 servers have the bucket. Raises SectorError."""
        if name not in self._served:
            folder = self.folder / name
            folder.mkdir()
            served = self._stack.enter_context(SERVERS[name](folder))
            if served.data is None:
                make_bucket(served)
            self._served[name] = served
        return self._served[name]

    def close(self) -> None:
        """Stop all of them."""
        self._stack.close()


def make_bucket(served: Served) -> None:
    """Make its bucket. MinIO says that it is ready while it still refuses that. Raises SectorError."""
    end = time.monotonic() + READY_S
    while True:
        try:
            load(served, "bucket")
        except SectorError as bad:
            if "ServerNotInitialized" not in str(bad) or time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def load(served: Served, op: str, *arguments: str) -> dict[str, float]:
    """A run of the load generator: its JSON. Raises SectorError."""
    command = [program("s3load"), op, "--url", served.url, "--bucket", served.bucket, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=served.environment, timeout=900, check=False
    )
    if done.returncode:
        raise SectorError(f"{served.name}: {done.stderr.strip()[-300:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found
