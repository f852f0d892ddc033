"""One login over TLS from a command: a reactor of its own, run until the answer is there.

The reactor and TLS are loaded where they are used, so that --help need not wait for them.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sector.cli import ends
from sector.config import ClientSection, expanded, parse_address, save_client, stored_client
from sector.errors import BadConfig, LocalIO, UsageError
from sector.model import Address
from sector.wire.login import Login, Session

if TYPE_CHECKING:
    from sector.pki import Trust

T = TypeVar("T")


def run_once(work: Callable[[Any], Awaitable[T]]) -> T:
    """Run `work(reactor)` to its end in a reactor of its own. Ctrl-C and what ends a command cancel it."""
    from twisted.internet.defer import Deferred, ensureDeferred
    from twisted.internet.epollreactor import EPollReactor
    from twisted.python.failure import Failure

    from sector.clock import steady

    reactor = steady(EPollReactor())
    outcome: list[Any] = []
    interrupted: list[int] = []
    running: list[Deferred[Any]] = []

    def begin() -> None:
        def over(result: Any) -> None:
            outcome.append(result)
            reactor.callLater(0, reactor.stop)  # closed connections get their turn first

        running.append(ensureDeferred(cast(Any, work(reactor))))
        running[0].addBoth(over)

    def interrupt(number: int) -> None:
        interrupted.append(number)
        reactor.callFromThread(lambda: running[0].cancel())

    reactor.callWhenRunning(begin)
    try:
        with ends.handled(interrupt):
            reactor.run(installSignalHandlers=False)
    finally:
        for reader in reactor.removeAll():
            reader.connectionLost(Failure(ConnectionError("the command has ended")))
    if interrupted:
        raise KeyboardInterrupt
    result = outcome[0]
    if isinstance(result, Failure):
        result.raiseException()
    return result  # type: ignore[no-any-return]


def read_password(
    password_file: str | None,
    prompt: str,
    *,
    confirm: bool = False,
    known: bool = True,
    option: str = "--password-file",
    stored: str = "",
) -> str:
    """A password from a file ("-" = standard input), SECTOR_PASSWORD_FILE, the file `stored` that the
    settings name, or a prompt on the terminal. Never from the command line. One that is not `known` yet is
    never taken from SECTOR_PASSWORD_FILE: that holds the user's own. `option` names the option of the file.
    Raises `LocalIO`, `UsageError`."""
    name = password_file or (os.environ.get("SECTOR_PASSWORD_FILE") if known else None) or stored
    if name == "-":
        return sys.stdin.readline().rstrip("\r\n")
    if name:
        try:
            return expanded(name).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as bad:
            why = getattr(bad, "strerror", None) or "it is not UTF-8 text"
            raise LocalIO(f"password file {name}: {why}") from None
    if not sys.stdin.isatty():
        either = " or SECTOR_PASSWORD_FILE" if known else ""
        raise UsageError(f"{prompt} is not given", hint=f"use {option} FILE{either}")
    password = getpass.getpass(f"{prompt}: ")
    if confirm and getpass.getpass(f"{prompt} again: ") != password:
        raise UsageError("the two passwords differ")
    return password


def log_in(master: Address, trust: Trust, user: str, password: str, password_file: str = "") -> ClientSection:
    """Log in at a master and keep the session in the client's settings, with the masters that these name if
    it is among them. Raises `LoginRefused`, `Busy`, `Unreachable`, `NotAllowed`."""
    from sector.pki import fingerprint
    from sector.tls import open_tls

    async def work(reactor: Any) -> Session:
        caller = await open_tls(reactor, master.host, master.port, trust)
        try:
            session: Session = await caller.call(Login(user, password))
            return session
        finally:
            caller.close()

    session = run_once(work)
    client = ClientSection(
        masters=_masters(master),
        user=session.user,
        ca_sha256=fingerprint(trust.ca) if trust.ca is not None else trust.ca_sha256,
        session=session.session_id.hex(),
        secret=session.secret.hex(),
        expires=session.expires,
        master_id=session.master_id,
        gmp=str(session.gmp),
        key_id=session.key_id,
        password_file=password_file,
    )
    save_client(client)
    return client


def _masters(master: Address) -> list[str]:
    """The masters of the client's settings if `master` is one of them, else that one."""
    try:
        stored = stored_client().client.masters
    except BadConfig:
        stored = []
    return stored if master in [parse_address(text, 7001) for text in stored] else [str(master)]
