"""Two ends and the way between them: plain loopback, a namespace of its own, the emulator, or netem."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from sector.bench.common import program
from sector.bench.link import Link, share
from sector.errors import SectorError, UsageError

_START_S = 10.0
_JOINED_BPS = 500e6  # from here on frames reach the emulator's ends joined, as through a network card
ENGINES = ("auto", "user", "netem")
_WRONG_USE = 2  # of the emulator: it knows no such link


@dataclass
class Path:
    """Where the two ends of a transfer run. `report` is filled when the path is taken down."""

    sender: list[str]  # what to put before a command
    receiver: list[str]
    host: str  # the receiver's address
    engine: str
    report: dict[str, Any] = field(default_factory=dict)


@contextmanager
def loopback() -> Iterator[Path]:
    """This machine's own loopback."""
    yield Path([], [], "127.0.0.1", "loopback")


@contextmanager
def local(options: Sequence[str]) -> Iterator[Path]:
    """A loopback of its own: `--mtu 1500 --no-offload`."""
    with _running([program("wan"), "local", *options]) as (ready, path):
        path.engine = "local"
        path.sender = path.receiver = _enter(ready["ends"][0]["ns"])
        path.host = "127.0.0.1"
        yield path


@contextmanager
def emulated(
    link: Link, *, flows: Sequence[tuple[int, str]] = (), seed: int = 1, engine: str = "auto", mtu: int = 1500
) -> Iterator[Path]:
    """The link between two namespaces that vanish with it; `flows` are (port, RTT) with another delay.

    engine `netem` is the kernel's, `user` the emulator of benchmarks/wan, `auto` netem where the kernel has
    it and it can do what is asked. Without root a user namespace is used, less exactly. Raises SectorError.
    """
    chosen = choose(engine, link, bool(flows))
    if chosen == "netem":
        with _netem(link, mtu) as path:
            yield path
        return
    command = [program("wan"), "--mtu", str(mtu), "--seed", str(seed), "--window", str(link.buffer_bytes)]
    command += ["--link", link.text]
    command += _as_cards_do(link)
    for port, rtt in flows:
        command += ["--flow", f"port={port},rtt={rtt}"]
    with _running(command) as (ready, path):
        a, b = ready["ends"]
        path.engine = chosen
        path.sender, path.receiver, path.host = _enter(a["ns"]), _enter(b["ns"]), b["ipv4"]
        yield path


def _as_cards_do(link: Link) -> list[str]:
    """Fast links: frames pass the emulator's ends joined, and are moved less often where the RTT is long."""
    if 0 < link.rate_bps < _JOINED_BPS:
        return []
    slice_us = min(max(link.rtt_s * 1e6 / 100, 50), 200)
    return ["--offload", "--slice", f"{slice_us:.0f}"]


@contextmanager
def _netem(link: Link, mtu: int) -> Iterator[Path]:
    with veth_pair(link.buffer_bytes, mtu) as path:
        path.engine = "netem"
        for end in (path.sender, path.receiver):
            _run([*end, *netem_command(link)])
        yield path
        shown = [_run([*end, "tc", "-s", "-j", "qdisc"]) for end in (path.sender, path.receiver)]
        path.report["netem"] = [json.loads(text) for text in shown]


@contextmanager
def veth_pair(window_bytes: int, mtu: int = 1500) -> Iterator[Path]:
    """Two namespaces with a virtual cable between them that carries single frames, at full speed."""
    with _running([program("wan"), "pair", "--window", str(window_bytes)]) as (ready, path):
        one, two = (end["ns"] for end in ready["ends"])
        path.engine = "veth"
        path.sender, path.receiver, path.host = _enter(one), _enter(two), "10.77.0.2"
        ends = [
            "wan0",
            "mtu",
            str(mtu),
            "type",
            "veth",
            "peer",
            "name",
            "wan0",
            "mtu",
            str(mtu),
            "netns",
            two,
        ]
        _run([*path.sender, "ip", "link", "add", *ends])
        for number, end in enumerate((path.sender, path.receiver), 1):
            _run([*end, "ip", "address", "add", f"10.77.0.{number}/24", "dev", "wan0"])
            _run([*end, program("wan"), "single", "wan0"])
            _run([*end, "ip", "link", "set", "dev", "wan0", "txqueuelen", "20000", "up"])
        yield path


