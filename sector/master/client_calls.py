"""What clients ask of the master: names, listings, reading, writing, replicas (wire/files.py).

Each handler checks the right of the user, runs one rule in the database, and for data introduces the client
to a slave with a ticket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger

from sector.errors import (
    BadPath,
    Busy,
    Cancelled,
    Conflict,
    Denied,
    IsDirectory,
    LeaseLost,
    NoSpace,
    NotFound,
    SectorError,
    SessionExpired,
    Unavailable,
)
from sector.master import namespace, placement
from sector.master.errands import Errands
from sector.master.hub import REBUILDING, Hub, new_id
from sector.master.membership import LOST
from sector.master.namespace import Entry, Lease, Replica, WriteRequest
from sector.master.sessions import View
from sector.master.store import SqlTx
from sector.master.values import FileState
from sector.model import FileInfo, SliceMeta, check_path, is_below
from sector.rpc import Caller
from sector.wire import files
from sector.wire.base import Message, Ok, Request
from sector.wire.slave import PrepareRead, PrepareWrite, Ready, Verify

log = Logger()
WRITE_TRIES = 4
PREPARE_S = 6.0
PAGE = 500
DENIALS = 30
LOOK_LIMIT = 1000
LAST_NAME = "\U0010ffff" * 64  # longer than any name: sorts behind all of a directory


def check(view: View, path: str, what: str) -> str:
    """The canonical path, if the user has the right. Raises `BadPath`, `Denied`."""
    path = check_path(path)
    if not view.may(path, what):
        verb = {"r": "read", "w": "change", "x": "run functions on"}.get(what, what)
        raise Denied(f"user {view.user} may not {verb} {path}")
    return path


def check_tree(view: View, path: str, what: str) -> str:
    """The same for a path and all below: a directory inside may have been taken from the user."""
    path = check(view, path, what)
    for right in view.rights:
        if is_below(right.path, path) and not view.may(right.path, what):
            raise Denied(f"user {view.user} may not change {right.path}")
    return path


def _behind(view: View, hidden: Sequence[str], path: str) -> str:
    """Where a listing goes on behind `path`: behind the whole of a directory that the user may not read, if
    nothing in it is given to him."""
    for top in hidden:
        if is_below(path, top) and not any("r" in r.what and is_below(r.path, top) for r in view.rights):
            return f"{top}/{LAST_NAME}"
    return path


class ClientCalls:
    """Serves wire/files.py."""

    def __init__(self, hub: Hub, errands: Errands) -> None:
        self._hub = hub
        self._errands = errands
        self._denials: dict[str, int] = {}
        self._denials_since = 0.0
        serve = self._serve
        serve(files.Stat, self.stat)
        serve(files.List, self.listing)
        serve(files.Mkdir, self.mkdir)
        serve(files.Move, self.move)
        serve(files.Remove, self.remove)
        serve(files.RemoveHollow, self.remove_hollow)
        serve(files.RemoveVersion, self.remove_version)
        serve(files.OpenRead, self.open_read)
        serve(files.OpenWrite, self.open_write)
        serve(files.LeaseKeep, self.lease_keep)
        serve(files.LeaseDrop, self.lease_drop)
        serve(files.Replicate, self.replicate)
        serve(files.ReportBad, self.report_bad)

    def _serve(self, cls: type[Request], handler: Callable[[Any, Caller], Awaitable[Message]]) -> None:
        """Serve a request; refusals for want of a right are in the audit log."""

        async def audited(request: Any, caller: Caller) -> Message:
            try:
                return await handler(request, caller)
            except Denied as refused:
                self._note_denial(caller, f"{cls.__name__}: {refused.message}")
                raise

        self._hub.rpc.serve(cls, audited)

    def _note_denial(self, caller: Caller, text: str) -> None:
        """A line for the audit log; of one user not so many a minute that they push others out."""
        now = self._hub.clock.seconds()
        if now - self._denials_since > 60:
            self._denials.clear()
            self._denials_since = now
        who = caller.principal.partition("#")[0]
        count = self._denials[who] = self._denials.get(who, 0) + 1
        if count <= DENIALS:
            self._hub.audit(who, "denied", text)
        elif count == DENIALS + 1:
            self._hub.audit(who, "denied", "further refusals of this minute are not listed")

    # names ----------------------------------------------------------------------------------------------
    def info(self, entry: Entry, replicas: Sequence[Replica]) -> FileInfo:
        """What the user sees; replicas on lost slaves, and on those that are no more, do not count."""
        return self._without_lost(namespace.info_of(entry, replicas))

    def _without_lost(self, info: FileInfo) -> FileInfo:
        counts, now = self._hub.core.replicator.here, self._hub.clock.seconds()
        here = [node for node in info.replicas if counts(node, now)]
        return info if len(here) == len(info.replicas) else msgspec.structs.replace(info, replicas=here)

    async def locate(self, paths: Sequence[str]) -> list[FileInfo]:
        """Information on those of the paths that exist, for the Sphere part."""
        wanted = [check_path(path) for path in paths]
        found: list[FileInfo] = []
        for start in range(0, len(wanted), PAGE):
            chunk = wanted[start : start + PAGE]

            def load(tx: SqlTx, chunk: list[str] = chunk) -> list[tuple[Entry, list[Replica]]]:
                entries = [entry for path in chunk if (entry := namespace.find(tx, path)) is not None]
                return [(e, [] if e.is_dir else tx.replicas(e.path)) for e in entries]

            found += [self.info(*pair) for pair in await self._hub.store.read(load)]
        return found

    async def stat(self, request: files.Stat, caller: Caller) -> files.Info:
        """One path."""
        path = check(self._hub.user(caller), request.path, "r")
        entry, replicas = await self._hub.store.read(lambda tx: namespace.stat(tx, path))
        return files.Info(self.info(entry, replicas))

    async def listing(self, request: files.List, caller: Caller) -> files.Listing:
        """A page of a directory; entries that the user may not read are left out."""
        view = self._hub.user(caller)
        path = check(view, request.path, "r")
        hidden = [r.path for r in view.rights if "r" not in r.what and is_below(r.path, path)]
        shown: list[FileInfo] = []
        after, more = request.after, True
        while more and len(shown) < request.limit:  # the last entry of a page is seen by the user too
            limit = max(request.limit - len(shown), PAGE if hidden else 1)

            def load(tx: SqlTx, after: str = after, limit: int = limit) -> tuple[list[FileInfo], bool]:
                return namespace.list_entries(tx, path, request.recursive, after, limit)

            page, more = await self._hub.store.read(load)
            if page:
                after = _behind(view, hidden, page[-1].path)
            shown += [self._without_lost(e) for e in page if not hidden or view.may(e.path, "r")]
        return files.Listing(shown[: request.limit], more or len(shown) > request.limit)

    async def _change(
        self,
        rule: Callable[[SqlTx], namespace.Totals],
        done: Callable[[namespace.Totals], None],
        *,
        renames: bool = False,
    ) -> namespace.Totals:
        """Run a rule that leaves tombstones, then `done`; the answer waits until a slave has them too."""

        def run(tx: SqlTx) -> tuple[namespace.Totals, int]:
            return rule(tx), tx.serial()

        totals, serial = await self._hub.store.write(run)
        self._hub.serial = max(self._hub.serial, serial)
        self._errands.poke_all(renames=renames)
        done(totals)
        await self._errands.settled(serial)
        return totals

    async def mkdir(self, request: files.Mkdir, caller: Caller) -> Ok:
        """Make a directory."""
        view = self._hub.writer(caller)
        path = check(view, request.path, "w")

        def run(tx: SqlTx) -> int:
            namespace.make_directory(tx, path, request.parents, view.user, self._hub.wall())
            return tx.mirror_serial()

        serial = await self._hub.store.write(run)
        self.mirror_grew(serial)
        return Ok()

    def mirror_grew(self, serial: int) -> None:
        """The database's mirror serial is at least this: slaves get what they lack."""
        if serial > self._hub.serial:
            self._hub.serial = serial
            self._errands.poke_all()

    async def move(self, request: files.Move, caller: Caller) -> Ok:
        """Rename; the slaves follow in the background."""
        view = self._hub.writer(caller)
        source = check_tree(view, request.source, "rw")
        target = check_tree(view, request.target, "w")
        now = self._hub.wall()

        def done(totals: namespace.Totals) -> None:
            self._hub.audit(f"user:{view.user}", "move", f"{source} to {target}: {totals.files} files")
            if request.overwrite:
                self._hub.look(target)

        await self._change(
            lambda tx: namespace.move(tx, source, target, request.overwrite, now), done, renames=True
        )
        return Ok()

    async def remove(self, request: files.Remove, caller: Caller) -> files.Removed:
        """Delete; tombstones are on at least one slave when this returns."""
        view = self._hub.writer(caller)
        path = (check_tree if request.recursive else check)(view, request.path, "w")
        return await self._remove(
            view, path, lambda tx, now: namespace.remove(tx, path, request.recursive, now)
        )

    async def remove_hollow(self, request: files.RemoveHollow, caller: Caller) -> files.Removed:
        """The same for a directory in which no file counts."""
        view = self._hub.writer(caller)
        path = check_tree(view, request.path, "w")
        return await self._remove(
            view, path, lambda tx, now: namespace.remove_hollow(tx, path, request.scraps, now)
        )

    async def remove_version(self, request: files.RemoveVersion, caller: Caller) -> files.Removed:
        """The same for one version of a file."""
        view = self._hub.writer(caller)
        path = check(view, request.path, "w")
        return await self._remove(
            view, path, lambda tx, now: namespace.remove_version(tx, path, request.version, now)
        )

    async def _remove(
        self, view: View, path: str, rule: Callable[[SqlTx, float], namespace.Totals]
    ) -> files.Removed:
        now = self._hub.wall()

        def done(totals: namespace.Totals) -> None:
            said = f"{path}: {totals.files} files, {totals.bytes} bytes"
            self._hub.audit(f"user:{view.user}", "remove", said)

        totals = await self._change(lambda tx: rule(tx, now), done)
        return files.Removed(totals.files, totals.bytes)

    # reading --------------------------------------------------------------------------------------------
    async def open_read(self, request: files.OpenRead, caller: Caller) -> files.ReadGrant:
        """Introduce the client to the best slave with a replica that answers."""
        path = check(self._hub.user(caller), request.path, "r")
        entry, replicas = await self._hub.store.read(lambda tx: namespace.stat(tx, path))
        if entry.is_dir:
            raise IsDirectory(f"{path} is a directory")
        if request.version not in (namespace.ZERO, entry.version):
            raise Conflict(f"{path} has another version by now", hint="open it again")
        if request.offset > entry.size:
            raise BadPath(f"offset {request.offset} is beyond the {entry.size} bytes of {path}")
        rest = entry.size - request.offset
        length = min(request.length, rest) if request.length else rest
        current = [r for r in replicas if r.version == entry.version]
        holders = {r.node for r in current}
        for row in current:
            if row.old_path:
                self._errands.renames_wait(row.node)
        await self._hub.until_settled(
            lambda: any(n.id in holders and n.candidate().usable for n in self._hub.core.members.up())
        )
        busy: Busy | None = None
        for node_id in self._read_order(path, current, request.exclude, caller):
            ticket = self._hub.ticket("read", path, entry.version, request.offset, length, request.limit)
            try:
                await self._errands.ensure_renamed(node_id, path, present=True)
                await self._hub.call_slave(
                    node_id, PrepareRead(self._hub.epoch, ticket, caller.principal), PREPARE_S
                )
            except NotFound:
                await self._gone(node_id, entry)
                continue
            except SectorError as error:
                log.info("{path} from {node}: {error}", path=path, node=node_id, error=error.message)
                busy = error if isinstance(error, Busy) else busy
                continue
            self._hub.core.members.grant(node_id)
            data = self._hub.core.members.get(node_id).data
            return files.ReadGrant(self.info(entry, replicas), node_id, data, ticket)
        if busy is not None:
            raise Busy(f"{path} cannot be read now: {busy.message}")
        names = ", ".join(sorted(r.node for r in current)) or "no slave"
        raise Unavailable(f"{path} cannot be read now: its replicas are on {names}")

    def _read_order(
        self, path: str, current: Sequence[Replica], exclude: Sequence[str], caller: Caller
    ) -> list[str]:
        nodes = self._hub.core.members.nodes
        held = [nodes[r.node] for r in current if r.node in nodes and nodes[r.node].state != LOST]
        return placement.for_read(
            [node.candidate() for node in held],
            path=path,
            client=self._hub.place(caller),
            exclude=exclude,
            doubtful=[r.node for r in current if r.bad],
        )

    async def _gone(self, node_id: str, entry: Entry) -> None:
        """The slave says that it has no such content."""
        rebuilding = self._hub.state == REBUILDING

        def strike(tx: SqlTx) -> bool:
            return namespace.replica_missed(tx, node_id, entry.path, entry.version)

        if not rebuilding and not await self._hub.store.write(strike):
            self._errands.renames_wait(node_id)
            return
        log.warn("slave {node} has lost {path}", node=node_id, path=entry.path)
        if not rebuilding:
            self._hub.look(entry.path)

    # writing --------------------------------------------------------------------------------------------
    async def open_write(self, request: files.OpenWrite, caller: Caller) -> files.WriteGrant:
        """Take the lease and introduce the client to a slave with room."""
        view = self._hub.writer(caller)
        path = check(view, request.path, "w")
        if request.lease and request.blocks:
            return await self._go_on(request, path, view, caller)

        def choose() -> list[str]:
            return placement.for_write(
                self._hub.core.members.candidates(),
                path=path,
                size=request.size,
                client=self._hub.place(caller),
                near=request.near,
                exclude=request.exclude,
            )

        await self._hub.until_settled(lambda: bool(choose()))
        order = choose()
        if not order:
            raise self._no_room(request)
        lease_s = self._hub.config.master.lease_s
        want = WriteRequest(
            path, request.size, view.user, order[0], new_id(), lease_s, request.create, request.lease
        )
        answer: Deferred[files.WriteGrant] = Deferred()
        granting = ensureDeferred(self._grant(request, want, order, caller, lambda: not answer.called))
        granting.addBoth(lambda outcome: None if answer.called else answer.callback(outcome))
        try:
            return await answer
        except CancelledError:  # nobody hears of what is granted; writes are done in their order
            if not request.lease:
                ending = self._hub.store.write(lambda tx: namespace.end_lease(tx, path, want.id, view.user))
                ending.addErrback(lambda failure: failure.trap(SectorError) and None)
            granting.cancel()
            raise

    async def _grant(
        self,
        request: files.OpenWrite,
        want: WriteRequest,
        order: Sequence[str],
        caller: Caller,
        wanted: Callable[[], bool],
    ) -> files.WriteGrant:
        """The lease, and the first slave of `order` that takes the file, while it is still `wanted`."""
        path = want.path
        lease = await self._hub.store.write(lambda tx: namespace.open_write(tx, want, self._hub.wall()))
        failure: SectorError | None = None
        for node_id in order[:WRITE_TRIES]:
            if not wanted():
                raise Cancelled(f"{path} is not written any more")
            try:
                return await self._prepare_write(node_id, lease, caller, request)
            except (LeaseLost, SessionExpired) as error:
                failure = error
                break
            except SectorError as error:  # whatever one slave cannot do, another may
                log.info("{path} to {node}: {error}", path=path, node=node_id, error=error.message)
                failure = error
        if not request.lease:
            await self._hub.store.write(lambda tx: namespace.end_lease(tx, path, lease.id, want.user))
        if isinstance(failure, NoSpace | LeaseLost | SessionExpired):
            raise failure
        if isinstance(failure, Busy):
            raise Busy(f"no slave takes {path} now: {failure.message}")
        raise Unavailable(f"no slave takes {path} now: {failure}")

    async def _go_on(
        self, request: files.OpenWrite, path: str, view: View, caller: Caller
    ) -> files.WriteGrant:
        """The same slave again, which has kept what arrived. Raises `Unavailable`, `Busy` (it may be back
        soon), `LeaseLost`, `Conflict`."""
        lease_s = self._hub.config.master.lease_s
        want = WriteRequest(path, request.size, view.user, "", new_id(), lease_s, resume=request.lease)
        lease = await self._hub.store.write(lambda tx: namespace.open_write(tx, want, self._hub.wall()))
        node = self._hub.core.members.nodes.get(lease.node)
        if node is None or not node.candidate().usable:
            raise Unavailable(f"slave {lease.node} is away")
        return await self._prepare_write(lease.node, lease, caller, request)

    def _no_room(self, request: files.OpenWrite) -> SectorError:
        up = self._hub.core.members.up()
        if not up:
            return Unavailable("no slave runs", hint="start slaves, or wait until they have joined")
        left = [node for node in up if node.id not in request.exclude and node.candidate().usable]
        if not left:
            return Unavailable("every slave that runs has failed for this client")
        most = max(node.candidate().free for node in left)
        return NoSpace(f"no slave has room for {request.size} bytes; the emptiest has {most}")

    async def _prepare_write(
        self, node_id: str, lease: Lease, caller: Caller, request: files.OpenWrite
    ) -> files.WriteGrant:
        if node_id != lease.node:
            await self._hub.store.write(lambda tx: namespace.move_lease(tx, lease.id, node_id))
        ticket = self._hub.ticket("write", lease.path, lease.version, 0, lease.size)
        meta = SliceMeta(lease.path, lease.version, lease.size, lease.owner, lease.mode, self._hub.wall(), "")
        await self._errands.ensure_renamed(node_id, lease.path)
        command = PrepareWrite(
            self._hub.epoch, ticket, caller.principal, lease.id, meta, request.blocks, request.part
        )
        reading = request.blocks and node_id in (request.near, lease.node)  # the slave reads what it has
        limit_s = max(PREPARE_S, caller.budget_s - 1.0) if reading else PREPARE_S
        ready: Ready = await self._hub.call_slave(node_id, command, limit_s)
        self._hub.core.members.grant(node_id, lease.size - ready.offset)
        node = self._hub.core.members.get(node_id)
        lease_s = max(0.0, lease.expires - self._hub.wall())
        return files.WriteGrant(lease.id, lease_s, lease.version, node_id, node.data, ticket, ready.offset)

    async def lease_keep(self, request: files.LeaseKeep, caller: Caller) -> files.LeaseState:
        """Renew a lease, or tell what became of it."""
        view = self._hub.user(caller)
        lease_s = self._hub.config.master.lease_s
        lease = await self._hub.store.write(
            lambda tx: namespace.keep_lease(
                tx, request.path, request.lease, view.user, self._hub.wall(), lease_s
            )
        )
        if lease is None:
            return files.LeaseState(namespace.LOST, 0.0, namespace.ZERO)
        left = lease.expires - self._hub.wall() if lease.state == namespace.OPEN else 0.0
        return files.LeaseState(lease.state, left, lease.version)

    async def lease_drop(self, request: files.LeaseDrop, caller: Caller) -> Ok:
        """Give a lease up."""
        view = self._hub.user(caller)
        await self._hub.store.write(
            lambda tx: namespace.end_lease(tx, request.path, request.lease, view.user)
        )
        return Ok()

    # replicas -------------------------------------------------------------------------------------------
    async def replicate(self, request: files.Replicate, caller: Caller) -> files.Replicas:
        """Copies now; of a directory the least replicated file counts."""
        view = self._hub.writer(caller)
        path = check_tree(view, request.path, "w")
        await self._hub.store.read(lambda tx: namespace.stat(tx, path))
        replicator = self._hub.core.replicator
        least: files.Replicas | None = None
        looks: list[str] = []
        after, changes = "", False
        while True:

            def load(tx: SqlTx, after: str = after) -> list[FileState]:
                return tx.page(path, after, PAGE)

            page = await self._hub.store.read(load)
            for file in page:
                now = self._hub.clock.seconds()
                standing = replicator.standing(file, now, request.copies)
                changes = changes or self._pin(file, request.copies) != file.entry.copies
                if standing.lacking and len(looks) < LOOK_LIMIT:
                    looks.append(file.entry.path)
                worse = least is None or (len(standing.good) - standing.wanted < least.have - least.wanted)
                if worse:
                    least = files.Replicas(standing.wanted, len(standing.good), list(standing.good))
            if len(page) < PAGE:
                break
            after = page[-1].entry.path
        if changes:
            await self._hub.store.write(lambda tx: tx.set_copies(path, self._pins(path, request.copies)))
        self._hub.look(*looks, urgent=True)
        return least or files.Replicas(0, 0, [])

    def _pins(self, path: str, copies: int) -> int:
        return copies if copies > self._hub.core.replicator.rules.of(path).minimum else 0

    def _pin(self, file: FileState, copies: int) -> int:
        return self._pins(file.entry.path, copies) if copies else file.entry.copies

    async def report_bad(self, request: files.ReportBad, caller: Caller) -> Ok:
        """The slave reads its replica; only what it finds damaged counts no longer and is replaced. What one
        reader says must not cost a replica."""
        view = self._hub.writer(caller)
        path = check(view, request.path, "r")
        entry, replicas = await self._hub.store.read(lambda tx: namespace.stat(tx, path))
        if not any((r.node, r.version) == (request.node, request.version) for r in replicas):
            return Ok()
        self._hub.audit(f"user:{view.user}", "bad replica", f"{path} on {request.node}: {request.why}")
        try:
            await self._errands.ensure_renamed(request.node, path, present=True)
            command = Verify(self._hub.epoch, path, request.version)
            await self._hub.call_slave(request.node, command, PREPARE_S)
        except NotFound:
            if entry.version == request.version:
                await self._gone(request.node, entry)
        return Ok()
