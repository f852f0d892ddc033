"""Which side keeps a connection or transfer from being faster: shares of its time, and a sentence.

Source: enum udt_limit of csrc/include/udt_trace.h; the `lim_*_us` fields of `udt_sock_stats`.
"""

from __future__ import annotations

from collections.abc import Mapping

# udt_sock_stats.limit, by number
NAMES = ("processor", "sender", "network", "receiver", "network", "cap", "handshake")

_WORDS = {
    "sender": "the sender's program",
    "sender_disk": "the sender's disk",
    "network": "the network",
    "cap": "the rate cap",
    "receiver": "the receiver",
    "receiver_disk": "the receiver's disk",
    "network_or_sender": "the network or the sender",
    "handshake": "meeting the peer",
    "processor": "the processors",
}


def waits(stats: Mapping[str, int]) -> dict[str, int]:
    """Microseconds by what a sender waited for."""
    return {
        "sender": stats.get("lim_app_us", 0),
        "network": stats.get("lim_cwnd_us", 0) + stats.get("lim_pace_us", 0),
        "cap": stats.get("lim_cap_us", 0),
        "receiver": stats.get("lim_flow_us", 0),
        "handshake": stats.get("lim_handshake_us", 0),
        "processor": stats.get("lim_none_us", 0),
    }


def sending(stats: Mapping[str, int], *, transfer: bool = False) -> dict[str, float]:
    """Shares (0 to 1) of the time of a sender, largest first; none below 0.5 %. Of a file `transfer` the
    receiving program is its disk, and the sender's disk is told apart by `lim_disk_us`."""
    us = waits(stats)
    if transfer:
        disk = min(stats.get("lim_disk_us", 0), us["sender"])
        us["sender"] -= disk
        us["sender_disk"] = disk
        us["receiver_disk"] = us.pop("receiver")
    return _shares(us)


def receiving(stats: Mapping[str, int]) -> dict[str, float]:
    """Shares of the time of a file's receiver: its own disk; all else was on the other side or between."""
    disk, meet, whole = (stats.get(name, 0) for name in ("lim_disk_us", "lim_handshake_us", "us"))
    return _shares({"receiver_disk": disk, "network_or_sender": max(0, whole - disk), "handshake": meet})


def _shares(us: Mapping[str, int]) -> dict[str, float]:
    whole = sum(us.values())
    found = {name: value / whole for name, value in us.items() if value * 200 >= whole > 0}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def path_words(stats: Mapping[str, int]) -> str:
    """ "loss 0.3 %, RTT 100 ms"; what is not known is left out."""
    parts = []
    if stats.get("pkts_sent", 0):
        parts.append(f"loss {stats.get('loss_ppm', 0) / 1e4:.2g} %")
    if stats.get("rtt_us", 0) and stats.get("min_rtt_us", 0):
        parts.append(f"RTT {stats['rtt_us'] / 1000:.3g} ms")
    if stats.get("queue_bytes", 0) * 10 > stats.get("in_flight_bytes", 0) > 0:
        parts.append(f"queue {stats['queue_bytes'] / 1000:.0f} kB")
    return ", ".join(parts)


def sentence(shares: Mapping[str, float], stats: Mapping[str, int]) -> str:
    """ "limited 71 % by the network (loss 0.3 %, RTT 100 ms), 29 % by the receiver's disk"."""
    parts = []
    for name, share in shares.items():
        text = f"{100 * share:.0f} % by {_WORDS[name]}"
        path = path_words(stats) if name.startswith("network") else ""
        parts.append(f"{text} ({path})" if path else text)
    return "limited " + ", ".join(parts) if parts else "limited by nothing that was measured"
