"""Which addresses count as one client. Pure."""

from __future__ import annotations

import ipaddress


def network(address: str) -> str:
    """What limits and shares of addresses go by: an IPv4 address, also one that IPv6 carries; of an IPv6
    address the first 64 bits, since whoever has one of them has all of them; other text as it is."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
