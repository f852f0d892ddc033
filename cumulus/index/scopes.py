"""What a bucket is charged to: itself, its owner, the owner's groups; kept for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from cumulus.index.api import Directory, NoSuch
from cumulus.index.cache import Fresh
from cumulus.index.postgres_pool import Pool

_encoder = msgspec.json.Encoder()
_QUOTAS: Final = (
    "SELECT count(*), count(*) FILTER (WHERE q.soft_bytes > 0 OR q.soft_objects > 0) FROM quotas q "
    "JOIN json_to_recordset(?::json) AS s(scope text, name text) ON q.scope = s.scope AND q.name = s.name"
)


class Scope(msgspec.Struct, frozen=True):
    """A bucket, or all buckets of some owners, as `cumulus_sums` takes it. `name` of a user is his id."""

    scope: Literal["user", "group", "bucket"]
    name: str
    owners: list[str]


class Named(NamedTuple):
    """A scope and how people call it."""

    scope: Scope
    name: str


class _Charged(NamedTuple):
    scopes: bytes  # JSON
    limited: bool
    soft: bool


class Scopes:
    """Answers are at most `fresh_s` seconds old. `owner_of` a bucket raises `NoSuch`."""

    def __init__(
        self, pool: Pool, directory: Directory, owner_of: Callable[[str], str], fresh_s: float
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._owner_of = owner_of
        self._kept: Fresh[str, _Charged] = Fresh(fresh_s)

    def charged(self, bucket: str) -> bytes:
        """Its scopes as JSON. Raises `NoSuch`, `Away`."""
        return self._kept.get(bucket, self._load).scopes

    def limited(self, bucket: str) -> bool:
        """Whether any of them has a quota. Raises `NoSuch`, `Away`."""
        return self._kept.get(bucket, self._load).limited

    def soft(self, bucket: str) -> bool:
        """Whether any of them has a soft limit. Raises `NoSuch`, `Away`."""
        return self._kept.get(bucket, self._load).soft

    def _load(self, bucket: str) -> _Charged:
        data = _encoder.encode([Scope("bucket", bucket, []), *self._of_owner(self._owner_of(bucket))])
        found = self._pool.one(_QUOTAS, (data.decode(),))
        return _Charged(data, found[0] > 0, found[1] > 0)

    def of_owner(self, owner: str) -> bytes:
        """Those of somebody who owns buckets, as JSON."""
        return _encoder.encode(self._of_owner(owner))

    def _of_owner(self, owner: str) -> list[Scope]:
        user = self._directory.user(owner)
        groups = user.groups if user else ()
        members = [Scope("group", group, self._directory.members(group) or []) for group in groups]
        return [Scope("user", owner, [owner]), *members]

    def named(self, scope: Literal["user", "group", "bucket"], name: str) -> Named:
        """A scope by the name that people type. Raises `NoSuch`."""
        if scope == "bucket":
            if self._pool.one("SELECT 1 FROM buckets WHERE name = ?", (name,)) is None:
                raise NoSuch(f"there is no bucket {name}")
            return Named(Scope("bucket", name, []), name)
        if scope == "group":
            members = self._directory.members(name)
            if members is None:
                raise NoSuch(f"there is no group {name}")
            return Named(Scope("group", name, members), name)
        user = self._directory.user(name)
        if user is None:
            raise NoSuch(f"there is no user {name}")
        return Named(Scope("user", user.id, [user.id]), user.name)

    def name_of(self, scope: str, name: str) -> str:
        """How people call a scope."""
        user = self._directory.user(name) if scope == "user" else None
        return user.name if user is not None else name

    def forget(self) -> None:
        """Ask the database the next time."""
        self._kept.drop()
