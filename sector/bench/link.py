"""The text of an emulated link, and what such a link can carry at best (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from sector.errors import UsageError

MTU_PACKET = 1500
WIRE_FRAME = 1538  # an IP packet of 1500 bytes with Ethernet's header, FCS, preamble and gap
UDT_PAYLOAD = 1456

_RATE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def rate_bps(text: str) -> float:
    """`100m` in bit/s. Raises UsageError."""
    return _number(text, _RATE, "a rate like 100m or 1g")


def seconds(text: str) -> float:
    """`20ms` in seconds. Raises UsageError."""
    return _number(text, _TIME, "a time like 20ms")


def share(text: str) -> float:
    """`0.1%` or `0.001`, from 0 to 1. Raises UsageError."""
    value = _number(text, {"": 1.0, "%": 0.01}, "a share like 0.1%")
    if value > 1:
        raise UsageError(f"{text!r} is more than everything")
    return value


def _number(text: str, units: dict[str, float], what: str) -> float:
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)([a-z%]*)", text.strip().lower())
    if not match or match[2] not in units:
        raise UsageError(f"{text!r} is not {what}")
    return float(match[1]) * units[match[2]]


@dataclass(frozen=True)
class Link:
    """A link of the emulator: `rate=1g,rtt=100ms,loss=0.1%,queue=1bdp` and what `wan --help` lists.

    Only rate, RTT and loss are read here; the emulator checks everything.
    """

    text: str
    rate_bps: float
    rtt_s: float
    loss: float

    @classmethod
    def parse(cls, text: str) -> Link:
        """Raises UsageError for what has no `key=value` shape or no rate."""
        fields: dict[str, str] = {}
        for part in text.split(","):
            key, sign, value = part.strip().partition("=")
            if not sign or not value:
                raise UsageError(f"{part!r} is no property of a link", hint="rate=1g,rtt=100ms,loss=0.1%")
            fields[key] = value
        if "rate" not in fields:
            raise UsageError(f"the link {text!r} has no rate", hint="rate=1g,rtt=100ms,loss=0.1%")
        rtt = seconds(fields["rtt"]) if "rtt" in fields else 2 * seconds(fields.get("delay", "0ms"))
        loss = share(fields["burst"].split(":")[0]) if "burst" in fields else share(fields.get("loss", "0"))
        clean = ",".join(f"{key}={value}" for key, value in fields.items())
        return cls(clean, rate_bps(fields["rate"]), rtt, loss)

    @property
    def name(self) -> str:
        """Short and unique: `1g-100ms-0.1%`, then whatever else was said."""
        fields = dict(part.split("=", 1) for part in self.text.split(","))
        rtt = fields.pop("rtt", f"{self.rtt_s * 1e3:g}ms")
        fields.pop("delay", None)
        parts = [fields.pop("rate"), rtt, fields.pop("loss", "0")]
        return "-".join(parts + [f"{key}{value}" for key, value in sorted(fields.items())])

    @property
    def bdp_bytes(self) -> int:
        """Bandwidth times round trip, in bytes on the wire."""
        return int(self.rate_bps / 8 * self.rtt_s)

    @property
    def buffer_bytes(self) -> int:
        """For peers that choose their window themselves: 4 bandwidth-delay products, at least 8 MB."""
        return max(8_000_000, 4 * self.bdp_bytes)

    @property
    def window_bytes(self) -> int:
        """What path and queue hold together: 2 bandwidth-delay products, at least 2 MB."""
        return max(2_000_000, 2 * self.bdp_bytes)

    @property
    def limit_bps(self) -> float:
        """Payload at best: 1456 of every 1538 bytes on the wire, and the loss on top."""
        return self.rate_bps * UDT_PAYLOAD / WIRE_FRAME


def grid(text: str) -> Iterator[Link]:
    """All links of `rate=1g;rtt=20ms,100ms;loss=0,0.1%;queue=1bdp`: the product of the lists."""
    keys, lists = [], []
    for part in text.split(";"):
        key, sign, values = part.strip().partition("=")
        if not sign or not values:
            raise UsageError(f"{part!r} is no list of a grid", hint="rate=1g;rtt=20ms,100ms;loss=0,0.1%")
        keys.append(key.strip())
        lists.append([value.strip() for value in values.split(",")])
    for values_of in product(*lists):
        yield Link.parse(",".join(f"{key}={value}" for key, value in zip(keys, values_of, strict=True)))
