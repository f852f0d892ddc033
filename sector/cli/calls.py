"""Requests of commands to the master: a session from the client's settings, one call, the reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sector.cli.main import Shared
from sector.cli.render import say
from sector.cli.tls_once import run_once
from sector.errors import BadConfig
from sector.wire.base import Request

DEADLINE_S = 20.0
T = TypeVar("T")
Ask = Callable[[Request], Awaitable[Any]]


def call(shared: Shared, *requests: Request) -> Any:
    """Send the requests one after the other under the user's session; the reply to the last one. Raises the
    master's error, `Unreachable`, `SessionExpired`, `BadConfig` when nobody is logged in."""

    async def work(ask: Ask, _reactor: Any) -> Any:
        reply = None
        for request in requests:
            reply = await ask(request)
        return reply

    return converse(shared, work)


def converse(shared: Shared, work: Callable[[Ask, Any], Awaitable[T]]) -> T:
    """Run `work(ask, reactor)` under the user's session, where `ask(request)` gives the master's reply, and
    return what it does. Raises as `call` does."""
    from sector._udt.context import Core
    from sector._udt.errors import CoreError
    from sector.client.connect import no_port
    from sector.client.door import TlsDoor
    from sector.client.kept import read_password, saver
    from sector.client.session import ClientSession
    from sector.gmp.node import open_gmp

    config = shared.client_config()
    if not config.client.masters:
        raise BadConfig("no master is known", hint="run sector login HOST:PORT --ca FILE, or sector up")

    async def run(reactor: Any) -> T:
        door = TlsDoor(reactor, config)
        core = None
        try:
            core = Core(reactor)
            host = "::" if ":" in config.client.gmp.rpartition(":")[0].strip("[]") else "0.0.0.0"
            gmp = open_gmp(core, host, 0)
            session = ClientSession(
                reactor,
                gmp,
                door,
                config.client,
                password=read_password(config),
                save=saver(config),
            )
            session.on_note = say
            try:
                await session.open()
                return await work(lambda request: session.call(request, deadline_s=DEADLINE_S), reactor)
            finally:
                session.close()
                await gmp.stop()
                await session.end()
        except CoreError as bad:
            raise no_port(bad) from None
        finally:
            if core is not None:
                await core.stop()

    return run_once(run)
