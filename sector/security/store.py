"""The security database: users, rights, allow-lists, changes, audit log (SQLAlchemy, SQLite by default).

`Database` has the transactions, one a method, and is used from one thread; `SecurityStore` runs them on a
thread of its own and answers with Deferreds. Frozen records go in and out, never rows.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Engine, create_engine, delete, event, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from sector.errors import BadConfig, Exists, LocalIO, LoginRefused, NotFound
from sector.model import Right
from sector.revisions import UnknownRevision, create_private, make_tables, revision_of, upgrade
from sector.security.core import (
    GENESIS,
    AuditRecord,
    NodeRecord,
    UserRecord,
    audit_hash,
    check_admin_comes,
    check_last_admin,
    same_password,
    verify_chain,
    with_right,
    with_rules,
    without_right,
)
from sector.security.models import AuditRow, Base, ChangeRow, NodeRow, RightRow, UserRow

P = ParamSpec("P")
T = TypeVar("T")
BUSY_MS = 10_000
PAGE = 100
HEAD = "0001"  # the newest revision in migrations/versions


def _engine(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where SQLAlchemy says, see below
        for setting in (
            f"busy_timeout = {BUSY_MS}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {setting}")

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _size(rights: Iterable[Right]) -> int:
    return sum(len(right.path.encode()) for right in rights)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


class Database:
    """All transactions; one thread at a time. Every change appends its audit line in the same transaction:
    `who` did it, `at` seconds since 1970."""

    def __init__(self, path: str | os.PathLike[str], wall: Callable[[], float] = time.time) -> None:
        self.path = Path(path)
        self._wall = wall
        self._engine = _engine(self.path)

    # life -------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Make or upgrade the tables; an older file is copied first. Raises `BadConfig`, `LocalIO`."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            create_private(self.path)
            with self._engine.connect() as connection:
                current = revision_of(connection)
            if current == HEAD:
                return
            if current is not None:
                self._back_up(current)
            with self._engine.begin() as connection:
                if revision_of(connection) is None:
                    make_tables(connection, Base.metadata, HEAD)
                else:
                    upgrade(connection, Path(__file__).with_name("migrations"))
        except UnknownRevision as bad:
            raise BadConfig(f"{self.path}: was written by another version: {bad}") from None
        except DBAPIError as bad:
            raise LocalIO(f"{self.path}: {bad.orig}") from None
        except OSError as bad:
            raise LocalIO(f"{self.path}: {bad.strerror}") from None

    def _back_up(self, revision: str) -> None:
        target = self.path.with_name(f"{self.path.name}.{revision}.bak")
        create_private(target)
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
        target.chmod(0o600)

    def close(self) -> None:
        """Give the file back."""
        self._engine.dispose()

    def _session(self) -> Session:
        return Session(self._engine, expire_on_commit=False)

    # users ------------------------------------------------------------------------------------------
    def user(self, name: str) -> UserRecord | None:
        """The user, if there is one."""
        with self._session() as session:
            return self._load(session, name)

    def _load(self, session: Session, name: str) -> UserRecord | None:
        row = session.get(UserRow, name)
        if row is None:
            return None
        found = session.scalars(select(RightRow).where(RightRow.user == name).order_by(RightRow.path))
        rights = tuple(Right(name, right.path, right.what) for right in found)
        return UserRecord(
            row.name,
            row.password_hash,
            _words(row.roles),
            rights,
            _words(row.addresses),
            row.rights_epoch,
            row.created,
        )

    def _need(self, session: Session, name: str) -> UserRecord:
        user = self._load(session, name)
        if user is None:
            raise NotFound(f"there is no user {name}", hint="sector user list")
        return user

    def users(self, after: str, limit: int) -> list[UserRecord]:
        """Users in order of name, behind `after`."""
        with self._session() as session:
            query = select(UserRow.name).where(UserRow.name > after).order_by(UserRow.name).limit(limit)
            loaded = [self._load(session, name) for name in session.scalars(query)]
            return [user for user in loaded if user is not None]

    def user_add(self, user: UserRecord, who: str, at: float) -> UserRecord:
        """Add a user; its rights_epoch is drawn here. Raises `Exists`."""
        with self._session() as session, session.begin():
            if session.get(UserRow, user.name) is not None:
                raise Exists(f"user {user.name} exists already", hint="choose another name")
            epoch = self._changed(session, f"user:{user.name}", None)
            session.add(
                UserRow(
                    name=user.name,
                    password_hash=user.password_hash,
                    roles=" ".join(user.roles),
                    addresses=" ".join(user.addresses),
                    rights_epoch=epoch,
                    created=user.created,
                )
            )
            session.flush()
            for right in user.rights:
                session.add(RightRow(user=user.name, path=right.path, what=right.what))
            self._log(session, who, at, "user add", f"{user.name} roles {','.join(user.roles)}")
            session.flush()
            return self._need(session, user.name)

    def user_remove(self, name: str, who: str, at: float) -> None:
        """Remove a user. Raises `NotFound`, `Conflict` for the only administrator."""
        with self._session() as session, session.begin():
            user = self._need(session, name)
            query = select(func.count()).select_from(UserRow).where(UserRow.roles.contains("admin"))
            check_last_admin(user, session.scalar(query) or 0)
            session.execute(delete(RightRow).where(RightRow.user == name))
            session.execute(delete(UserRow).where(UserRow.name == name))
            self._changed(session, f"user:{name}", 0)
            self._log(session, who, at, "user remove", name)

    def user_password(
        self, name: str, password_hash: str, who: str, at: float, checked: UserRecord | None = None
    ) -> None:
        """Set another password; the user's sessions end. Raises `NotFound`; `LoginRefused` when the password
        of the record `checked` is no longer his."""
        with self._session() as session, session.begin():
            now = self._need(session, name)
            if checked is not None and not same_password(checked, now):
                raise LoginRefused("the old password is wrong")
            row = session.get_one(UserRow, name)
            row.password_hash = password_hash
            row.rights_epoch = self._changed(session, f"user:{name}", None)
            self._log(session, who, at, "user passwd", name)

    def user_roles(self, name: str, roles: tuple[str, ...], who: str, at: float) -> None:
        """Set the roles; the user's sessions end, and those he has for others. Raises `NotFound`, `Conflict`
        for the only administrator."""
        with self._session() as session, session.begin():
            user = self._need(session, name)
            if "admin" not in roles:
                query = select(func.count()).select_from(UserRow).where(UserRow.roles.contains("admin"))
                check_last_admin(user, session.scalar(query) or 0)
            row = session.get_one(UserRow, name)
            row.roles = " ".join(roles)
            row.rights_epoch = self._changed(session, f"user:{name}", None)
            self._log(session, who, at, "user roles", f"{name} {','.join(roles)}")

    def user_addresses(
        self, name: str, add: Iterable[str], remove: Iterable[str], who: str, at: float
    ) -> None:
        """Change the address rules; the user's sessions end, and those he has for others, unless all stays
        as it was. Raises `NotFound`, `UsageError`, `Conflict` for rules that shut out the only
        administrator."""
        with self._session() as session, session.begin():
            before = self._need(session, name)
            after = with_rules(before, add, remove)
            if after.addresses == before.addresses:
                return
            if "admin" in after.roles:
                query = select(func.count()).select_from(UserRow).where(UserRow.roles.contains("admin"))
                check_admin_comes(after, session.scalar(query) or 0)
            row = session.get_one(UserRow, name)
            row.addresses = " ".join(after.addresses)
            row.rights_epoch = self._changed(session, f"user:{name}", None)
            self._log(session, who, at, "user addresses", f"{name} {row.addresses or 'any'}")

    def user_rehash(self, name: str, old_hash: str, new_hash: str) -> None:
        """Store the same password under other costs, unless it was changed in between."""
        with self._session() as session, session.begin():
            row = session.get(UserRow, name)
            if row is not None and row.password_hash == old_hash:
                row.password_hash = new_hash

    def grant(self, right: Right, who: str, at: float) -> None:
        """Set a directory right. Raises `NotFound`, `UsageError`."""
        with self._session() as session, session.begin():
            user, takes = with_right(self._need(session, right.user), right)
            for new in user.rights:
                if new.path == right.path.rstrip("/") or (new.path == "/" and not right.path.rstrip("/")):
                    session.merge(RightRow(user=user.name, path=new.path, what=new.what))
            self._rights_changed(session, user.name, user.rights_epoch, takes)
            self._log(session, who, at, "grant", f"{right.user} {right.what or '-'} {right.path}")

    def revoke(self, name: str, path: str, who: str, at: float) -> None:
        """Take a directory right; the user's sessions end. Raises `NotFound`."""
        with self._session() as session, session.begin():
            before = self._need(session, name)
            after = without_right(before, path)
            gone = {right.path for right in before.rights} - {right.path for right in after.rights}
            session.execute(delete(RightRow).where(RightRow.user == name, RightRow.path.in_(gone)))
            self._rights_changed(session, name, before.rights_epoch, True)
            self._log(session, who, at, "revoke", f"{name} {path}")

    def _rights_changed(self, session: Session, name: str, epoch: int, takes: bool) -> None:
        if takes:
            session.get_one(UserRow, name).rights_epoch = self._changed(session, f"user:{name}", None)
        else:
            self._changed(session, f"user:{name}", epoch)

    # nodes ------------------------------------------------------------------------------------------
    def node(self, role: str, name: str) -> NodeRecord | None:
        """The line of the allow-list, if there is one."""
        with self._session() as session:
            row = session.get(NodeRow, (role, name))
            return NodeRecord(row.role, row.name, _words(row.addresses)) if row is not None else None

    def nodes(self, role: str, after: str = "", limit: int | None = None) -> list[NodeRecord]:
        """One allow-list in order of name, behind a name; all of it, or so many."""
        with self._session() as session:
            behind = select(NodeRow).where(NodeRow.role == role, NodeRow.name > after)
            query = behind.order_by(NodeRow.name).limit(limit)
            return [NodeRecord(row.role, row.name, _words(row.addresses)) for row in session.scalars(query)]

    def node_set(self, node: NodeRecord, who: str, at: float) -> None:
        """Put a node on its list, or change its addresses."""
        with self._session() as session, session.begin():
            session.merge(NodeRow(role=node.role, name=node.name, addresses=" ".join(node.addresses)))
            self._changed(session, f"{node.role}:{node.name}", None)
            self._log(
                session, who, at, "acl add", f"{node.role} {node.name} {' '.join(node.addresses)}".rstrip()
            )

    def node_remove(self, role: str, name: str, who: str, at: float) -> None:
        """Take a node from its list. Raises `NotFound`."""
        with self._session() as session, session.begin():
            row = session.get(NodeRow, (role, name))
            if row is None:
                raise NotFound(f"{role} {name} is not on the allow-list", hint=f"sector acl {role} list")
            session.delete(row)
            self._changed(session, f"{role}:{name}", 0)
            self._log(session, who, at, "acl remove", f"{role} {name}")

    # changes ----------------------------------------------------------------------------------------
    def _changed(self, session: Session, subject: str, epoch: int | None) -> int:
        """Note a change of `subject`; `epoch` None = the new serial itself. Returns the epoch."""
        # the clock is above the serials that an older database, put back, knows nothing of
        serial = max((session.scalar(select(func.max(ChangeRow.serial))) or 0) + 1, int(self._wall()))
        value = serial if epoch is None else epoch
        session.merge(ChangeRow(subject=subject, serial=serial, epoch=value))
        session.flush()
        return value

    def changes(self, serial: int) -> tuple[int, dict[str, int], list[Right]]:
        """What changed behind `serial`, at most 100 subjects: (new serial, subject -> epoch, rights of those
        users). Ask again until the serial stays. A serial that was never given (the database is an older
        one, put back) is answered from the beginning."""
        with self._session() as session:
            if serial > (session.scalar(select(func.max(ChangeRow.serial))) or 0):
                serial = 0
            query = select(ChangeRow).where(ChangeRow.serial > serial).order_by(ChangeRow.serial).limit(PAGE)
            found: dict[str, int] = {}
            rights: list[Right] = []
            for row in session.scalars(query):
                user = self._load(session, row.subject[5:]) if row.subject.startswith("user:") else None
                mine = user.rights if user is not None else ()
                if found and _size((*rights, *mine)) > 16384:
                    break
                found[row.subject] = row.epoch
                rights.extend(mine)
                serial = row.serial
            return serial, found, rights

    # audit ------------------------------------------------------------------------------------------
    def _log(self, session: Session, who: str, at: float, what: str, detail: str) -> None:
        session.flush()
        last = session.scalars(select(AuditRow).order_by(AuditRow.seq.desc()).limit(1)).first()
        seq, before = (last.seq + 1, last.hash) if last is not None else (1, GENESIS)
        chained = audit_hash(before, seq, at, who, what, detail)
        session.add(AuditRow(seq=seq, at=at, who=who, what=what, detail=detail, hash=chained))
        session.flush()

    def audit_append(self, entries: Iterable[tuple[float, str, str, str]]) -> None:
        """Append lines (at, who, what, detail)."""
        with self._session() as session, session.begin():
            for at, who, what, detail in entries:
                self._log(session, who, at, what, detail)

    def audit(self, after: int = 0, limit: int = 1000) -> list[AuditRecord]:
        """Lines behind number `after`."""
        with self._session() as session:
            query = select(AuditRow).where(AuditRow.seq > after).order_by(AuditRow.seq).limit(limit)
            rows = session.scalars(query)
            return [AuditRecord(r.seq, r.at, r.who, r.what, r.detail, r.hash) for r in rows]

    def audit_check(self) -> int | None:
        """The first line that does not fit the chain, None when all do."""
        before, seq = GENESIS, 0
        while True:
            records = self.audit(seq)
            bad = verify_chain(records, before, seq)
            if bad is not None or not records:
                return bad
            before, seq = records[-1].hash, records[-1].seq


