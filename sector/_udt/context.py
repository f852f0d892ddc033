"""Owns one C context, reads its event queue from the reactor, and hands each event to its owner.

One `IReadDescriptor` stands for all sockets, transfers and GMP nodes of the process. At most 256 events
are handled a turn; then the reactor gets its turn (design section 12).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from zope.interface import implementer

from sector._udt._ffi import ffi, lib
from sector._udt.address import pack_address, unpack_address
from sector._udt.errors import CoreError, check, error_name

log = Logger()
OWN_PORTS = 128  # ports from which on further clients share one; the core has 256 at most
ENOUGH_BUFFER = 4 << 20  # bytes of a UDP socket's buffer below which a port warns
GOOD_BUFFER = 8 << 20  # what each port asks for
BATCH = 256
WORTH_HOLDING = 3  # events whose answers leave together; of two the first would rather go ahead
ACCEPTED = 2
FIRST_GMP_EVENT = 64

DATA_BYTES = 1 << 19  # messages of one batch that are copied in the same call


class CoreEvent(NamedTuple):
    """An event of a socket or transfer; see udt_event of csrc/include/udt.h."""

    kind: int
    port: int
    sock: int
    err: int
    sys_err: int
    remote: int
    value: int


EventHandler = Callable[[CoreEvent], None]
# an event of GMP: the numbers of the whole udt_event in the order of EVENT_FIELDS, and its data
GmpHandler = Callable[["tuple[Any, ...]", bytes], None]

_untouched = ffi.new_allocator(should_clear_after_alloc=False)
_CODES = {("u", 1): "B", ("u", 2): "H", ("u", 4): "I", ("u", 8): "Q"}
_CODES |= {("s", size): code.lower() for (_, size), code in _CODES.items()}


def _layout(ctype: Any, prefix: str = "") -> tuple[str, list[str]]:
    """The `struct` format of a C struct of integers, arrays of bytes, pointers and structs, and the
    dotted names of its fields."""
    form, at = "", 0
    names: list[str] = []
    for name, field in ctype.fields:
        size = ffi.sizeof(field.type)
        form += f"{field.offset - at}x" if field.offset > at else ""
        at = field.offset + size
        if field.type.kind == "struct":
            inner, more = _layout(field.type, f"{prefix}{name}.")
            form, names = form + inner, names + more
            continue
        if field.type.kind == "array":
            form += f"{size}s"
        elif field.type.kind == "pointer":
            form += "Q"
        else:
            form += _CODES["u" if int(ffi.cast(field.type, -1)) > 0 else "s", size]
        names.append(prefix + name)
    return form + f"{ffi.sizeof(ctype) - at}x", names


_FORMAT, EVENT_FIELDS = _layout(ffi.typeof("udt_event"))
EVENT = struct.Struct("=" + _FORMAT)
_LEN, _BUF, _DATA = (EVENT_FIELDS.index(f"g.{name}") for name in ("len", "buf", "data"))
_PLAIN = EVENT_FIELDS.index("value") + 1
assert EVENT.size == ffi.sizeof("udt_event") and tuple(EVENT_FIELDS[:_PLAIN]) == CoreEvent._fields


@implementer(IReadDescriptor)
class Core:
    """One context of the C core behind a Twisted reactor.

    Handlers are kept by handle (sockets, transfers) and by port (GMP events); they run in the reactor
    thread. A batch is one call into C and one unpacking of its array: no cdata per event.
    """

    def __init__(self, reactor: Any, *, disk_threads: int = 2, max_buffer_bytes: int = 1 << 30) -> None:
        self.reactor = reactor
        config = ffi.new(
            "udt_ctx_config *", {"disk_threads": disk_threads, "max_buf_bytes": max_buffer_bytes}
        )
        out = ffi.new("udt_ctx **")
        check(lib.udt_ctx_new(config, out), "cannot start the transport core")
        self._ctx = ffi.gc(out[0], lib.udt_ctx_free)  # a net: who forgets stop() leaves no thread behind
        self._events = ffi.new("udt_event[]", BATCH)
        self._handlers: dict[int, EventHandler] = {}
        self._raw = memoryview(ffi.buffer(self._events)).cast("B")
        self._space = ffi.new("uint8_t[]", DATA_BYTES)
        self._data = ffi.buffer(self._space)
        self._scratch: Any = b""
        self._gmp: dict[int, GmpHandler] = {}
        self._accept: dict[int, EventHandler] = {}
        self._ports: set[int] = set()
        self._lent: dict[int, tuple[tuple[str, int], int]] = {}  # client ports: host and mss; how many use it
        self._closing: dict[int, list[Deferred[None]]] = {}  # ports on their way out, who waits
        self._buffers_told = False
        self._stopped = False
        reactor.addReader(self)

    @property
    def ctx(self) -> Any:
        """The udt_ctx pointer, for the modules of this package."""
        if self._stopped:
            raise RuntimeError("the transport core is stopped")
        return self._ctx

    def scratch(self, size: int) -> Any:
        """uint8_t[] of at least `size` for one read at a time in the reactor thread; memory is touched only
        where something was read."""
        if len(self._scratch) < size:
            self._scratch = _untouched("uint8_t[]", size)
        return self._scratch

    # IReadDescriptor
    def fileno(self) -> int:
        """The eventfd."""
        return -1 if self._stopped else int(lib.udt_ctx_wakeup_fd(self._ctx))

    def logPrefix(self) -> str:
        """For Twisted's log."""
        return "core"

    def connectionLost(self, reason: object) -> None:
        """The reactor stops: nothing to do, stop() frees the context."""

    def doRead(self) -> None:
        """Drain one batch of events."""
        self._drain()

    def _drain(self) -> bool:
        """Handle one batch of events; whether there was any."""
        count = lib.glue_poll(self._ctx, self._events, BATCH, self._space, DATA_BYTES)
        if count <= 0:
            return False
        if count < WORTH_HOLDING:
            self._handle(count)
            return True
        lib.sgmp_hold(self._ctx)  # calls and answers that the handlers send leave a few at a time
        try:
            self._handle(count)
        finally:
            lib.sgmp_release(self._ctx)
        return True

    def _handle(self, count: int) -> None:
        at = 0
        for index, event in enumerate(EVENT.iter_unpack(self._raw[: count * EVENT.size])):
            kind = event[0]
            try:
                if kind >= FIRST_GMP_EVENT:
                    data = b""
                    if size := event[_LEN]:
                        if event[_BUF]:
                            data = self._take(index, size)
                        else:
                            data = self._data[at : at + size]
                            at += size
                    gmp = self._gmp.get(event[1])
                    if gmp is not None:
                        gmp(event, data)
                else:
                    handlers, key = (
                        (self._accept, event[1]) if kind == ACCEPTED else (self._handlers, event[2])
                    )
                    handler = handlers.get(key)
                    if handler is not None:
                        handler(CoreEvent._make(event[:_PLAIN]))
            except Exception:
                log.failure("handler of core event {kind} failed", kind=kind)
            if self._stopped:
                break

    def _take(self, index: int, size: int) -> bytes:
        """The data of a message too large for the batch, which is released."""
        event = self._events[index]
        try:
            data: bytes = ffi.buffer(event.g.data, size)[:]
        finally:
            lib.udt_event_release(self._ctx, ffi.addressof(event))
        return data

    # registration
    def watch(self, handle: int, handler: EventHandler) -> None:
        """Send events of a socket or transfer to `handler`."""
        self._handlers[handle] = handler

    def unwatch(self, handle: int) -> None:
        """Forget a handle."""
        self._handlers.pop(handle, None)

    def watch_gmp(self, port: int, handler: GmpHandler) -> None:
        """Send GMP events of a port to `handler`."""
        self._gmp[port] = handler

    def watch_accept(self, port: int, handler: EventHandler) -> None:
        """Send the new connections of a port's listener to `handler`."""
        self._accept[port] = handler

    # ports
    def open_port(self, host: str, port: int, *, flags: int = 0, mss: int = 0) -> int:
        """Open a UDP port; returns its handle. Raises CoreError (INUSE, SYS)."""
        handle: int = lib.udt_port_open(self.ctx, pack_address(host, port), flags, mss)
        if handle < 0:  # of a system call that failed the core leaves errno
            sys_err = ffi.errno if error_name(handle) == "SYS" else 0
            raise CoreError(handle, f"cannot open UDP port {host}:{port}", sys_err)
        self._ports.add(handle)
        self._check_buffers(handle)
        return handle

    def _check_buffers(self, handle: int) -> None:
        # said once per core: all its ports meet the same limits
        counters = self.port_counters(handle)
        limits = {"rmem_max": counters["rcvbuf_bytes"], "wmem_max": counters["sndbuf_bytes"]}
        small = {name: got for name, got in limits.items() if 0 < got < ENOUGH_BUFFER}
        if not small or self._buffers_told:
            return
        self._buffers_told = True
        log.warn(
            "UDP buffers are small ({got}): fast or distant transfers will lose packets. "
            "As root: sysctl -w {cure}",
            got=", ".join(f"net.core.{name} allows {got >> 10} KiB" for name, got in small.items()),
            cure=" ".join(f"net.core.{name}={GOOD_BUFFER}" for name in small),
        )

    def lend_port(self, host: str, mss: int) -> int:
        """A UDP port for one client: a fresh one, or, where there are many, one that others use too. Each is
        followed by one `take_back`. Raises CoreError as open_port."""
        kind = host, mss
        if len(self._ports) >= OWN_PORTS:
            shared = [(users, handle) for handle, (of, users) in self._lent.items() if of == kind]
            if shared:
                users, handle = min(shared)
                self._lent[handle] = kind, users + 1
                return handle
        handle = self.open_port(host, 0, mss=mss)
        self._lent[handle] = kind, 1
        return handle

    def take_back(self, handle: int) -> Deferred[None]:
        """A client is done with its port, which closes with the last."""
        kind, users = self._lent.pop(handle, (("", 0), 1))
        if users == 1:
            return self.close_port(handle)
        self._lent[handle] = kind, users - 1
        return succeed(None)

    def port_address(self, handle: int) -> tuple[str, int]:
        """Where a port is bound."""
        out = ffi.new("udt_addr *")
        check(lib.udt_port_addr(self.ctx, handle, out))
        return unpack_address(out[0])

    def port_counters(self, handle: int) -> dict[str, int]:
        """Counters of udt_port_stats."""
        out = ffi.new("udt_port_stats *")
        check(lib.udt_port_stats_get(self.ctx, handle, out))
        return struct_dict(out[0])

    def refused(self, handle: int) -> list[tuple[str, tuple[int, int, int]]]:
        """Datagrams that a port refused, by source: (host, (under a wrong key, replayed, for tickets that are
        over)). The first entry, host "", has the sums of all sources."""
        out = ffi.new("udt_refused[]", 65)  # UDT_REFUSED_MAX
        found = check(lib.udt_port_refused(self.ctx, handle, out, 65))
        return [
            (
                unpack_address(getattr(one, "from"))[0] if index else "",
                (one.wrong_key, one.replayed, one.ticket),
            )
            for index, one in enumerate(out[0:found])
        ]

    def close_port(self, handle: int) -> Deferred[None]:
        """Close a port and all on it; waits for its thread in a pool thread. Asked twice, both wait."""
        done: Deferred[None] = Deferred()
        if handle in self._closing:
            self._closing[handle].append(done)
            return done
        if self._stopped or handle not in self._ports:
            done.callback(None)
            return done
        self._ports.discard(handle)
        self._gmp.pop(handle, None)
        self._accept.pop(handle, None)
        self._closing[handle] = [done]
        ctx = self._ctx

        def close_thd() -> None:
            lib.udt_port_close(ctx, handle)

        def closed(_: object) -> None:
            for waiting in self._closing.pop(handle, ()):
                waiting.callback(None)

        try:
            deferToThreadPool(self.reactor, self.reactor.getThreadPool(), close_thd).addBoth(closed)
        except (OSError, RuntimeError):  # no descriptor or thread is left, and this gives some back
            close_thd()
            closed(None)
        return done

    def closing_ports(self) -> list[int]:
        """Those that close_port has not finished with."""
        return list(self._closing)

    def shut(self) -> None:
        """Close all ports now, in this thread, and hand their last events to their owners."""
        for handle in list(self._ports):
            lib.udt_port_close(self._ctx, handle)
        self._ports.clear()
        while not self._stopped and self._drain():
            pass

    async def stop(self) -> None:
        """Close all ports, end the threads, free the context."""
        while busy := [*self._ports, *self._closing]:
            await self.close_port(busy[0])  # also those that somebody else closes just now
        if self._stopped:
            return
        self.reactor.removeReader(self)
        self._stopped = True
        ctx = self._ctx

        def free_thd() -> None:
            ffi.release(ctx)

        await deferToThreadPool(self.reactor, self.reactor.getThreadPool(), free_thd)


def struct_dict(value: Any) -> dict[str, int]:
    """A flat struct of integers as a dict by field name."""
    return {name: int(getattr(value, name)) for name, _ in ffi.typeof(value).fields}
