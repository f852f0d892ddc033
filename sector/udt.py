"""UDT for Python programs: endpoints for Twisted, streams for asyncio (docs/guide/transport.md).

Twisted: `UdtClientEndpoint`, `UdtServerEndpoint`, `UdtRendezvousEndpoint`, or `clientFromString(reactor,
"udt:192.0.2.7:9000")`. asyncio: `open_udt`, `serve_udt`, `create_udt_connection`, `create_udt_server`; no
Twisted reactor runs there. `UdtOptions` says how, and a `Trace` in it what happened.
"""

from sector._udt.aio import (
    UdtServer,
    create_udt_connection,
    create_udt_server,
    open_udt,
    serve_udt,
)
from sector._udt.endpoints import (
    CannotListen,
    UdtClientEndpoint,
    UdtListeningPort,
    UdtRendezvousEndpoint,
    UdtServerEndpoint,
)
from sector._udt.reasons import PeerVanished, UdtAuthError, UdtConnectionLost
from sector._udt.trace import Trace
from sector._udt.transport import MESSAGE, STREAM, UdtOptions

__all__ = [
    "MESSAGE",
    "STREAM",
    "CannotListen",
    "PeerVanished",
    "Trace",
    "UdtAuthError",
    "UdtClientEndpoint",
    "UdtConnectionLost",
    "UdtListeningPort",
    "UdtOptions",
    "UdtRendezvousEndpoint",
    "UdtServer",
    "UdtServerEndpoint",
    "create_udt_connection",
    "create_udt_server",
    "open_udt",
    "serve_udt",
]
