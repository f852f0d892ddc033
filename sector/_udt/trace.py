"""Traces of connections as qlog-like JSON: what was sent, lost, measured and decided, with its time.

A `Trace` is a bounded ring in the core (csrc/include/udt_trace.h); name it in `UdtOptions.trace`, or let
`CloudClient.trace()` put it under all transfers. Reading does not disturb the writer. Event names follow the
main schema 0.3 of qlog and QUIC's events where they fit; ours begin with "sector:".
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sector._udt._ffi import ffi, lib
from sector._udt.limits import NAMES

RECORDS = 4096
_BATCH = 4096
_LOW = (1 << 32) - 1
_UNKNOWN = (1 << 64) - 1
_BBR = ("startup", "drain", "down", "cruise", "refill", "up", "probe_rtt")
_LAWS = {
    1: ("udt", ("slow_start", "steady")),
    2: ("bbr", _BBR),
    3: ("cubic", ("slow_start", "avoidance")),
    4: ("fixed", ("fixed",)),
}
_TIMERS = {1: "probe", 2: "timeout", 3: "loss"}
_STATES = {1: "connected", 2: "closed_by_peer", 3: "failed", 4: "closed"}


class Record(NamedTuple):
    """One record as the core wrote it: microseconds (monotonic), connection, kind, and three numbers."""

    us: int
    conn: int
    kind: int
    x: int
    a: int
    b: int


class Trace:
    """A ring of the last `records` (rounded up to a power of two) of the connections that name it, which all
    belong to one port. Raises MemoryError."""

    def __init__(self, records: int = RECORDS) -> None:
        raw = lib.udt_trace_new(records)
        if raw == ffi.NULL:
            raise MemoryError("no memory for a trace")
        self.raw = ffi.gc(raw, lib.udt_trace_free)

    @property
    def count(self) -> int:
        """Records ever written; those beyond the size of the ring are gone."""
        return int(lib.udt_trace_count(self.raw))

    def records(self) -> list[Record]:
        """What is in the ring now, oldest first."""
        at, space = ffi.new("uint64_t *"), ffi.new("udt_trace_rec[]", _BATCH)
        found: list[Record] = []
        end = self.count
        while at[0] < end:
            size = lib.udt_trace_read(self.raw, at, space, _BATCH)
            found += [Record(r.us, r.conn, r.kind, r.x, r.a, r.b) for r in space[0:size]]
        return found

    def qlog(self, title: str = "", vantage: str = "unknown") -> dict[str, Any]:
        """The trace as a qlog document; `vantage` "client", "server" or "unknown"."""
        return qlog(self.records(), self.count, title, vantage)

    def write(self, path: str | Path, title: str = "", vantage: str = "unknown") -> int:
        """Write the qlog document to a file; returns the number of events. Raises OSError."""
        document = self.qlog(title, vantage)
        with open(path, "w") as out:
            json.dump(document, out, separators=(",", ":"))
            out.write("\n")
        return sum(len(one["events"]) for one in document["traces"])


def check_place(path: str | Path) -> None:
    """Raises now the OSError that writing a trace to `path` at the end of a long transfer would raise. What
    is there stays, and nothing is left there."""
    place = Path(path)
    if place.exists() and not place.is_file():
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return  # a pipe or device: opening it may wait
    new = not place.exists()
    with open(place, "ab"):
        pass
    if new:
        place.unlink()


def write_records(raw: str | Path, path: str | Path, title: str = "", vantage: str = "unknown") -> int:
    """Make a qlog document at `path` of a file of udt_trace_rec as the C programs write it; returns the
    number of records. Raises OSError."""
    size = ffi.sizeof("udt_trace_rec")
    data = Path(raw).read_bytes()
    found = ffi.from_buffer("udt_trace_rec[]", data[: len(data) // size * size])
    records = [Record(r.us, r.conn, r.kind, r.x, r.a, r.b) for r in found]
    with open(path, "w") as out:
        json.dump(qlog(records, len(records), title, vantage), out, separators=(",", ":"))
        out.write("\n")
    return len(records)


def qlog(records: list[Record], count: int, title: str, vantage: str) -> dict[str, Any]:
    """Records as a qlog document, one trace a connection; times in milliseconds since the first record.
    `count` is how many were ever written."""
    start = records[0].us if records else 0
    conns: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        time = (record.us - start) / 1000
        for name, data in _events(record):
            conns.setdefault(record.conn, []).append({"time": time, "name": name, "data": data})
    return {
        "qlog_version": "0.3",
        "qlog_format": "JSON",
        "title": title,
        "traces": [
            {
                "vantage_point": {"type": vantage},
                "common_fields": {
                    "protocol_type": ["UDT"],
                    "group_id": f"{conn:x}",
                    "time_format": "relative",
                    "reference_time": start / 1000,
                },
                "events": events,
            }
            for conn, events in conns.items()
        ],
        "sector": {"records": len(records), "pushed_out": count - len(records)},
    }


def _events(record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    make = _KINDS.get(record.kind)
    if make is not None:
        yield make(record)


def _packet(name: str, again: bool) -> Callable[[Record], tuple[str, dict[str, Any]]]:
    def make(record: Record) -> tuple[str, dict[str, Any]]:
        data: dict[str, Any] = {
            "header": {"packet_type": "data", "packet_number": record.a},
            "raw": {"payload_length": record.x},
            "index": record.b,
        }
        if again:
            data["retransmission"] = True
        return name, data

    return make


def _lost(record: Record) -> tuple[str, dict[str, Any]]:
    if record.x == 2:
        return "sector:loss_withdrawn", {"packets": record.b}
    trigger = "reported" if record.x == 1 else "reordering_or_time"
    where = {} if record.a == _UNKNOWN else {"index": record.a}
    return "recovery:packet_lost", {
        "header": {"packet_type": "data"},
        **where,
        "packets": record.b,
        "trigger": trigger,
    }


def _rtt(record: Record) -> tuple[str, dict[str, Any]]:
    return "recovery:metrics_updated", {
        "latest_rtt": record.a / 1000,
        "smoothed_rtt": (record.b >> 32) / 1000,
        "min_rtt": (record.b & _LOW) / 1000,
    }


def _metrics(record: Record) -> tuple[str, dict[str, Any]]:
    window, flight = record.a >> 32, record.a & _LOW
    return "recovery:metrics_updated", {
        "congestion_window": window * record.x,
        "bytes_in_flight": flight * record.x,
        "packets_in_flight": flight,
        "pacing_rate": 8 * record.b,
    }


def _law(record: Record) -> tuple[str, dict[str, Any]]:
    name, states = _LAWS.get(record.x >> 8, ("unknown", ()))
    state = record.x & 255
    return "recovery:congestion_state_updated", {
        "algorithm": name,
        "new": states[state] if state < len(states) else str(state),
    }


def _timer(record: Record) -> tuple[str, dict[str, Any]]:
    kind = _TIMERS.get(record.x, "unknown")
    return "recovery:loss_timer_updated", {"event_type": "expired", "timer_type": kind}


def _limit(record: Record) -> tuple[str, dict[str, Any]]:
    return "sector:limit_updated", {"new": NAMES[record.x] if record.x < len(NAMES) else "unknown"}


def _path(record: Record) -> tuple[str, dict[str, Any]]:
    address = str(ipaddress.IPv4Address(record.a & _LOW)) if record.x == 4 else ""
    return "sector:path_updated", {"remote_ip": address, "remote_port": record.b}


def _state(record: Record) -> tuple[str, dict[str, Any]]:
    error = record.a - (1 << 64) if record.a >> 63 else record.a
    return "connectivity:connection_state_updated", {
        "new": _STATES.get(record.x, "unknown"),
        **({"error": error} if error else {}),
    }


def _acked(record: Record) -> tuple[str, dict[str, Any]]:
    return "transport:packets_acked", {"up_to_index": record.a, "packets": record.b}


_KINDS: dict[int, Callable[[Record], tuple[str, dict[str, Any]]]] = {
    1: _packet("transport:packet_sent", False),
    2: _packet("transport:packet_sent", True),
    3: _packet("transport:packet_received", False),
    4: _lost,
    5: _acked,
    6: _rtt,
    7: _metrics,
    8: _law,
    9: _timer,
    10: _limit,
    11: _path,
    12: _state,
}
