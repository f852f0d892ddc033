"""A GMP node on a port of the core: calls with plain Python values, events as `GmpEvent`. No policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from twisted.internet.defer import Deferred

from sector._udt._ffi import ffi, lib
from sector._udt.address import pack_address, unpack_address
from sector._udt.context import Core, struct_dict
from sector._udt.errors import CoreError, check

ALG_AES256GCM = 2
CONTROL, REPEATABLE, ONEWAY, IDEMPOTENT, WANT_PROGRESS = 1, 2, 4, 8, 16


class Kind(IntEnum):
    """enum sgmp_event_kind."""

    MESSAGE = 64
    OUTCOME = 65
    REQUEST = 66
    RESPONSE = 67
    PROGRESS = 68
    CANCEL = 69
    WRITABLE = 70
    PEER_READY = 71
    PEER_SUSPECT = 72
    PEER_LOST = 73
    PEER_RESTARTED = 74
    KEY_UNKNOWN = 75


@dataclass(slots=True)
class GmpEvent:
    """One event; see csrc/include/sgmp.h for what each kind carries. `data` is a copy."""

    kind: int
    id: int
    status: int
    host: str
    port: int
    key_id: int
    instance: int
    channel: int
    method: int
    ms: int
    data: bytes


class GmpPort:
    """One GMP endpoint of the core."""

    def __init__(
        self, core: Core, host: str, port: int, *, require_auth: bool, on_event: Callable[[GmpEvent], None]
    ) -> None:
        self._core = core
        self._on_event = on_event
        self.handle = core.open_port(host, port)
        self._hosts: dict[tuple[str, int], Any] = {}
        try:
            check(lib.sgmp_open(core.ctx, self.handle, require_auth), "cannot start GMP")
            instance = ffi.new("uint64_t *")
            check(lib.sgmp_instance(core.ctx, self.handle, instance))
        except CoreError:
            core.close_port(self.handle)
            raise
        self.instance = int(instance[0])
        self.address = core.port_address(self.handle)
        self._opts = ffi.new("sgmp_opts *")
        self._dest = ffi.new("sgmp_dest *")
        core.watch_gmp(self.handle, self._event)

    def _event(self, event: Any) -> None:
        g = event.g
        host, port = unpack_address(getattr(g, "from"))  # a keyword here, a field name in C
        self._on_event(
            GmpEvent(
                event.kind,
                g.id,
                g.status,
                host,
                port,
                g.key_id,
                g.instance,
                g.channel,
                g.method,
                g.ms,
                ffi.buffer(g.data, g.len)[:] if g.len else b"",
            )
        )

    def _destination(self, host: str, port: int, key_id: int) -> Any:
        packed = self._hosts.get((host, port))
        if packed is None:
            if len(self._hosts) > 4096:
                self._hosts.clear()
            packed = self._hosts[host, port] = pack_address(host, port)
        self._dest.addr = packed[0]
        self._dest.key_id = key_id
        return self._dest

    def _options(self, channel: int, flags: int, deadline_s: float) -> Any:
        self._opts.channel = channel
        self._opts.flags = flags
        self._opts.deadline_ms = max(1, int(deadline_s * 1000))
        self._opts.ttl_ms = 0
        return self._opts

    def add_key(self, key_id: int, secret: bytes, principal: str, valid_s: float) -> None:
        """Install an AES-256-GCM key. Raises CoreError, ValueError for a wrong size."""
        name = principal.encode()
        if len(secret) != 32 or len(name) > 127:
            raise ValueError("a GMP secret has 32 bytes and a principal at most 127")
        key = ffi.new("sgmp_key *")
        key.key_id = key_id
        key.alg = ALG_AES256GCM
        key.valid_ms = int(valid_s * 1000)
        ffi.memmove(key.secret, secret, 32)
        ffi.memmove(key.principal, name, len(name))
        try:
            check(lib.sgmp_key_add(self._core.ctx, self.handle, key), "cannot add a GMP key")
        finally:
            ffi.memmove(key.secret, bytes(32), 32)

    def remove_key(self, key_id: int) -> None:
        """Forget a key; unknown ones are ignored."""
        lib.sgmp_key_remove(self._core.ctx, self.handle, key_id)

    def call(
        self, host: str, port: int, key_id: int, method: int, payload: bytes, flags: int, deadline_s: float
    ) -> int:
        """Start a call; returns its id. Raises CoreError (AGAIN when the queue is full)."""
        return check(
            lib.sgmp_call(
                self._core.ctx,
                self.handle,
                self._destination(host, port, key_id),
                method,
                payload,
                len(payload),
                self._options(0, flags, deadline_s),
            )
        )

    def send(
        self, host: str, port: int, key_id: int, channel: int, payload: bytes, flags: int, deadline_s: float
    ) -> int:
        """Send a message; returns its id. Raises CoreError."""
        return check(
            lib.sgmp_send(
                self._core.ctx,
                self.handle,
                self._destination(host, port, key_id),
                payload,
                len(payload),
                self._options(channel, flags, deadline_s),
            )
        )

    def cancel(self, id: int) -> None:
        """Cancel a message or a call."""
        lib.sgmp_cancel(self._core.ctx, self.handle, id)

    def reply(self, request_id: int, status: int, payload: bytes) -> None:
        """Answer a request. Raises CoreError."""
        check(lib.sgmp_reply(self._core.ctx, self.handle, request_id, status, payload, len(payload)))

    def progress(self, request_id: int, percent: int) -> None:
        """Tell the caller that work goes on."""
        lib.sgmp_progress(self._core.ctx, self.handle, request_id, percent)

    def open_channel(self, channel: int) -> None:
        """Accept plain messages on a channel (0 is always open)."""
        check(lib.sgmp_channel_open(self._core.ctx, self.handle, channel))

    def counters(self) -> dict[str, int]:
        """Counters of sgmp_stats and of the port."""
        out = ffi.new("sgmp_stats *")
        check(lib.sgmp_stats_get(self._core.ctx, self.handle, out))
        return self._core.port_counters(self.handle) | struct_dict(out[0])

    def close(self) -> Deferred[None]:
        """Close the port."""
        return self._core.close_port(self.handle)
