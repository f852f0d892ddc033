"""What administrators change: users, keys, groups, quotas (used by the commands and the admin page)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Literal

import msgspec

from cumulus.model import Credential, User

Scope = Literal["user", "group", "bucket"]


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. `expires_ns` 0 = never."""

    access_key: str
    user: str
    created_ns: int
    expires_ns: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group with its members' names, in order, and its weight in shares of the bandwidth."""

    name: str
    members: list[str]
    weight: int = 1


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a user, group or bucket, in bytes and objects, 0 = none. Above a soft limit writes go on for
    `grace_s` seconds."""

    scope: Scope
    name: str
    hard_bytes: int = 0
    hard_objects: int = 0
    soft_bytes: int = 0
    soft_objects: int = 0
    grace_s: int = 0


class Admin(ABC):
    """Every change is one transaction; servers see it within a second. Names of users may also be their
    canonical ids. All methods raise `NoSuch` for names that are not there and `Away`."""

    @abstractmethod
    def add_user(self, user: User) -> None:
        """`user.groups` must exist. Raises `NameTaken` (name, id or e-mail address)."""

    @abstractmethod
    def set_user(self, user: User, fields: Collection[str] | None = None) -> None:
        """Replace these fields of the user with that id, by default all but the groups; the others stay as
        they are in the database, for `user` may be older. Raises `NameTaken`."""

    @abstractmethod
    def user(self, name: str) -> User:
        """As it is now."""

    @abstractmethod
    def users(self) -> list[User]:
        """In order of name."""

    @abstractmethod
    def remove_user(self, name: str) -> None:
        """With keys, memberships and quota. Raises `StillUsed` while the user owns buckets."""

    @abstractmethod
    def add_key(self, user: str, access_key: str, secret: str, expires_ns: int = 0) -> Credential:
        """Raises `NameTaken`."""

    @abstractmethod
    def keys(self, user: str = "") -> list[KeyInfo]:
        """Of a user, or of all, in order of their age."""

    @abstractmethod
    def expire_key(self, access_key: str, expires_ns: int) -> None:
        """0 = never."""

    @abstractmethod
    def remove_key(self, access_key: str) -> None: ...

    @abstractmethod
    def rotate(self) -> int:
        """Seal all secrets anew with a new key in `secret.key`; how many. Others read on all the time."""

    @abstractmethod
    def add_group(self, name: str, weight: int = 1) -> None:
        """Raises `NameTaken`."""

    @abstractmethod
    def set_group(self, name: str, weight: int) -> None:
        """Change its weight."""

    @abstractmethod
    def remove_group(self, name: str) -> None:
        """With its quota; the members stay."""

    @abstractmethod
    def groups(self) -> list[Group]:
        """In order of name."""

    @abstractmethod
    def join(self, group: str, user: str) -> None:
        """No error when he is a member already."""

    @abstractmethod
    def leave(self, group: str, user: str) -> None:
        """Raises `NoSuch` also when he is not a member."""

    @abstractmethod
    def set_quota(self, quota: Quota, fields: Collection[str] | None = None) -> None:
        """Replace these limits, by default all; the others stay as they are in the database. All 0 removes
        them."""

    @abstractmethod
    def quotas(self) -> list[Quota]:
        """All that are set, users by name."""

    def close(self) -> None:
        """Give back what it holds."""
        return None
