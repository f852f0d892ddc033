"""The programs that are measured: how each is started at its two ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sector.bench.common import program
from sector.errors import SectorError


@dataclass(frozen=True)
class Run:
    """One transfer: `host` is the receiver's address."""

    host: str
    port: int
    seconds: float
    buffer_bytes: int = 0  # bound of what may be under way; 0 = each program's default
    window_bytes: int = 0  # the same for those that fill whatever window they are given
    drain: bool = False  # the sender waits until everything has arrived
    trace: str = ""  # file for the trace of our own sender


@dataclass(frozen=True)
class Peer:
    """Commands of both ends, without what puts them into a namespace."""

    name: str
    says: str
    receiver: Callable[[Run], list[str]]
    sender: Callable[[Run], list[str]]
    local: tuple[str, ...] = field(default=())  # loopback in a namespace of its own, options of `wan local`
    loopback_only: bool = False


def _sector(name: str, says: str, *options: str, loopback_only: bool = False) -> Peer:
    def receiver(run: Run) -> list[str]:
        limit = [] if run.drain else ["--seconds", f"{run.seconds:g}"]
        return [program("bench_udt"), "recv", str(run.port), *limit, *options]

    def sender(run: Run) -> list[str]:
        end = [] if run.drain else ["--abandon"]
        end += ["--trace", run.trace] if run.trace else []
        return [program("bench_udt"), "send", run.host, str(run.port), f"{run.seconds:g}s", *end, *options]

    return Peer(name, says, receiver, sender, loopback_only=loopback_only)


def _libudt() -> Peer:
    def common(run: Run) -> list[str]:
        return (["--buf", str(run.window_bytes)] if run.window_bytes else []) + (
            [] if run.drain else ["--abandon"]
        )

    def receiver(run: Run) -> list[str]:
        limit = [] if run.drain else ["--seconds", f"{run.seconds:g}"]
        return [program("libudt_peer"), "listen", str(run.port), "--bench-recv", *limit, *common(run)]

    def sender(run: Run) -> list[str]:
        where = ["connect", run.host, str(run.port), "--bench-send", f"{run.seconds:g}"]
        return [program("libudt_peer"), *where, *common(run)]

    return Peer("libudt", "Debian's libudt 4.11", receiver, sender)


def _mixed(name: str, says: str, ours_sends: bool) -> Peer:
    ours, theirs = _sector("", "", "--plain"), _libudt()
    if ours_sends:
        return Peer(name, says, theirs.receiver, ours.sender)
    return Peer(name, says, ours.receiver, theirs.sender)


def _tcp(name: str, says: str, cc: str, flows: int = 1, local: tuple[str, ...] = ()) -> Peer:
    def receiver(run: Run) -> list[str]:
        return [program("peer_tcp"), "recv", str(run.port), "--flows", str(flows)]

    def sender(run: Run) -> list[str]:
        where = ["send", run.host, str(run.port), f"{run.seconds:g}"]
        return [program("peer_tcp"), *where, "--cc", cc, "--flows", str(flows)]

    return Peer(name, says, receiver, sender, local=local, loopback_only=bool(local))


def _simple(name: str, says: str, tool: str, *options: str, size_of: str = "") -> Peer:
    """Programs that take `recv PORT --seconds S` and `send HOST PORT S`; `size_of`: which size is --buf."""

    def size(run: Run) -> list[str]:
        found = getattr(run, size_of) if size_of else 0
        return ["--buf", str(found)] if found else []

    def receiver(run: Run) -> list[str]:
        return [program(tool), "recv", str(run.port), "--seconds", f"{run.seconds:g}", *options, *size(run)]

    def sender(run: Run) -> list[str]:
        return [program(tool), "send", run.host, str(run.port), f"{run.seconds:g}", *options, *size(run)]

    return Peer(name, says, receiver, sender, loopback_only=tool == "peer_udp")


def _cut(name: str, says: str) -> Peer:
    """Joined when sent and single when received, as between ours and a peer that knows no GRO."""
    ends = _simple(name, says, "peer_udp")
    return replace(ends, receiver=lambda run: [*ends.receiver(run), "--no-gro"])


# Single datagrams in batches, read by a receiver that lets them gather, as ours does.
_BATCH = ("--no-gso", "--no-gro", "--batch", "64", "--pause", "200")

# A key for measuring: both ends get it on the command line, nothing secret goes through them.
_KEY = "00112233445566778899aabbccddeeff" * 2

_ALL = [
    _sector("sector", "own peers, plain"),
    _sector("sector-sealed", "own peers, AES-GCM on every packet", "--key", _KEY),
    _sector("sector-control", "own peers, control packets sealed", "--key", _KEY, "--plain-data"),
    _sector("sector-threads", "own peers with a loop thread each", "--threads"),
    _sector("sector_compatible", "as towards a foreign peer", "--plain"),
    _sector("sector-udt", "own peers, UDT's congestion control", "--cc", "udt"),
    _sector("sector-bbr", "own peers, BBR", "--cc", "bbr"),
    _sector("sector-cubic", "own peers, CUBIC", "--cc", "cubic"),
    _sector("sector-single", "without GSO and GRO", "--no-gso", "--no-gro"),
    _sector("sector-1000", "1,000 connections over one port", "--flows", "1000"),
    _libudt(),
    _mixed("sector-to-libudt", "ours sends, libudt receives", ours_sends=True),
    _mixed("libudt-to-sector", "libudt sends, ours receives", ours_sends=False),
    _tcp("tcp-cubic", "TCP CUBIC", "cubic"),
    _tcp("tcp-cubic8", "8 x TCP CUBIC", "cubic", flows=8),
    _tcp("tcp-bbr", "TCP BBR", "bbr"),
    _tcp("tcp-cubic-1500", "TCP CUBIC, MTU 1500, no offload", "cubic", 1, ("--mtu", "1500", "--no-offload")),
    _tcp("tcp-bbr-1500", "TCP BBR, MTU 1500, no offload", "bbr", 1, ("--mtu", "1500", "--no-offload")),
    _simple("srt", "libsrt, file mode", "peer_srt", size_of="window_bytes"),
    _simple("zmq", "ZeroMQ, messages of 256 KiB", "peer_zmq"),
    _simple("quinn", "QUIC (quinn)", "peer_quinn", size_of="buffer_bytes"),
    _simple("udp", "bare UDP with GSO and GRO", "peer_udp"),
    _cut("udp-cut", "bare UDP with GSO to a receiver without GRO"),
    _simple("udp-single", "bare UDP, one datagram a call", "peer_udp", "--no-gso", "--no-gro"),
    _simple("udp-batch", "bare UDP, 64 single datagrams a call", "peer_udp", *_BATCH, "--unconnected"),
    _simple("udp-batch-connected", "the same over a connected socket", "peer_udp", *_BATCH),
]
PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}


def cc_available(name: str) -> bool:
    """Whether the kernel has this congestion control for TCP."""
    try:
        have = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    except OSError:
        have = []
    return name in have


def why_missing(name: str) -> str | None:
    """Why a peer cannot run here, or None. Raises SectorError for a broken installation of our own."""
    peer = PEERS[name]
    if name.startswith("tcp-") and not cc_available(name.split("-")[1].rstrip("0123456789")):
        return f"the kernel has no {name.split('-')[1]}"
    try:
        peer.sender(Run("127.0.0.1", 1, 1))
        peer.receiver(Run("127.0.0.1", 1, 1))
    except SectorError as error:
        if name.startswith("sector"):
            raise
        return str(error)
    return None
