"""One SQL transaction as the rules of `namespace.py` and `reconcile.py` see it; frozen values come out."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import translate
from typing import Any

from sqlalchemy import (
    LargeBinary,
    Row,
    Table,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.sql.elements import BindParameter, ColumnElement

from sector.master.namespace import DIR, FILE, OPEN, Entry, Lease, Replica, Totals
from sector.master.store_work import (
    HELD,
    IN_CHUNK,
    E,
    L,
    R,
    T,
    WorkTx,
    X,
    at_or_below,
    below,
    beyond,
    entry_of,
    lease_of,
    replacing,
    replica_of,
    unindexed,
)
from sector.master.values import FileState, Sums
from sector.model import SliceMeta, Tombstone, Version, parent


def _rising() -> Insert:
    """INSERT of a tombstone that never replaces a newer one."""
    row = upsert(T)
    older = tuple_(T.c.epoch, T.c.counter) < tuple_(row.excluded.epoch, row.excluded.counter)
    changes = {column.name: row.excluded[column.name] for column in T.columns if column is not T.c.path}
    return row.on_conflict_do_update(index_elements=[T.c.path], set_=changes, where=older)


# statements of every open, publish and read, built once
_PATH: BindParameter[str] = bindparam("path")
_ID_OF_PATH = select(E.c.id).where(E.c.path == bindparam("of_path")).scalar_subquery()
GET_ENTRY = select(E).where(E.c.path == _PATH)
GET_TOMBSTONE = select(T.c.epoch, T.c.counter).where(T.c.path == _PATH)
GET_REPLICAS = select(R).join(E, E.c.id == R.c.entry_id).where(E.c.path == _PATH).order_by(R.c.node)
GET_LEASE = select(L).where(L.c.id == bindparam("lease_id"))
GET_OPEN_LEASE = select(L).where(L.c.path == _PATH, L.c.state == OPEN)
PUT_ENTRY = replacing(E, ["path"], keep=["id"])
PUT_REPLICA = replacing(R, ["entry_id", "node"]).values(entry_id=_ID_OF_PATH)
PUT_LEASE = replacing(L, ["id"])
PUT_TOMBSTONE = _rising()
CLEAR_TOMBSTONE = delete(T).where(
    T.c.path == _PATH, tuple_(T.c.epoch, T.c.counter) < tuple_(bindparam("epoch"), bindparam("counter"))
)


def _ruled(path: str) -> ColumnElement[bool]:
    """Entries that a rule for that directory or pattern is about, as `CopyRules` has it. Only a pattern is
    asked of Python, once for each entry."""
    below: ColumnElement[bool] = at_or_below(E.c.path, path)
    if not set(path) & set("*?["):
        return below
    return or_(below, E.c.path.regexp_match(r"\A" + translate(path)))


class SqlTx(WorkTx):
    """Implements `ReportTx`. Lives as long as one rule runs; `flush` writes the counters back."""

    # reading ----------------------------------------------------------------------------------------
    def entry(self, path: str) -> Entry | None:
        row = self.connection.execute(GET_ENTRY, {"path": path}).first()
        return entry_of(row) if row else None

    def tombstone(self, path: str) -> Version | None:
        row = self.connection.execute(GET_TOMBSTONE, {"path": path}).first()
        return Version(row.epoch, row.counter) if row else None

    def news(self, stones: Sequence[Tombstone]) -> list[Tombstone]:
        found: list[Tombstone] = []
        for start in range(0, len(stones), IN_CHUNK):
            chunk = stones[start : start + IN_CHUNK]
            query = select(T.c.path, T.c.epoch, T.c.counter).where(T.c.path.in_([s.path for s in chunk]))
            known = {row.path: Version(row.epoch, row.counter) for row in self.connection.execute(query)}
            found.extend(s for s in chunk if s.path not in known or known[s.path] < s.version)
        return found

    def existing(self, paths: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(paths), IN_CHUNK):
            query = select(E.c.path).where(E.c.path.in_(paths[start : start + IN_CHUNK]))
            found.update(self.connection.execute(query).scalars())
        return found

    def replicas(self, path: str) -> list[Replica]:
        return [replica_of(row) for row in self.connection.execute(GET_REPLICAS, {"path": path})]

    def replicas_of(self, paths: Sequence[str]) -> dict[str, list[Replica]]:
        found: dict[str, list[Replica]] = {}
        for start in range(0, len(paths), IN_CHUNK):
            chunk = paths[start : start + IN_CHUNK]
            query = select(R, E.c.path).join(E, E.c.id == R.c.entry_id).where(E.c.path.in_(chunk))
            for row in self.connection.execute(query.order_by(R.c.node)):
                found.setdefault(row.path, []).append(replica_of(row))
        return found

    def moving(self, node: str, path: str, version: Version) -> bool:
        found = [
            exists().where(R.c.node == node, name == path, epoch == version.epoch, counter == version.counter)
            for name, epoch, counter in (
                (R.c.old_path, R.c.old_epoch, R.c.old_counter),
                (R.c.sent_path, R.c.sent_epoch, R.c.sent_counter),
            )
        ]
        return bool(self.connection.execute(select(or_(*found))).scalar())

    def lease(self, lease_id: bytes) -> Lease | None:
        row = self.connection.execute(GET_LEASE, {"lease_id": lease_id}).first()
        return lease_of(row) if row else None

    def lease_on(self, path: str) -> Lease | None:
        row = self.connection.execute(GET_OPEN_LEASE, {"path": path}).first()
        return lease_of(row) if row else None

    def leased_below(self, path: str, now: float) -> str | None:
        query = select(L.c.path).where(L.c.state == OPEN, at_or_below(L.c.path, path))
        query = query.where(unindexed(L.c.expires) > now)
        found: str | None = self.connection.execute(query.limit(1)).scalar()
        return found

    def has_children(self, path: str) -> bool:
        return bool(self.connection.execute(select(exists().where(E.c.parent == path))).scalar())

    def has_files(self, path: str, but: str) -> bool:
        inside = select(E.c.id).where(E.c.kind == FILE, below(E.c.path, path), not_(below(E.c.path, but)))
        return bool(self.connection.execute(select(exists(inside))).scalar())

    def totals(self, path: str) -> Totals:
        files = func.count().filter(E.c.kind == FILE)
        longest = func.max(func.length(cast(E.c.path, LargeBinary)))
        row = self.connection.execute(
            select(files, func.coalesce(func.sum(E.c.size), 0), func.coalesce(longest, 0)).where(
                at_or_below(E.c.path, path)
            )
        ).one()
        return Totals(int(row[0]), int(row[1]), int(row[2]))

    def listing(self, path: str, recursive: bool, after: str, limit: int) -> list[Entry]:
        where = beyond(E.c.path, path, after) if recursive else and_(E.c.parent == path, E.c.path > after)
        query = select(E).where(where).order_by(E.c.path).limit(limit)
        return [entry_of(row) for row in self.connection.execute(query)]

    def states(self, paths: Sequence[str]) -> list[FileState]:
        """Files among `paths` with their replicas; at most a few hundred."""
        rows = self.connection.execute(select(E).where(E.c.path.in_(paths), E.c.kind == FILE)).all()
        replicas: dict[int, list[Replica]] = {row.id: [] for row in rows}
        for one in self.connection.execute(select(R).where(R.c.entry_id.in_(replicas)).order_by(R.c.node)):
            replicas[one.entry_id].append(replica_of(one))
        doomed: dict[str, list[str]] = {}
        for path, node in self.connection.execute(select(X.c.path, X.c.node).where(X.c.path.in_(paths))):
            doomed.setdefault(path, []).append(node)
        known = {row.path: row for row in rows}
        return [
            FileState(entry_of(known[path]), tuple(replicas[known[path].id]), tuple(doomed.get(path, ())))
            for path in paths
            if path in known
        ]

    def page(self, path: str, after: str, limit: int) -> list[FileState]:
        """Files at or below a path, in order, after a path, with their replicas. The path itself is asked for
        by itself: together with what is below, each page would sort all of it."""
        rows: list[Row[Any]] = []
        if after < path:
            rows.extend(self.connection.execute(select(E).where(E.c.kind == FILE, E.c.path == path)))
        query = select(E).where(E.c.kind == FILE, beyond(E.c.path, path, after)).order_by(E.c.path)
        rows.extend(self.connection.execute(query.limit(limit - len(rows))))
        replicas: dict[int, list[Replica]] = {row.id: [] for row in rows}
        ids = list(replicas)
        for start in range(0, len(ids), IN_CHUNK):
            chunk = ids[start : start + IN_CHUNK]
            for row in self.connection.execute(select(R).where(R.c.entry_id.in_(chunk))):
                replicas[row.entry_id].append(replica_of(row))
        return [FileState(entry_of(row), tuple(replicas[row.id])) for row in rows]

    def lacking(self, live: Sequence[str], copies: int, rules: Sequence[tuple[str, int]] = ()) -> int:
        """Number of files with fewer good replicas on the `live` nodes than min(copies or what the user
        asked for, number of live nodes). `rules`: other copies for a directory or pattern, as in `CopyRules`;
        the last that fits counts."""
        good = func.count(R.c.node)
        cases = [(_ruled(path), literal(number)) for path, number in reversed(rules)]
        asked = case(*cases, else_=literal(copies)) if cases else literal(copies)
        wanted = func.min(func.max(E.c.copies, asked), len(live))
        of_entry = and_(
            R.c.entry_id == E.c.id,
            R.c.epoch == E.c.epoch,
            R.c.counter == E.c.counter,
            R.c.bad.is_(False),
            R.c.node.in_(list(live)),
        )
        per_file = (
            select(E.c.id)
            .select_from(E.outerjoin(R, of_entry))
            .where(E.c.kind == FILE)
            .group_by(E.c.id)
            .having(good < wanted)
            .subquery()
        )
        return int(self.connection.execute(select(func.count()).select_from(per_file)).scalar() or 0)

    def sums(self) -> Sums:
        """Sizes of the tables."""

        def count(table: Table, *where: ColumnElement[bool]) -> int:
            query = select(func.count()).select_from(table)
            return int(self.connection.execute(query.where(*where) if where else query).scalar() or 0)

        total = self.connection.execute(select(func.coalesce(func.sum(E.c.size), 0))).scalar()
        return Sums(
            count(E, E.c.kind == FILE),
            int(total or 0),
            count(E, E.c.kind == DIR),
            count(T),
            count(L, L.c.state == OPEN),
            count(X),
        )

    # entries ----------------------------------------------------------------------------------------
    def put_entry(self, entry: Entry) -> None:
        values = {
            "path": entry.path,
            "parent": parent(entry.path),
            "kind": entry.kind,
            "size": entry.size,
            "epoch": entry.version.epoch,
            "counter": entry.version.counter,
            "owner": entry.owner,
            "mode": entry.mode,
            "mtime": entry.mtime,
            "digest": entry.digest,
            "copies": entry.copies,
            "serial": self.serial() if entry.is_dir else 0,
        }
        self.connection.execute(PUT_ENTRY, values)
        version = {"epoch": entry.version.epoch, "counter": entry.version.counter}
        self.connection.execute(CLEAR_TOMBSTONE, {"path": entry.path, **version})

    def forget_entry(self, path: str) -> None:
        ids = select(E.c.id).where(E.c.path == path)
        self.connection.execute(delete(R).where(R.c.entry_id.in_(ids)))
        self.connection.execute(delete(E).where(E.c.path == path))

    def set_copies(self, path: str, copies: int) -> None:
        self.connection.execute(
            update(E).where(E.c.kind == FILE, at_or_below(E.c.path, path)).values(copies=copies)
        )

    def put_tombstone(self, path: str, version: Version, at: float, directory: bool) -> None:
        self.put_tombstones([Tombstone(path, version, at)], directory)

    def put_tombstones(self, stones: Sequence[Tombstone], directory: bool = False) -> None:
        news = self.news(stones)
        if news:
            serial = self.serial()
            rows = [
                {
                    "path": stone.path,
                    "epoch": stone.version.epoch,
                    "counter": stone.version.counter,
                    "at": stone.at,
                    "directory": directory,
                    "serial": serial,
                }
                for stone in news
            ]
            self.connection.execute(PUT_TOMBSTONE, rows)

    def _bury(self, path: str, version: Version, at: float, *, held: bool = False) -> None:
        """Tombstones for an entry and all below. `held`: those of files are mirrored when `release_stones`
        finds that they may."""
        serial: ColumnElement[int] = literal(self.serial())
        columns = ["path", "epoch", "counter", "at", "directory", "serial"]
        source = select(
            E.c.path,
            literal(version.epoch),
            literal(version.counter),
            literal(at),
            E.c.kind == DIR,
            case((E.c.kind == FILE, literal(HELD)), else_=serial) if held else serial,
        ).where(at_or_below(E.c.path, path))
        row = upsert(T).from_select(columns, source)
        changes = {name: row.excluded[name] for name in columns[1:]}
        self.connection.execute(row.on_conflict_do_update(index_elements=[T.c.path], set_=changes))

    def _throw(self, path: str, version: Version, at: float, where: Sequence[ColumnElement[bool]]) -> None:
        """Queue the content of replicas at or below `path` for deletion, by every name it may have. By a name
        that its slave knows it by still, only what is as old as that: the name may have other content now."""
        columns = ["node", "path", "surplus", "epoch", "counter", "at"]
        known: list[tuple[ColumnElement[str], ColumnElement[int], ColumnElement[int], Sequence[Any]]] = [
            (E.c.path, literal(version.epoch), literal(version.counter), []),
            (R.c.old_path, R.c.old_epoch, R.c.old_counter, [R.c.old_path.is_not(None)]),
            (R.c.sent_path, R.c.sent_epoch, R.c.sent_counter, [R.c.sent_path.is_not(None)]),
        ]
        for name, epoch, counter, more in known:
            source = (
                select(R.c.node, name, literal(False), epoch, counter, literal(at))
                .join(E, E.c.id == R.c.entry_id)
                .where(at_or_below(E.c.path, path), *where, *more)
            )
            row = upsert(X).from_select(columns, source)
            older = tuple_(X.c.epoch, X.c.counter) < tuple_(row.excluded.epoch, row.excluded.counter)
            self.connection.execute(
                row.on_conflict_do_update(
                    index_elements=[X.c.node, X.c.path, X.c.surplus],
                    set_={key: row.excluded[key] for key in ("epoch", "counter", "at")},
                    where=older,
                )
            )

    def remove_tree(self, path: str, version: Version, at: float) -> None:
        self._throw(path, version, at, [])
        self._bury(path, version, at)
        inside = select(E.c.id).where(at_or_below(E.c.path, path))
        self.connection.execute(delete(R).where(R.c.entry_id.in_(inside)))
        self.connection.execute(delete(E).where(at_or_below(E.c.path, path)))
        self.connection.execute(delete(L).where(L.c.state == OPEN, at_or_below(L.c.path, path)))

    def move_tree(self, source: str, target: str, version: Version, at: float) -> None:
        inside = at_or_below(E.c.path, source)
        ids = select(E.c.id).where(inside)
        stale = or_(R.c.epoch != E.c.epoch, R.c.counter != E.c.counter)
        self._throw(source, version, at, [stale])
        old = select(R.c.entry_id, R.c.node).join(E, E.c.id == R.c.entry_id).where(inside, stale)
        self.connection.execute(delete(R).where(tuple_(R.c.entry_id, R.c.node).in_(old)))
        name = select(E.c.path).where(E.c.id == R.c.entry_id).scalar_subquery()
        self.connection.execute(
            update(R)
            .where(R.c.entry_id.in_(ids), R.c.old_path.is_(None))
            .values(old_path=name, old_epoch=R.c.epoch, old_counter=R.c.counter)
        )
        self.connection.execute(
            update(R)
            .where(R.c.entry_id.in_(ids))
            .values(epoch=version.epoch, counter=version.counter, confirmed=at)
        )
        self._bury(source, version, at, held=True)
        self.connection.execute(delete(L).where(L.c.state == OPEN, at_or_below(L.c.path, source)))
        self._rename_rows(source, target, version)
        moved = select(E.c.path).where(at_or_below(E.c.path, target))
        self.connection.execute(delete(T).where(T.c.path.in_(moved)))

    def _rename_rows(self, source: str, target: str, version: Version) -> None:
        # plain SQL: the right-hand sides see the old row, whatever the order of the columns
        self.connection.execute(
            text(
                "UPDATE entry SET path = :target || substr(path, :cut),"
                " parent = CASE WHEN path = :source THEN :above ELSE :target || substr(parent, :cut) END,"
                " epoch = :epoch, counter = :counter,"
                " serial = CASE WHEN kind = 'dir' THEN :serial ELSE 0 END"
                " WHERE path = :source OR (path > :low AND path < :high)"
            ),
            {
                "source": source,
                "target": target,
                "cut": len(source) + 1,
                "above": parent(target),
                "epoch": version.epoch,
                "counter": version.counter,
                "serial": self.serial(),
                "low": source + "/",
                "high": source + "0",
            },
        )

    # replicas ---------------------------------------------------------------------------------------
    def put_replica(self, path: str, replica: Replica) -> None:
        values = {
            "of_path": path,
            "node": replica.node,
            "epoch": replica.version.epoch,
            "counter": replica.version.counter,
            "confirmed": replica.confirmed,
            "bad": replica.bad,
            "seen": self.drawn(),
            "old_path": replica.old_path or None,
            "old_epoch": replica.old_version.epoch,
            "old_counter": replica.old_version.counter,
            "sent_path": replica.sent_path or None,
            "sent_epoch": replica.sent_version.epoch,
            "sent_counter": replica.sent_version.counter,
        }
        self.connection.execute(PUT_REPLICA, values)

    def drop_replica(self, path: str, node: str) -> None:
        entry_id = select(E.c.id).where(E.c.path == path).scalar_subquery()
        self.connection.execute(delete(R).where(R.c.entry_id == entry_id, R.c.node == node))

    def discard(self, path: str, node: str, version: Version, at: float) -> None:
        row = upsert(X).values(
            node=node, path=path, surplus=True, epoch=version.epoch, counter=version.counter, at=at
        )
        newer = tuple_(X.c.epoch, X.c.counter) < tuple_(row.excluded.epoch, row.excluded.counter)
        self.connection.execute(
            row.on_conflict_do_update(
                index_elements=[X.c.node, X.c.path, X.c.surplus],
                set_={key: row.excluded[key] for key in ("epoch", "counter", "at")},
                where=newer,
            )
        )

    # reports ----------------------------------------------------------------------------------------
    def confirm(self, node: str, number: int, metas: Sequence[SliceMeta]) -> list[SliceMeta]:
        rest: list[SliceMeta] = []
        for start in range(0, len(metas), IN_CHUNK):
            chunk = metas[start : start + IN_CHUNK]
            query = (
                select(E.c.id, E.c.path, E.c.epoch, E.c.counter, E.c.size, E.c.digest)
                .join(R, R.c.entry_id == E.c.id)
                .where(
                    unindexed(R.c.node) == node,
                    E.c.path.in_([m.path for m in chunk]),
                    R.c.epoch == E.c.epoch,
                    R.c.counter == E.c.counter,
                    R.c.old_path.is_(None),
                    R.c.bad.is_(False),
                )
            )
            known = {row.path: row for row in self.connection.execute(query)}
            ids = []
            for meta in chunk:
                row = known.get(meta.path)
                same = row is not None and (
                    (row.epoch, row.counter, row.size, row.digest)
                    == (meta.version.epoch, meta.version.counter, meta.size, meta.digest)
                )
                if row is not None and same:
                    ids.append(row.id)
                else:
                    rest.append(meta)
            if ids:
                self.connection.execute(
                    update(R).where(R.c.node == node, R.c.entry_id.in_(ids)).values(seen=number)
                )
        return rest

    def mark(self, node: str, path: str, number: int) -> None:
        entry_id = select(E.c.id).where(E.c.path == path).scalar_subquery()
        # each by its index
        for one in (R.c.entry_id == entry_id, R.c.old_path == path, R.c.sent_path == path):
            self.connection.execute(update(R).where(R.c.node == node, one).values(seen=number))

    def unseen(self, node: str, number: int, since: float, until: float) -> int:
        lately = R.c.confirmed.between(since, until)
        gone = self.connection.execute(
            delete(R).where(R.c.node == node, R.c.seen < number, ~lately, R.c.old_path.is_(None))
        )
        return gone.rowcount

    # leases -----------------------------------------------------------------------------------------
    def put_lease(self, lease: Lease) -> None:
        values = {
            "id": lease.id,
            "path": lease.path,
            "node": lease.node,
            "epoch": lease.version.epoch,
            "counter": lease.version.counter,
            "size": lease.size,
            "user": lease.user,
            "owner": lease.owner,
            "mode": lease.mode,
            "expires": lease.expires,
            "state": lease.state,
        }
        self.connection.execute(PUT_LEASE, values)

    def drop_lease(self, lease_id: bytes) -> None:
        self.connection.execute(delete(L).where(L.c.id == lease_id))

    def expire_leases(self, now: float) -> int:
        """Forget leases whose time is over; returns how many writers lost theirs."""
        lost = self.connection.execute(delete(L).where(L.c.expires <= now, L.c.state == OPEN)).rowcount
        self.connection.execute(delete(L).where(L.c.expires <= now))
        return lost

    def rebase_leases(self, until: float, kept_until: float = 0.0) -> None:
        """Open leases hold until then, whatever was noted, and what is known of ended ones at least so long:
        nobody could renew them while no master ran, and after a clock was set their times mean nothing."""
        run = self.connection.execute
        run(update(L).where(L.c.state == OPEN).values(expires=until))
        run(update(L).where(L.c.state != OPEN, L.c.expires < kept_until).values(expires=kept_until))

    def leases_of(self, user: str) -> list[Lease]:
        """The open leases of a user."""
        query = select(L).where(L.c.user == user, L.c.state == OPEN)
        return [lease_of(row) for row in self.connection.execute(query)]
