"""Users in a text file, quotas in the database: what commands can read and change then."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine, Row

from cumulus.index.admin_api import Group, KeyInfo, Quota
from cumulus.index.api import NoSuch
from cumulus.index.quotas import SqlQuotas
from cumulus.index.text_file import TextFile
from cumulus.model import Credential, User
from sector.errors import UsageError


class TextAdmin(SqlQuotas):
    """What the file `path` must say itself is refused with `UsageError`. Reading raises also `BadConfig`,
    `LocalIO` for what is wrong with the file."""

    def __init__(self, engine: Engine, path: Path, where: str = "") -> None:
        super().__init__(engine, where)
        self._path = path

    @cached_property
    def _file(self) -> TextFile:
        return TextFile(self._path, lambda bad: None)

    def _refuse(self) -> NoReturn:
        raise UsageError(f"users are in the file {self._path}", hint="change it with an editor")

    def user(self, name: str) -> User:
        found = self._file.user(name)
        if found is None:
            raise NoSuch(f"there is no user {name}")
        return found

    def users(self) -> list[User]:
        return sorted(self._file.users(), key=lambda user: user.name)

    def keys(self, user: str = "") -> list[KeyInfo]:
        """In the order of the lines; when they were made is not known."""
        name = self.user(user).name if user else ""
        return [
            KeyInfo(access_key=one.access_key, user=one.user.name, created_ns=0, expires_ns=one.expires_ns)
            for one in self._file.credentials()
            if name in ("", one.user.name)
        ]

    def groups(self) -> list[Group]:
        weights: dict[str, int] = {}
        members: dict[str, list[str]] = {}
        for user in self.users():
            for group, weight in zip(user.groups, user.group_weights, strict=False):
                weights[group] = weight
            for group in user.groups:
                members.setdefault(group, []).append(user.name)
        return [Group(name=one, members=members[one], weight=weights.get(one, 1)) for one in sorted(members)]

    def _owner_key(self, connection: Connection, quota: Quota) -> str:
        if quota.scope == "user":
            return self.user(quota.name).id
        if self._file.members(quota.name) is None:
            raise NoSuch(f"there is no group {quota.name}")
        return quota.name

    def _user_name(self, row: Row[Any]) -> str:
        found = self._file.user(row.name)
        return found.name if found is not None else str(row.name)

    # what only the file can say
    def add_user(self, user: User) -> None:
        self._refuse()

    def set_user(self, user: User, fields: Collection[str] | None = None) -> None:
        self._refuse()

    def remove_user(self, name: str) -> None:
        self._refuse()

    def add_key(self, user: str, access_key: str, secret: str, expires_ns: int = 0) -> Credential:
        self._refuse()

    def expire_key(self, access_key: str, expires_ns: int) -> None:
        self._refuse()

    def remove_key(self, access_key: str) -> None:
        self._refuse()

    def rotate(self) -> int:
        self._refuse()

    def add_group(self, name: str, weight: int = 1) -> None:
        self._refuse()

    def set_group(self, name: str, weight: int) -> None:
        self._refuse()

    def remove_group(self, name: str) -> None:
        self._refuse()

    def join(self, group: str, user: str) -> None:
        self._refuse()

    def leave(self, group: str, user: str) -> None:
        self._refuse()
