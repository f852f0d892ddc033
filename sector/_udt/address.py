"""Addresses between Python's (host literal, port) and the core's udt_addr."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from sector._udt._ffi import ffi


def pack_address(host: str, port: int) -> Any:
    """A `udt_addr *`. `host` is an IP literal ("" or "*" = any IPv4), "fe80::1%eth0" with a scope.
    Raises ValueError, OSError for a scope that is no interface."""
    if not 0 <= port <= 65535:
        raise ValueError(f"a port is within 0 and 65535, not {port}")
    out = ffi.new("udt_addr *")
    address = ipaddress.ip_address(host or "0.0.0.0") if host != "*" else ipaddress.ip_address("0.0.0.0")
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address.scope_id:
            scope = address.scope_id
            index = int(scope) if scope.isdigit() else socket.if_nametoindex(scope)
            out.scope = index if address.is_link_local else 0  # others have one at most in writing
    out.family = address.version
    out.port = port
    raw = address.packed
    ffi.memmove(out.ip, raw, len(raw))
    return out


def unpack_address(value: Any) -> tuple[str, int]:
    """(host literal, port) of a udt_addr struct."""
    raw = bytes(ffi.buffer(value.ip))
    if value.family == 6:
        host = str(ipaddress.IPv6Address(raw))
        if value.scope:
            host += f"%{value.scope}"
    else:
        host = str(ipaddress.IPv4Address(raw[:4]))
    return host, int(value.port)


def canonical(host: str, port: int) -> tuple[str, int]:
    """An address as events spell it. Raises ValueError."""
    return unpack_address(pack_address(host, port))


def source_towards(host: str, port: int) -> str | None:
    """The address that datagrams to `host`, an IP literal, leave from now, as the routes have it; None where
    none leads there. Nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return None
