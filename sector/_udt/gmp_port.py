"""A GMP node on a port of the core: calls with plain Python values, events as `GmpEvent`. No policy."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from typing import Any

from twisted.internet.defer import Deferred

from sector._udt._ffi import ffi, lib
from sector._udt.address import pack_address
from sector._udt.context import EVENT_FIELDS, Core, struct_dict
from sector._udt.errors import CoreError, check, error_name

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
    GROUP_MEMBER = 76
    GROUP_DECIDED = 77
    GROUP_DONE = 78


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
    not_delivered: bool


# where each number lies in the tuple of an event
_ID, _STATUS, _KEY, _INSTANCE, _CHANNEL, _METHOD, _MS, _NOT_DELIVERED = (
    EVENT_FIELDS.index(f"g.{name}")
    for name in ("id", "status", "key_id", "instance", "channel", "method", "ms", "not_delivered")
)
_RESPONSE, _REQUEST = int(Kind.RESPONSE), int(Kind.REQUEST)
_source = itemgetter(*(EVENT_FIELDS.index(f"g.from.{name}") for name in ("family", "port", "ip", "scope")))
WAIT_ALL, WAIT_QUORUM, WAIT_ANY, WAIT_NONE = range(4)
TOKEN_BYTES = 24  # SGMP_TOKEN_BYTES
REMEMBERED = 4096  # addresses and destinations whose translation is kept


class GmpPort:
    """One GMP endpoint of the core. Answers and requests, the two that matter for speed, have handlers of
    their own: on_response(id, status, data, not_delivered) and on_request(id, host, port, key_id, instance,
    method, ms, data); all else goes to on_event."""

    def __init__(
        self,
        core: Core,
        host: str,
        port: int,
        *,
        require_auth: bool,
        on_event: Callable[[GmpEvent], None],
        on_response: Callable[[int, int, bytes, bool], None],
        on_request: Callable[[int, str, int, int, int, int, int, bytes], None],
    ) -> None:
        self._core = core
        self._on_event, self._on_response, self._on_request = on_event, on_response, on_request
        self.handle = core.open_port(host, port)
        self._destinations: dict[tuple[str, int, int], Any] = {}
        self._sources: dict[tuple[Any, ...], tuple[str, int]] = {}
        try:
            check(lib.sgmp_open(core.ctx, self.handle, require_auth), "cannot start GMP")
            instance = ffi.new("uint64_t *")
            check(lib.sgmp_instance(core.ctx, self.handle, instance))
        except CoreError:
            core.close_port(self.handle)
            raise
        self.instance = int(instance[0])
        self.address = core.port_address(self.handle)
        core.watch_gmp(self.handle, self._event)

    def _event(self, event: tuple[Any, ...], data: bytes) -> None:
        kind = event[0]
        if kind == _RESPONSE:
            self._on_response(event[_ID], event[_STATUS], data, bool(event[_NOT_DELIVERED]))
            return
        source = _source(event)
        host, port = self._sources.get(source) or self._remember(source)
        if kind == _REQUEST:
            self._on_request(
                event[_ID], host, port, event[_KEY], event[_INSTANCE], event[_METHOD], event[_MS], data
            )
            return
        self._on_event(
            GmpEvent(
                kind,
                event[_ID],
                event[_STATUS],
                host,
                port,
                event[_KEY],
                event[_INSTANCE],
                event[_CHANNEL],
                event[_METHOD],
                event[_MS],
                data,
                bool(event[_NOT_DELIVERED]),
            )
        )

    def _remember(self, source: tuple[Any, ...]) -> tuple[str, int]:
        family, port, raw, scope = source
        if family == 6:
            host = str(ipaddress.IPv6Address(raw)) + (f"%{scope}" if scope else "")
        else:
            host = str(ipaddress.IPv4Address(raw[:4]))
        if len(self._sources) >= REMEMBERED:
            self._sources.clear()
        self._sources[source] = host, port
        return host, port

    def _destination(self, host: str, port: int, key_id: int) -> Any:
        to = (host, port, key_id)
        known = self._destinations.get(to)
        if known is None:
            if len(self._destinations) >= REMEMBERED:
                self._destinations.clear()
            known = ffi.new("sgmp_dest *")
            known.addr = pack_address(host, port)[0]
            known.key_id = key_id
            self._destinations[to] = known  # no address, nothing kept: the next call is refused alike
        return known

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
        to = self._destination(host, port, key_id)
        milliseconds = max(1, int(deadline_s * 1000))
        result: int = lib.glue_call(
            self._core.ctx, self.handle, to, method, payload, len(payload), flags, milliseconds
        )
        return result if result > 0 else check(result)

    def send(
        self, host: str, port: int, key_id: int, channel: int, payload: bytes, flags: int, deadline_s: float
    ) -> int:
        """Send a message; returns its id. Raises CoreError."""
        to = self._destination(host, port, key_id)
        milliseconds = max(1, int(deadline_s * 1000))
        return check(
            lib.glue_send(
                self._core.ctx, self.handle, to, channel, payload, len(payload), flags, milliseconds
            )
        )

    def group(
        self,
        peers: Sequence[tuple[str, int, int]],
        payload: bytes,
        *,
        method: int,
        channel: int,
        call: bool,
        flags: int,
        deadline_s: float,
        wait: int,
        quorum: int,
        cancel_rest: bool,
    ) -> int:
        """One message or call to many (host, port, key_id); returns the group's id. Raises CoreError."""
        to = ffi.new("sgmp_dest[]", len(peers))
        for index, peer in enumerate(peers):
            to[index] = self._destination(*peer)[0]
        opts = ffi.new("sgmp_group_opts *")
        opts.each.channel, opts.each.flags = channel, flags
        opts.each.deadline_ms = max(1, int(deadline_s * 1000))
        opts.method, opts.call, opts.wait, opts.quorum = method, call, wait, quorum
        opts.cancel_rest = cancel_rest
        return check(lib.sgmp_group(self._core.ctx, self.handle, to, len(peers), payload, len(payload), opts))

    def mint_token(self, host: str, port: int, instance: int, key_id: int) -> bytes:
        """A token for a holder (spec/gmp.md 4.2). Raises CoreError, ValueError."""
        token = ffi.new("uint8_t[]", TOKEN_BYTES)
        holder = pack_address(host, port)
        check(lib.sgmp_mint_token(self._core.ctx, self.handle, holder, instance, key_id, token))
        return bytes(ffi.buffer(token))

    def introduce(self, host: str, port: int, key_id: int, instance: int, token: bytes) -> None:
        """Take a token from a third party. Raises CoreError, ValueError."""
        if len(token) != TOKEN_BYTES:
            raise ValueError(f"a token has {TOKEN_BYTES} bytes")
        to = self._destination(host, port, key_id)
        check(lib.sgmp_introduce(self._core.ctx, self.handle, to, instance, token))

    def cancel(self, id: int) -> bool:
        """Cancel a message, a call or a group. False: there is no room for that word; WRITABLE (of everybody)
        follows when there is."""
        return error_name(lib.sgmp_cancel(self._core.ctx, self.handle, id)) != "AGAIN"

    def reply(self, request_id: int, status: int, payload: bytes) -> None:
        """Answer a request. Raises CoreError."""
        check(lib.sgmp_reply(self._core.ctx, self.handle, request_id, status, payload, len(payload)))

    def progress(self, request_id: int, percent: int) -> None:
        """Tell the caller that work goes on."""
        lib.sgmp_progress(self._core.ctx, self.handle, request_id, percent)

    def open_channel(self, channel: int) -> None:
        """Accept plain messages on a channel (0 is always open)."""
        check(lib.sgmp_channel_open(self._core.ctx, self.handle, channel))

    def divert(self, peer: tuple[str, int] | None, fd: int) -> None:
        """Datagrams to `peer` (None = anybody) go to the datagram socket `fd`, -1 = to the network again."""
        packed = pack_address(*peer) if peer is not None else ffi.NULL
        check(lib.udt_port_divert(self._core.ctx, self.handle, packed, fd), "cannot divert datagrams")

    def inject(self, peer: tuple[str, int], data: bytes) -> None:
        """A datagram as if from `peer`; lost when the queue is full."""
        lib.udt_port_inject(self._core.ctx, self.handle, pack_address(*peer), data, len(data))

    def counters(self) -> dict[str, int]:
        """Counters of sgmp_stats and of the port."""
        out = ffi.new("sgmp_stats *")
        check(lib.sgmp_stats_get(self._core.ctx, self.handle, out))
        return self._core.port_counters(self.handle) | struct_dict(out[0])

    def refused(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Refused datagrams by source, the sums first (see `Core.refused`)."""
        return self._core.refused(self.handle)

    def close(self) -> Deferred[None]:
        """Close the port."""
        return self._core.close_port(self.handle)
