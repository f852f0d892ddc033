"""Sessions of a master: who is logged in, with which rights and which secret (spec/security.md, Sessions).

A pure table: time and randomness are arguments; `login.py` stores rows, installs GMP keys and talks TLS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network

from sector import keys
from sector.errors import Busy, SessionExpired
from sector.gmp.api import GmpKey
from sector.model import Right
from sector.rights import allowed
from sector.wire.login import Verified, Vouched

ADMIN = "admin"
SESSION_S = 12 * 3600.0
MAX_SESSIONS = 100_000
MAX_PER_USER = 1000


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session as the database keeps it. `id` 16 bytes; `secret_wrapped` S sealed by the cluster key;
    `expires` seconds since 1970; `cidr` the addresses it may be resumed from. `via` is the service account
    that acts for the user in this session ("" = he logged in himself), `via_epoch` its rights_epoch."""

    id: bytes
    user: str
    secret_wrapped: bytes = field(repr=False)
    key_id: int
    rights_epoch: int
    expires: float
    cidr: str
    roles: tuple[str, ...]
    rights: tuple[Right, ...]
    via: str = ""
    via_epoch: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """Who asks, for the layers above: user name, roles, directory rights."""

    user: str
    roles: tuple[str, ...]
    rights: tuple[Right, ...]
    session_id: bytes = b""

    @property
    def is_admin(self) -> bool:
        """Whether the user may administrate the cluster."""
        return ADMIN in self.roles

    def may(self, path: str, what: str) -> bool:
        """Whether all letters of `what` ("r", "w", "x") are given on canonical `path`."""
        return allowed(self.rights, path, what)


def principal_of(user: str, session_id: bytes) -> str:
    """The principal bound to a client's keys: "user:NAME#SESSIONHEX"."""
    return f"user:{user}#{session_id.hex()}"


def outdated(row: SessionRow, epochs: dict[str, int]) -> bool:
    """Whether a session has older rights than `epochs` (user -> rights_epoch, 0 = user removed)."""
    ends = ((row.user, row.rights_epoch), (row.via, row.via_epoch))
    return any(epochs[who] == 0 or epoch < epochs[who] for who, epoch in ends if who in epochs)


def split_principal(principal: str) -> tuple[str, bytes]:
    """(user, session id) of a client's principal. Raises `SessionExpired` for any other kind."""
    kind, _, rest = principal.partition(":")
    user, mark, session = rest.rpartition("#")
    try:
        if kind != "user" or not mark or not user:
            raise ValueError
        return user, bytes.fromhex(session)
    except ValueError:
        raise SessionExpired("this peer has no session") from None


