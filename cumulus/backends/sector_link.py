"""A connection to a Sector cloud for threads: coroutines of its client run in a reactor, each with a
deadline, and its errors become storage errors. Where users of Cumulus act as themselves, each has a
connection of his own (`sector_users`), whose session the service account asks for.

Within `cumulus serve` the service's own reactor is used; elsewhere the one of `sector.connect`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from twisted.internet.defer import CancelledError, Deferred, DeferredLock, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from cumulus.backends.sector_users import Users
from cumulus.storage.api import (
    BadName,
    Changed,
    Forbidden,
    Missing,
    NoSpace,
    StorageError,
    Taken,
    Unavailable,
)
from sector import errors
from sector.client.blocking import ReactorThread
from sector.client.cloud import CloudClient
from sector.client.connect import open_client
from sector.client.door import TlsDoor
from sector.config import ClientSection, Config
from sector.wire.login import Session

T = TypeVar("T")
Work = Callable[[CloudClient], Awaitable[T]]

CALL_S: Final = 20.0  # a master that is away is told to the user after this
_CLOSE_S: Final = 5.0
_NAME: Final = 128  # characters of a name in a message
log = Logger()
_KINDS: Final[tuple[tuple[type[errors.SectorError], type[StorageError]], ...]] = (
    (errors.NotFound, Missing),
    (errors.Denied, Forbidden),
    (errors.NoSpace, NoSpace),
    (errors.IsDirectory, Taken),
    (errors.NotDirectory, Taken),
    (errors.Exists, Taken),
    (errors.NotEmpty, Taken),
    (errors.Conflict, Changed),
    (errors.BadPath, BadName),
)


def storage_error(error: errors.SectorError, what: str) -> StorageError:
    """The storage error for one of Sector's; what may pass (a master or slaves away, a rebuild, a session
    that has ended) is `Unavailable`."""
    for raised, known in _KINDS:
        if isinstance(error, raised):
            return known(f"{what}: {error.message}")
    return Unavailable(f"{what}: {error.message}")


def _reactor() -> Any:
    """The reactor that runs in this process; started in a thread where there is none."""
    known = sys.modules.get("twisted.internet.reactor")
    if known is not None and getattr(known, "running", False):
        return known
    return ReactorThread.get().reactor


class Link:
    """One client, opened at the first call and again after a failure to open it; and at most `max_users` of
    users of Cumulus."""

    def __init__(self, config: Config, max_users: int = 0) -> None:
        self._config = config
        self._max_users = max_users
        self._users: Users | None = None
        self._client: CloudClient | None = None
        self._opening = DeferredLock()
        self._reactor: Any = None
        self._start = threading.Lock()
        self._closed = False

    def call(self, work: Work[T], what: str, deadline_s: float = CALL_S, user: str | None = None) -> T:
        """What `work(client)` gives, run in the reactor, with the client of a user if one is given ("" =
        nobody known). Raises `StorageError`; `Forbidden` for who is no user of the cloud, `Unavailable` when
        it takes longer than `deadline_s`: it is cancelled then."""
        if self._closed:
            raise StorageError("the store is closed")
        with self._start:
            if self._reactor is None:
                self._reactor = _reactor()
        outcome: Future[T] = Future()
        running: list[Deferred[T]] = []

        def failed(failure: Failure) -> None:
            outcome.set_exception(failure.value or StorageError(what))

        def begin() -> None:
            doing: Deferred[T] = ensureDeferred(self._run(work, user))
            running.append(doing)
            doing.addCallbacks(outcome.set_result, failed)

        self._reactor.callFromThread(begin)
        try:
            return outcome.result(deadline_s)
        except errors.SectorError as error:
            raise storage_error(error, what) from error
        except (TimeoutError, CancelledError) as error:
            self._reactor.callFromThread(_cancel, running)
            raise Unavailable(f"{what}: no answer within {deadline_s:g} s") from error

    async def _run(self, work: Work[T], user: str | None) -> T:
        if user is None:
            return await work(await self._service())
        if self._users is None:
            self._users = Users(self._max_users, self, self._reactor)
        client = await self._users.take(user)
        try:
            return await work(client)
        finally:
            self._users.give(user)

    async def _service(self) -> CloudClient:
        """The client of our own account."""
        await self._opening.acquire()
        try:
            if self._client is None:
                self._client = await open_client(self._reactor, self._config)
        finally:
            self._opening.release()
        return self._client

    # users (`sector_users.Opener`)
    async def open_as(self, user: str) -> CloudClient:
        """A client of that user, under a session that our account asks for whenever it needs a new one."""
        held = [await self._session_for(user)]  # first, since a refusal should cost no ports and threads

        async def begin() -> Session:
            return held.pop() if held else await self._session_for(user)

        client = replace(self._config.client, user=user, password_file="")
        return await open_client(self._reactor, replace(self._config, client=client), begin=begin)

    async def _session_for(self, user: str) -> Session:
        """Raises `Denied` when the cloud refuses it, also for some seconds afterwards."""
        assert self._users is not None
        refusals, now = self._users.refusals, self._reactor.seconds
        refusals.check(user, now())
        try:
            return await self._ask_for(user)
        except errors.Denied as refused:
            error = errors.Denied(f"{user or 'somebody unknown'} cannot act in Sector: {refused.message}")
            error.hint = refused.hint
            refusals.note(user, error, now())
            raise error from None

    async def _ask_for(self, user: str) -> Session:
        if not 0 < len(user) <= _NAME:
            raise errors.Denied("that is no name of a user of Sector")
        service, door = (await self._service()).session, TlsDoor(self._reactor, self._config)
        try:
            return await door.act_for(_id(service.section), service.secret, user)
        except errors.SessionExpired:  # ours has ended
            await service.renew()
        return await door.act_for(_id(service.section), service.secret, user)

    async def end(self, client: CloudClient) -> None:
        """Close a user's client, and end its session."""
        session = client.session
        await client.close()
        try:
            await TlsDoor(self._reactor, self._config).logout(_id(session.section), session.secret)
        except errors.SectorError as error:  # it ends by itself
            log.debug("the session of {user} stays: {why}", user=session.user, why=error.message)

    def close(self) -> None:
        """Close the connection; its session stays valid, those for users end. Called twice, or when the
        reactor has ended, it does nothing."""
        if self._closed or self._client is None or not self._reactor.running:
            self._closed = True
            return
        self._closed = True
        done = threading.Event()

        def end() -> None:
            ensureDeferred(self._close()).addErrback(lambda _: None).addCallback(lambda _: done.set())

        self._reactor.callFromThread(end)
        if not _in_reactor():
            done.wait(_CLOSE_S)

    async def _close(self) -> None:
        try:
            if self._users is not None:
                await self._users.close()
        finally:
            if self._client is not None:
                await self._client.close()


class UserLink:
    """`Link` in the name of one user."""

    def __init__(self, link: Link, user: str) -> None:
        self.link = link
        self._user = user

    def call(self, work: Work[T], what: str, deadline_s: float = CALL_S) -> T:
        """As `Link.call`."""
        return self.link.call(work, what, deadline_s, self._user)

    def close(self) -> None:
        """The connection is the link's."""


def _id(section: ClientSection) -> bytes:
    return bytes.fromhex(section.session)


def _in_reactor() -> bool:
    """Whether we are in the reactor's thread, which must not wait."""
    from twisted.python.threadable import isInIOThread

    return bool(isInIOThread())


def _cancel(running: list[Deferred[T]]) -> None:
    for doing in running:
        doing.cancel()