class SecurityStore:
    """`Database` on one thread of its own. `threads` None runs at once in the caller (tests)."""

    def __init__(self, database: Database, reactor: Any, threads: ThreadPool | None) -> None:
        self.database = database
        self._reactor = reactor
        self._threads = threads

    @classmethod
    def in_thread(cls, path: str | os.PathLike[str], reactor: Any) -> SecurityStore:
        """A store with its thread, which starts with `open`."""
        return cls(Database(path), reactor, ThreadPool(1, 1, name="security-db"))

    def run(self, method_thd: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """Run a method of `database` and hear its result. Errbacks with its SectorError; `LocalIO` when the
        database cannot be read or written (full disk)."""

        def run_thd() -> T:
            try:
                return method_thd(*args, **kwargs)
            except DBAPIError as bad:
                raise LocalIO(f"{self.database.path}: {bad.orig}") from None

        if self._threads is None:
            return maybeDeferred(run_thd)
        result: Deferred[T] = deferToThreadPool(self._reactor, self._threads, run_thd)
        return result

    def open(self) -> Deferred[None]:
        """Start the thread; make or upgrade the tables."""
        if self._threads is not None:
            self._threads.start()
        return self.run(self.database.open)

    async def close(self) -> None:
        """Finish what is queued, close the file, end the thread."""
        if self._threads is None:
            self.database.close()
            return
        if self._threads.started:
            await self.run(self.database.close)
            self._threads.stop()