def _enter(ns: str) -> list[str]:
    """Runs a command there, as root before other work: the figures are about the transport."""
    return [program("wan"), "enter", ns, *(["nice", "-n", "-10"] if os.geteuid() == 0 else [])]


@contextmanager
def _running(command: list[str]) -> Iterator[tuple[dict[str, Any], Path]]:
    path, line = Path([], [], "", ""), ""
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, text=True) as wan,
    ):
        assert wan.stdin and wan.stdout
        try:
            line = wan.stdout.readline()
            if not line:
                raise _not_started(command, wan.wait(_START_S), said)
            yield json.loads(line), path
            wan.stdin.close()
            text = wan.stdout.read()
            wan.wait(_START_S)
            path.report.update(json.loads(text.strip().splitlines()[-1]) if text.strip() else {})
        finally:
            wan.kill()
            said.seek(0)
            if line:
                sys.stderr.write(said.read())


def _not_started(command: list[str], status: int, said: IO[str]) -> SectorError:
    said.seek(0)
    why = said.readline().strip().removeprefix("wan: ")
    hint = "without root it needs user namespaces and /dev/net/tun"
    if status == _WRONG_USE:
        hint = "docs/guide/benchmarks.md has the properties of links"
    return SectorError(f"the emulator did not start: {why or ' '.join(command[1:])}", hint=hint)


# ---- netem ---------------------------------------------------------------------------------------
_NETEM_KEYS = {"rate", "rtt", "delay", "jitter", "loss", "ge", "reorder", "dup", "corrupt", "queue"}


def netem_says_no(link: Link, flows: bool) -> str | None:
    """Why netem cannot be this link, or None."""
    fields = dict(part.split("=", 1) for part in link.text.split(","))
    unknown = set(fields) - _NETEM_KEYS
    if flows:
        return "netem has no delay per flow before one queue"
    if unknown:
        return f"netem has no {', '.join(sorted(unknown))}"
    if ":" in fields.get("reorder", ""):
        return "netem's reordering has no time"
    return None


def netem_command(link: Link) -> list[str]:
    """The tc command of one end. netem's limit counts frames under way and waiting together."""
    fields = dict(part.split("=", 1) for part in link.text.split(","))
    one_way_us = link.rtt_s / 2 * 1e6
    frames = link.rate_bps / 8 * link.rtt_s / 1538
    queue = fields.get("queue", "1bdp")
    if queue.endswith("f"):
        waiting = float(queue[:-1])
    elif queue.endswith("bdp"):
        waiting = max(32.0, frames * float(queue[:-3]))
    else:
        waiting = float(queue.rstrip("kmb")) * {"k": 1e3, "m": 1e6}.get(queue[-2], 1.0) / 1538
    command = [
        "tc",
        "qdisc",
        "add",
        "dev",
        "wan0",
        "root",
        "netem",
        "limit",
        str(int(waiting + frames / 2) + 1),
    ]
    command += ["delay", f"{one_way_us:.0f}us"]
    if "jitter" in fields:
        command.append(fields["jitter"])
    if "ge" in fields:
        command += ["loss", "gemodel", *_percent_list(fields["ge"])]
    elif link.loss:
        command += ["loss", "random", f"{link.loss * 100:g}%"]
    for ours, theirs in (("dup", "duplicate"), ("corrupt", "corrupt"), ("reorder", "reorder")):
        if ours in fields:
            command += [theirs, *_percent_list(fields[ours])]
    return [*command, "rate", f"{link.rate_bps:.0f}bit", "38"]


def _percent_list(text: str) -> list[str]:
    return [f"{share(part) * 100:g}%" for part in text.split(":")]


def kernel_has_netem() -> bool:
    """Asks the kernel, in a namespace that is gone afterwards."""
    try:
        probe = ["unshare", "-n", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def choose(engine: str, link: Link, flows: bool) -> str:
    """`netem` or `user`. Raises UsageError when netem is asked for and cannot be."""
    no = netem_says_no(link, flows)
    if engine == "user" or (engine == "auto" and no):
        return "user"
    if no:
        raise UsageError(no)
    if kernel_has_netem():
        return "netem"
    if engine == "netem":
        raise UsageError("this kernel has no netem", hint="--engine user")
    return "user"


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SectorError(f"{' '.join(command[-6:])} failed: {done.stderr.strip()[-200:]}")
    return done.stdout
