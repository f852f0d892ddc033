"""Work that each slave has to catch up with: renames, then deletions, then the mirror, in this order (a slave
on a full disk: first the deletions that no rename has to come before). What a slave cannot make, one path of
many, is left out for ten minutes and holds up only what is under the same name.

Nothing is kept in memory but what the slave confirmed: the work is in the database, so that a restart of
either side loses none of it. A tombstone in the mirror never overtakes the rename that moves content away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from sector.clock import Timer
from sector.errors import Busy, NoSpace, SectorError
from sector.master import namespace
from sector.master.hub import Hub
from sector.master.membership import LOST
from sector.master.namespace import Replica
from sector.master.store import SqlTx
from sector.master.stuck import Stuck, blames_item, key_of
from sector.master.values import MirrorPage, PendingRename, Trash
from sector.model import Tombstone
from sector.wire.slave import Delete, Mirror, Rename, RenameFiles

log = Logger()
Item = TypeVar("Item", PendingRename, Trash)
BATCH = 500
MIRROR_BATCH = 2000
RETRY_S, RETRY_MOST_S = 0.5, 15.0
IN_A_ROW = 8
"""A slave is told so often of renames of one file before somebody reads it: users may move it meanwhile."""


@dataclass(slots=True)
class _Slave:
    """Progress of one slave instance. `missed` = up to this serial it may lack tombstones that wait for a
    rename. `renames` = there may be unconfirmed ones: else `ensure_renamed` has nothing to look for."""

    instance: int
    acked: int = 0
    missed: int = 0
    renames: bool = True
    running: bool = False
    again: bool = False
    failures: int = 0
    timer: Timer | None = field(default=None)
    stuck: Stuck = field(default_factory=Stuck)


class Errands:
    """One worker per slave, at most one command in flight each."""

    def __init__(self, hub: Hub, spawn: Callable[[Any], None]) -> None:
        """`spawn` runs a coroutine and logs what it raises."""
        self._hub = hub
        self._spawn = spawn
        self._slaves: dict[str, _Slave] = {}
        self._waiting: dict[Deferred[None], int] = {}
        """Who waits until a slave has which serial."""
        self._stopped = False

    def _state(self, node_id: str) -> _Slave | None:
        node = self._hub.core.members.nodes.get(node_id)
        if node is None:
            return None
        state = self._slaves.get(node_id)
        if state is None or state.instance != node.instance:
            if state is not None and state.timer is not None and state.timer.active():
                state.timer.cancel()
            state = self._slaves[node_id] = _Slave(node.instance)
        return state

    def heard(self, node_id: str, mirror_serial: int) -> None:
        """A heartbeat told how far the slave's mirror is; what is missing is sent."""
        state = self._state(node_id)
        if state is None:
            return
        if not state.running:
            state.acked = mirror_serial
        behind = state.acked < self._hub.serial and node_id not in self._hub.awaited
        late = behind or state.stuck.due(self._hub.clock.seconds())
        if late and state.timer is None:
            self.poke(node_id)

    def stuck(self, node_id: str) -> int:
        """How many deletions and renames the slave could not make."""
        state = self._slaves.get(node_id)
        return len(state.stuck) if state is not None else 0

    def poke_all(self, *, renames: bool = False) -> None:
        """The namespace changed: every slave has something to catch up with, those that are lost when they
        are back."""
        if renames:
            for state in self._slaves.values():
                state.renames = state.again = True
        for node in self._hub.core.members.alive():
            self.poke(node.id)

    def returned(self, node_id: str) -> None:
        """The slave was away, and is here again."""
        state = self._slaves.get(node_id)
        if state is not None:
            state.renames = True

    def renames_wait(self, node_id: str) -> None:
        """The database has renames for the slave."""
        state = self._state(node_id)
        if state is not None and not state.renames:
            state.renames = True
            self.poke(node_id)

    def poke(self, node_id: str) -> None:
        """Start the slave's worker, or have it look once more."""
        state = self._state(node_id)
        if state is None or self._stopped:
            return
        if state.running:
            state.again = True
            return
        if state.timer is not None and state.timer.active():
            state.timer.cancel()
        state.timer = None
        state.running = True
        self._spawn(self._work(node_id, state))

    def stop(self) -> None:
        """No new commands."""
        self._stopped = True
        for state in self._slaves.values():
            if state.timer is not None and state.timer.active():
                state.timer.cancel()
        self._fire(list(self._waiting))

    def settled(self, serial: int, limit_s: float = 2.0) -> Deferred[None]:
        """Fires when at least one slave has the mirror up to `serial`, or after `limit_s`, or at once when
        there is no slave."""
        if self._stopped or not self._hub.core.members.up():
            return succeed(None)
        if any(state.missed < serial <= state.acked for state in self._slaves.values()):
            return succeed(None)
        waiting: Deferred[None] = Deferred()
        self._waiting[waiting] = serial
        timer = self._hub.clock.callLater(limit_s, self._fire, [waiting])

        def done(_: None) -> None:
            if timer.active():
                timer.cancel()

        return waiting.addCallback(done)

    def _acknowledged(self, state: _Slave) -> None:
        waiting = self._waiting.items()
        self._fire([one for one, serial in waiting if state.missed < serial <= state.acked])

    def _fire(self, ready: Sequence[Deferred[None]]) -> None:
        for waiting in ready:
            self._waiting.pop(waiting, None)
        for waiting in ready:
            if not waiting.called:
                waiting.callback(None)

    async def _work(self, node_id: str, state: _Slave) -> None:
        try:
            while not self._stopped:
                state.again = False
                if await self._once(node_id, state):
                    state.failures = 0
                    continue
                if not state.again:
                    break
        except SectorError as error:
            node = self._hub.core.members.nodes.get(node_id)
            if node is not None and node.state != LOST and self._slaves.get(node_id) is state:
                self._later(node_id, state, error)
        finally:
            state.running = False

    def _later(self, node_id: str, state: _Slave, error: SectorError) -> None:
        if self._stopped:
            return
        pause = min(RETRY_MOST_S, RETRY_S * float(2 ** min(state.failures, 8)))
        state.failures += 1
        log.info("slave {slave_id} did not take an errand: {error}", slave_id=node_id, error=error.message)

        def again() -> None:
            state.timer = None
            self.poke(node_id)

        state.timer = self._hub.clock.callLater(pause, again)

    async def _once(self, node_id: str, state: _Slave) -> bool:
        """One step; False when nothing is left. What is to be removed is looked up together with the renames:
        under its name the slave may have what a rename is to move away."""

        stuck = state.stuck.waiting(self._hub.clock.seconds())
        most = BATCH + len(stuck)

        def load(tx: SqlTx) -> tuple[bool, list[PendingRename], list[Trash]]:
            known = tx.renames(node_id, most)
            renames = [item for item in known if key_of(item) not in stuck]
            trash = [] if renames else tx.trash(node_id, most, settled=bool(known))
            return bool(known), renames, [item for item in trash if key_of(item) not in stuck]

        some, renames, trash = await self._hub.store.read(load)
        state.renames = some or state.again
        if renames:
            begun = await self._begin(node_id, renames[:BATCH])
            try:
                await self._each(node_id, state, begun, self._send_renames, self._renames_done)
            except NoSpace:
                if not await self._make_room(node_id, state):
                    raise
            return True
        if trash:
            await self._drop(node_id, state, trash[:BATCH])
            return True
        if 0 <= state.acked < self._hub.serial and node_id not in self._hub.awaited:
            return await self._send_mirror(node_id, state)
        return False

    async def _each(
        self,
        node_id: str,
        state: _Slave,
        items: Sequence[Item],
        send: Callable[[str, Sequence[Item]], Awaitable[None]],
        done: Callable[[str, Sequence[Item]], Awaitable[None]],
    ) -> None:
        """Send the items together, or in ever smaller parts if the slave fails at one of them: that one is
        left out for a while; `done` tells the database, whose failures are no item's. Raises the SectorError
        that is not one item's, or when too many are left out."""
        if not items:
            return
        try:
            await send(node_id, items)
        except SectorError as error:
            if not blames_item(error):
                raise
            half = len(items) // 2
            if half:
                await self._each(node_id, state, items[:half], send, done)
                await self._each(node_id, state, items[half:], send, done)
                return
            key = key_of(items[0])
            if not state.stuck.add(key, self._hub.clock.seconds()):
                raise
            say = log.warn if state.stuck.news(key) else log.info
            say(
                "slave {slave_id} cannot {what} {path}, and goes on without: {error}",
                slave_id=node_id,
                what="rename" if isinstance(items[0], PendingRename) else "remove",
                path=key[1],
                error=error.message,
            )
        else:
            await done(node_id, items)
            for item in items:
                state.stuck.done(key_of(item))

    async def _make_room(self, node_id: str, state: _Slave) -> bool:
        """A slave that has no room for the records of its renames removes first what is to go under other
        names; else nothing that users remove would ever free its disk. False when nothing is."""
        stuck = state.stuck.waiting(self._hub.clock.seconds())
        most = BATCH + len(stuck)
        found = await self._hub.store.read(lambda tx: tx.trash(node_id, most, settled=True))
        trash = [item for item in found if key_of(item) not in stuck]
        if trash:
            await self._drop(node_id, state, trash[:BATCH])
        return bool(trash)

    async def _drop(self, node_id: str, state: _Slave, trash: Sequence[Trash]) -> None:
        if await self._spare(node_id, trash):
            return
        same = [item for item in trash if item.surplus == trash[0].surplus]
        await self._each(node_id, state, same, self._send_trash, self._trash_done)

    async def _begin(self, node_id: str, renames: Sequence[PendingRename]) -> list[PendingRename]:
        return await self._hub.store.write(lambda tx: tx.begin_renames(node_id, renames))

    async def _send_renames(self, node_id: str, renames: Sequence[PendingRename]) -> None:
        moves = [Rename(r.old_path, r.old_version, r.meta) for r in renames]
        command = RenameFiles(self._hub.epoch, moves, self._hub.wall())
        await self._hub.call_slave(node_id, command, 60.0)

    async def _renames_done(self, node_id: str, renames: Sequence[PendingRename]) -> None:
        await self._hub.store.write(lambda tx: tx.renames_done(node_id, renames, self._hub.wall()))

    async def _spare(self, node_id: str, trash: Sequence[Trash]) -> bool:
        """Take orders back to drop a surplus copy that is none any more, since the others were lost before
        the slave heard of it; True if there were such."""
        now = self._hub.wall()
        safe = {n.id for n in self._hub.core.members.up() if n.reported}

        def needed(tx: SqlTx) -> list[Trash]:
            return [
                item
                for item in trash
                if item.surplus and namespace.replica_needed(tx, node_id, item.path, item.version, safe)
            ]

        def spare(tx: SqlTx) -> list[str]:
            spared = needed(tx)
            for item in spared:
                tx.put_replica(item.path, Replica(node_id, item.version, now))
            tx.trash_done(node_id, spared)
            return [item.path for item in spared]

        if not await self._hub.store.read(needed):
            return False
        paths = await self._hub.store.write(spare)
        log.info(
            "slave {slave_id} keeps {count} copies: others were lost", slave_id=node_id, count=len(paths)
        )
        self._hub.look(*paths)
        return True

    async def _send_trash(self, node_id: str, trash: Sequence[Trash]) -> None:
        dead = [Tombstone(item.path, item.version, item.at) for item in trash]
        await self._hub.call_slave(node_id, Delete(self._hub.epoch, dead, trash[0].surplus), 60.0)

    async def _trash_done(self, node_id: str, trash: Sequence[Trash]) -> None:
        await self._hub.store.write(lambda tx: tx.trash_done(node_id, trash))

    async def _send_mirror(self, node_id: str, state: _Slave) -> bool:
        """All changes since the slave's serial. False = a rename has to go first, or no change. Tombstones of
        names that a rename is stuck at follow it as deletions."""
        since = state.acked
        reset = since < self._hub.serial_base or since == 0
        since = 0 if reset else since
        until = 0
        position: tuple[int, int, str] | None = (0, 0, "")
        first = True
        stuck = state.stuck.waiting(self._hub.clock.seconds())
        while position is not None:

            def load(
                tx: SqlTx, at: tuple[int, int, str] = position, first: bool = first, until: int = until
            ) -> tuple[int, MirrorPage, list[Tombstone]] | None:
                renames = tx.renames(node_id, 1 + len(stuck)) if first or stuck else []
                if first:
                    if any(key_of(item) not in stuck for item in renames):
                        return None
                    until = tx.setting("serial")
                names = {item.old_path for item in renames}
                names |= {item.meta.path for item in renames if item.begun}
                page = tx.mirror(since, until, at, MIRROR_BATCH)
                later = [stone for stone in page.tombstones if stone.path in names]
                now = tuple(stone for stone in page.tombstones if stone.path not in names)
                return until, replace(page, tombstones=now), later

            found = await self._hub.store.read(load)
            if found is None:
                state.renames = True
                return True
            until, page, later = found
            if later:
                await self._bury_later(node_id, later)
                state.missed = until
            self._hub.sends_mirror(node_id, until)
            last = page.next is None
            await self._hub.call_slave(
                node_id,
                Mirror(
                    self._hub.epoch,
                    until if last else 0,
                    reset and first,
                    last,
                    list(page.tombstones),
                    list(page.directories),
                    list(page.removed),
                    list(page.rights),
                ),
                60.0,
            )
            first = False
            position = page.next
        state.acked = until
        self._acknowledged(state)
        return until < self._hub.serial

    async def _bury_later(self, node_id: str, stones: Sequence[Tombstone]) -> None:
        await self._hub.store.write(lambda tx: tx.bury_later(node_id, stones))

    async def ensure_renamed(self, node_id: str, path: str, *, present: bool = False) -> None:
        """Have the slave know `path` by its present name (`present`: to read it), and have content that is to
        leave that name go, before it is written. Raises Busy, and a SectorError when the slave does not
        answer."""
        state = self._state(node_id)
        if state is None or not state.renames:
            return
        for _ in range(IN_A_ROW):
            renames = await self._hub.store.read(lambda tx: tx.renames(node_id, BATCH, path, present=present))
            if not renames:
                return
            begun = await self._begin(node_id, renames)
            await self._send_renames(node_id, begun)
            await self._renames_done(node_id, begun)
            for item in begun:
                state.stuck.done(key_of(item))
            self.poke(node_id)
        raise Busy(f"{path} is moved again and again")
