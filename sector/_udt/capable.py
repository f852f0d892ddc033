"""What the kernel gives a UDP port here: buffers, segmentation offload. For checks before a start."""

from __future__ import annotations

from sector._udt._ffi import ffi, lib
from sector._udt.address import pack_address
from sector._udt.context import struct_dict
from sector._udt.errors import check


def port_counters(host: str = "127.0.0.1") -> dict[str, int]:
    """The counters of a port that is opened and closed at once: `rcvbuf_bytes` and `sndbuf_bytes` that the
    kernel granted, `gso` and `gro` 1 where it has them. Blocks for a moment. Raises CoreError."""
    out = ffi.new("udt_ctx **")
    check(lib.udt_ctx_new(ffi.new("udt_ctx_config *"), out), "cannot start the transport core")
    try:
        port = check(lib.udt_port_open(out[0], pack_address(host, 0), 0, 0), "cannot open a UDP port")
        found = ffi.new("udt_port_stats *")
        check(lib.udt_port_stats_get(out[0], port, found))
        return struct_dict(found[0])
    finally:
        lib.udt_ctx_free(out[0])
