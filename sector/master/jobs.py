"""Sphere jobs at the master: who may run what, job records for slaves, keys for a job, lists, ends.

The master schedules nothing: the client's driver does. Here a job begins (execute right, keys, records
sent to the slaves), is listed, watched and cancelled, and ends: by its driver's word, by a user's, with the
session, or after the driver has been silent (spec/sphere.md, spec/security.md "UDFs").
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector.clock import Clock, pause
from sector.errors import Busy, Cancelled, Denied, NotFound, SectorError, Unavailable
from sector.master.context import MasterContext, SlaveView
from sector.master.namespace import end_lease
from sector.master.sessions import View
from sector.master.store_jobs import job_forget, job_leases, job_load, job_save
from sector.master.store_tx import SqlTx
from sector.model import Address, Key, check_path, check_prefix
from sector.rpc import Caller, RpcNode
from sector.wire.base import Ok
from sector.wire.sphere import (
    Blob,
    JobCancel,
    JobCounts,
    JobEnd,
    JobInfo,
    JobIntroduce,
    JobJoin,
    JobList,
    JobOrder,
    JobRecord,
    JobReport,
    JobShow,
    JobStart,
    JobStarted,
    JobTable,
    JobTaken,
    LeftOut,
    PeerToken,
    Runtime,
    SpeNode,
    SpePeer,
    SpeQuery,
    SpeState,
    SpeStates,
    UdfFault,
)

log = Logger()
REPORT_S = 2.0
SILENCE_S = 100.0
"""Outages of a minute and a half cost no job. A dead driver costs no slots: what runs ends, no more begin."""
OVER_S = 45.0
TICK_S = 2.0
STOOD_S = 3.0
"""A tick that is so late: this process stood still, and what drivers said meanwhile is still to be read."""
KEEP_JOBS = 1000
PER_USER = 100
START_TRIES = 6
TOKENS_MAX = 256
ERRORS_KEPT = 128 << 10
"""Characters of errors kept of a job, at least one whole error."""
END_S = 2.0
"""How long the end of a job waits for its slaves. One that is gone hears of it when it can."""


class JobState(msgspec.Struct, array_like=True):
    """What is kept of a job in the database. `client` = principal of its driver; times: seconds since
    1970; `slaves` = ids of those it was introduced to."""

    id: str
    user: str
    client: str
    label: str
    output: str
    stage: int
    blobs: list[Blob]
    runtime: Runtime
    timeout_s: float
    started: float
    state: str = "running"
    why: str = ""
    ended: float = 0.0
    counts: JobCounts = JobCounts()
    errors: Annotated[list[UdfFault], Meta(max_length=20)] = []
    slaves: list[str] = []
    left_out: LeftOut = {}


@dataclass
class _Live:
    """What lives only while a job runs: when its driver was heard, the keys of pairs of slaves. `view`: who
    its user is; after the end of his session, at `over`, his driver has some time to come with another."""

    heard: float
    view: View | None = None
    over: float = 0.0
    pairs: dict[tuple[int, int], tuple[int, bytes]] = field(default_factory=dict)
    ending: bool = False


class Jobs:
    """All jobs of a master."""

    def __init__(self, rpc: RpcNode, context: MasterContext) -> None:
        self.context = context
        self.jobs: dict[str, JobState] = {}
        self.live: dict[str, _Live] = {}
        self.client_keys: dict[tuple[str, int], int] = {}
        self.loaded = Deferred.fromCoroutine(self._load())
        self.loaded.addErrback(lambda failure: log.failure("reading the list of jobs", failure))
        self._ticked = context.clock.seconds()
        self._timer = context.clock.callLater(TICK_S, self._tick)
        context.resolvers["job"] = self.resolve
        context.on_session_end.append(self.session_ended)
        context.on_stop.append(self.stop)
        rpc.serve(JobStart, self.start)
        rpc.serve(JobJoin, self.join)
        rpc.serve(JobReport, self.report)
        rpc.serve(JobList, self.list)
        rpc.serve(JobShow, self.show)
        rpc.serve(JobCancel, self.cancel)

    async def _load(self) -> None:
        decoder = msgspec.msgpack.Decoder(JobState)
        for body in await job_load(self.context.store, KEEP_JOBS):
            try:
                job = decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                log.warn("a job's row cannot be read: {why}", why=str(error))
                continue
            self.jobs.setdefault(job.id, job)
            if job.state == "running":
                self.live.setdefault(job.id, _Live(self.context.clock.seconds()))
                for lease, path in await job_leases(self.context.store, job.user, job.output, job.slaves):
                    self.context.job_leases[lease] = (f"job:{job.id}/{job.user}", path)

    def stop(self) -> None:
        """No more ticks. Jobs go on: their drivers find the master again."""
        if self._timer.active():
            self._timer.cancel()

    def _save(self, job: JobState) -> Deferred[None]:
        saved = job_save(self.context.store, job.id, job.started, msgspec.msgpack.encode(job))
        saved.addErrback(lambda failure: log.failure("writing job {job}", failure, job=job.id))
        return saved

    # -- begin -----------------------------------------------------------------------------------
    async def start(self, request: JobStart, caller: Caller) -> JobStarted:
        """Check the user's rights, make the job and introduce it to the slaves."""
        await _when(self.loaded)
        context = self.context
        view = context.sessions.user_of(caller.principal)
        if not any("x" in right.what for right in view.rights):
            context.audit(f"user:{view.user}", "job.refused", request.label)
            raise Denied(
                f"user {view.user} has no execute right: functions may not be run",
                hint=f"an administrator can give it: sector grant {view.user} rx DIRECTORY",
            )
        if request.output and not view.may(check_prefix(request.output), "w"):
            raise Denied(f"user {view.user} may not write {request.output}")
        mine = sum(1 for name in self.live if self.jobs[name].user == view.user)
        if mine >= PER_USER:
            raise Busy(f"user {view.user} runs {mine} jobs already")
        job = JobState(
            os.urandom(8).hex(),
            view.user,
            caller.principal,
            request.label,
            request.output,
            request.stage,
            list(request.blobs),
            request.runtime,
            request.timeout_s,
            context.wall(),
        )
        self.jobs[job.id] = job
        self.live[job.id] = _Live(context.clock.seconds())
        try:
            started = await self._introduce(job, view, caller)
        except BaseException:
            del self.jobs[job.id]
            self._release(job.id)
            raise
        await self._save(job)
        blobs = " ".join(blob.sha256.hex()[:16] for blob in request.blobs)
        context.audit(f"user:{view.user}", "job.start", f"{job.id} {request.label} code {blobs}")
        self._trim()
        return started

    async def join(self, request: JobJoin, caller: Caller) -> JobStarted:
        """Introduce a running job to the slaves of now."""
        await _when(self.loaded)
        job = self._own(request.job, caller)
        if job.id not in self.live:
            raise Cancelled(f"job {job.id} has ended: {job.why or job.state}")
        self.live[job.id].heard = self.context.clock.seconds()
        self._adopt(job, caller)
        started = await self._introduce(job, self.context.sessions.user_of(caller.principal), caller)
        await self._save(job)
        return started

    def _adopt(self, job: JobState, caller: Caller) -> None:
        """The driver is at work, perhaps under a newer session of its user."""
        live = self.live[job.id]
        live.view, live.over = self.context.sessions.user_of(caller.principal), 0.0
        job.client = caller.principal

    async def _introduce(self, job: JobState, view: View, caller: Caller) -> JobStarted:
        """Send the record with keys and peers to all slaves that are up; answer with those that took it, and
        their tokens for the caller, whose first message to a slave then needs no HELLO. Their tokens for each
        other follow in the background."""
        live = self.live[job.id]
        live.view = view
        up = self._ready()
        for _ in range(START_TRIES):
            if up:
                break
            await pause(self.context.clock, 0.5)  # a slave's first heartbeat tells its slots
            up = self._ready()
        if not up:
            raise Unavailable("no slave that runs functions is up", hint="see sector node list")
        calls = []
        for slave in up:
            record = JobRecord(
                self.context.epoch(),
                job.id,
                job.user,
                job.client,
                self._client_key(job, slave),
                list(view.rights),
                job.blobs,
                job.runtime,
                job.timeout_s,
                job.stage,
                [self._peer(live, slave, other) for other in up if other.id != slave.id],
                Address(caller.peer.host, caller.peer.port),
                caller.instance,
            )
            calls.append(self.context.call_slave(slave.id, record, deadline_s=10.0))
        nodes, refused, first = [], {}, None
        cards: dict[str, list[PeerToken]] = {}
        for slave, (good, answer) in zip(up, await DeferredList(calls, consumeErrors=True), strict=True):
            if good:
                for card in answer.peers if isinstance(answer, JobTaken) else ():
                    cards.setdefault(card.node, []).append(PeerToken(slave.id, slave.instance, card.token))
                nodes.append(
                    SpeNode(
                        slave.id,
                        slave.instance,
                        Address(slave.peer.host, slave.peer.port),
                        slave.data,
                        slave.spes,
                        self.client_keys[(job.client, slave.instance)],
                        answer.token if isinstance(answer, JobTaken) else b"",
                    )
                )
            else:
                error = _sector_error(cast(object, answer))
                refused[slave.id] = error.message
                first = first or error
        if not nodes:
            assert first is not None
            raise first
        job.slaves = sorted({*job.slaves, *(node.node for node in nodes)})
        for node in nodes:
            if node.node in cards:
                told = JobIntroduce(self.context.epoch(), job.id, cards[node.node][:TOKENS_MAX])
                telling = self.context.call_slave(node.node, told, deadline_s=10.0)
                telling.addErrback(_no_introduction, node.node)
        return JobStarted(job.id, nodes, REPORT_S, SILENCE_S, refused)

    def _ready(self) -> list[SlaveView]:
        return [slave for slave in self.context.slaves() if slave.state == "up" and slave.spes > 0]

    def _client_key(self, job: JobState, slave: SlaveView) -> Key:
        sessions = self.context.sessions
        number = self.client_keys.get((job.client, slave.instance))
        if number is None:
            number = self.client_keys[(job.client, slave.instance)] = sessions.key_ids.new()
        secret = sessions.slave_key(job.client, slave.id, slave.instance, number)
        row = sessions.get(sessions.user_of(job.client).session_id)
        rest = row.expires - self.context.wall() if row is not None else 0.0
        return Key(number, secret, job.client, max(1.0, rest))

    def _peer(self, live: _Live, slave: SlaveView, other: SlaveView) -> SpePeer:
        pair = (min(slave.instance, other.instance), max(slave.instance, other.instance))
        if pair not in live.pairs:
            live.pairs[pair] = (self.context.sessions.key_ids.new(), os.urandom(32))
        number, secret = live.pairs[pair]
        key = Key(number, secret, f"slave:{other.id}")
        address = Address(other.peer.host, other.peer.port)
        return SpePeer(other.id, other.instance, address, other.data, key)

    # -- while it runs ---------------------------------------------------------------------------
    async def report(self, request: JobReport, caller: Caller) -> JobOrder:
        """The driver tells how it stands."""
        await _when(self.loaded)
        job = self._own(request.job, caller)
        live = self.live.get(job.id)
        if live is None:
            if request.state == job.state:
                return JobOrder(False)
            return JobOrder(True, job.why or f"job {job.id} has ended")
        live.heard = self.context.clock.seconds()
        self._adopt(job, caller)
        job.counts, job.stage, job.errors = request.counts, request.stage, _kept(request.errors)
        job.left_out = dict(request.left_out)
        if request.state != "running":
            why = job.errors[0].message[:200] if job.errors else ""
            await self._end(job, request.state, why)
        return JobOrder(False)

    def resolve(self, principal: str, slave_id: str, path: str) -> View:
        """Who stands behind "job:ID/USER" when a slave publishes `path` for a job: only its own output."""
        name, _, user = principal.partition(":")[2].partition("/")
        job = self.jobs.get(name)
        if job is None or name not in self.live or job.user != user or slave_id not in job.slaves:
            raise Denied(f"slave {slave_id} does not work for job {name}")
        if not job.output or not path.startswith(f"{check_path(job.output)}."):
            raise Denied(f"{path} is no output of job {name}")
        live = self.live[name]
        if live.over and live.view is not None:
            return live.view
        return self.context.sessions.user_of(job.client)

    async def list(self, request: JobList, caller: Caller) -> JobTable:
        """The caller's jobs, newest first; an administrator sees all."""
        await _when(self.loaded)
        view = self.context.sessions.user_of(caller.principal)
        seen = [job for job in self.jobs.values() if view.is_admin or job.user == view.user]
        seen.sort(key=lambda job: -job.started)
        return JobTable([_line(job) for job in seen[: request.limit]])

    async def show(self, request: JobShow, caller: Caller) -> JobInfo:
        """One job with what its workers do now."""
        await _when(self.loaded)
        job = self._seen(request.job, caller)
        spes: list[SpeState] = []
        if job.id in self.live:
            up = {slave.id for slave in self.context.slaves() if slave.state == "up"}
            query = SpeQuery(self.context.epoch(), job.id)
            asked = [self.context.call_slave(s, query, deadline_s=2.0) for s in job.slaves if s in up]
            for good, answer in await DeferredList(asked, consumeErrors=True):
                if good and isinstance(answer, SpeStates):
                    spes += answer.spes
        return _info(job, spes)

    # -- end -------------------------------------------------------------------------------------
    async def cancel(self, request: JobCancel, caller: Caller) -> Ok:
        """A user ends a job."""
        await _when(self.loaded)
        job = self._seen(request.job, caller)
        user = self.context.sessions.user_of(caller.principal).user
        if job.id in self.live:
            self.context.audit(f"user:{user}", "job.cancel", job.id)
            await self._end(job, "cancelled", f"job {job.id} was cancelled by {user}")
        return Ok()

    def session_ended(self, principal: str, closed: bool) -> None:
        """All jobs of a session end with it; when its time is over, unless their drivers go on under another
        one soon."""
        for name, live in list(self.live.items()):
            if self.jobs[name].client == principal and closed:
                self._end_soon(self.jobs[name], "cancelled", "the session has ended")
            elif self.jobs[name].client == principal:
                live.over = live.over or self.context.clock.seconds()
        for key in [key for key in self.client_keys if key[0] == principal]:
            self.context.sessions.key_ids.free(self.client_keys.pop(key))

    def _tick(self) -> None:
        self._timer = self.context.clock.callLater(TICK_S, self._tick)
        now = self.context.clock.seconds()
        stood, self._ticked = now - self._ticked - TICK_S, now
        for name, live in list(self.live.items()):
            job = self.jobs[name]
            if stood > STOOD_S:
                live.heard = min(now, live.heard + stood)
                live.over = live.over and min(now, live.over + stood)
            if now - live.heard > SILENCE_S:
                self._end_soon(job, "lost", f"the driver of job {name} was silent for {SILENCE_S:g} s")
                continue
            try:
                self.context.sessions.user_of(job.client)
            except SectorError as error:
                live.over = live.over or now
                if now - live.over > OVER_S:
                    self._end_soon(job, "cancelled", error.message)

    def _end_soon(self, job: JobState, state: str, why: str) -> None:
        ending = Deferred.fromCoroutine(self._end(job, state, why))
        ending.addErrback(lambda failure: log.failure("ending job {job}", failure, job=job.id))

    async def _end(self, job: JobState, state: str, why: str) -> None:
        live = self.live.get(job.id)
        if live is None or live.ending:
            return
        live.ending = True
        job.state, job.why, job.ended = state, why, self.context.wall()
        self._release(job.id)
        await self._end_leases(job)
        end = JobEnd(self.context.epoch(), job.id, why[:8000])
        calls = [self.context.call_slave(name, end, deadline_s=10.0) for name in job.slaves]
        await self._save(job)
        await _patience(self.context.clock, DeferredList(calls, consumeErrors=True), END_S)

    async def _end_leases(self, job: JobState) -> None:
        """Whatever its slaves were about to publish is published no more: who hears that the job has ended
        knows what its output is."""
        leases, mine = self.context.job_leases, f"job:{job.id}/"
        ended = [(path, lease) for lease, (principal, path) in leases.items() if principal.startswith(mine)]
        for _, lease in ended:
            leases.pop(lease, None)

        def run(tx: SqlTx) -> None:
            for path, lease in ended:
                end_lease(tx, path, lease, job.user)

        if ended:
            with contextlib.suppress(SectorError):  # the master is stopping: the job goes on after it
                await self.context.store.write(run)

    def _release(self, name: str) -> None:
        live = self.live.pop(name, None)
        if live is not None:
            for number, _ in live.pairs.values():
                self.context.sessions.key_ids.free(number)

    def _trim(self) -> None:
        over = sorted(
            (job for job in self.jobs.values() if job.id not in self.live), key=lambda job: job.started
        )[: max(0, len(self.jobs) - KEEP_JOBS)]
        for job in over:
            del self.jobs[job.id]
        if over:
            forgotten = job_forget(self.context.store, [job.id for job in over])
            forgotten.addErrback(lambda failure: log.failure("forgetting old jobs", failure))

    # -- who may ---------------------------------------------------------------------------------
    def _own(self, name: str, caller: Caller) -> JobState:
        """The job, if its driver (or the same user under a newer session) asks."""
        view = self.context.sessions.user_of(caller.principal)
        job = self.jobs.get(name)
        if job is None or job.user != view.user:
            raise NotFound(f"there is no job {name}", hint="sector job list")
        return job

    def _seen(self, name: str, caller: Caller) -> JobState:
        """The job by its id or the unique beginning of it, if the caller may see it."""
        view = self.context.sessions.user_of(caller.principal)
        found = [
            job
            for key, job in self.jobs.items()
            if name and key.startswith(name) and (view.is_admin or job.user == view.user)
        ]
        if len(found) != 1:
            why = f"{name} fits {len(found)} jobs" if found else f"there is no job {name}"
            raise NotFound(why, hint="sector job list")
        return found[0]


