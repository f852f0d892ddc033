"""Who is behind a proxy of other makers, which says so in headers that anybody could send: they count only
on connections from addresses that the settings name. Pure.

Each proxy adds the address that it was connected from at the end of `X-Forwarded-For`, so that is read from
the end, as long as the addresses are those of known proxies. What stands before them is what a client wrote.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Networks: TypeAlias = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


def parse_networks(text: str) -> Networks:
    """Addresses and networks with commas between. Raises ValueError with what is wrong."""
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ipaddress.ip_network(one))
        except ValueError as bad:
            raise ValueError(f"{one!r} is no address or network: {bad}") from None
    return tuple(found)


def is_among(peer: str, networks: Networks) -> bool:
    """Whether an address is in one of them; IPv4 also where IPv6 carries it."""
    address = _address(peer) if networks else None
    return address is not None and any(address in one for one in networks)


def behind(peer: str, secure: bool, header: Callable[[str], str], proxies: Networks) -> tuple[str, bool]:
    """The client's address, and whether it speaks TLS, of a request that came from `peer`, by TLS or not;
    `header` gives the value of a name, several joined by commas. As they are, unless a known proxy says
    otherwise."""
    if not is_among(peer, proxies):
        return peer, secure
    scheme = header("x-forwarded-proto").rpartition(",")[2].strip().lower()
    if scheme in ("http", "https"):
        secure = scheme == "https"
    for said in reversed(header("x-forwarded-for").split(",")):
        address = _address(said.strip())
        if address is None:
            break
        peer = str(address)
        if not is_among(peer, proxies):
            break
    return peer, secure


def _address(text: str) -> Address | None:
    """Of "192.0.2.1", "2001:db8::1", each also with a port behind it; None for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
