"""From settings to an open client: the C core, its two ports, the session."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from sector import errors
from sector.client.cloud import CloudClient
from sector.client.door import Door, TlsDoor
from sector.client.kept import read_password, saver
from sector.client.session import Begin, ClientSession
from sector.client.unfinished import Unfinished
from sector.client.ways import Ways
from sector.config import Config, expanded, load_client, override_client, parse_address

if TYPE_CHECKING:
    from sector._udt.errors import CoreError

_URL = re.compile(r"sector://(?:(?P<user>[^@/:]*)@)?(?P<where>[^/]*)/?")


def settings(
    url: str | None = None,
    *,
    user: str | None = None,
    ca: str | None = None,
    config: Config | None = None,
) -> Config:
    """The client's settings for "sector://USER@HOST:PORT" (or the stored ones), with another CA file if
    given. Raises BadConfig, UsageError."""
    config = config or load_client()
    master = None
    if url:
        match = _URL.fullmatch(url)
        if match is None:
            raise errors.UsageError(f"{url!r} is not an address", hint="write sector://USER@HOST:PORT")
        user = unquote(match["user"]) if match["user"] else user
        master = str(parse_address(match["where"], 7001)) if match["where"] else None
    config = override_client(config, master=master, user=user)
    if ca:
        # a CA that is named wins over the pinned one, which may be of another cluster; it lies where the
        # caller is, not beside the settings
        where = str(expanded(ca).absolute())
        client = msgspec.structs.replace(config.client, ca=where, ca_sha256="")
        config = msgspec.structs.replace(config, client=client)
    return config


def no_port(bad: CoreError) -> errors.SectorError:
    """Why the core could not be started, or its ports not be opened, as the user hears it."""
    text = str(bad)
    if os.strerror(errno.EMFILE) in text or os.strerror(errno.ENFILE) in text:
        hint = "raise the limit of open files: ulimit -n 1024"
    elif bad.name == "NOMEM" or any(os.strerror(code) in text for code in (errno.ENOMEM, errno.EAGAIN)):
        hint = "raise the limits of memory and processes: see ulimit -v and ulimit -u"
    else:
        hint = ""
    return errors.PortInUse(text) if bad.name == "INUSE" else errors.LocalIO(text, hint=hint)


def bind_host(config: Config) -> str:
    """The wildcard address to bind to: of the master's family where it is an IP literal."""
    where = config.client.gmp or (config.client.masters[0] if config.client.masters else "")
    host = parse_address(where, 7001).host if where else ""
    try:
        return "::" if ipaddress.ip_address(host).version == 6 else "0.0.0.0"
    except ValueError:
        return "0.0.0.0"


async def open_client(
    reactor: Any,
    config: Config,
    *,
    password: str | None = None,
    begin: Begin | None = None,
    door: Door | None = None,
) -> CloudClient:
    """Start a core, open both ports, open the session. Raises SectorErrors; nothing is left open then.

    With `password` or `begin` (see `ClientSession`) a new session is begun, which is not kept; else the
    stored one counts, or the password file.
    """
    from sector._udt.context import Core
    from sector._udt.data import open_data
    from sector._udt.errors import CoreError
    from sector._udt.paths import paths_of
    from sector._udt.rates import rates_of
    from sector.gmp.api import GmpKey, Peer
    from sector.gmp.node import open_gmp
    from sector.gmp.probe import answers

    door = door or TlsDoor(reactor, config)
    known = password or ("" if begin is not None else read_password(config))
    section = config.client
    if password or begin is not None:
        section = msgspec.structs.replace(section, session="", secret="", gmp="", key_id=0)
    if not section.user:
        raise errors.BadConfig("no user name is known", hint="run sector login, or set SECTOR_USER")
    try:
        core = Core(reactor)
    except CoreError as bad:
        raise no_port(bad) from None
    pool = ThreadPool(minthreads=0, maxthreads=4, name="sector-files")
    try:
        host = bind_host(config)
        gmp = open_gmp(core, host, 0, require_auth=True)
        paths = paths_of(config.data, reactor.seconds)
        ways = Ways(config.path, paths, time.time)
        data = open_data(core, host, 0, paths, rates_of(config.data))
        keep = saver(config) if password is None and begin is None else None

        def probe(key: GmpKey, peer: Peer, wait_s: float) -> Awaitable[bool]:
            return answers(core, host, key, peer, wait_s)

        session = ClientSession(
            reactor,
            gmp,
            door,
            section,
            password=known,
            begin=begin,
            save=keep,
            probe=probe,
            blocked=bool(ways.messages),
            on_blocked=ways.set_messages,
            retry_s=paths.retry_s,
        )
        try:
            await session.open()
        except BaseException:
            session.close()
            raise
    except CoreError as bad:
        await core.stop()
        raise no_port(bad) from None
    except BaseException:
        await core.stop()
        raise
    pool.start()

    def run(function: Callable[..., Any], *args: Any) -> Any:
        return deferToThreadPool(reactor, pool, function, *args)

    client = CloudClient(session, data, run, Unfinished(Path(f"{config.path}.puts")) if keep else None)

    async def stop() -> None:
        pool.stop()
        await core.stop()

    client.after_close(stop)
    return client
