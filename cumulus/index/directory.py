"""Users, keys and groups in the database, as authorization asks for them."""

from __future__ import annotations

from typing import Any, Final

from cumulus.index.api import Away, Directory
from cumulus.index.cache import Fresh
from cumulus.index.readers import Reads, Run
from cumulus.model import Credential, User
from cumulus.secrets import Keyring
from sector.errors import SectorError

FRESH_S: Final = 0.5
_USER: Final = (
    "SELECT users.id, users.name, users.display, users.email, users.weight, users.disabled, users.admin, "
    "users.unix_user"
)
_GROUPS: Final = (
    "SELECT members.group_name, groups.weight, groups.id FROM members "
    "JOIN groups ON groups.name = members.group_name WHERE members.user_id = ? ORDER BY members.group_name"
)


def read_user(run: Run, values: tuple[Any, ...]) -> User:
    """A user from the columns of his row."""
    groups = run(_GROUPS, (values[0],)).fetchall()
    return User(
        id=values[0],
        name=values[1],
        display=values[2],
        email=values[3],
        groups=tuple(name for name, _, _ in groups),
        group_weights=tuple(weight for _, weight, _ in groups),
        group_ids=tuple(id for _, _, id in groups),
        weight=values[4],
        disabled=bool(values[5]),
        admin=bool(values[6]),
        unix_user=values[7],
    )


class DatabaseDirectory(Directory):
    """Reads the tables that `cumulus.index.admin` changes; answers are at most half a second old."""

    def __init__(self, readers: Reads, keyring: Keyring) -> None:
        self._readers = readers
        self._keyring = keyring
        self._credentials: Fresh[str, Credential | None] = Fresh(FRESH_S)
        self._users: Fresh[tuple[str, str], User | None] = Fresh(FRESH_S, keep_none=True)
        self._members: Fresh[str, list[str] | None] = Fresh(FRESH_S)

    def credential(self, access_key: str) -> Credential | None:
        return self._credentials.get(access_key, self._read_credential)

    def _read_credential(self, access_key: str) -> Credential | None:
        query = (
            f"{_USER}, access_keys.secret, access_keys.expires_ns FROM access_keys "
            "JOIN users ON users.id = access_keys.user_id WHERE access_keys.access_key = ?"
        )
        with self._readers.run() as run:
            found = run(query, (access_key,)).fetchone()
            if found is None:
                return None
            user = read_user(run, found)
        try:
            secret = self._keyring.open(access_key, found[8])
        except SectorError as bad:  # the file was replaced, or is gone, while we run
            raise Away(bad.message) from bad
        return Credential(access_key=access_key, secret=secret, user=user, expires_ns=found[9])

    def credential_now(self, access_key: str) -> Credential | None:
        return self._credentials.peek(access_key)

    def user(self, id_or_name: str) -> User | None:
        return self._users.get(("id", id_or_name), self._read_user) or self._users.get(
            ("name", id_or_name), self._read_user
        )

    def by_email(self, email: str) -> User | None:
        return self._users.get(("email", email.strip().lower()), self._read_user) if email.strip() else None

    def _read_user(self, by: tuple[str, str]) -> User | None:
        with self._readers.run() as run:
            found = run(f"{_USER} FROM users WHERE {by[0]} = ? ORDER BY name", (by[1],)).fetchone()
            return read_user(run, found) if found is not None else None

    def members(self, group: str) -> list[str] | None:
        return self._members.get(group, self._read_members)

    def _read_members(self, group: str) -> list[str] | None:
        with self._readers.run() as run:
            if run("SELECT 1 FROM groups WHERE name = ?", (group,)).fetchone() is None:
                return None
            query = "SELECT user_id FROM members WHERE group_name = ? ORDER BY user_id"
            return [row[0] for row in run(query, (group,)).fetchall()]

    def group_id(self, name: str) -> str | None:
        with self._readers.run() as run:
            found = run("SELECT id FROM groups WHERE name = ?", (name,)).fetchone()
        return found[0] if found is not None else None

    def unix_users(self) -> dict[str, str]:
        with self._readers.run() as run:
            found = run("SELECT name, unix_user FROM users WHERE unix_user != '' ORDER BY name").fetchall()
            return {row[0]: row[1] for row in found}

    def check_secrets(self) -> list[str]:
        with self._readers.run() as run:
            found = run("SELECT access_key, secret FROM access_keys ORDER BY access_key").fetchall()
        return self._keyring.unopened((row[0], row[1]) for row in found)

    def forget(self) -> None:
        """Answer from the database the next time."""
        self._credentials.drop()
        self._users.drop()
        self._members.drop()

    def close(self) -> None:
        self._readers.close()
