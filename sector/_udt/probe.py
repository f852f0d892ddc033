"""Asks a GMP port whether UDP gets there and back, and in which size, without a key: a padded PING under a
key that nobody has is answered by RESET (spec/gmp.md, 5.2), which is never longer than what it answers.

Blocking, with sockets of its own, so that it works where nothing of ours runs yet.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from dataclasses import dataclass

_HEAD = struct.Struct("!BBHIQQQHHI")
_MAGIC, _PING, _HELLO, _RESET = 0xC7, 0x12, 0x14, 0x16
_PAD, _TAG = 0x20, 16
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PROBE = 10, 23, 3
TRIES = 3
SMALL = 96
SIZES = (548, 1172, 1232, 1252, 1352, 1372, 1392, 1412, 1432, 1452, 1472)
"""Payloads of UDP that the search tries, smallest first."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `rtt_s` of the best try, -1 = nothing; `why` the kernel's word if it knows one."""

    rtt_s: float = -1.0
    why: str = ""

    @property
    def came(self) -> bool:
        """Whether there was an answer."""
        return self.rtt_s >= 0


def udp_socket(host: str) -> socket.socket:
    """A UDP socket of the family of `host` (an IP literal) that sends whole datagrams or none."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    whole(sock)
    return sock


def whole(sock: socket.socket) -> None:
    """Forbid fragments, and do not let what was once learned of the path refuse a size."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PROBE)
    else:
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PROBE)


def ping(size: int, number: int, mine: int) -> bytes:
    """A datagram of `size` bytes that a GMP port answers by RESET with `number` and `mine` in it."""
    body = size - _HEAD.size - _TAG
    key = int.from_bytes(os.urandom(4), "big") | 1
    head = _HEAD.pack(
        _MAGIC, _PING, _PAD, key, mine, int.from_bytes(os.urandom(8), "big"), number, 0, body, 0
    )
    return head + bytes(body) + os.urandom(_TAG)


def is_reset(data: bytes, number: int, mine: int) -> bool:
    """Whether `data` is the RESET that answers that PING."""
    if len(data) < _HEAD.size + 24 or data[0] != _MAGIC or data[1] & 0x0F != _RESET & 0x0F:
        return False
    echo_number, echo_mine = struct.unpack_from("!QQ", data, _HEAD.size + 8)
    return (echo_number, echo_mine) == (number, mine)


def ask(sock: socket.socket, to: tuple[str, int], size: int = SMALL, wait_s: float = 0.7) -> Answer:
    """Send at most TRIES PINGs of `size` bytes; the first answer counts."""
    why, mine = "", int.from_bytes(os.urandom(8), "big") | 1
    for number in range(1, TRIES + 1):
        begin = time.monotonic()
        try:
            sock.sendto(ping(size, number, mine), to)
        except OSError as bad:
            why = bad.strerror or str(bad)
            continue
        while (left := begin + wait_s - time.monotonic()) > 0:
            if not select.select([sock], [], [], left)[0]:
                break
            try:
                data, _ = sock.recvfrom(2048)
            except OSError as bad:  # an ICMP error of an earlier datagram
                why = bad.strerror or str(bad)
                break
            if any(is_reset(data, tried, mine) for tried in range(1, number + 1)):
                return Answer(time.monotonic() - begin)
    return Answer(why=why)


def largest(sock: socket.socket, to: tuple[str, int], most: int = SIZES[-1]) -> int:
    """Bytes of the largest UDP payload of SIZES up to `most` that is answered; 0 if none is."""
    sizes = [size for size in SIZES if size <= most]
    low, high = -1, len(sizes) - 1
    at = high
    while low < high:
        if ask(sock, to, sizes[at]).came:
            low = at
        else:
            high = at - 1
        at = (low + high + 1) // 2
    return sizes[low] if low >= 0 else 0


def heard(sock: socket.socket, wait_s: float) -> tuple[str, int] | None:
    """Who sent a GMP HELLO to this socket within `wait_s` seconds."""
    end = time.monotonic() + wait_s
    while (left := end - time.monotonic()) > 0:
        if not select.select([sock], [], [], left)[0]:
            break
        data, where = sock.recvfrom(2048)
        if len(data) > _HEAD.size and data[0] == _MAGIC and data[1] == _HELLO:
            return str(where[0]), int(where[1])
    return None
