"""Quotas in the database, wherever users come from, and what the changes of a database have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, Row, delete, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from cumulus.index.admin_api import Admin, Quota
from cumulus.index.api import Away, NameTaken, NoSuch
from cumulus.index.tables import buckets, quotas, users

_LIMITS: Final = ("hard_bytes", "hard_objects", "soft_bytes", "soft_objects", "grace_s")


def one_line(bad: DBAPIError) -> str:
    """What the database says, on one line."""
    return " ".join(str(bad.orig).split())


def _is_raised(former: Row[Any], quota: Quota) -> bool:
    """Whether a soft limit is higher than it was, or gone: then the grace begins anew with the next write
    above it. What noted the former one as exceeded may not hold for this one."""
    pairs = ((former.soft_bytes, quota.soft_bytes), (former.soft_objects, quota.soft_objects))
    return any(old and (not new or new > old) for old, new in pairs)


class SqlQuotas(Admin):
    """`engine` has the tables already; it is disposed of by `close`."""

    def __init__(self, engine: Engine, where: str = "") -> None:
        self._engine = engine
        self._where = where or engine.url.render_as_string(hide_password=True)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError as bad:
            raise NameTaken(f"that is there already: {one_line(bad)}") from None
        except DBAPIError as bad:
            raise Away(f"{self._where}: {one_line(bad)}") from None

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(reads=True) as connection:
                yield connection
        except DBAPIError as bad:
            raise Away(f"{self._where}: {one_line(bad)}") from None

    def set_quota(self, quota: Quota, fields: Collection[str] | None = None) -> None:
        with self._begin() as connection:
            key = self._quota_key(connection, quota)
            where = (quotas.c.scope == quota.scope, quotas.c.name == key)
            former = connection.execute(select(quotas).where(*where).with_for_update()).first()
            if fields is not None and former is not None:
                kept = {name: getattr(former, name) for name in _LIMITS if name not in fields}
                quota = msgspec.structs.replace(quota, **kept)
            limits = {name: getattr(quota, name) for name in _LIMITS}
            if not any(limits.values()):
                connection.execute(delete(quotas).where(*where))
            elif former is None:
                connection.execute(
                    insert(quotas).values(scope=quota.scope, name=key, over_soft_since_ns=0, **limits)
                )
            else:
                anew = {"over_soft_since_ns": 0} if _is_raised(former, quota) else {}
                connection.execute(update(quotas).where(*where).values(**limits, **anew))

    def _quota_key(self, connection: Connection, quota: Quota) -> str:
        """How the row of a quota is called. Raises `NoSuch`."""
        if quota.scope == "bucket":
            query = select(buckets.c.name).where(buckets.c.name == quota.name)
            if connection.execute(query).first() is None:
                raise NoSuch(f"there is no bucket {quota.name}")
            return quota.name
        return self._owner_key(connection, quota)

    @abstractmethod
    def _owner_key(self, connection: Connection, quota: Quota) -> str:
        """The same for a user or a group."""

    def _user_name(self, row: Row[Any]) -> str:
        """Of the user whose quota the row is; his id where he is gone."""
        return str(row.user_name or row.name)

    def quotas(self) -> list[Quota]:
        query = select(quotas, users.c.name.label("user_name")).outerjoin(
            users, (quotas.c.scope == "user") & (users.c.id == quotas.c.name)
        )
        with self._read() as connection:
            found = connection.execute(query.order_by(quotas.c.scope, quotas.c.name)).all()
        return [
            Quota(
                scope=row.scope,
                name=self._user_name(row) if row.scope == "user" else row.name,
                hard_bytes=row.hard_bytes,
                hard_objects=row.hard_objects,
                soft_bytes=row.soft_bytes,
                soft_objects=row.soft_objects,
                grace_s=row.grace_s,
            )
            for row in found
        ]
