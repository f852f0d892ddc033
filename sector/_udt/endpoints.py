"""Twisted endpoints over UDT: client, server and rendezvous, for any Protocol.

>>> UdtClientEndpoint(core, "192.0.2.7", 9000).connect(factory)     # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

from twisted.internet import error as twisted_errors
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort, IStreamClientEndpoint, IStreamServerEndpoint
from zope.interface import implementer

from sector._udt._ffi import lib
from sector._udt.address import pack_address
from sector._udt.context import Core
from sector._udt.errors import CoreError, check
from sector._udt.transport import (
    _CLOSED,
    _CONNECTED,
    _FAILED,
    STREAM,
    UdtAddress,
    make_transport,
    socket_options,
)


def _any_for(host: str) -> str:
    return "::" if ":" in host else "0.0.0.0"


class _Connecting:
    """A connect or rendezvous on its way: a port of its own, one socket."""

    def __init__(
        self, core: Core, port: int, sock: int, kind: int, factory: Any, to: tuple[str, int]
    ) -> None:
        self._core, self._port, self._sock, self._kind = core, port, sock, kind
        self._factory, self._to = factory, to
        self.result: Deferred[Any] = Deferred(self._cancel)
        core.watch(sock, self._event)

    def _cancel(self, deferred: Deferred[Any]) -> None:
        lib.udt_close(self._core.ctx, self._sock, 0)

    def _event(self, event: Any) -> None:
        if event.kind == _CONNECTED:
            local = self._core.port_address(self._port)
            transport = make_transport(self._kind)(self._core, self._sock, local, self._close_port)
            protocol = self._factory.buildProtocol(UdtAddress(*self._to))
            result, self.result = self.result, Deferred()
            transport.start(protocol)
            result.callback(protocol)
        elif event.kind in (_FAILED, _CLOSED):
            self._core.unwatch(self._sock)
            self._close_port()
            text = str(CoreError(event.err)) if event.err else "closed"
            if not self.result.called:
                self.result.errback(
                    twisted_errors.ConnectError(string=f"{self._to[0]}:{self._to[1]}: {text}")
                )

    def _close_port(self) -> None:
        self._core.close_port(self._port)


@implementer(IStreamClientEndpoint)
class UdtClientEndpoint:
    """Connect to a UDT listener from a fresh UDP port. `kind` STREAM or MESSAGE; `cc` congestion control;
    `timeout_s` 0 = 3 s."""

    def __init__(
        self,
        core: Core,
        host: str,
        port: int,
        *,
        kind: int = STREAM,
        cc: str | None = None,
        timeout_s: float = 0,
    ) -> None:
        self._core, self._to = core, (host, port)
        self._kind, self._cc, self._timeout_s = kind, cc, timeout_s

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Deferred of the connected protocol, or ConnectError."""
        port = self._core.open_port(_any_for(self._to[0]), 0)
        opts, keep = socket_options(self._kind, cc=self._cc, connect_timeout_s=self._timeout_s)
        sock = check(lib.udt_connect(self._core.ctx, port, pack_address(*self._to), opts))
        del keep
        return _Connecting(self._core, port, sock, self._kind, protocolFactory, self._to).result


@implementer(IStreamClientEndpoint)
class UdtRendezvousEndpoint:
    """Both sides call connect() towards each other; `local_port` must be the one the peer names."""

    def __init__(
        self,
        core: Core,
        local_port: int,
        host: str,
        port: int,
        *,
        kind: int = STREAM,
        cc: str | None = None,
        tag: int = 0,
        timeout_s: float = 0,
    ) -> None:
        self._core, self._local_port, self._to = core, local_port, (host, port)
        self._kind, self._cc, self._tag, self._timeout_s = kind, cc, tag, timeout_s

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Deferred of the connected protocol, or ConnectError."""
        port = self._core.open_port(_any_for(self._to[0]), self._local_port)
        opts, keep = socket_options(self._kind, cc=self._cc, connect_timeout_s=self._timeout_s)
        opts.tag = self._tag
        sock = check(lib.udt_rendezvous(self._core.ctx, port, pack_address(*self._to), opts))
        del keep
        return _Connecting(self._core, port, sock, self._kind, protocolFactory, self._to).result


@implementer(IListeningPort)
class UdtListeningPort:
    """A listener with its UDP port."""

    def __init__(self, core: Core, port: int, kind: int, factory: Any) -> None:
        self._core, self._port, self._kind, self._factory = core, port, kind, factory
        self._local = core.port_address(port)

    def startListening(self) -> None:
        """Begin to accept."""
        opts, keep = socket_options(self._kind)
        listener = check(lib.udt_listen(self._core.ctx, self._port, opts, 128), "cannot listen")
        del keep
        self._core.watch(listener, self._event)
        self._factory.doStart()

    def _event(self, event: Any) -> None:
        # events of accepted sockets come under their own handle; this one names it in `sock`
        if event.kind == _FAILED:
            self.stopListening()

    def accepted(self, event: Any) -> None:
        """A new connection of this listener."""
        transport = make_transport(self._kind)(self._core, event.sock, self._local)
        protocol = self._factory.buildProtocol(transport.getPeer())
        if protocol is None:
            transport.abortConnection()
        else:
            transport.start(protocol)

    def stopListening(self) -> Deferred[None]:
        """Close the port and all its connections."""
        self._factory.doStop()
        return self._core.close_port(self._port)

    def getHost(self) -> UdtAddress:
        """Where it listens."""
        return UdtAddress(*self._local)


@implementer(IStreamServerEndpoint)
class UdtServerEndpoint:
    """Listen on a UDP port for UDT connections."""

    def __init__(self, core: Core, port: int, *, interface: str = "0.0.0.0", kind: int = STREAM) -> None:
        self._core, self._port, self._interface, self._kind = core, port, interface, kind

    def listen(self, protocolFactory: Any) -> Deferred[UdtListeningPort]:
        """Deferred of the listening port, or CoreError."""
        done: Deferred[UdtListeningPort] = Deferred()
        try:
            handle = self._core.open_port(self._interface, self._port)
            listening = UdtListeningPort(self._core, handle, self._kind, protocolFactory)
            self._core.watch_accept(handle, listening.accepted)
            listening.startListening()
        except CoreError:
            done.errback()
            return done
        done.callback(listening)
        return done


__all__ = [
    "UdtClientEndpoint",
    "UdtListeningPort",
    "UdtRendezvousEndpoint",
    "UdtServerEndpoint",
]
