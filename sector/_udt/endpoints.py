"""Twisted endpoints over UDT: client, server and rendezvous, for any Protocol.

>>> UdtClientEndpoint(reactor, "192.0.2.7", 9000).connect(factory)     # doctest: +SKIP

The first argument is a reactor (the process's shared core is used) or a `Core` of the caller's own. As
strings, for `clientFromString` and `serverFromString`: see `strings.py`. Errors: `reasons.py`.
"""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from typing import Any

from twisted.internet import error as twisted_errors
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.internet.interfaces import (
    IListeningPort,
    IResolutionReceiver,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from sector._udt._ffi import lib
from sector._udt.address import pack_address
from sector._udt.context import Core, CoreEvent
from sector._udt.errors import CoreError
from sector._udt.reasons import not_connected
from sector._udt.shared import CoreSource, core_source
from sector._udt.transport import (
    _CLOSED,
    _CONNECTED,
    _FAILED,
    UdtOptions,
    make_transport,
    udt_address,
)

DEFAULTS = UdtOptions()


def _any_for(host: str) -> str:
    return "::" if ":" in host else "0.0.0.0"


class CannotListen(twisted_errors.CannotListenError):
    """The UDP port cannot be had. `name` is the core's error, "INUSE" or "SYS", or "ADDRESS" where the
    interface is no address."""

    def __init__(self, interface: str, port: int, error: Exception) -> None:
        super().__init__(interface, port, error)  # type: ignore[no-untyped-call]
        self.name = error.name if isinstance(error, CoreError) else "ADDRESS"

    def __str__(self) -> str:
        return str(self.socketError)


@implementer(IResolutionReceiver)
class _Addresses:
    """Collects what a name stands for."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._found: list[str] = []
        self.done: Deferred[list[str]] = Deferred()

    def resolutionBegan(self, resolution: object) -> None:
        """It runs."""

    def addressResolved(self, address: IPv4Address | IPv6Address) -> None:
        """One more."""
        if address.host not in self._found:
            self._found.append(address.host)

    def resolutionComplete(self) -> None:
        """All are known."""
        if self._found:
            self.done.callback(self._found)
        else:
            self.done.errback(twisted_errors.DNSLookupError(f"no address for the host {self._host!r}"))


def resolve(reactor: Any, host: str) -> Deferred[list[str]]:
    """IP literals of a host, best first. Errbacks with DNSLookupError. "localhost" is never asked for
    (RFC 6761, 6.3): a bare system may have no /etc/hosts, and a name server knows nothing of it."""
    if host.rstrip(".").lower() == "localhost":
        return succeed(["127.0.0.1", "::1"])
    try:
        ipaddress.ip_address(host)
        return succeed([host])
    except ValueError:
        try:
            host.encode("idna")  # the resolver would never call back
        except UnicodeError:
            return fail(twisted_errors.DNSLookupError(f"{host!r} is no name of a host"))
        receiver = _Addresses(host)
        reactor.nameResolver.resolveHostName(
            receiver, host, 0, [IPv4Address, IPv6Address], transportSemantics="UDP"
        )
        return receiver.done


class _Connecting:
    """A connect or rendezvous on its way: a port, of a client one that others may use too; one socket."""

    def __init__(self, source: CoreSource, core: Core, port: int, options: UdtOptions, factory: Any) -> None:
        self._source, self._core, self._port, self._options = source, core, port, options
        self._factory = factory
        self._sock = 0
        self._to: tuple[str, int] = ("", 0)
        self._closed = False
        self.result: Deferred[Any] = Deferred(self._cancel)

    def follow(self, sock: int, to: tuple[str, int]) -> None:
        """The core tries; its events decide."""
        self._sock, self._to = sock, to
        self._core.watch(sock, self._event)

    def _cancel(self, deferred: Deferred[Any]) -> None:
        lib.udt_close(self._core.ctx, self._sock, 0)
        self._core.unwatch(self._sock)
        self.close()
        deferred.errback(twisted_errors.ConnectingCancelledError(udt_address(*self._to)))

    def _event(self, event: CoreEvent) -> None:
        if event.kind == _CONNECTED and not self.result.called:
            self._connected()
        elif event.kind in (_FAILED, _CLOSED):
            lib.udt_close(self._core.ctx, self._sock, 0)  # others may go on with its port
            self._core.unwatch(self._sock)
            self.close()
            if not self.result.called:
                self.result.errback(not_connected(event.err, *self._to))

    def _connected(self) -> None:
        local = self._core.port_address(self._port)
        transport = make_transport(self._options, self._core, self._sock, local, self.close)
        transport.is_client = True
        try:
            protocol = self._factory.buildProtocol(udt_address(*self._to))
        except Exception:
            transport.abortConnection()
            self.result.errback()
            return
        if protocol is None:
            transport.abortConnection()
            self.result.errback(twisted_errors.ConnectError(string="the factory wants no connection"))
            return
        try:
            transport.start(protocol)
        except Exception:
            self.result.errback()
            return
        self.result.callback(protocol)

    def close(self) -> None:
        """Give the port back."""
        if not self._closed:
            self._closed = True
            self._core.take_back(self._port).addBoth(lambda _: self._source.give_back())
            self._factory.doStop()


class _Meeting(ABC):
    """What client and rendezvous share: names, ports, the options, one attempt after the other."""

    def __init__(self, core: Any, local_port: int, host: str, port: int, options: UdtOptions) -> None:
        self._source = core_source(core)
        self._local_port, self._host, self._port_number = local_port, host, port
        self._options = options

    @abstractmethod
    def _start(self, core: Core, port: int, address: Any, opts: Any) -> int:
        """Socket of the attempt, or the core's negative error."""

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Deferred of the connected protocol; errbacks as reasons.py says. Cancelling it ends the attempt."""
        return ensureDeferred(self._connect(protocolFactory))

    async def _connect(self, factory: Any) -> Any:
        refused: Exception | None = None
        other: Exception | None = None
        for host in await resolve(self._source.reactor, self._host):
            try:
                return await self._attempt(factory, host)
            except twisted_errors.ConnectionRefusedError as no:
                refused = refused or no
            except (twisted_errors.TimeoutError, twisted_errors.ConnectBindError) as silent:
                other = silent  # as of IPv6 where the machine has none: the next address of the same name
        failed = refused or other  # an answer says more than none
        assert failed is not None
        raise failed

    def _attempt(self, factory: Any, host: str) -> Deferred[Any]:
        to = host, self._port_number
        try:
            address = pack_address(*to)
        except OSError as error:
            return _failed(twisted_errors.ConnectError(string=f"{host}: {error.strerror or error}"))
        core = self._source.take()
        try:
            if self._local_port:
                port = core.open_port(_any_for(host), self._local_port, mss=self._options.mss)
            else:
                port = core.lend_port(_any_for(host), self._options.mss)
        except CoreError as error:
            self._source.give_back()
            return _failed(twisted_errors.ConnectBindError(string=str(error)))
        factory.doStart()
        attempt = _Connecting(self._source, core, port, self._options, factory)
        opts, keep = self._options.packed()
        sock = self._start(core, port, address, opts)
        del keep
        if sock < 0:
            attempt.close()
            return _failed(not_connected(sock, *to))
        attempt.follow(sock, to)
        return attempt.result


def _failed(error: Exception | Failure) -> Deferred[Any]:
    result: Deferred[Any] = Deferred()
    result.errback(error if isinstance(error, Failure) else Failure(error))
    return result


@implementer(IStreamClientEndpoint)
class UdtClientEndpoint(_Meeting):
    """Connect to a UDT listener from a fresh UDP port (of very many connections some share one). `host` a
    name or an IP literal; of several addresses one after the other is tried."""

    def __init__(self, core: Any, host: str, port: int, options: UdtOptions = DEFAULTS) -> None:
        super().__init__(core, 0, host, port, options)

    def _start(self, core: Core, port: int, address: Any, opts: Any) -> int:
        sock: int = lib.udt_connect(core.ctx, port, address, opts)
        return sock


@implementer(IStreamClientEndpoint)
class UdtRendezvousEndpoint(_Meeting):
    """Both sides call connect() towards each other, through NATs too; `local_port` must be the one that the
    peer names, and both need the same `tag`."""

    def __init__(
        self, core: Any, local_port: int, host: str, port: int, options: UdtOptions = DEFAULTS
    ) -> None:
        super().__init__(core, local_port, host, port, options)

    def _start(self, core: Core, port: int, address: Any, opts: Any) -> int:
        sock: int = lib.udt_rendezvous(core.ctx, port, address, opts)
        return sock


@implementer(IListeningPort)
class UdtListeningPort:
    """A listener with its UDP port, which the connections share that came through it."""

    def __init__(
        self, source: CoreSource, core: Core, port: int, factory: Any, options: UdtOptions, backlog: int
    ) -> None:
        self._source, self._core, self._port, self._factory = source, core, port, factory
        self._options, self._backlog = options, backlog
        self._local = core.port_address(port)
        self._listener = 0
        self._open = 0  # connections
        self._waiting: list[Deferred[None]] = []
        self._last: list[Deferred[None]] = []
        self._stopping = self._deaf = self._gone = self._closing = False

    def startListening(self) -> None:
        """Begin to accept. Raises CannotListen."""
        opts, keep = self._options.packed()
        listener = lib.udt_listen(self._core.ctx, self._port, opts, self._backlog)
        del keep
        if listener < 0:
            raise CannotListen(*self._local, CoreError(listener, "cannot listen"))
        self._listener = listener
        self._core.watch(listener, self._event)
        self._core.watch_accept(self._port, self._accepted)
        self._factory.doStart()

    def _event(self, event: CoreEvent) -> None:
        # events of accepted sockets come under their own handle; this one names it in `sock`
        if event.kind == _FAILED:
            self.stopListening()
        elif event.kind == _CLOSED:
            self._core.unwatch(self._listener)
            self._deaf = True
            if not self._stopping:  # the core was shut, with the reactor
                self._stopping = True
                self._factory.doStop()
            self._close_unused()

    def _accepted(self, event: CoreEvent) -> None:
        if self._stopping:
            lib.udt_close(self._core.ctx, event.sock, 0)
            return
        self._open += 1
        transport = make_transport(self._options, self._core, event.sock, self._local, self._ended)
        try:
            protocol = self._factory.buildProtocol(transport.getPeer())
        except BaseException:
            transport.abortConnection()
            raise
        if protocol is None:
            transport.abortConnection()
        else:
            transport.start(protocol)

    def _ended(self) -> None:
        self._open -= 1
        self._close_unused()

    def stopListening(self) -> Deferred[None]:
        """No new connections. Those that are open go on, as with TCP, and keep the UDP port until the last
        has ended; a client that comes meanwhile is refused (ConnectionRefusedError). Fires when the listener
        is gone; with no connection open, when its port is too."""
        done: Deferred[None] = Deferred()
        if self._gone:
            done.callback(None)
            return done
        self._waiting.append(done)
        if not self._stopping:
            self._stopping = True
            self._factory.doStop()
            lib.udt_close(self._core.ctx, self._listener, 0)
        return done

    def portClosed(self) -> Deferred[None]:
        """Fires when, after stopListening, the last connection has ended and the UDP port is closed."""
        done: Deferred[None] = Deferred()
        if self._gone and not self._closing:
            done.callback(None)
        else:
            self._last.append(done)
        return done

    def _close_unused(self) -> None:
        if not self._deaf or self._gone:
            return
        if self._open:
            self._told()
            return
        self._gone = self._closing = True
        closing = self._core.close_port(self._port)
        closing.addBoth(lambda _: self._source.give_back()).addBoth(lambda _: self._port_closed())

    def _port_closed(self) -> None:
        self._closing = False
        self._waiting += self._last
        self._last = []
        self._told()

    def _told(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None)

    def getHost(self) -> IPv4Address | IPv6Address:
        """Where it listens."""
        return udt_address(*self._local)


@implementer(IStreamServerEndpoint)
class UdtServerEndpoint:
    """Listen on a UDP port for UDT connections; `interface` an IP literal, "::" hears IPv4 too, or
    "localhost" (127.0.0.1)."""

    def __init__(
        self,
        core: Any,
        port: int,
        interface: str = "0.0.0.0",
        options: UdtOptions = DEFAULTS,
        *,
        backlog: int = 128,
    ) -> None:
        self._source, self._port = core_source(core), port
        self._interface = "127.0.0.1" if interface == "localhost" else interface
        self._options, self._backlog = options, backlog

    def listen(self, protocolFactory: Any) -> Deferred[UdtListeningPort]:
        """Deferred of the listening port, or CannotListen."""
        try:
            pack_address(self._interface, self._port)
        except (ValueError, OSError) as wrong:
            return _failed(CannotListen(self._interface, self._port, wrong))
        core = self._source.take()
        try:
            handle = core.open_port(self._interface, self._port, mss=self._options.mss)
        except CoreError as error:
            self._source.give_back()
            return _failed(CannotListen(self._interface, self._port, error))
        listening = UdtListeningPort(
            self._source, core, handle, protocolFactory, self._options, self._backlog
        )
        try:
            listening.startListening()
        except CannotListen as refused:
            core.close_port(handle).addBoth(lambda _: self._source.give_back())
            return _failed(refused)
        return succeed(listening)


__all__ = [
    "CannotListen",
    "UdtClientEndpoint",
    "UdtListeningPort",
    "UdtRendezvousEndpoint",
    "UdtServerEndpoint",
    "resolve",
]