def _info(job: JobState, spes: list[SpeState] | None = None) -> JobInfo:
    return JobInfo(
        job.id,
        job.user,
        job.state,
        job.stage,
        job.label,
        job.started,
        job.ended,
        job.counts,
        spes or [],
        job.errors,
        job.left_out,
    )


def _line(job: JobState) -> JobInfo:
    """A job in a list. What failed, and which slaves it did without, stands in `show`: a thousand of those
    would not fit into a message."""
    return msgspec.structs.replace(_info(job), errors=[], left_out={})


def _kept(faults: list[UdfFault]) -> list[UdfFault]:
    """Errors as they are kept: of a job whose many workers failed with long texts the first in full."""
    room, kept = ERRORS_KEPT, []
    for fault in faults:
        size = len(fault.message) + len(fault.traceback)
        if size > room:
            fault = msgspec.structs.replace(fault, message=fault.message[:200], traceback="")
        room -= min(room, size)
        kept.append(fault)
    return kept


def _no_introduction(failure: Failure, node: str) -> None:
    """They say HELLO to each other then."""
    failure.trap(SectorError)
    log.debug("slave {node} was not introduced: {why}", node=node, why=failure.getErrorMessage())


def _sector_error(failure: object) -> SectorError:
    value = failure.value if isinstance(failure, Failure) else failure
    return value if isinstance(value, SectorError) else Unavailable(f"internal error: {value}")


def _patience(clock: Clock, work: Deferred[Any], seconds: float) -> Deferred[None]:
    """Fires when `work` has ended, or after `seconds`; it goes on then."""
    enough: Deferred[None] = Deferred()
    timer = clock.callLater(seconds, enough.callback, None)

    def ended(_: object) -> None:
        if timer.active():
            timer.cancel()
            enough.callback(None)

    work.addBoth(ended)
    return enough


def _when(ready: Deferred[None]) -> Awaitable[None]:
    """Wait for a Deferred that others wait for too."""
    waiting: Deferred[None] = Deferred()

    def fired(result: None) -> None:
        waiting.callback(None)
        return result

    ready.addCallback(fired)
    return waiting


def register_jobs(rpc: RpcNode, context: MasterContext) -> Jobs:
    """Serve jobs at a master; called once, before the first request."""
    return Jobs(rpc, context)


__all__ = ["JobState", "Jobs", "register_jobs"]
