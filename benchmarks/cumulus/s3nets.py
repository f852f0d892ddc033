"""Servers at the ends of thin links: each in a network namespace of its own behind a token bucket, all joined
by a bridge in one more namespace, where clients and redirection points run. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from s3servers import CUMULUS, Served, cpu_of, family, origin, stop, wait_for

from sector.bench.common import program
from sector.errors import SectorError

HUB = "10.88.0.1"
PORT = 8888
BURST = "128kb"  # of the token bucket: more than the largest frame, which would be cut up or dropped
KEYS = 8
OBJECTS = ["--keys", str(KEYS), "--size", "8000000"]  # so large that redirections cost little
QUEUE_MS = 50  # how long a frame may wait in it


def call(command: list[str]) -> None:
    """Run it. Raises SectorError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise SectorError(f"{' '.join(command)}: {done.stderr.strip()[-200:]}")


def inside(holder: int) -> list[str]:
    """Words before a command that is to run in the namespace of a process."""
    return ["nsenter", f"--net=/proc/{holder}/ns/net"]


@contextmanager
def namespace() -> Iterator[int]:
    """A network namespace without a name, which lives as long as a process that does nothing: its id. It dies
    with us, whatever ends us."""
    command = ["unshare", "--net", "setpriv", "--pdeathsig", "KILL", "sleep", "infinity"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        ours = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{process.pid}/ns/net") == ours:
            if process.poll() is not None:
                raise SectorError("no network namespaces here", hint="this benchmark needs root")
        call([*inside(process.pid), "ip", "link", "set", "dev", "lo", "up"])
        yield process.pid
    finally:
        process.kill()
        process.wait()


def limit(holder: int, device: str, mbps: int) -> None:
    """What leaves by a device passes a token bucket."""
    bucket = ["tbf", "rate", f"{mbps}mbit", "burst", BURST, "latency", f"{QUEUE_MS}ms"]
    call([*inside(holder), "tc", "qdisc", "add", "dev", device, "root", *bucket])


def large_frames(holder: int) -> None:
    """Its TCP hands frames of 64 KB to the link as long as round trips are below a second. By default that
    ends at 0.5 ms, above which a tenth of 100 Mb/s leaves in pieces of 3 KB: five times as many frames, which
    one machine has to carry for all servers and clients. Kernels before 5.18 cannot be told."""
    knob = "/proc/sys/net/ipv4/tcp_tso_rtt_log"
    call([*inside(holder), "sh", "-c", f"test ! -e {knob} || echo 20 >{knob}"])


def join(hub: int, holder: int, number: int, mbps: int) -> str:
    """Connect a namespace to the bridge by a link of `mbps` both ways: its address."""
    address, device = f"10.88.0.{10 + number}", f"to{number}"
    pair = ["type", "veth", "peer", "name", "eth0", "netns", str(holder)]
    call([*inside(hub), "ip", "link", "add", device, *pair])
    call([*inside(hub), "ip", "link", "set", "dev", device, "master", "br0", "up"])
    call([*inside(holder), "ip", "address", "add", f"{address}/24", "dev", "eth0"])
    call([*inside(holder), "ip", "link", "set", "dev", "eth0", "up"])
    limit(hub, device, mbps)
    limit(holder, "eth0", mbps)
    large_frames(holder)
    return address


@contextmanager
def star(count: int, mbps: int) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """(the hub, [(namespace, address)]): namespaces around a bridge."""
    if os.geteuid() != 0:
        raise SectorError("network namespaces need root", hint="run it as root")
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(namespace())
        call([*inside(hub), "ip", "link", "add", "br0", "type", "bridge"])
        call([*inside(hub), "ip", "address", "add", f"{HUB}/24", "dev", "br0"])
        call([*inside(hub), "ip", "link", "set", "dev", "br0", "up"])
        ends = []
        for number in range(count):
            holder = stack.enter_context(namespace())
            ends.append((holder, join(hub, holder, number, mbps)))
        yield hub, ends


def settings(address: str, more: str = "") -> str:
    """Of one server."""
    return f'[server]\nhost = "{address}"\nport = {PORT}\n[admin]\nport = 8889\n{more}'


@contextmanager
def serving(holder: int, directory: Path, address: str) -> Iterator[int]:
    """A Cumulus that runs in a namespace: its process. Raises SectorError when it does not start."""
    log = directory / "serve.log"
    command = [*inside(holder), str(CUMULUS), "serve", str(directory), "--log-format", "json"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        wait_for(lambda: "admin_port" in log.read_text(), process, f"cumulus at {address}", log)
        yield process.pid
    finally:
        stop(process)


@dataclass(frozen=True)
class Cluster:
    """Servers with the same user, a point that redirects to them, and the namespace of the clients."""

    hub: int
    ends: list[tuple[int, str]]
    key: str
    secret: str
    processes: list[int]  # of the servers and the point

    def cpu_s(self) -> float:
        """Processor time of all servers."""
        return sum(cpu_of(pid) for top in self.processes for pid in family(top))

    def load(self, holder: int, address: str, op: str, *arguments: str) -> dict[str, float]:
        """The load generator in a namespace: its JSON. Raises SectorError."""
        served = Served("cumulus", PORT, Path(), None, self.key, self.secret)  # type: ignore[arg-type]
        command = [*inside(holder), program("s3load"), op, "--url", f"http://{address}:{PORT}"]
        done = subprocess.run(
            [*command, "--bucket", "bench", *arguments],
            capture_output=True,
            text=True,
            env=served.environment,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise SectorError(f"s3load: {done.stderr.strip()[-300:]}")
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def fill(self, end: tuple[int, str]) -> None:
        """Make the bucket of a server and its objects, over its link."""
        holder, address = end
        self.load(holder, address, "bucket")
        self.load(holder, address, "put", *OBJECTS, "--requests", str(KEYS), "--connections", "4")


def processor() -> tuple[int, int]:
    """Ticks so far of all processors: all, and those without work."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def busy_since(before: tuple[int, int]) -> float:
    """Share of all processors that worked since then: near 1 the machine is the limit, not the links."""
    whole, idle = (now - then for now, then in zip(processor(), before, strict=True))
    return 1 - idle / max(1, whole)


@contextmanager
def cluster(folder: Path, count: int, mbps: int) -> Iterator[Cluster]:
    """Servers behind links of `mbps`, and a point without a limit that sends clients round them."""
    first = origin(folder)
    with star(count, mbps) as (hub, ends), contextlib.ExitStack() as stack:
        hosts = folder / "hosts"
        hosts.write_text("".join(f"http://{address}:{PORT}\n" for _, address in ends))
        redirect = f'[redirect]\nmode = "round-robin"\npoint = true\nhosts_file = "{hosts}"\n'
        processes = []
        for number, (holder, address) in enumerate([*ends, (hub, HUB)]):
            directory = folder / str(number)
            first.copy(directory, settings(address, redirect if holder == hub else ""))
            processes.append(stack.enter_context(serving(holder, directory, address)))
        yield Cluster(hub, ends, first.key, first.secret, processes)


def replication(
    folder: Path, count: int, clients: int, seconds: float, mbps: int = 100, warm_s: float = 3.0
) -> dict[str, float]:
    """What clients that follow redirections receive from so many servers together, in 10^6 bytes/s. What
    came before the end of `warm_s` and waits for a client then counts; with 0 no link can be surpassed."""
    with cluster(folder, count, mbps) as site, ThreadPoolExecutor(count) as pool:
        list(pool.map(site.fill, site.ends))
        words = [*OBJECTS, "--connections", str(clients), "--follow"]
        timing = ["--seconds", str(seconds), "--warm", str(warm_s), "--grace", "0"]
        cpu, before = site.cpu_s(), processor()
        found = site.load(site.hub, HUB, "get", *words, *timing)
        cpu, busy = site.cpu_s() - cpu, busy_since(before)
    if found["errors"] or not found["followed"]:
        raise SectorError(f"{found['errors']} errors, {found['followed']} redirected: {found['first_error']}")
    rate = found["taken_per_s"] / 1e6
    per_gb = cpu / (rate * (seconds + warm_s) / 1e3)
    return {
        "servers": count,
        "clients": clients,
        "mb_per_s": round(rate, 2),
        "cpu_s_per_gb": round(per_gb, 1),
        "machine_busy": round(busy, 3),
    }
