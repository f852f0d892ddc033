"""Scrubs of the slaves as a master knows them: begun for users, told of, and what became of bad replicas."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import DeferredList

from sector.errors import NotFound, Protocol, SectorError
from sector.master.admin import check_admin
from sector.master.hub import Hub
from sector.master.values import FileState
from sector.rpc import Caller
from sector.wire.admin import BadReplica, NodeScrub, NodeScrubbed, NodeScrubs
from sector.wire.base import Ok
from sector.wire.slave import Rotten, Scrub, Scrubbed, ScrubReply, ScrubState

ASK_S = 10.0
IN_ONE = 300


def scrub_counters(state: ScrubState) -> dict[str, int]:
    """For `sector status --json`; `scrub_ended` in whole seconds since 1970, 0 = never."""
    return {
        "scrub_running": int(state.running),
        "scrub_ended": int(state.ended),
        "scrub_total_bytes": state.total_bytes,
        "scrub_done_bytes": state.done_bytes,
        "scrub_read_bytes": state.read_bytes,
        "scrub_bad_files": state.all_bad_files,
        "scrub_bad_blocks": state.all_bad_blocks,
    }


class Scrubs:
    """Serves NodeScrub of administrators and Scrubbed of slaves."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        hub.rpc.serve(Scrubbed, self.scrubbed)
        hub.rpc.serve(NodeScrub, self.node_scrub)

    def scrubbed(self, request: Scrubbed, caller: Caller) -> Ok:
        """A slave tells how its scrub stands."""
        node = self._hub.slave(caller, request.slave_id)
        self._hub.scrubs[node.id] = request.state
        return Ok()

    async def node_scrub(self, request: NodeScrub, caller: Caller) -> NodeScrubs:
        """Ask the slaves, all at once; one that does not answer is told of and hinders no other."""
        view = self._hub.user(caller)
        check_admin(view, request, self._hub.audit)
        known = self._hub.core.members.nodes
        for name in request.nodes:
            if name not in known:
                raise NotFound(f"slave {name} is not known", hint="sector node list shows them")
        names = sorted(set(request.nodes) or set(known))
        if request.start:
            self._hub.audit(f"user:{view.user}", "scrub", " ".join(names))
        command = Scrub(self._hub.epoch, request.start)
        calls = [self._hub.call_slave(name, command, ASK_S) for name in names]
        answers = await DeferredList(calls, consumeErrors=True)
        found = []
        for name, (good, answer) in zip(names, answers, strict=True):
            if good:
                found.append(await self._told(name, answer, request.found))
            else:
                found.append(NodeScrubbed(name, self._last(name), self._why(answer.value, name)))
        return NodeScrubs(found)

    def _last(self, name: str) -> ScrubState:
        return self._hub.scrubs.get(name, ScrubState())

    def _why(self, error: BaseException, name: str) -> str:
        if isinstance(error, Protocol):
            return f"slave {name} does not know of scrubs: its version is too old"
        if isinstance(error, SectorError):
            return error.message
        raise error

    async def _told(self, name: str, reply: ScrubReply, found: bool) -> NodeScrubbed:
        self._hub.scrubs[name] = reply.state
        bad: list[BadReplica] = []
        for at in range(0, len(reply.found) if found else 0, IN_ONE):
            some = reply.found[at : at + IN_ONE]
            by_path = await self._files([one.path for one in some])
            bad += [
                BadReplica(one.path, one.version, one.why, one.at, self._repair(one, by_path.get(one.path)))
                for one in some
            ]
        return NodeScrubbed(name, reply.state, "", bad)

    async def _files(self, paths: Sequence[str]) -> dict[str, FileState]:
        states = await self._hub.store.read(lambda tx: tx.states(sorted(set(paths))))
        return {state.entry.path: state for state in states}

    def _repair(self, bad: Rotten, file: FileState | None) -> str:
        """What became of a bad replica; see `BadReplica`."""
        if bad.mended:
            return "record"
        if file is None or file.entry.version != bad.version:
            return "gone"
        standing = self._hub.core.replicator.standing(file, self._hub.clock.seconds())
        if not standing.good:
            return "lost"
        return "waiting" if standing.lacking else "repaired"
