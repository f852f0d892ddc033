"""The SQL side of what is not a rule of the namespace: counters, work that slaves have to catch up with, the
mirror, and the end of a rebuild. `SqlTx` in `store_tx.py` builds on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from msgspec import structs
from sqlalchemy import (
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union,
    update,
)
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.sql.elements import ColumnElement

from sector.master.models import EntryRow, LeaseRow, ReplicaRow, RightRow, Setting, TombstoneRow, TrashRow
from sector.master.namespace import DIR, ZERO, Entry, Lease, Replica, meta_of
from sector.master.values import MirrorPage, PendingRename, Trash
from sector.model import Right, SliceMeta, Tombstone, Version

E = cast(Table, EntryRow.__table__)
R = cast(Table, ReplicaRow.__table__)
T = cast(Table, TombstoneRow.__table__)
X = cast(Table, TrashRow.__table__)
L = cast(Table, LeaseRow.__table__)
S = cast(Table, Setting.__table__)
G = cast(Table, RightRow.__table__)


def entry_of(row: Row[Any]) -> Entry:
    return Entry(
        row.path,
        row.kind,
        row.size,
        Version(row.epoch, row.counter),
        row.owner,
        row.mode,
        row.mtime,
        row.digest,
        row.copies,
    )


def replica_of(row: Row[Any]) -> Replica:
    old = Version(row.old_epoch, row.old_counter)
    sent = Version(row.sent_epoch, row.sent_counter)
    return Replica(
        row.node,
        Version(row.epoch, row.counter),
        row.confirmed,
        row.bad,
        row.old_path or "",
        old,
        row.sent_path or "",
        sent,
    )


def _moved(row: Row[Any]) -> SliceMeta:
    """What content becomes that a slave is to rename: what the slave was told before, if it was. It may have
    been moved once more since, or replaced: then it is older than the entry, whose size and digest are not
    those of it, and nobody keeps its own."""
    meta, version = meta_of(entry_of(row)), Version(row.to_epoch, row.to_counter)
    path = meta.path
    if row.sent_path is not None:
        path, version = row.sent_path, Version(row.sent_epoch, row.sent_counter)
    if version == meta.version:
        return meta
    return structs.replace(meta, path=path, version=version, size=0, digest="")


def lease_of(row: Row[Any]) -> Lease:
    version = Version(row.epoch, row.counter)
    return Lease(
        row.id,
        row.path,
        row.node,
        version,
        row.size,
        row.user,
        row.owner,
        row.mode,
        row.expires,
        row.state,
    )


def below(column: ColumnElement[str], path: str) -> ColumnElement[bool]:
    """Strictly below a directory: "/" sorts just before "0"."""
    if path == "/":
        return column > "/"
    return and_(column > path + "/", column < path + "0")


def beyond(column: ColumnElement[str], path: str, after: str) -> ColumnElement[bool]:
    """Strictly below a directory and after a path. There is one lower limit: SQLite begins at the
    first of two, and each page of a listing would walk over all that was before it."""
    later = column > max(after, "/" if path == "/" else path + "/")
    return later if path == "/" else and_(later, column < path + "0")


def at_or_below(column: ColumnElement[str], path: str) -> ColumnElement[bool]:
    return or_(column == path, below(column, path))


def unindexed(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A column that SQLite looks nothing up by. Without figures of the tables it takes the index of one,
    though a million rows have the same value there."""
    return literal_column(f"+{column}")


def replacing(table: Table, key: list[str], keep: Sequence[str] = ()) -> Insert:
    """INSERT of all columns that replaces the row with the same key, but for the columns `keep`. Built once:
    making a statement costs more than running it."""
    row = upsert(table)
    names = [c.name for c in table.columns if c.name not in (*key, *keep)]
    return row.on_conflict_do_update(index_elements=key, set_={n: row.excluded[n] for n in names})


IN_CHUNK = 400
HELD = 0
"""Mirror serial of a tombstone that no slave is told of yet."""


def _free() -> ColumnElement[bool]:
    """Held tombstones whose path is not the one name of present content."""
    other = R.alias()
    renamed = exists().where(
        other.c.entry_id == E.c.id,
        other.c.epoch == E.c.epoch,
        other.c.counter == E.c.counter,
        other.c.old_path.is_(None),
        other.c.bad.is_(False),
    )
    same = and_(R.c.entry_id == E.c.id, R.c.epoch == E.c.epoch, R.c.counter == E.c.counter)
    alone = [
        T.c.path.not_in(select(name).join(E, same).where(name.is_not(None), ~renamed))
        for name in (R.c.old_path, R.c.sent_path)
    ]
    return and_(T.c.serial == HELD, *alone)


