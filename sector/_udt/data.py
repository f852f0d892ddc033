"""The data channel over the C core: files to tickets and tickets to files, one command and one completion
each. Implements `sector._udt.data_api`; the bytes never pass through Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred

from sector._udt._ffi import ffi, lib
from sector._udt.address import pack_address
from sector._udt.context import Core, struct_dict
from sector._udt.data_api import DataTicket, OnWay, Progress, TransferError, TransferResult
from sector._udt.errors import CoreError, check, error_name
from sector._udt.paths import Paths, Way
from sector._udt.rates import Rates
from sector._udt.trace import Trace
from sector._udt.traffic import Traffic

SEND, INITIATOR, FSYNC, DIRECT = 1, 2, 4, 8
_OPEN, _PROGRESS, _FIN, _DONE = 32, 33, 34, 35
DIRECT_FROM_BYTES = 256 << 20
_CLOSED = -8  # UDT_E_CLOSED
_TLS = 2  # UDT_PATH_TLS


class _Transfer:
    """One side of a transfer; both `Sending` and `Receiving` of the interface."""

    def __init__(
        self,
        port: DataPort,
        handle: int,
        progress: Progress | None,
        to: tuple[str, int] | None,
        on_way: OnWay | None,
    ) -> None:
        self._port = port
        self._to = to
        self._on_way = on_way
        self._way = Way()
        self._core = port._core
        self._handle = handle
        self._progress = progress
        self._ended = False
        self.fin: Deferred[TransferResult] = Deferred()
        self.done: Deferred[TransferResult] = Deferred()
        self._core.watch(handle, self._event)

    def _event(self, event: Any) -> None:
        if event.kind == _PROGRESS:
            if self._progress is not None:
                self._progress(event.value)
        elif event.kind == _OPEN:
            self._met(event.value & 255 == _TLS, event.value >> 8)
        elif event.kind == _FIN:
            self.fin.callback(self._result())
        elif event.kind == _DONE:
            self._end(event.err, event.sys_err, event.remote, event.value)

    def _met(self, tls: bool, why: int) -> None:
        paths = self._port.paths
        self._way = Way(tls) if self._to is None else paths.way(self._to, tls, why)
        if self._on_way is not None:
            line = paths.line(self._to, self._way) if self._to is not None and tls else ""
            self._on_way(self._way, line)

    def _account(self, err: int) -> None:
        """What the transfer says of the way to the peer, and what it moved."""
        raw = ffi.new("udt_xfer_result *")
        if lib.udt_xfer_result_get(self._core.ctx, self._handle, raw) != 0:
            return
        if err and self._to is not None:
            self._port.paths.failed(self._to, error_name(err), raw.path == _TLS, raw.path_why)
        self._port._traffic.ended(struct_dict(raw.stats), good=not err, tls=raw.path == _TLS)

    def _result(self) -> TransferResult:
        raw = ffi.new("udt_xfer_result *")
        check(lib.udt_xfer_result_get(self._core.ctx, self._handle, raw))
        crcs = ffi.new("uint32_t[]", max(1, raw.blocks))
        count = check(lib.udt_xfer_crcs(self._core.ctx, self._handle, crcs, raw.blocks))
        stats = struct_dict(raw.stats)
        stats["lim_disk_us"] = raw.lim_disk_us
        return TransferResult(
            raw.bytes,
            bytes(ffi.buffer(raw.digest)),
            tuple(ffi.unpack(crcs, count)) if count else (),
            (raw.version_epoch, raw.version_counter),
            raw.durable,
            raw.us,
            stats,
            self._way,
        )

    def _end(self, err: int, sys_err: int, remote: int, moved: int) -> None:
        if self._ended:
            return
        result = None if err else self._result()
        if err != _CLOSED:
            self._account(err)
        self._forget()
        if result is not None:
            self.done.callback(result)
            return
        error = CoreError(err, "transfer", sys_err)
        self.done.errback(
            TransferError(error_name(err), str(error), errno=sys_err, remote=remote, bytes=moved)
        )

    def _forget(self) -> None:
        self._ended = True
        self._core.unwatch(self._handle)
        self._port._transfers.discard(self)
        lib.udt_xfer_free(self._core.ctx, self._handle)

    def finish(self, *, version: tuple[int, int] = (0, 0), durable: int = 1, error: int = 0) -> None:
        if not self._ended:
            check(
                lib.udt_xfer_finish(self._core.ctx, self._handle, error, version[0], version[1], durable),
                "cannot confirm a transfer",
            )

    def cancel(self, code: int = 1) -> None:
        if not self._ended:
            lib.udt_xfer_cancel(self._core.ctx, self._handle, code)


class DataPort:
    """One data port; see `sector._udt.data_api.Data`."""

    def __init__(self, core: Core, host: str, port: int, paths: Paths, rates: Rates) -> None:
        self._core = core
        self.paths = paths
        self.rates = rates
        self._cc = ffi.new("char[]", rates.cc.encode()) if rates.cc else ffi.NULL
        self._limits: list[int] = []
        self._handle = core.open_port(host, port)
        for address, bits, rate in rates.links:
            self._cap(pack_address(address, 0), bits, rate)
        self._transfers: set[_Transfer] = set()
        self._traffic = Traffic()
        self.trace: Trace | None = None  # of transfers that start from now on
        self._address = core.port_address(self._handle)

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def _cap(self, prefix: Any, bits: int, rate: int) -> None:
        check(lib.udt_port_link_cap(self._core.ctx, self._handle, prefix, bits, rate), "cannot cap the rate")

    def limit(self, rate: int) -> Callable[[], None]:
        """All transfers together send at most `rate` bytes per second until the function returned is called;
        of several such limits the smallest counts."""
        self._limits.append(rate)
        self._cap(ffi.NULL, 0, min(self._limits))
        left = [rate]

        def end() -> None:
            if left:
                self._limits.remove(left.pop())
                with suppress(CoreError):  # the port is closed
                    self._cap(ffi.NULL, 0, min(self._limits, default=0))

        return end

    def _start(
        self,
        ticket: DataTicket,
        fd: int,
        flags: int,
        offset: int,
        length: int,
        to: tuple[str, int] | None,
        start_s: float,
        progress: Progress | None,
        on_way: OnWay | None,
    ) -> _Transfer:
        raw = ffi.new("udt_ticket *")
        ffi.memmove(raw.id, ticket.id, 16)
        ffi.memmove(raw.key, ticket.key, 32)
        raw.tag = ticket.tag
        raw.encrypt = ticket.encrypt
        opts = ffi.new("udt_xfer_opts *")
        opts.flags = flags | (INITIATOR if to is not None else 0)
        opts.offset = offset
        opts.length = length
        opts.start_ms = int(start_s * 1000)
        opts.max_bw_Bps = self.rates.of(ticket.limit)
        opts.cc = self._cc
        opts.trace = self.trace.raw if self.trace is not None else ffi.NULL
        if to is not None and self.paths.stripes:
            opts.tcp_stripes = self.paths.stripes
            opts.udp_wait_ms = self.paths.wait_ms(to)
        peer = pack_address(*to) if to is not None else ffi.NULL
        try:
            handle = lib.udt_xfer_start(self._core.ctx, self._handle, peer, raw, fd, opts)
        finally:
            ffi.memmove(raw.key, bytes(32), 32)
        transfer = _Transfer(self, check(handle, "cannot start a transfer"), progress, to, on_way)
        self._transfers.add(transfer)
        return transfer

    def send_file(
        self,
        ticket: DataTicket,
        fd: int,
        *,
        offset: int = 0,
        length: int,
        to: tuple[str, int] | None = None,
        start_s: float = 60.0,
        progress: Progress | None = None,
        on_way: OnWay | None = None,
    ) -> _Transfer:
        return self._start(ticket, fd, SEND, offset, length, to, start_s, progress, on_way)

    def receive_file(
        self,
        ticket: DataTicket,
        fd: int,
        *,
        offset: int = 0,
        limit: int = -1,
        to: tuple[str, int] | None = None,
        start_s: float = 60.0,
        fsync: bool = True,
        progress: Progress | None = None,
        on_way: OnWay | None = None,
    ) -> _Transfer:
        flags = (FSYNC if fsync else 0) | (DIRECT if limit >= DIRECT_FROM_BYTES else 0)
        return self._start(ticket, fd, flags, offset, limit, to, start_s, progress, on_way)

    def listen_tls(self) -> None:
        """Also take transfers over TLS at the TCP port of the same number. Raises CoreError (INUSE, SYS)."""
        check(lib.udt_port_listen_tls(self._core.ctx, self._handle, 0), "cannot listen for TLS")

    def running(self) -> dict[int, dict[str, int]]:
        """What the connections of running transfers have counted so far (udt_sock_stats), by transfer. Any
        thread."""
        found: dict[int, dict[str, int]] = {}
        raw = ffi.new("udt_sock_stats *")
        for transfer in list(self._transfers):
            if lib.udt_stats_get(self._core.ctx, transfer._handle, raw) == 0:
                found[transfer._handle] = struct_dict(raw[0])
        return found

    def counters(self) -> dict[str, int]:
        return self._core.port_counters(self._handle)

    def refused(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Refused datagrams by source, the sums first (see `Core.refused`)."""
        return self._core.refused(self._handle)

    def traffic(self) -> dict[str, int]:
        return self._traffic.counters(self.running())

    def stop(self) -> Deferred[None]:
        for transfer in list(self._transfers):
            transfer._end(_CLOSED, 0, 0, 0)
        return self._core.close_port(self._handle)


def open_data(
    core: Core, host: str, port: int, paths: Paths | None = None, rates: Rates | None = None
) -> DataPort:
    """A data port on UDP (host, port); port 0 picks a free one. Raises CoreError (INUSE, SYS)."""
    return DataPort(core, host, port, paths or Paths(time.monotonic), rates or Rates())