class Sessions:
    """All live sessions. `now()` seconds since 1970; `rng(n)` n random bytes (CSPRNG)."""

    def __init__(
        self,
        master_id: str,
        cluster_key: bytes,
        now: Callable[[], float],
        rng: keys.Rng,
        issuer: int = 1,
        session_s: float = SESSION_S,
    ) -> None:
        if len(cluster_key) != keys.SECRET_BYTES:
            raise ValueError("the cluster key has 32 bytes")
        self.master_id = master_id
        self.key_ids = keys.KeyIds(issuer, rng)
        self._cluster_key = cluster_key
        self._now = now
        self._rng = rng
        self._session_s = session_s
        self._rows: dict[bytes, SessionRow] = {}
        self._of_user: dict[str, set[bytes]] = {}
        self._via: dict[str, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Sessions({self.master_id}, {len(self._rows)} live)"

    # making and loading ---------------------------------------------------------------------------
    def create(
        self, verified: Verified, cidr: str, via: str = "", via_epoch: int = 0
    ) -> tuple[SessionRow, bytes]:
        """A new session for a user the security server vouches for, and its secret S (32 bytes), which is
        for the client only. The caller stores the row before it answers. Raises `Busy` at the limits, which
        sessions by a service account have for themselves."""
        if len(self._rows) >= MAX_SESSIONS:
            raise Busy(f"the master holds {MAX_SESSIONS} sessions")
        alike = (self._rows[known].via == via for known in self._of_user.get(verified.user, ()))
        if sum(alike) >= MAX_PER_USER:
            raise Busy(f"user {verified.user} has {MAX_PER_USER} sessions", hint="let old sessions end")
        session_id, secret = self._rng(16), self._rng(keys.SECRET_BYTES)
        row = SessionRow(
            id=session_id,
            user=verified.user,
            secret_wrapped=keys.wrap(self._cluster_key, secret, session_id, self._rng),
            key_id=self.key_ids.new(),
            rights_epoch=verified.rights_epoch,
            expires=self._now() + self._session_s,
            cidr=cidr,
            roles=tuple(verified.roles),
            rights=tuple(verified.rights),
            via=via,
            via_epoch=via_epoch,
        )
        self._put(row)
        return row, secret

    def load(self, rows: Iterable[SessionRow]) -> list[SessionRow]:
        """Take rows from the database; returns those that are over (to be dropped there)."""
        over = []
        for row in rows:
            if row.expires <= self._now():
                over.append(row)
            elif row.id not in self._rows:
                self._put(row)
        return over

    def _put(self, row: SessionRow) -> None:
        self._rows[row.id] = row
        self._of_user.setdefault(row.user, set()).add(row.id)
        if row.via:
            self._via.setdefault(row.via, set()).add(row.id)
        self.key_ids.reserve(row.key_id)

    # asking -----------------------------------------------------------------------------------------
    def rows(self) -> list[SessionRow]:
        """All live sessions."""
        return list(self._rows.values())

    def get(self, session_id: bytes) -> SessionRow | None:
        """The live session with that id."""
        row = self._rows.get(session_id)
        return row if row is not None and row.expires > self._now() else None

    def user_of(self, principal: str) -> View:
        """Who stands behind a client's principal. Raises `SessionExpired`."""
        user, session_id = split_principal(principal)
        row = self.get(session_id)
        if row is None or row.user != user:
            raise SessionExpired(f"the session of {user} has ended")
        return View(row.user, row.roles, row.rights, row.id)

    def secret(self, row: SessionRow) -> bytes:
        """S of a session (32 bytes). Raises `Damaged` when the cluster key is another one."""
        return keys.unwrap(self._cluster_key, row.secret_wrapped, row.id)

    def gmp_key(self, row: SessionRow) -> GmpKey:
        """The key between this client and this master, valid until the session ends."""
        secret = keys.client_master_key(self.secret(row), self.master_id, row.key_id)
        valid_s = max(1.0, row.expires - self._now())
        return GmpKey(row.key_id, secret, principal_of(row.user, row.id), valid_s)

    def slave_key(self, principal: str, slave_id: str, instance: int, n: int) -> bytes:
        """The key (32 bytes) that the client behind `principal` derives towards one slave instance.
        Raises `SessionExpired`."""
        view = self.user_of(principal)
        return keys.client_slave_key(self.secret(self._rows[view.session_id]), slave_id, instance, n)

    def resume(self, session_id: bytes, proof: bytes, exporter: bytes, address: str) -> SessionRow:
        """The session whose secret the client proved on this TLS connection, from an address it may come
        from. Raises `SessionExpired`, the same for every reason."""
        row = self.get(session_id)
        if row is None:
            raise SessionExpired("the session has ended")
        good = keys.same(proof, keys.resume_proof(self.secret(row), exporter))
        if not good or ip_address(address) not in ip_network(row.cidr):
            raise SessionExpired("the session has ended")
        return row

    # ending -----------------------------------------------------------------------------------------
    def close(self, session_ids: Iterable[bytes]) -> list[SessionRow]:
        """End these sessions; returns the rows that were live, whose keys the caller removes."""
        closed = []
        for session_id in list(session_ids):
            row = self._rows.pop(session_id, None)
            if row is None:
                continue
            _take(self._of_user, row.user, session_id)
            if row.via:
                _take(self._via, row.via, session_id)
            self.key_ids.free(row.key_id)
            closed.append(row)
        return closed

    def expired(self) -> list[SessionRow]:
        """End the sessions whose time is over."""
        now = self._now()
        return self.close([row.id for row in self._rows.values() if row.expires <= now])

    def apply_epochs(self, epochs: dict[str, int]) -> list[SessionRow]:
        """End sessions with older rights than `epochs` (user -> rights_epoch, 0 = user removed), also those
        that such a user has for others."""
        over = []
        for user, epoch in epochs.items():
            for session_id in (*self._of_user.get(user, ()), *self._via.get(user, ())):
                if outdated(self._rows[session_id], {user: epoch}):
                    over.append(session_id)
        return self.close(over)

    def renew_rights(self, verified: Verified) -> None:
        """Give the live sessions of a user the rights the security server answered with now; not those
        that others have for him."""
        for session_id in self._of_user.get(verified.user, ()):
            if self._rows[session_id].via:
                continue
            self._rows[session_id] = replace(
                self._rows[session_id],
                roles=tuple(verified.roles),
                rights=tuple(verified.rights),
                rights_epoch=verified.rights_epoch,
            )

    def acting(self, user: str) -> set[tuple[str, str]]:
        """(service account, user) of the sessions by a service account that this user is one end of."""
        ids = (*self._of_user.get(user, ()), *self._via.get(user, ()))
        return {(self._rows[one].via, self._rows[one].user) for one in ids if self._rows[one].via}

    def of_pair(self, service: str, user: str) -> list[SessionRow]:
        """The sessions that `service` has for `user`."""
        return [self._rows[one] for one in self._via.get(service, ()) if self._rows[one].user == user]

    def renew_acting(self, service: str, vouched: Vouched) -> None:
        """Give the sessions of a service account for a user the rights that count now."""
        for row in self.of_pair(service, vouched.user):
            self._rows[row.id] = replace(
                row,
                rights=tuple(vouched.rights),
                rights_epoch=vouched.rights_epoch,
                via_epoch=vouched.service_epoch,
            )

    def check_invariants(self) -> None:
        """Index and table agree; numbers of keys are unique."""
        indexed = {session_id for ids in self._of_user.values() for session_id in ids}
        assert indexed == set(self._rows), "user index differs from the table"
        acting = {session_id for ids in self._via.values() for session_id in ids}
        assert acting == {row.id for row in self._rows.values() if row.via}, "service index differs"
        numbers = [row.key_id for row in self._rows.values()]
        assert len(numbers) == len(set(numbers)), "two sessions share a key number"


def _take(index: dict[str, set[bytes]], name: str, session_id: bytes) -> None:
    index[name].discard(session_id)
    if not index[name]:
        del index[name]
