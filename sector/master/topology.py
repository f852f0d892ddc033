"""Where nodes are: addresses to "/site/rack", and how far two places are apart (design section 5).

`topology.toml`: a table `[networks]` of CIDR = "/site/rack". The longest prefix wins; an address in none is
at "/default". Distance 0 same host, 1 same rack, 2 same site, 3 elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from sector.config import parse_toml
from sector.errors import BadConfig

DEFAULT = "/default"
SAME_HOST, SAME_RACK, SAME_SITE, ELSEWHERE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Place:
    """An address and its "/site/rack"."""

    host: str
    location: str = DEFAULT


@dataclass(frozen=True, slots=True)
class Topology:
    """Networks, longest prefix first."""

    networks: tuple[tuple[IPv4Network | IPv6Network, str], ...] = field(default=())

    def place(self, host: str) -> Place:
        """Where an IP literal is; other texts are at the default place."""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return Place(host)
        for network, location in self.networks:
            if address in network:
                return Place(host, location)
        return Place(host)


def distance(a: Place, b: Place) -> int:
    """0 same host, 1 same rack, 2 same site, 3 elsewhere."""
    if a.host == b.host:
        return SAME_HOST
    if a.location == b.location:
        return SAME_RACK
    return SAME_SITE if a.location.split("/")[1] == b.location.split("/")[1] else ELSEWHERE


def parse_topology(text: str, name: str = "topology.toml") -> Topology:
    """Raises `BadConfig` with file and key."""
    raw = parse_toml(text, name)
    table = raw.pop("networks", {})
    if raw or not isinstance(table, dict):
        odd = next(iter(raw), "networks")
        raise BadConfig(
            f"{name}: unknown key {odd}", hint='write a table [networks] with "CIDR" = "/site/rack"'
        )
    networks = []
    for cidr, location in table.items():
        try:
            network = ip_network(cidr, strict=False)
        except ValueError:
            raise BadConfig(f"{name}: {cidr!r} is not a network", hint="write it like 10.1.0.0/16") from None
        parts = location.split("/") if isinstance(location, str) else []
        if len(parts) not in (2, 3) or parts[0] or not all(parts[1:]):
            raise BadConfig(f"{name}: {cidr}: {location!r} is not a place", hint='write "/site/rack"')
        networks.append((network, location))
    networks.sort(key=lambda item: (-item[0].prefixlen, str(item[0])))
    return Topology(tuple(networks))
