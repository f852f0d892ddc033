"""Free ports for daemons and tests, outside the range from which the kernel serves programs that ask for
none: a port found free here is not given to a passer-by before its owner binds it, nor while that owner
restarts. SECTOR_PORTS (FIRST-LAST) names another range, for a packet filter that lets only some through, or
for two who look for ports at the same time."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
from pathlib import Path

from sector.errors import SectorError, UsageError

LOWEST = 10_000
HIGHEST = 65_535
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ephemeral_range(setting: Path = _RANGE) -> tuple[int, int]:
    """First and last port that the kernel hands out by itself (ip(7)); its default if it does not say."""
    try:
        first, last = (int(part) for part in setting.read_text().split())
    except (OSError, ValueError):
        return 32_768, 60_999
    return first, last


def candidates(first: int, last: int) -> range:
    """The wider of the ranges of ports from LOWEST below `first` and above `last`; all of them if both hold
    fewer than a thousand."""
    below, above = range(LOWEST, max(first, LOWEST)), range(min(last, HIGHEST) + 1, HIGHEST + 1)
    best = max(below, above, key=len)
    return best if len(best) >= 1_000 else range(LOWEST, HIGHEST + 1)


def asked_for(text: str) -> range | None:
    """The range that SECTOR_PORTS names; None if it is empty. Raises UsageError if it is none."""
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= first <= last <= HIGHEST:
        raise UsageError(f"SECTOR_PORTS is {text!r}", hint="it is a range of ports like 20000-20999")
    return range(first, last + 1)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports of `host` that are free now, each for UDP and TCP.

    Raises SectorError when there are not that many among a thousand tries for each, UsageError when
    SECTOR_PORTS is no range.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    choice = asked_for(os.environ.get("SECTOR_PORTS", "")) or candidates(*ephemeral_range())
    draw = random.SystemRandom()
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for _ in range(1_000 * count):
            if len(found) == count:
                break
            port = draw.choice(choice)
            with contextlib.ExitStack() as both, contextlib.suppress(OSError):
                for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                    both.enter_context(socket.socket(family, kind | socket.SOCK_CLOEXEC)).bind((host, port))
                stack.enter_context(both.pop_all())
                found.append(port)
    if len(found) < count:
        raise SectorError(
            f"no {count} free ports at {host} within {choice[0]} and {choice[-1]}",
            hint="is the address one of this machine's?",
        )
    return found