_FREE = _free()
_WAS = (
    R.c.node == bindparam("of_node"),
    R.c.old_path == bindparam("was_path"),
    R.c.old_epoch == bindparam("was_epoch"),
    R.c.old_counter == bindparam("was_counter"),
)
_UNSENT: dict[str, Any] = {"sent_path": None, "sent_epoch": ZERO.epoch, "sent_counter": ZERO.counter}
_RENAMED = (
    update(R)
    .where(*_WAS, R.c.epoch == bindparam("is_epoch"), R.c.counter == bindparam("is_counter"))
    .values(
        confirmed=bindparam("now"),
        seen=bindparam("number"),
        old_path=None,
        old_epoch=ZERO.epoch,
        old_counter=ZERO.counter,
        **_UNSENT,
    )
)
_RENAMED_SO_FAR = (
    update(R)
    .where(
        *_WAS,
        R.c.sent_path == bindparam("is_path"),
        R.c.sent_epoch == bindparam("is_epoch"),
        R.c.sent_counter == bindparam("is_counter"),
    )
    .values(old_path=R.c.sent_path, old_epoch=R.c.sent_epoch, old_counter=R.c.sent_counter, **_UNSENT)
)
GET_SETTING = select(S.c.value).where(S.c.key == bindparam("name"))
PUT_SETTING = replacing(S, ["key"])
AWAITED = "awaited:"
_AWAITED = and_(S.c.key >= AWAITED, S.c.key < "awaited;")


