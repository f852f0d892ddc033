"""A user's session with a master: log in, resume without password, call, and outlive restarts of masters.

The session secret S comes from the login; keys are derived from it (spec/security.md, Sessions). When the
master does not know our key any more, or another master has to take over, the session is resumed over TLS
by proving S. The password is needed at the login only.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectingCancelledError
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector import errors
from sector.client.door import Door
from sector.client.kept import section_of
from sector.clock import pause
from sector.config import ClientSection, parse_address
from sector.detour import Blocked, Detour, delivered, no_probe
from sector.gmp.api import Gmp, GmpKey, Peer, PeerEvent
from sector.keys import client_master_key
from sector.model import Right
from sector.resolve import literal_host
from sector.rpc import RpcNode
from sector.tunnel import ClientTunnel
from sector.tunnel import Gmp as TunnelGmp
from sector.wire.base import Request
from sector.wire.login import Session as Granted

log = Logger()
CALL_S = 10.0
LOOK_S = 2.0
"""Seconds without an answer after which a look tells a master that is gone from one that is slow."""
DOUBT_S = 0.25
"""The same where an earlier command found UDP blocked."""
_LOOKS = 3
_RESUME_GAP_S = 5.0
BUSY_S = 30.0
"""Seconds in which a session that is begun or resumed comes again when a master says that it shall."""
_AGAIN = re.compile(r"try again in (?:a few seconds|([0-9]+(?:[.][0-9]+)?) s)")
_FEW_S = 3.0
_NOT_NOW = (errors.Busy, errors.Unreachable, errors.TimedOut)

Begin = Callable[[], Awaitable[Granted]]
"""Begins a new session. Raises LoginRefused, Denied, Busy, Unreachable."""


def _told_s(error: errors.SectorError) -> float:
    """After how many seconds the other side wants to be asked again, 0 if it does not say."""
    told = _AGAIN.fullmatch(error.hint)
    return float(told[1] or _FEW_S) if told is not None else 0.0


@dataclass(eq=False)
class _Flight:
    """A call under way, to be looked after at `look_at`; `lost` = the master did not know our key, `away` =
    no master runs."""

    answer: Deferred[Any]
    fresh: bool
    look_at: float
    lost: bool = field(default=False)
    away: bool = field(default=False)


class ClientSession:
    """Calls to the master under one session. Make it with `open_session`."""

    def __init__(
        self,
        reactor: Any,
        gmp: Gmp,
        door: Door,
        section: ClientSection,
        *,
        password: str = "",
        begin: Begin | None = None,
        save: Callable[[ClientSection], object] | None = None,
        rng: random.Random | None = None,
        probe: Callable[[GmpKey, Peer, float], Awaitable[bool]] | None = None,
        blocked: bool = False,
        on_blocked: Callable[[str], object] = lambda why: None,
        retry_s: float = 300.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`save` keeps a changed session, or raises LocalIO, Conflict or BadConfig; `begin`, or else
        `password` (from a file or the caller), begins a new session when the old one is over.
        `probe(key, peer, wait_s)` tells whether UDP to the master is answered, `blocked` that it was not a
        moment ago, `on_blocked` hears the reason when it is found blocked and "" when it is answered again;
        in between it is tried every `retry_s` seconds at most."""
        self.clock = reactor
        self.gmp = gmp
        self.rpc = RpcNode(gmp)
        self.section = section
        self.roles: list[str] = []
        self.rights: list[Right] = []
        self._door = door
        self._begin = begin if begin is not None or not password else self._log_in
        self._password = password
        self._save = save
        self._rng = rng or random.Random()
        self._peer: Peer | None = None
        self._answered = False
        self._wall = wall
        self._ended = 0.0
        self._over = ""  # the session of which a master has said that it has ended
        self._flights: set[_Flight] = set()
        self._turns: list[Deferred[None]] = []
        self._renewing: Deferred[None] = succeed(None)
        self._last_reset = -1e9
        self._looking: Deferred[None] | None = None
        self._probe = probe
        self._on_blocked = on_blocked
        self._detour = Detour(
            reactor,
            self._open_tunnel,
            lambda wait_s: delivered(gmp, self._peer, wait_s),
            self._udp_answers if probe is not None else no_probe,
            retry_s=retry_s,
            doubt=blocked,
            on_begin=self._left_udp,
            on_end=self._back_on_udp,
        )
        self.on_note: Callable[[str], None] | None = None
        """Told when messages leave UDP, and when they are back."""
        self._closed = False
        self.loose = False
        """Whether the session was begun here with a password and is kept nowhere: nobody can use it again."""
        gmp.on_peer_event(self._peer_event)

    def __repr__(self) -> str:
        return f"ClientSession({self.user}@{self.section.gmp or 'nowhere'})"

    @property
    def user(self) -> str:
        """The user's name."""
        return self.section.user

    @property
    def secret(self) -> bytes:
        """S; keys towards slaves are derived from it."""
        return bytes.fromhex(self.section.secret)

    @property
    def peer(self) -> Peer:
        """The master in use. Raises Unreachable before the session is open."""
        if self._peer is None:
            raise errors.Unreachable("not connected to a master")
        return self._peer

    # ------------------------------------------------------------------------------ begin and renew
    async def open(self) -> None:
        """Use the stored session, or log in. Raises LoginRefused, SessionExpired, Unreachable."""
        if self.section.session and self.section.secret and self.section.gmp:
            await self._use()
        else:
            await self.renew()

    async def _use(self) -> None:
        section = self.section
        address = parse_address(section.gmp)
        self.gmp.add_key(self._key())
        host = await literal_host(self.clock, address.host)
        self._peer = Peer(host, address.port, section.key_id)
        self._answered = False
        self._detour.begin()

    async def _keep_up(self) -> None:
        """Renew a session that has ended by this machine's clock, once for each end: that clock may be wrong.
        A master that does not answer is left to the call, unless one has said that it has ended. Raises
        SessionExpired, LoginRefused, Unreachable, TimedOut, Busy."""
        end = self.section.expires
        if not end or end == self._ended or self._wall() < end:
            return
        try:
            await self.renew()
        except _NOT_NOW:
            if self._over == self.section.session:
                raise
            return
        self._ended = end

    def _key(self) -> GmpKey:
        """The key towards the master. Its principal names the session: the master knows a client by its
        session, so that with a new one both ends begin anew (spec/gmp.md 5.1: a principal keeps its keys)."""
        section = self.section
        secret = client_master_key(self.secret, section.master_id, section.key_id)
        return GmpKey(section.key_id, secret, f"master:{section.master_id}#{section.session}")

    def _log_in(self) -> Awaitable[Granted]:
        return self._door.login(self.section.user, self._password)

    def _resume(self) -> Awaitable[Granted]:
        return self._door.resume(bytes.fromhex(self.section.session), self.secret)

    async def renew(self) -> None:
        """Resume the session at a master that answers, or begin a new one with the password. Several callers
        at once share one attempt, which is none's: it goes on when any of them is cancelled."""
        if self._closed:
            raise errors.Cancelled("the session is closed")
        turn: Deferred[None] = Deferred()
        self._turns.append(turn)
        if len(self._turns) == 1:
            self._renewing = Deferred.fromCoroutine(self._renew())
            self._renewing.addBoth(self._renewed)
        await turn

    def _renewed(self, outcome: Any) -> None:
        if isinstance(outcome, Failure) and self._closed:
            outcome = Failure(errors.Cancelled("the session was closed while it was renewed"))
        waiting, self._turns = self._turns, []
        for turn in waiting:
            if not turn.called:
                turn.callback(outcome)

    async def _renew(self) -> None:
        granted: Granted | None = None
        begun = False
        until = self.clock.seconds() + BUSY_S
        session = self.section.session
        if session and self.section.secret and (self._over != session or self._begin is None):
            try:
                granted = await self._admitted(self._resume, until)
            except errors.SessionExpired:
                if self._begin is None:
                    raise
                self._over = session
        if granted is None:
            if self._begin is None:
                master = self.section.masters[0] if self.section.masters else "HOST:PORT"
                raise errors.SessionExpired(
                    f"there is no session with {master}", hint=f"log in first: sector login {master}"
                )
            granted, begun = await self._admitted(self._begin, until), True
        secret = granted.secret or self.secret
        old_key = self._peer.key_id if self._peer is not None else None
        fresh = section_of(granted, secret, self.section)
        changed = fresh != self.section
        self.section = fresh
        self.roles, self.rights = list(granted.roles), list(granted.rights)
        if old_key is not None and old_key != granted.key_id:
            self.gmp.remove_key(old_key)
        await self._use()
        kept = False
        if changed and self._save is not None:
            try:
                self._save(fresh)
                kept = True
            except (errors.LocalIO, errors.Conflict, errors.BadConfig) as error:
                # a file that others made, that none may write, as in a container, or that is of another user
                log.debug("the session is not kept: {why}", why=error.message)
        if begun:
            self.loose = not kept and self._begin == self._log_in

    async def _admitted(self, ask: Begin, until: float) -> Granted:
        """What `ask()` gives; asked again when the master says when, as it does where many log in at once."""
        while True:
            try:
                return await ask()
            except errors.Busy as error:
                wait_s = _told_s(error)
                if not wait_s or self.clock.seconds() + wait_s > until:
                    raise
            await pause(self.clock, wait_s * (1.0 + 0.25 * self._rng.random()))

    def _peer_event(self, event: PeerEvent) -> None:
        peer = self._peer
        if event.kind == "restarted" or peer is None or self._closed:
            return
        if (event.peer.host, event.peer.port, event.peer.key_id) != (peer.host, peer.port, peer.key_id):
            return
        if event.kind != "key_unknown":
            (self._detour.ready if event.kind == "ready" else self._detour.suspect)()
            return
        now = self.clock.seconds()
        if now - self._last_reset < _RESUME_GAP_S:
            return
        self._last_reset = now
        for flight in list(self._flights):
            flight.lost = True
            flight.answer.cancel()

    # ---------------------------------------------------------------------------------------- calls
    async def call(
        self,
        request: Request,
        *,
        deadline_s: float = CALL_S,
        patience_s: float = 0.0,
        on_progress: Callable[[int], None] | None = None,
        on_wait: Callable[[str], None] | None = None,
        repeat: bool = False,
    ) -> Any:
        """Ask the master; returns the reply or raises its SectorError.

        Requests that may be repeated (by their class, or `repeat`) are sent again while the master is
        away, for at most `patience_s`; others only if they certainly did not arrive. `on_wait(why)` is
        told when a wait begins.
        """
        until = self.clock.seconds() + patience_s
        attempt = 0
        refused = False
        stale: ClientSection | None = None
        while True:
            flight: _Flight | None = None
            asked = self.section
            try:
                await self._ready(stale)
                asked = self.section
                flight = self._send(request, deadline_s, on_progress)
                reply = await flight.answer
                self._answered = self._detour.heard = True
                return reply
            except errors.Busy as error:
                trouble: errors.SectorError = error
                again = True
            except errors.SessionExpired:
                if flight is None or self._begin is None or refused:
                    raise
                refused, stale = True, asked
                continue
            except (errors.Unreachable, errors.TimedOut, errors.Cancelled) as error:
                ours = flight is not None and (flight.lost or flight.away)
                if isinstance(error, errors.Cancelled) and not ours:
                    raise
                if isinstance(error, errors.SecurityAway) and flight is not None:
                    raise  # said by a master that is there
                trouble = error
                again = flight is None or repeat or type(request).SAFE or (flight.lost and flight.fresh)
                if flight is not None and ours:
                    what = "restarted" if flight.lost else "went away"
                    trouble = errors.Unreachable(f"the master {what} during {type(request).__name__}")
                if flight is not None and flight.lost and again:
                    stale = asked
                    continue
                if flight is not None and not flight.lost:
                    found = await self._find_master(trouble)
                    fit = flight.away or self.section.session != asked.session
                    if (
                        found and fit and again and attempt < _LOOKS
                    ):  # it has just come back, or knows us again
                        attempt += 1
                        continue
            finally:
                if flight is not None:
                    self._flights.discard(flight)
            if not again or self.clock.seconds() >= until:
                raise trouble
            if attempt == 0 and on_wait is not None:
                on_wait("waiting for the master")
            wait_s = min(2.0, 0.2 * 2**attempt) * (0.5 + 0.5 * self._rng.random())
            await pause(self.clock, min(max(wait_s, _told_s(trouble)), until - self.clock.seconds()))
            attempt += 1

    async def _ready(self, stale: ClientSection | None) -> None:
        """A session to ask under, another one than `stale` or one renewed since. Raises as `renew`."""
        if self._peer is None:
            await self.open()
        elif self.section is stale:
            await self.renew()
        await self._keep_up()

    def _send(
        self, request: Request, deadline_s: float, on_progress: Callable[[int], None] | None
    ) -> _Flight:
        answer = self.rpc.call(self.peer, request, deadline_s=deadline_s, on_progress=on_progress)
        doubt = self._detour.doubt and not self._answered and not self._detour.used
        look_at = self.clock.seconds() + (DOUBT_S if doubt else LOOK_S)
        flight = _Flight(answer, not self._answered, look_at)
        self._flights.add(flight)
        if self._looking is None:
            self._looking = Deferred.fromCoroutine(self._watch())
            self._looking.addErrback(lambda failure: failure.trap(CancelledError, ConnectingCancelledError))
        return flight

    async def _watch(self) -> None:
        """While calls wait: see whether a master still runs. Ends those that nobody will answer."""
        try:
            while self._flights and not self._closed:
                at = min(flight.look_at for flight in self._flights)
                await pause(self.clock, max(0.0, at - self.clock.seconds()))
                now = self.clock.seconds()
                silent = [flight for flight in self._flights if flight.look_at <= now]
                if not silent:
                    continue
                try:
                    await self._door.look()
                except errors.Unreachable:
                    for flight in self._flights.intersection(silent):
                        flight.away = True
                        flight.answer.cancel()
                else:
                    await self._detour.consider()
                for flight in silent:
                    flight.look_at = self.clock.seconds() + LOOK_S
        finally:
            self._looking = None

    # ------------------------------------------------------------------------------- around blocked UDP
    async def _open_tunnel(self, blocked: Blocked, lost: Callable[[], None]) -> ClientTunnel | None:
        """Messages inside TLS. Raises Unreachable, SessionExpired, Busy."""
        if not self.section.session:
            raise errors.SessionExpired("there is no session yet")
        session = bytes.fromhex(self.section.session)
        return await self._door.tunnel(session, self.secret, cast(TunnelGmp, self.gmp), blocked, lost)

    async def _udp_answers(self, wait_s: float) -> bool:
        peer = self._peer
        if self._probe is None or peer is None:
            return False
        return await self._probe(self._key(), peer, wait_s)

    def _left_udp(self) -> None:
        why = f"silence for {LOOK_S:g} s"
        self._on_blocked(why)
        self._nudge()
        if self.on_note is not None and self._peer is not None:
            self.on_note(
                f"UDP to {self._where()} gets no answer ({why}); messages go over TLS instead: ask your "
                f"network people for UDP {self._peer.port}"
            )

    def _back_on_udp(self) -> None:
        self._on_blocked("")
        self._nudge()
        if self.on_note is not None and self._answered:
            self.on_note(f"UDP to {self._where()} is answered again; messages go over it")

    def _where(self) -> str:
        host, port = self.peer.host, self.peer.port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _nudge(self) -> None:
        if self._flights:
            Deferred.fromCoroutine(delivered(self.gmp, self._peer, LOOK_S))

    async def _find_master(self, trouble: errors.SectorError) -> bool:
        """After silence: some master may know our session (then True); a plain refusal of TLS is the clearer
        error."""
        try:
            await self.renew()
            return True
        except (errors.Unreachable, errors.TimedOut, errors.Busy) as error:
            trouble.message = f"the master does not answer: {error.message}"
            trouble.hint = error.hint or trouble.hint
        except errors.NotAllowed as error:
            log.debug("session not renewed: {why}", why=error.message)
        return False

    async def end(self) -> None:
        """End a session that nobody could use again: a user may have a thousand, and each lasts for hours."""
        door: Any = self._door
        if self.loose and hasattr(door, "logout"):
            self.loose = False
            leaving: Deferred[None] = Deferred.fromCoroutine(
                door.logout(bytes.fromhex(self.section.session), self.secret)
            )
            leaving.addTimeout(LOOK_S, self.clock)
            try:
                await leaving
            except Exception as error:  # it ends by itself
                log.debug("the session stays: {why}", why=str(error))

    def close(self) -> None:
        """End pending calls. The session itself stays valid."""
        self._closed = True
        self._renewing.cancel()
        self._detour.close()
        if self._looking is not None:
            self._looking.cancel()
        for flight in list(self._flights):
            flight.answer.cancel()
