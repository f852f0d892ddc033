"""Users, keys, groups and quotas in the database, by SQLAlchemy Core: one transaction a change."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, insert, or_, select, update

from cumulus.index.admin_api import Group, KeyInfo, Quota
from cumulus.index.api import AddressTaken, NameTaken, NoSuch, StillUsed
from cumulus.index.quotas import SqlQuotas
from cumulus.index.tables import access_keys, buckets, groups, members, quotas, users
from cumulus.model import Credential, User
from cumulus.secrets import Keyring, new_group_id
from cumulus.words import count_text


def _user_values(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "display": user.display,
        "email": user.email.strip().lower(),
        "weight": user.weight,
        "disabled": user.disabled,
        "admin": user.admin,
        "unix_user": user.unix_user,
    }


def _to_user(row: Row[Any], mine: list[Any]) -> User:
    fields = {name: value for name, value in row._mapping.items() if name != "created_ns"}
    return User(
        **fields,
        groups=tuple(one.name for one in mine),
        group_weights=tuple(one.weight for one in mine),
        group_ids=tuple(one.group_id for one in mine),
    )


class SqlAdmin(SqlQuotas):
    """`engine` has the tables already; it is disposed of by `close`."""

    def __init__(
        self, engine: Engine, keyring: Keyring, clock: Callable[[], int] = time.time_ns, where: str = ""
    ) -> None:
        """`where` is the database's name for people; "" is that of the engine."""
        super().__init__(engine, where)
        self._keyring = keyring
        self._clock = clock

    # users
    def _row(self, connection: Connection, name: str) -> Row[Any]:
        query = select(users).where(or_(users.c.id == name, users.c.name == name))
        found = connection.execute(query.order_by(users.c.id != name)).first()
        if found is None:
            raise NoSuch(f"there is no user {name}")
        return found

    def _user(self, connection: Connection, row: Row[Any]) -> User:
        return _to_user(row, self._groups_of(connection, row.id).get(row.id, []))

    def _groups_of(self, connection: Connection, user_id: str | None = None) -> dict[str, list[Any]]:
        """(name, weight, group_id) of the groups of that user, or of all, by his id."""
        query = select(members.c.user_id, groups.c.name, groups.c.weight, groups.c.id.label("group_id")).join(
            groups, groups.c.name == members.c.group_name
        )
        if user_id is not None:
            query = query.where(members.c.user_id == user_id)
        found: dict[str, list[Any]] = {}
        for row in connection.execute(query.order_by(groups.c.name)):
            found.setdefault(row.user_id, []).append(row)
        return found

    def _check_free(self, connection: Connection, user: User) -> None:
        """Name, id and address are each one user's; a name may not be another's id."""
        values = _user_values(user)
        taken = [users.c.name == user.name, users.c.id == user.name, users.c.name == user.id]
        if values["email"]:
            taken.append(users.c.email == values["email"])
        found = connection.execute(select(users).where(or_(*taken), users.c.id != user.id)).first()
        if found is not None and found.email and found.email == values["email"] and found.name != user.name:
            raise AddressTaken(f"user {found.name} has the e-mail address {user.email} already")
        if found is not None:
            raise NameTaken(f"there is a user {user.name} already")

    def _check_keyring(self, connection: Connection) -> None:
        """Before something is sealed that the service could not open."""
        rows = connection.execute(select(access_keys.c.access_key, access_keys.c.secret))
        self._keyring.check((row.access_key, row.secret) for row in rows)

    def add_user(self, user: User) -> None:
        with self._begin() as connection:
            self._check_free(connection, user)
            if connection.execute(select(users.c.id).where(users.c.id == user.id)).first():
                raise NameTaken(f"there is a user with the id {user.id} already")
            connection.execute(
                insert(users).values(id=user.id, created_ns=self._clock(), **_user_values(user))
            )
            for group in user.groups:
                self._need_group(connection, group)
                connection.execute(insert(members).values(group_name=group, user_id=user.id))

    def set_user(self, user: User, fields: Collection[str] | None = None) -> None:
        values = {
            name: value for name, value in _user_values(user).items() if fields is None or name in fields
        }
        with self._begin() as connection:
            self._check_free(connection, user)
            changed = connection.execute(update(users).where(users.c.id == user.id).values(**values))
            if not changed.rowcount:
                raise NoSuch(f"there is no user {user.id}")

    def user(self, name: str) -> User:
        with self._read() as connection:
            return self._user(connection, self._row(connection, name))

    def users(self) -> list[User]:
        with self._read() as connection:
            found = connection.execute(select(users).order_by(users.c.name)).all()
            mine = self._groups_of(connection)
            return [_to_user(row, mine.get(row.id, [])) for row in found]

    def remove_user(self, name: str) -> None:
        with self._begin() as connection:
            row = self._row(connection, name)
            owned = list(connection.scalars(select(buckets.c.name).where(buckets.c.owner == row.id)))
            if owned:
                raise StillUsed(
                    f"user {row.name} owns {count_text(len(owned), 'bucket')}, for example {min(owned)}"
                )
            connection.execute(delete(access_keys).where(access_keys.c.user_id == row.id))
            connection.execute(delete(members).where(members.c.user_id == row.id))
            connection.execute(delete(quotas).where(quotas.c.scope == "user", quotas.c.name == row.id))
            connection.execute(delete(users).where(users.c.id == row.id))

    # keys
    def add_key(self, user: str, access_key: str, secret: str, expires_ns: int = 0) -> Credential:
        with self._begin() as connection:
            self._check_keyring(connection)
            row = self._row(connection, user)
            query = select(access_keys.c.access_key).where(access_keys.c.access_key == access_key)
            if connection.execute(query).first():
                raise NameTaken(f"there is an access key {access_key} already")
            connection.execute(
                insert(access_keys).values(
                    access_key=access_key,
                    user_id=row.id,
                    secret=self._keyring.seal(access_key, secret),
                    created_ns=self._clock(),
                    expires_ns=expires_ns,
                )
            )
            owner = self._user(connection, row)
        return Credential(access_key=access_key, secret=secret, user=owner, expires_ns=expires_ns)

    def keys(self, user: str = "") -> list[KeyInfo]:
        query = select(
            access_keys.c.access_key, users.c.name, access_keys.c.created_ns, access_keys.c.expires_ns
        ).join(users, users.c.id == access_keys.c.user_id)
        with self._read() as connection:
            if user:
                query = query.where(users.c.id == self._row(connection, user).id)
            query = query.order_by(access_keys.c.created_ns, access_keys.c.access_key)
            return [
                KeyInfo(access_key=row[0], user=row[1], created_ns=row[2], expires_ns=row[3])
                for row in connection.execute(query)
            ]

    def expire_key(self, access_key: str, expires_ns: int) -> None:
        with self._begin() as connection:
            changed = connection.execute(
                update(access_keys)
                .where(access_keys.c.access_key == access_key)
                .values(expires_ns=expires_ns)
            )
            if not changed.rowcount:
                raise NoSuch(f"there is no access key {access_key}")

    def remove_key(self, access_key: str) -> None:
        with self._begin() as connection:
            gone = connection.execute(delete(access_keys).where(access_keys.c.access_key == access_key))
            if not gone.rowcount:
                raise NoSuch(f"there is no access key {access_key}")

    def rotate(self) -> int:
        with self._begin() as connection:  # which others wait for: two must not change the file at once
            self._check_keyring(connection)
            self._keyring.add_newest()
            count = self._reseal(connection)
        with self._begin():
            self._keyring.drop_older()
        return count

    def reseal(self) -> int:
        """The second of three steps of `rotate`: seal by the newest key what others have sealed."""
        with self._begin() as connection:
            return self._reseal(connection)

    def _reseal(self, connection: Connection) -> int:
        found = connection.execute(select(access_keys.c.access_key, access_keys.c.secret)).all()
        old = [row for row in found if not self._keyring.is_newest(row.secret)]
        for row in old:
            sealed = self._keyring.seal(row.access_key, self._keyring.open(row.access_key, row.secret))
            connection.execute(
                update(access_keys).where(access_keys.c.access_key == row.access_key).values(secret=sealed)
            )
        return len(old)

    # groups
    def _need_group(self, connection: Connection, name: str) -> None:
        if connection.execute(select(groups.c.name).where(groups.c.name == name)).first() is None:
            raise NoSuch(f"there is no group {name}")

    def add_group(self, name: str, weight: int = 1) -> None:
        with self._begin() as connection:
            if connection.execute(select(groups.c.name).where(groups.c.name == name)).first():
                raise NameTaken(f"there is a group {name} already")
            values = {"name": name, "created_ns": self._clock(), "weight": weight, "id": new_group_id(name)}
            connection.execute(insert(groups).values(**values))

    def set_group(self, name: str, weight: int) -> None:
        with self._begin() as connection:
            self._need_group(connection, name)
            connection.execute(update(groups).where(groups.c.name == name).values(weight=weight))

    def remove_group(self, name: str) -> None:
        with self._begin() as connection:
            self._need_group(connection, name)
            connection.execute(delete(members).where(members.c.group_name == name))
            connection.execute(delete(quotas).where(quotas.c.scope == "group", quotas.c.name == name))
            connection.execute(delete(groups).where(groups.c.name == name))

    def groups(self) -> list[Group]:
        with self._read() as connection:
            found = list(connection.execute(select(groups).order_by(groups.c.name)))
            who: dict[str, list[str]] = {row.name: [] for row in found}
            query = select(members.c.group_name, users.c.name).join(users, users.c.id == members.c.user_id)
            for group, name in connection.execute(query.order_by(users.c.name)):
                who[group].append(name)
        return [Group(name=row.name, members=who[row.name], weight=row.weight) for row in found]

    def join(self, group: str, user: str) -> None:
        with self._begin() as connection:
            self._need_group(connection, group)
            row = self._row(connection, user)
            query = select(members).where(members.c.group_name == group, members.c.user_id == row.id)
            if connection.execute(query).first() is None:
                connection.execute(insert(members).values(group_name=group, user_id=row.id))

    def leave(self, group: str, user: str) -> None:
        with self._begin() as connection:
            self._need_group(connection, group)
            row = self._row(connection, user)
            gone = connection.execute(
                delete(members).where(members.c.group_name == group, members.c.user_id == row.id)
            )
            if not gone.rowcount:
                raise NoSuch(f"user {row.name} is not in group {group}")

    # quotas
    def _owner_key(self, connection: Connection, quota: Quota) -> str:
        if quota.scope == "user":
            return str(self._row(connection, quota.name).id)
        self._need_group(connection, quota.name)
        return quota.name