class WorkTx:
    """One transaction: counters and errands."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._counter: int | None = None
        self._drawn: int | None = None
        self._epoch = 0
        self._serial: int | None = None

    # settings ---------------------------------------------------------------------------------------
    def setting(self, key: str) -> int:
        """A number of the database, 0 when it is not set."""
        return int(self.connection.execute(GET_SETTING, {"name": key}).scalar() or 0)

    def set(self, key: str, value: int) -> None:
        """Set a number of the database."""
        self.connection.execute(PUT_SETTING, {"key": key, "value": value})

    def flush(self) -> None:
        """Write the counters that this transaction advanced."""
        if self._counter is not None:
            self.set("counter", self._counter)
        if self._serial is not None:
            self.set("serial", self._serial)

    def draw(self) -> Version:
        if self._counter is None:
            self._counter = self.setting("counter")
            self._epoch = self.setting("epoch")
        self._counter += 1
        return Version(self._epoch, self._counter)

    def drawn(self) -> int:
        """The number that was drawn last."""
        if self._counter is not None:
            return self._counter
        if self._drawn is None:
            self._drawn = self.setting("counter")
        return self._drawn

    def advance(self, version: Version) -> None:
        if self._counter is None:
            self._counter = self.setting("counter")
            self._epoch = self.setting("epoch")
        if version > Version(self._epoch, self._counter):
            if version.epoch > self._epoch:
                self._epoch = version.epoch
                self.set("epoch", version.epoch)
            self._counter = max(self._counter, version.counter)

    def serial(self) -> int:
        """The mirror serial of this transaction: one more than before it."""
        if self._serial is None:
            self._serial = self.setting("serial") + 1
        return self._serial

    def mirror_serial(self) -> int:
        """The mirror serial as it will be after this transaction."""
        return self.setting("serial") if self._serial is None else self._serial

    # work for slaves --------------------------------------------------------------------------------
    def renames(self, node: str, limit: int, path: str = "", *, present: bool = False) -> list[PendingRename]:
        """Renames that the node has not confirmed, of any path, of one, or (`present`) to that one."""
        query = self._waiting().where(R.c.node == node)
        if path:  # this is asked at each open, and a million others may be waiting: none of them is looked at
            named = select(E.c.id).where(E.c.path == path)
            known = [
                select(R.c.entry_id).where(R.c.node == node, name == path)
                for name in (R.c.old_path, R.c.sent_path)
            ]
            ids = self.connection.execute(named if present else union(named, *known)).scalars().all()
            query = query.where(R.c.entry_id.in_(ids))
        else:
            query = query.where(R.c.old_path.is_not(None))
        return self._pending(query.limit(limit))

    def _waiting(self) -> Select[Any]:
        becomes = R.c.epoch.label("to_epoch"), R.c.counter.label("to_counter")
        columns = [column for column in R.c if column.name.startswith(("old_", "sent_"))]
        return select(E, *becomes, *columns).join(R, R.c.entry_id == E.c.id)

    def _pending(self, query: Select[Any]) -> list[PendingRename]:
        return [
            PendingRename(
                row.old_path,
                Version(row.old_epoch, row.old_counter),
                _moved(row),
                row.id,
                row.sent_path is not None,
            )
            for row in self.connection.execute(query)
            if row.old_path is not None
        ]

    def begin_renames(self, node: str, renames: Sequence[PendingRename]) -> list[PendingRename]:
        """These, as the node is to be told now. Until it confirms them it may know each by either name,
        whatever users do to the file meanwhile: one that it was told before is told again first."""
        begun: list[PendingRename] = []
        for start in range(0, len(renames), IN_CHUNK):
            ids = [one.entry_id for one in renames[start : start + IN_CHUNK]]
            mine = unindexed(R.c.node) == node, R.c.entry_id.in_(ids), R.c.old_path.is_not(None)
            name = select(E.c.path).where(E.c.id == R.c.entry_id).scalar_subquery()
            self.connection.execute(
                update(R)
                .where(*mine, R.c.sent_path.is_(None))
                .values(sent_path=name, sent_epoch=R.c.epoch, sent_counter=R.c.counter)
            )
            begun += self._pending(self._waiting().where(*mine))
        return begun

    def renames_done(self, node: str, done: Sequence[PendingRename], now: float) -> None:
        """The node has applied these renames. Those of what was moved once more since wait to be moved on."""
        rows = [
            {
                "of_node": node,
                "was_path": rename.old_path,
                "was_epoch": rename.old_version.epoch,
                "was_counter": rename.old_version.counter,
                "is_path": rename.meta.path,
                "is_epoch": rename.meta.version.epoch,
                "is_counter": rename.meta.version.counter,
                "now": now,
                "number": self.drawn(),
            }
            for rename in done
        ]
        if rows and self.connection.execute(_RENAMED, rows).rowcount != len(rows):
            self.connection.execute(_RENAMED_SO_FAR, rows)

    def stones_free(self) -> bool:
        """Whether `release_stones` would mirror some; much faster where none are held."""
        held = self.connection.execute(select(exists().where(T.c.serial == HELD))).scalar()
        return bool(held and self.connection.execute(select(exists().where(_FREE))).scalar())

    def release_stones(self) -> int:
        """Mirror the tombstones of moved files from now on, but for names under which alone a file's present
        content is still known: were this database lost, the slaves would come back with it under that name,
        and a tombstone there would take the file from its users. Returns how many."""
        return self.connection.execute(update(T).where(_FREE).values(serial=self.serial())).rowcount

    def trash(self, node: str, limit: int, *, settled: bool = False) -> list[Trash]:
        """Content the node is to remove, in the order of the primary key: nothing is sorted, however much
        waits. `settled`: only under names that no rename to come is to move away."""
        query = select(X).where(X.c.node == node).order_by(X.c.path, X.c.surplus).limit(limit)
        if settled:
            sent, dead = tuple_(R.c.sent_epoch, R.c.sent_counter), tuple_(X.c.epoch, X.c.counter)
            for name, newer in ((R.c.old_path, []), (R.c.sent_path, [sent <= dead])):
                query = query.where(~exists().where(R.c.node == node, name == X.c.path, *newer))
        return [
            Trash(row.path, Version(row.epoch, row.counter), row.at, row.surplus)
            for row in self.connection.execute(query)
        ]

    def doomed(self, path: str, node: str, version: Version) -> bool:
        where = (X.c.node == node, X.c.path == path)
        newer = tuple_(X.c.epoch, X.c.counter) >= tuple_(literal(version.epoch), literal(version.counter))
        return bool(self.connection.execute(select(exists().where(*where, newer))).scalar())

    def bury_later(self, node: str, stones: Sequence[Tombstone]) -> None:
        """Have the node bury these when no rename has to come before: its mirror goes on without them."""
        row = upsert(X)
        older = tuple_(X.c.epoch, X.c.counter) < tuple_(row.excluded.epoch, row.excluded.counter)
        names = ("epoch", "counter", "at")
        self.connection.execute(
            row.on_conflict_do_update(
                index_elements=[X.c.node, X.c.path, X.c.surplus],
                set_={name: row.excluded[name] for name in names},
                where=older,
            ),
            [
                {
                    "node": node,
                    "path": stone.path,
                    "surplus": False,
                    "epoch": stone.version.epoch,
                    "counter": stone.version.counter,
                    "at": stone.at,
                }
                for stone in stones
            ],
        )

    def trash_done(self, node: str, done: Sequence[Trash]) -> None:
        """The node has removed these."""
        for item in done:
            self.connection.execute(
                delete(X).where(
                    X.c.node == node,
                    X.c.path == item.path,
                    X.c.surplus == item.surplus,
                    X.c.epoch == item.version.epoch,
                    X.c.counter == item.version.counter,
                )
            )

    def mirror(self, since: int, until: int, position: tuple[int, int, str], limit: int) -> MirrorPage:
        """Tombstones, then directories, then rights that changed after serial `since` up to `until`, from
        `position` (part 0-2, serial, key) on."""
        part, serial, key = position
        if part == 0:
            rows = self._changed(T, literal_column("tombstone.rowid"), since, until, serial, key, limit)
            after = (0, rows[-1].serial, str(rows[-1].place)) if len(rows) == limit else (1, 0, "")
            dead = tuple(Tombstone(r.path, Version(r.epoch, r.counter), r.at) for r in rows)
            return MirrorPage(dead, (), tuple(r.path for r in rows if r.directory), (), after)
        if part == 1:
            rows = self._changed(E, E.c.id, since, until, serial, key, limit)
            after = (1, rows[-1].serial, str(rows[-1].place)) if len(rows) == limit else (2, 0, "")
            return MirrorPage((), tuple(meta_of(entry_of(r)) for r in rows), (), (), after)
        name = G.c.user + "\n" + G.c.path
        query = select(G).where(G.c.serial > since, G.c.serial <= until)
        query = query.where(tuple_(G.c.serial, name) > tuple_(literal(serial), literal(key)))
        rows = self.connection.execute(query.order_by(G.c.serial, name).limit(limit)).all()
        end = (2, rows[-1].serial, f"{rows[-1].user}\n{rows[-1].path}") if len(rows) == limit else None
        return MirrorPage((), (), (), tuple(Right(r.user, r.path, r.what) for r in rows), end)

    def _changed(
        self,
        table: Table,
        place: ColumnElement[int],
        since: int,
        until: int,
        serial: int,
        key: str,
        limit: int,
    ) -> Sequence[Row[Any]]:
        """Rows in order of serial and `place`, which is that of the index: a directory with a million files
        leaves as many tombstones of one serial, and no page looks at those before it."""
        column = table.c.serial
        query = select(table, place.label("place")).where(column > 0)
        rows: list[Row[Any]] = []
        if key:
            same = query.where(column == serial, place > int(key)).order_by(place)
            rows.extend(self.connection.execute(same.limit(limit)))
        if len(rows) < limit:
            later = query.where(column > max(since, serial), column <= until).order_by(column, place)
            rows.extend(self.connection.execute(later.limit(limit - len(rows))))
        return rows

    def mirror_rights(self, rights: Mapping[str, Sequence[Right]]) -> bool:
        """Take all directory rights of some users (none = the user is gone); True when something changed."""
        before = self._serial
        for user, given in rights.items():
            wanted = {right.path: right.what for right in given}
            query = select(G.c.path, G.c.what).where(G.c.user == user)
            known = {row.path: row.what for row in self.connection.execute(query)}
            wanted.update({path: "" for path in known if path not in wanted})
            for path, what in wanted.items():
                if known.get(path, "") != what:
                    values = {"what": what, "serial": self.serial()}
                    row = upsert(G).values(user=user, path=path, **values)
                    self.connection.execute(
                        row.on_conflict_do_update(index_elements=[G.c.user, G.c.path], set_=values)
                    )
        return self._serial != before

    def forget_node(self, node: str) -> None:
        """The slave is no longer part of the cluster: nothing is there, nothing is to be done there."""
        self.connection.execute(delete(R).where(R.c.node == node))
        self.connection.execute(delete(X).where(X.c.node == node))
        self.has_come(node)

    # rebuilding -------------------------------------------------------------------------------------
    def await_slaves(self, nodes: Collection[str]) -> None:
        """These, and no others, are slaves that a rebuild ended without."""
        self.connection.execute(delete(S).where(_AWAITED))
        for node in nodes:
            self.set(AWAITED + node, 1)

    def awaited(self) -> list[str]:
        """Slaves that a rebuild ended without, and that have not reported since."""
        keys = self.connection.execute(select(S.c.key).where(_AWAITED)).scalars()
        return [key.removeprefix(AWAITED) for key in keys]

    def has_come(self, node: str) -> None:
        """The rebuild waits for this slave no longer."""
        self.connection.execute(delete(S).where(S.c.key == AWAITED + node))

    def highest_epoch(self) -> int:
        """The highest epoch in any version."""
        epochs = (self.connection.execute(select(func.max(table.c.epoch))).scalar() for table in (E, T, R))
        return max((epoch for epoch in epochs if epoch is not None), default=0)

    def stamp_mirror(self, serial: int) -> None:
        """Give everything that is mirrored this serial, so that all slaves get it."""
        self.connection.execute(update(T).values(serial=serial))
        self.connection.execute(update(E).where(E.c.kind == DIR).values(serial=serial))
        self.connection.execute(update(G).values(serial=serial))
