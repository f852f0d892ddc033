"""Sphere processing elements of a slave: jobs a master introduced, their segments, results and buckets.

For each segment: bring its input here, run the function in a worker, keep the result on the local disk, then
deliver it: to the client, to a Sector file, or to buckets (spec/sphere.md). A worker's slot is free again as
soon as the function is done; what is delivered at the same time is bounded by the requests a client has out.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.logger import Logger

from sector.clock import pause
from sector.errors import (
    Busy,
    Cancelled,
    Conflict,
    NotFound,
    Unavailable,
)
from sector.gmp.api import GmpError, GmpKey
from sector.model import Address, Key
from sector.rpc import Caller, RpcNode
from sector.slave import spe_job
from sector.slave.context import SlaveContext
from sector.slave.spe_data import Opened, SpeData
from sector.slave.spe_job import Result, SpeJob
from sector.slave.spe_seal import Sealing
from sector.sphere.runtime import mismatch
from sector.sphere.tasks import Fault, Outcome, Task, TaskInput, WorkerLimits, Workers
from sector.wire.base import Message, Ok, Request
from sector.wire.sphere import (
    BUCKETS_MAX,
    INLINE_MAX,
    BlobHave,
    BlobPut,
    BlobsMissing,
    BucketGrant,
    BucketOffer,
    BucketSeal,
    BucketsHeld,
    BucketState,
    Deliver,
    DeliverDone,
    Delivered,
    JobEnd,
    JobIntroduce,
    JobRecord,
    JobTaken,
    PeerToken,
    Pickup,
    RangeFetch,
    ResultDrop,
    ResultFetch,
    Route,
    SealDone,
    SegmentCancel,
    SegmentDone,
    SegmentRun,
    SpeQuery,
    SpeStates,
)

log = Logger()
JOBS_MAX = 1000
TOKENS_MAX = 256
"""Slaves of a job that are introduced to each other."""
SILENT_S = 900.0
SWEEP_S = 60.0
ACTIVE_MAX = 4096
R = TypeVar("R", bound=Request)


class Spe:
    """The Sphere part of one slave."""

    def __init__(self, rpc: RpcNode, context: SlaveContext) -> None:
        self.rpc = rpc
        self.context = context
        self.node = context.slave_id
        self.jobs: dict[str, SpeJob] = {}
        self.keys: dict[int, set[str]] = {}
        config = context.config
        self.slots = config.slave.spes or os.cpu_count() or 1
        self.root = os.path.join(str(config.data_dir), ".sector", "sphere")
        limits = WorkerLimits(
            memory=config.sphere.memory_mib << 20,
            file_size=config.sphere.scratch_mib << 20,
            files=config.sphere.open_files,
            user=config.sphere.user,
            network=config.sphere.network,
            silence_s=config.sphere.silence_s,
        )
        scratch = os.path.join(self.root, "workers")
        self.supervisor: Workers = context.spawner.workers(context.clock, self.slots, scratch, limits)
        self.data = SpeData(context, self.sleep)
        self.sending = DeferredSemaphore(4)
        self.publishing = DeferredSemaphore(2)
        context.spes = self.slots
        self.supervisor.watch(self._workers_changed)
        context.on_stop.append(self.stop)
        self.stopped = False
        self._began = self._swept = context.clock.seconds()
        self._watch = context.clock.callLater(SWEEP_S, self._sweep)
        self._clean(float("inf"))  # nothing yet: jobs that go on are introduced again, however old they are
        for cls, handler in self._handlers():
            rpc.serve(cls, handler)

    def _handlers(self) -> list[tuple[type[Request], Callable[..., Awaitable[Message] | Message]]]:
        return [
            (JobRecord, self.record),
            (JobEnd, self.end),
            (JobIntroduce, self.introduce),
            (SpeQuery, self.query),
            (BlobHave, self.blob_have),
            (BlobPut, self.blob_put),
            (SegmentRun, self.segment_run),
            (SegmentCancel, self.segment_cancel),
            (ResultFetch, self.result_fetch),
            (ResultDrop, self.result_drop),
            (BucketState, self.bucket_state),
            (Deliver, self.deliver_again),
            (BucketSeal, self.bucket_seal),
            (RangeFetch, self.range_fetch),
            (BucketOffer, self.bucket_offer),
        ]

    def _workers_changed(self, why: str) -> None:
        """The slave offers SPEs while it can start workers; heartbeats tell the master."""
        self.context.spes = 0 if why else self.slots
        self.context.spes_busy = self.supervisor.busy

    # -- helpers ---------------------------------------------------------------------------------
    def _run_thd(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        return self.context.disk.run(function, *args)

    def sleep(self, seconds: float) -> Deferred[None]:
        """Fires later."""
        return pause(self.context.clock, seconds)

    def job_of(self, name: str) -> SpeJob:
        """The job, if a master introduced it. Raises `NotFound`."""
        job = self.jobs.get(name)
        if job is None or job.ended:
            raise NotFound(f"slave {self.node} does not know job {name}")
        return job

    def job_of_peer(self, name: str) -> SpeJob:
        """The job as another slave asks for it; one that a restart made unknown here is introduced again.
        Raises `Unavailable`."""
        try:
            return self.job_of(name)
        except NotFound as error:
            raise Unavailable(error.message) from None

    def job_for(self, name: str, caller: Caller) -> SpeJob:
        """The job, if its own client asks."""
        job = self.job_of(name)
        job.check_client(caller)
        job.heard = self.context.clock.seconds()
        return job

    async def alive(self, caller: Caller, job: SpeJob, work: Awaitable[Any], percent: list[int]) -> Any:
        """Await `work` and tell the caller every 2 s that it goes on."""
        going = True

        def beat() -> None:
            if going and not self.stopped:
                caller.progress(percent[0])
                self.context.clock.callLater(2.0, beat)

        self.context.clock.callLater(2.0, beat)
        job.active += 1
        try:
            return await work
        except OSError as error:
            raise spe_job.os_error(error, self.node) from None
        finally:
            going = False
            job.active -= 1

    # -- from masters ----------------------------------------------------------------------------
    async def record(self, request: JobRecord, caller: Caller) -> JobTaken:
        """A master introduces a job, or renews it."""
        self.context.check_master(caller, request)
        why = mismatch(request.runtime)
        if why:
            raise Unavailable(f"slave {self.node} {why[0]}", hint=why[1])
        if len(self.jobs) >= JOBS_MAX and request.job not in self.jobs:
            raise Busy(f"slave {self.node} has {JOBS_MAX} jobs")
        known = self.jobs.get(request.job)
        if known is not None and not known.ended:
            self._forget_keys(known)
            known.record, known.heard = request, self.context.clock.seconds()
            job = known
        else:
            folder = os.path.join(self.root, request.job)
            await self._run_thd(spe_job.open_folder_thd, folder)
            job = SpeJob(request, folder, self.context.clock.seconds())
            self.jobs[request.job] = job
        for key in [request.client_key, *(peer.key for peer in request.peers)]:
            self._add_key(request.job, key)
        tokens = []
        for peer in request.peers[:TOKENS_MAX]:
            token = self._token(peer.gmp, peer.instance, peer.key)
            if token:
                tokens.append(PeerToken(peer.node, peer.instance, token))
        return JobTaken(self._token(request.client_at, request.client_instance, request.client_key), tokens)

    def _token(self, at: Address | None, instance: int, key: Key) -> bytes:
        """For the first message of somebody whom a master names; b"" = he says HELLO."""
        if at is None or not instance:
            return b""
        try:
            return self.context.gmp.mint_token(at.host, at.port, instance, key.key_id)
        except (GmpError, ValueError):
            return b""

    async def introduce(self, request: JobIntroduce, caller: Caller) -> Ok:
        """A master brings tokens of the other slaves."""
        self.context.check_master(caller, request)
        job = self.jobs.get(request.job)
        peers = {peer.node: peer for peer in job.record.peers} if job is not None and not job.ended else {}
        for card in request.tokens:
            peer = peers.get(card.node)
            if peer is not None and peer.instance == card.instance:
                self.context.gmp.introduce(await self.data.peer_of(peer), card.instance, card.token)
        return Ok()

    def _add_key(self, job: str, key: Key) -> None:
        self.keys.setdefault(key.key_id, set()).add(job)
        self.context.gmp.add_key(GmpKey(key.key_id, key.secret, key.principal, key.valid_s))

    def _forget_keys(self, job: SpeJob) -> None:
        name = job.record.job
        for key in [job.record.client_key, *(peer.key for peer in job.record.peers)]:
            users = self.keys.get(key.key_id)
            if users is not None:
                users.discard(name)
                if not users:
                    del self.keys[key.key_id]
                    self.context.gmp.remove_key(key.key_id)

    async def end(self, request: JobEnd, caller: Caller) -> Ok:
        """A master ends a job."""
        self.context.check_master(caller, request)
        job = self.jobs.get(request.job)
        if job is not None:
            await self._end(job, request.why or "the job has ended")
        else:  # it was here before we restarted
            await self._run_thd(spe_job.remove_folder_thd, os.path.join(self.root, request.job))
        return Ok()

    async def _end(self, job: SpeJob, why: str) -> None:
        if job.ended:
            return
        job.ended = why
        self.supervisor.end_job(job.record.job)
        self._forget_keys(job)
        for store in job.stores.values():
            await self._run_thd(store.close_thd)
        await self._run_thd(spe_job.remove_folder_thd, job.folder)
        if self.jobs.get(job.record.job) is job:
            del self.jobs[job.record.job]

    async def query(self, request: SpeQuery, caller: Caller) -> SpeStates:
        """The worker processes of a job."""
        self.context.check_master(caller, request)
        return SpeStates(self.supervisor.states(request.job, self.node))

    def _clean(self, age_s: float) -> None:
        """Remove what jobs left that are not here and whose folders are older."""
        cleaning = self._run_thd(spe_job.forget_old_thd, self.root, {*self.jobs, "workers"}, age_s)
        cleaning.addErrback(lambda failure: log.failure("cleaning the job folders", failure))

    def _sweep(self) -> None:
        """End jobs whose client has been silent for long and that nobody ended for us, whatever they run: a
        living one says every minute that its job goes on. What jobs left that were not introduced again since
        we restarted goes: they ended while we were away."""
        now = self.context.clock.seconds()
        stood, self._swept = now - self._swept - SWEEP_S, now
        for job in list(self.jobs.values()):
            if stood > SWEEP_S:  # nobody listened: what clients said meanwhile is still to be read
                job.heard = min(now, job.heard + stood)
            if now - job.heard > SILENT_S:
                ending = Deferred.fromCoroutine(self._end(job, "its client fell silent"))
                ending.addErrback(lambda failure: log.failure("ending a job", failure))
        if now - self._began > SILENT_S:
            self._clean(SILENT_S)
        self._watch = self.context.clock.callLater(SWEEP_S, self._sweep)

    def stop(self) -> None:
        """The slave stops: no worker stays; folders stay, for the job may go on after a restart."""
        self.stopped = True
        if self._watch.active():
            self._watch.cancel()
        for job in self.jobs.values():
            job.ended = "the slave stops"
        self.supervisor.stop()

    # -- code ------------------------------------------------------------------------------------
    async def blob_have(self, request: BlobHave, caller: Caller) -> BlobsMissing:
        """Which blobs of the job are not here."""
        job = self.job_for(request.job, caller)
        missing = []
        for blob in job.record.blobs:
            path = job.blob_file(blob.sha256)
            if not await self._run_thd(spe_job.blob_is_there_thd, path, blob.size, blob.sha256):
                missing.append(blob.sha256)
        return BlobsMissing(missing)

    async def blob_put(self, request: BlobPut, caller: Caller) -> Ok:
        """Take a blob."""
        job = self.job_for(request.job, caller)
        path = job.blob_file(request.sha256)
        save = self._run_thd(spe_job.save_blob_thd, path, request.sha256, request.data)
        await self.alive(caller, job, save, [0])
        return Ok()

    # -- segments --------------------------------------------------------------------------------
    async def segment_run(self, request: SegmentRun, caller: Caller) -> SegmentDone:
        """Run the function over a segment, deliver, answer."""
        job = self.job_for(request.job, caller)
        if job.active >= ACTIVE_MAX:
            raise Busy(f"slave {self.node} has {ACTIVE_MAX} segments of this job under way")
        percent = [0]
        return cast(
            SegmentDone, await self.alive(caller, job, self._segment(job, request, caller, percent), percent)
        )

    async def _segment(
        self, job: SpeJob, request: SegmentRun, caller: Caller, percent: list[int]
    ) -> SegmentDone:
        for item in request.inputs:
            job.check_read(item.path)
        result = job.results.get(request.segment)
        if result is None:
            old = job.running.get(request.segment)
            if old is not None:
                self.supervisor.cancel(request.job, request.segment, old)
            job.running[request.segment] = request.attempt
            try:
                outcome = await self._execute(job, request, caller, percent)
            finally:
                if job.running.get(request.segment) == request.attempt:
                    del job.running[request.segment]
            if isinstance(outcome, Fault):
                return SegmentDone(
                    request.segment, "none", 0, 0, 0, pid=outcome.pid, log=outcome.log, fault=[outcome.fault]
                )
            result = outcome
        if job.ended:
            raise Cancelled(job.ended)
        result.users += 1
        try:
            return await self._hand_over(job, request, result)
        finally:
            result.users -= 1

    async def _execute(
        self, job: SpeJob, request: SegmentRun, caller: Caller, percent: list[int]
    ) -> Result | Fault:
        blob = job.blob_file(request.udf)
        opened: list[tuple[Opened, Opened | None]] = []
        file = job.out_file(request.segment, request.attempt)
        out = -1
        try:
            for item in request.inputs:
                opened.append(await self.data.open_input(job, item))
            out = await self._run_thd(spe_job.create_output_thd, file)
            task = self._task(job, request, blob, opened, out)

            def progress(fraction: float, pid: int) -> None:
                percent[0] = int(100 * fraction)
                caller.progress(percent[0])

            if job.ended or job.running.get(request.segment) != request.attempt:
                raise Cancelled(job.ended or f"segment {request.segment} was cancelled")
            waiting = self.supervisor.run(task, progress)
            self.context.spes_busy = self.supervisor.busy
            outcome: Outcome = await waiting
            if isinstance(outcome, Fault):
                await self._run_thd(spe_job.unlink_thd, file)
                return outcome
            starts = await self._run_thd(spe_job.check_output_thd, out, outcome, request.buckets)
        except BaseException:
            if out >= 0 and not job.ended:
                await self._run_thd(spe_job.unlink_thd, file)
            raise
        finally:
            self.context.spes_busy = self.supervisor.busy
            for fd in [out, *(part.fd for pair in opened for part in pair if part is not None)]:
                if fd >= 0:
                    os.close(fd)
        moved = sum(part.moved for pair in opened for part in pair if part is not None)
        size = sum(item.length for item in request.inputs)
        result = Result(request.segment, file, outcome, size, moved, starts)
        job.results[request.segment] = result
        return result

    def _task(
        self,
        job: SpeJob,
        request: SegmentRun,
        blob: str,
        opened: list[tuple[Opened, Opened | None]],
        out: int,
    ) -> Task:
        inputs = tuple(
            TaskInput(
                item.path,
                data.fd,
                data.at,
                item.offset,
                item.length,
                item.size,
                item.record_size,
                item.records,
                index.fd if index else -1,
                index.at if index else 0,
            )
            for item, (data, index) in zip(request.inputs, opened, strict=True)
        )
        return Task(
            request.job,
            request.segment,
            request.attempt,
            request.udf.hex(),
            blob,
            inputs,
            out,
            request.granularity,
            request.dtype,
            request.buckets,
            job.record.timeout_s,
        )

    async def _hand_over(self, job: SpeJob, request: SegmentRun, result: Result) -> SegmentDone:
        done = result.done
        fields: dict[str, Any] = {}
        moved = result.moved_in
        if request.buckets:
            delivered, undelivered = await self._deliver(job, result, request.routes)
            moved += sum(item.moved for item in delivered)
            fields = {"delivered": delivered, "undelivered": undelivered}
        elif request.output:
            if done.kind != "none":
                fields = await self._publish_result(job, request.output, result)
        elif done.bytes + 8 * done.table <= INLINE_MAX:
            data = await self._run_thd(spe_job.read_thd, result.file, done.bytes + 8 * done.table)
            fields = {"inline": True, "data": data}
            if result.users == 1:
                await self._forget_result(job, result.segment)
        return SegmentDone(
            request.segment,
            done.kind,
            result.bytes_in,
            done.bytes,
            moved,
            dtype=done.dtype,
            shape=done.shape,
            table=done.table,
            pieces=done.pieces,
            row_bytes=done.row_bytes,
            pid=done.pid,
            log=done.log,
            **fields,
        )

    async def _publish_result(self, job: SpeJob, output: str, result: Result) -> dict[str, Any]:
        if result.done.table:
            await self._run_thd(spe_job.cut_thd, result.file, result.done.bytes)
        info = await self.publishing.run(self.context.disk.publish_file, result.file, output, job.principal)
        job.results.pop(result.segment, None)
        return {"path": info.path, "version": info.version}

    async def _deliver(
        self, job: SpeJob, result: Result, routes: list[Route]
    ) -> tuple[list[Delivered], list[Route]]:
        if result.starts is None:
            raise Conflict(f"segment {result.segment} has no output for buckets")
        buckets = len(result.starts) - 1
        if any(not route.first <= route.last < buckets for route in routes):
            raise Conflict("a route names buckets that do not exist")
        done: list[Delivered] = []
        left: list[Route] = []
        first = next((i for i, route in enumerate(routes) if route.node == self.node), 0)
        for route in [*routes[first:], *routes[:first]]:  # not all slaves to the same target at once
            answer: Delivered | None = await self.sending.run(self.data.deliver, job, result, route)
            if answer is None:
                left.append(route)
            else:
                done.append(answer)
        return done, left

    def segment_cancel(self, request: SegmentCancel, caller: Caller) -> Ok:
        """Stop an attempt."""
        job = self.job_for(request.job, caller)
        self.supervisor.cancel(request.job, request.segment, request.attempt)
        if job.running.get(request.segment) == request.attempt:
            del job.running[request.segment]
        return Ok()

    # -- results ---------------------------------------------------------------------------------
    def result_fetch(self, request: ResultFetch, caller: Caller) -> Pickup:
        """A ticket for a kept result or sealed bucket."""
        job = self.job_for(request.job, caller)
        if request.bucket >= 0:
            sealed = job.sealed.get(request.bucket)
            if sealed is None:
                raise NotFound(f"bucket {request.bucket} is not kept on {self.node}")
            return self.data.serve_file(*sealed)
        result = job.results.get(request.segment)
        if result is None:
            raise NotFound(f"the result of segment {request.segment} is not on {self.node}")
        return self.data.serve_file(result.file, result.done.bytes + 8 * result.done.table)

    async def result_drop(self, request: ResultDrop, caller: Caller) -> Ok:
        """Remove kept results."""
        job = self.job_for(request.job, caller)
        for segment in request.segments:
            await self._forget_result(job, segment)
        return Ok()

    async def _forget_result(self, job: SpeJob, segment: int) -> None:
        result = job.results.pop(segment, None)
        if result is not None:
            await self._run_thd(spe_job.unlink_thd, result.file)

    # -- buckets ---------------------------------------------------------------------------------
    async def bucket_state(self, request: BucketState, caller: Caller) -> BucketsHeld:
        """What the ledger holds."""
        job = self.job_for(request.job, caller)
        job.check_stage(request.stage)
        return BucketsHeld(await self._run_thd(job.store(request.stage).held_thd))

    async def deliver_again(self, request: Deliver, caller: Caller) -> DeliverDone:
        """Send a kept result to new targets."""
        job = self.job_for(request.job, caller)
        result = job.results.get(request.segment)
        if result is None:
            raise NotFound(f"the result of segment {request.segment} is not on {self.node}")
        work = self._deliver(job, result, request.routes)
        return DeliverDone(*await self.alive(caller, job, work, [100]))

    async def bucket_seal(self, request: BucketSeal, caller: Caller) -> SealDone:
        """Finish a range of buckets."""
        job = self.job_for(request.job, caller)
        job.check_stage(request.stage)
        if not request.first <= request.last < BUCKETS_MAX:
            raise Conflict(f"there are no buckets {request.first} to {request.last}")
        sealing = Sealing(self.context.disk, job, request)
        turn = job.sealing.run(lambda: Deferred.fromCoroutine(sealing.run()))
        return SealDone(await self.alive(caller, job, turn, [0]))

    # -- other slaves ----------------------------------------------------------------------------
    async def range_fetch(self, request: RangeFetch, caller: Caller) -> Pickup:
        """Another slave needs part of a replica here. `NotFound` is said of the replica alone."""
        job = self.job_of_peer(request.job)
        job.check_slave(caller)
        job.check_read(request.path.removesuffix(".idx"))
        return await self.data.serve_range(request)

    async def bucket_offer(self, request: BucketOffer, caller: Caller) -> BucketGrant:
        """Another slave has a run for buckets here."""
        job = self.job_of_peer(request.job)
        job.check_slave(caller)
        job.check_stage(request.stage)
        try:
            return await self.data.accept_run(job, request)
        except OSError as error:
            raise spe_job.os_error(error, self.node) from None


def register_spe(rpc: RpcNode, context: SlaveContext) -> Spe:
    """Serve Sphere on a slave; called once before it joins."""
    return Spe(rpc, context)
