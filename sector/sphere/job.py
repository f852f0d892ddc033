"""The client's driver of one job: a plan run over real slaves (design.md section 6; spec/sphere.md).

The plan decides, the driver does what it says: sends segments, watches their progress, takes results, brings
bucket output to where it is missing, and tells the master every two seconds how the job stands.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector import errors
from sector.client.cloud import CloudClient
from sector.clock import pause
from sector.errors import SectorError
from sector.model import check_prefix
from sector.sphere import job_request
from sector.sphere.inputs import find_files, is_astray, look_again, make_segments
from sector.sphere.job_buckets import BucketBook
from sector.sphere.job_nodes import LOST, UNFIT, Nodes, is_silence
from sector.sphere.job_output import JobOutput
from sector.sphere.job_request import Options
from sector.sphere.job_results import ResultBox, no_fetch
from sector.sphere.job_stage import BucketStage
from sector.sphere.plan import Effect, Failed, Finished, Limits, Plan, Start, Stop
from sector.sphere.result import Part, Status
from sector.sphere.runtime import here
from sector.sphere.stream import SphereStream
from sector.wire.sphere import (
    Blob,
    BucketsHeld,
    BucketState,
    JobCounts,
    JobJoin,
    JobOrder,
    JobReport,
    JobStart,
    JobStarted,
    ResultDrop,
    SegmentCancel,
    SegmentDone,
    SegmentRun,
    UdfFault,
)

log = Logger()
LOGS_KEPT = 1000
RUN_S = 7 * 24 * 3600.0
SILENCE_S = 15.0
TICK_S, STOOD_S = 1.0, 3.0  # a tick that is so late: we stood still, and have not read what we were told
GONE_S = 20.0
MASTER_S = 60.0  # for which the master is asked where an input is
JOIN_EVERY_S, SEEK_EVERY_S = 2.0, 10.0


class JobDriver:
    """One job, from `start` to its last part. All in the reactor thread."""

    def __init__(self, client: CloudClient, stream: SphereStream, blob: bytes, options: Options) -> None:
        """`blob` is what `sector.sphere.pack.pack` made of the function."""
        if options.output:
            check_prefix(options.output)
        self.client = client
        self.clock = client.clock
        self.stream = stream
        self.options = options
        self.blob = blob
        self.udf = hashlib.sha256(self.blob).digest()
        self.id = ""
        self.state = "starting"
        self.stage = stream.stage + 1
        self.plan: Plan | None = None
        self.nodes: Nodes | None = None
        self.book: BucketBook | None = None
        self.box: ResultBox | None = None
        self.fetch: Callable[[str], bytes] = no_fetch
        self.logs: deque[tuple[int, str]] = deque(maxlen=LOGS_KEPT)
        self.on_log: Callable[[int, str], None] | None = None
        self.output = JobOutput(client, options.output)
        self.parts: list[Part] = []
        self.by_segment: dict[int, Part] = {}
        self._order: list[int] = []
        self._ordered_to = 0
        self.faults: list[UdfFault] = []
        self.error: SectorError | None = None
        self.bytes_in = self.bytes_out = self.bytes_moved = 0
        self.row_bytes: set[int] = set()
        self.began = self.clock.seconds()
        self.ended_at = 0.0
        self.watchers: list[Callable[[], None]] = []
        self._changed: list[Deferred[None]] = []
        self._notified = False
        self.hurry = False
        self._tasks: set[Deferred[Any]] = set()
        self._counted: set[int] = set()
        self._local: set[tuple[int, int, str]] = set()
        self._joined_at = -1e9
        self._joining = False
        self._report_s = 2.0
        self._main: Deferred[None] | None = None

    # -- for the faces ---------------------------------------------------------------------------
    async def start(self) -> str:
        """Cut the input, have the master make the job, begin. Fires with the job's id as soon as it runs."""
        found = [await find_files(self.client, part) for part in self.stream.parts]
        blob = Blob(self.udf, len(self.blob))
        request = JobStart(
            [blob], here(), self.options.timeout_s, self.stage, self.options.label[:256], self.options.output
        )
        started: JobStarted = await self.client.call(request, deadline_s=30.0)
        self.id = started.job
        self._report_s = started.report_s
        self.nodes = Nodes(self.client, self.id, {self.udf: self.blob})
        self.box = ResultBox(self.client, self.id, self.nodes, self.fetch)
        reporting = self.spawn(self._report_loop())  # cutting may take long: each record index is read
        try:
            await self.nodes.take(started.nodes)
            slots = sum(node.spes for node in started.nodes)
            segments = await make_segments(self.client, self.stream, found, slots, self.options.segment_bytes)
            job_request.check_reach(segments, started.refused)
            if self.error is not None:
                raise self.error
        except BaseException as error:
            await self._tell_master("failed", error)
            self.nodes.close()
            raise
        finally:
            reporting.cancel()
        for node, why in started.refused.items():
            log.info("slave {node} takes no part: {why}", node=node, why=why)
        limits = Limits(silence_s=SILENCE_S)
        self.plan = Plan(segments, limits)
        if self.options.buckets:
            weights = [(node.node, node.spes) for node in sorted(started.nodes, key=lambda n: n.node)]
            self.book = BucketBook(self.options.buckets, weights)
        self.state = "running"
        self._main = Deferred.fromCoroutine(self._run())
        self._main.addErrback(lambda failure: log.failure("job {job}", failure, job=self.id))
        me = weakref.ref(self)

        def closing() -> Deferred[None] | None:
            job = me()
            return job.closing() if job is not None else None

        self.client.on_close(closing)
        return self.id

    def status(self) -> Status:
        """How it stands."""
        left_out = dict(self.nodes.left_out) if self.nodes is not None else {}
        return Status(
            self.id, self.state, self.stage, self.counts(), tuple(self.faults), len(self.parts), left_out
        )

    def counts(self) -> JobCounts:
        """Numbers so far."""
        plan = self.plan
        end = self.ended_at or self.clock.seconds()
        if plan is None:
            return JobCounts(seconds=end - self.began)
        return JobCounts(
            len(plan.segments),
            len(plan.done),
            len(self.faults),
            plan.retries,
            plan.duplicates,
            self.bytes_in,
            self.bytes_out,
            self.bytes_moved,
            round(end - self.began, 3),
        )

    async def wait(self) -> None:
        """Fires when the job has ended; raises its error."""
        while not self.ended:
            await self._change()
        if self.error is not None:
            raise self.error

    def ended_deferred(self) -> Deferred[None]:
        """`wait` as a Deferred of its own, which may be cancelled."""
        return Deferred.fromCoroutine(self.wait())

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.state in ("done", "failed", "cancelled")

    async def part(self, number: int) -> Part | None:
        """Part `number` in the order of completion (or of input, with in_order); None after the last.
        Raises the job's error when it failed."""
        while True:
            if self.options.in_order and self.options.buckets == 0:
                found = self._ordered(number)
            else:
                found = self.parts[number] if number < len(self.parts) else None
            if found is not None:
                return found
            if self.ended:
                if self.error is not None:
                    raise self.error
                return None
            await self._change()

    def _ordered(self, number: int) -> Part | None:
        """Part `number` by segment; segments without output do not count."""
        assert self.plan is not None
        while self._ordered_to in self.by_segment or self._ordered_to in self.plan.done:
            if self._ordered_to in self.by_segment:
                self._order.append(self._ordered_to)
            self._ordered_to += 1
        return self.by_segment[self._order[number]] if number < len(self._order) else None

    async def cancel(self, why: str = "") -> None:
        """End the job; fires when the master knows."""
        if not self.ended:
            self._fail(errors.Cancelled(why or f"job {self.id} was cancelled"))
        await self.finished()

    def closing(self) -> Deferred[None] | None:
        """The connection is closed: a job that still runs ends."""
        if self.ended:
            return None
        self.hurry = True
        return Deferred.fromCoroutine(self.cancel("the connection was closed"))

    async def finished(self) -> None:
        """Fires when nothing of the job runs any more."""
        while self._main is not None and not self._main.called:
            await self._change()

    # -- main ------------------------------------------------------------------------------------
    async def _run(self) -> None:
        assert self.plan is not None and self.nodes is not None
        reporting = self.spawn(self._report_loop())
        ticking = self.spawn(self._tick_loop())
        try:
            now = self.clock.seconds()
            for link in self.nodes.up:
                self.do(self.plan.node_up(link.info.node, link.info.spes, now))
            while self.error is None:
                while self.error is None and len(self.plan.done) < len(self.plan.segments):
                    await self._change()
                if self.error is None and await self._settled():
                    break
        finally:
            reporting.cancel()
            ticking.cancel()
            self.do(self.plan.cancel())
            for task in list(self._tasks):
                task.cancel()
            self.ended_at = self.clock.seconds()
            state = "done"
            if self.error is not None:
                state = "cancelled" if isinstance(self.error, errors.Cancelled) else "failed"
            await self._tell_master(state, self.error if state == "failed" else None)
            if state == "done":
                await self.output.look_again(self.parts)
            self.nodes.close()
            self.state = state
            self._notify()

    def _fail(self, error: SectorError) -> None:
        if self.error is None and not self.ended:
            self.error = error
            self._notify()

    async def _settled(self) -> bool:
        """Whether all output is where it belongs. Work for that is given up when the job fails meanwhile."""
        if self.book is None:
            return True
        outcome: list[Any] = []
        settling = Deferred.fromCoroutine(BucketStage(self, self.book).settle())
        settling.addBoth(outcome.append).addBoth(lambda _: self._notify())
        while not outcome:
            if self.error is not None:
                settling.cancel()
                return False
            await self._change()
        if isinstance(outcome[0], Failure):
            error = outcome[0].value
            if not isinstance(error, SectorError):
                log.failure("job {job}", outcome[0], job=self.id)
                error = errors.SectorError(f"the driver of job {self.id} failed: {error!r}")
            self._fail(error)
            return False
        return bool(outcome[0])

    def row_size(self) -> int:
        """The length of all records, 0 when they differ."""
        return next(iter(self.row_bytes)) if len(self.row_bytes) == 1 else 0

    # -- doing what the plan says ----------------------------------------------------------------
    def do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start():
                    self.output.begun(effect.segment)
                    self.spawn(self._attempt(effect))
                case Stop():
                    self.spawn(self._stop(effect))
                case Finished():
                    self._notify()
                case Failed() if not effect.user_error:
                    self._fail(errors.JobFailed(f"job {self.id}: {effect.why}"))
        self._notify()

    async def _stop(self, effect: Stop) -> None:
        assert self.nodes is not None
        if effect.node in self.nodes.links:
            request = SegmentCancel(self.id, effect.segment, effect.attempt)
            await self.nodes.call(effect.node, request, deadline_s=10.0)

    async def _attempt(self, start: Start) -> None:
        assert self.plan is not None and self.nodes is not None
        plan, segment, attempt, node = self.plan, start.segment, start.attempt, start.node

        def heard(percent: int) -> None:
            plan.progress(segment, attempt, node, percent / 100, self.clock.seconds())

        here_now, answered = (segment, attempt, node), False
        self._local.add(here_now)
        try:
            await self.nodes.ship(node)
            if is_astray(plan, segment, self.nodes.names_up):
                await look_again(self.client, plan, segment)
            self._local.discard(here_now)
            heard(0)
            request = self._request(segment, attempt)
            done: SegmentDone = await self.nodes.call(node, request, deadline_s=RUN_S, on_progress=heard)
            job_request.check_answer(request, done, node)
            answered = True
            self._local.add(here_now)
            await self._take(done, node)
        except (errors.Busy, errors.LeaseHeld):
            self.do(plan.refused(segment, attempt, node, 0.5, self.clock.seconds()))
        except LOST as error:
            if self.error is not None or self.ended or not plan.runs(*here_now):
                return
            if is_silence(error):
                self.node_trouble(node)
            else:
                self.spawn(self.rejoin())
            if await self._look_again(plan, here_now, error):
                return self.do(plan.refused(segment, attempt, node, 0.0, self.clock.seconds()))
            why = f"{error.message} ({error.hint})" if error.hint else error.message
            self.do(plan.lost(segment, attempt, node, why, self.clock.seconds()))
        except SectorError as error:
            if self.nodes.forgot(node, error):
                self.node_trouble(node)
                self.do(plan.lost(segment, attempt, node, error.message, self.clock.seconds()))
            elif not plan.runs(*here_now):  # another attempt took its place: this one is no matter
                return
            elif isinstance(error, UNFIT) and not answered:  # else it is our own disk
                self.leave_out(node, error)
            elif found := await self._look_again(plan, here_now, error):
                self.do(plan.refused(segment, attempt, node, 0.0, self.clock.seconds()))
            elif found is None:
                self.do(plan.lost(segment, attempt, node, error.message, self.clock.seconds()))
            elif plan.runs(*here_now):
                self._fail(error)
        else:
            if not done.fault:
                self.do(plan.finished(segment, attempt, node, self.clock.seconds()))
            else:
                self.do(plan.user_error(segment, attempt, node, "", self.clock.seconds()))
        finally:
            self._local.discard(here_now)

    async def _look_again(self, plan: Plan, run: tuple[int, int, str], error: SectorError) -> bool | None:
        self._local.add(run)  # it is the master that we wait for
        return await look_again(self.client, plan, run[0], error, MASTER_S)

    def _request(self, segment: int, attempt: int) -> SegmentRun:
        assert self.plan is not None
        routes = self.book.routes() if self.book is not None else []
        cut = self.plan.segments[segment]
        return job_request.segment_request(self.id, self.udf, self.stream, self.options, cut, attempt, routes)

    async def _take(self, done: SegmentDone, node: str) -> None:
        """Use the answer of a segment, if it is the first one of it."""
        assert self.plan is not None
        if done.log and done.segment not in self.plan.done:
            self.logs.append((done.segment, done.log))
            if self.on_log is not None:
                self.on_log(done.segment, done.log)
        if done.segment in self.plan.done:
            return
        if done.fault:
            self._fault(done.fault[0])
            return
        part: Part | None = None
        if self.book is not None:
            self.book.ran_on(done.segment, node)
            self.book.took(done.segment, done.delivered)
            if done.undelivered:
                self.spawn(self.rejoin())
        else:
            assert self.box is not None
            part = await self.box.of_segment(done, node)
            if done.segment in self.plan.done:
                return
            if part is not None and part.path is None and not done.inline:
                self.spawn(self._drop(node, done.segment))
        if part is not None:
            self.parts.append(part)
            self.by_segment[done.segment] = part
        if done.segment in self._counted:
            return
        self._counted.add(done.segment)
        self.bytes_in += done.bytes_in
        self.bytes_out += done.bytes_out
        self.bytes_moved += done.bytes_moved
        if done.bytes_out:
            self.row_bytes.add(done.row_bytes)

    def _fault(self, fault: UdfFault) -> None:
        assert self.plan is not None
        self.faults.append(fault)
        segment = self.plan.segments[fault.segment]
        self._fail(job_request.fault_error(fault, segment, self.id, self.options.label))

    async def _drop(self, node: str, segment: int) -> None:
        assert self.nodes is not None
        await self.nodes.call(node, ResultDrop(self.id, [segment]), deadline_s=10.0)

    # -- slaves come and go ----------------------------------------------------------------------
    def node_trouble(self, node: str) -> None:
        assert self.plan is not None and self.nodes is not None
        if self.nodes.mark_lost(node):
            log.info("job {job}: slave {node} does not answer", job=self.id, node=node)
            self.do(self.plan.node_lost(node, self.clock.seconds()))
        self.spawn(self.rejoin())

    def leave_out(self, node: str, error: SectorError) -> None:
        """The slave's disk is full or fails, or we do not reach it: its segments and buckets go to others.
        The job fails with the last one's error."""
        assert self.plan is not None and self.nodes is not None
        if self.error is not None or self.ended or node in self.nodes.left_out:
            return
        log.warn("job {job} does without slave {node}: {why}", job=self.id, node=node, why=error.message)
        others = self.nodes.leave_out(node, error.message)
        if self.book is not None and self.nodes.up:
            self.book.lose_node(node, [link.info.node for link in self.nodes.up])
        self.do(self.plan.node_out(node, self.clock.seconds()))
        if not others:
            self._fail(error)

    async def rejoin(self) -> None:
        """Ask the master for the slaves of now; take back those that returned, replace those that do not."""
        assert self.plan is not None and self.nodes is not None
        now = self.clock.seconds()
        if self._joining or now - self._joined_at < JOIN_EVERY_S or self.ended:
            return
        self._joining, self._joined_at = True, now
        try:
            started: JobStarted = await self.client.call(JobJoin(self.id), deadline_s=30.0)
        except (errors.Unavailable, errors.Unreachable, errors.TimedOut, errors.Busy):
            return
        finally:
            self._joining = False
        before = self.nodes.names_up
        for node, fresh, renewed in await self.nodes.take(started.nodes):
            if fresh and self.book is not None:
                self.book.lose_results(node)
                await self.ask_ledger(node)
            if fresh or renewed or node not in before:
                leave = self.plan.node_lost if fresh else self.plan.node_out
                if node in before:
                    self.do(leave(node, self.clock.seconds()))
                self.do(self.plan.node_up(node, self.nodes[node].info.spes, self.clock.seconds()))
        if self._joined_at == now:  # else somebody asked after us, and knows more
            self._give_up(now, {info.node for info in started.nodes})

    def _give_up(self, now: float, present: set[str]) -> None:
        """Buckets of slaves that have been away for long, or are left out, move to others."""
        assert self.nodes is not None and self.plan is not None
        for name, link in self.nodes.links.items():
            left_out = name in self.nodes.left_out
            if name in present and not left_out:
                continue
            if link.up:
                self.nodes.mark_lost(name)
                self.do(self.plan.node_lost(name, now))
            gone = left_out or now - link.lost_at >= GONE_S
            if self.book is not None and gone and self.nodes.up:
                self.book.lose_node(name, [other.info.node for other in self.nodes.up])

    async def ask_ledger(self, node: str) -> None:
        assert self.nodes is not None
        if self.book is None or node not in self.nodes.links:
            return
        try:
            held: BucketsHeld = await self.nodes.call(node, BucketState(self.id, self.stage))
            self.book.replace_state(node, held.held)
        except SectorError as error:
            log.info("the ledger of {node} is not known: {why}", node=node, why=error.message)

    # -- time ------------------------------------------------------------------------------------
    async def _tick_loop(self) -> None:
        assert self.plan is not None and self.nodes is not None
        now = self.clock.seconds()
        while True:
            before = now
            await pause(self.clock, TICK_S)
            self.nodes.keep()
            now = self.clock.seconds()
            if now - before - TICK_S > STOOD_S:
                self.plan.stood(now - before - TICK_S, now)
            for segment, attempt, node in self._local:  # the slave is not what we wait for
                self.plan.progress(segment, attempt, node, 0.0, now)
            given_up = self.plan.tick(now)
            self.do(given_up)
            silent = any(isinstance(effect, Stop) for effect in given_up)  # it may have restarted
            strangers = self.nodes.strangers(self.plan.local)
            if silent or self.nodes.missed or (strangers and now - self._joined_at >= SEEK_EVERY_S):
                self.spawn(self.rejoin())  # it may take long: slaves hear of us meanwhile

    async def _report_loop(self) -> None:
        """At once when something changed, but at most four times a second; else at half the master's time."""
        told, at = -1, -1e9
        while True:
            done = self.counts().done
            if done == told and self.clock.seconds() - at < self._report_s / 2:
                await pause(self.clock, 0.25)
                continue
            told, at = done, self.clock.seconds()
            try:
                order = await self._report("running")
                if order is not None and order.cancel:
                    self._fail(errors.Cancelled(order.why or f"job {self.id} was cancelled"))
                    return
            except (errors.SessionExpired, errors.NotFound, errors.Denied) as error:
                self._fail(error)
                return
            except SectorError as error:
                log.info("job {job}: {why}", job=self.id, why=error.message)
            await pause(self.clock, 0.25)

    async def _report(self, state: str, why: BaseException | None = None) -> JobOrder:
        """`why` it failed is told when no function is to blame."""
        faults = self.faults[:20] or ([job_request.failure_fault(why)] if why is not None else [])
        left_out = self.nodes.left_out if self.nodes is not None else {}
        request = JobReport(self.id, state, self.counts(), self.stage, faults, left_out)
        patience = 0.0 if self.hurry else 30.0
        order: JobOrder = await self.client.call(request, deadline_s=5.0, patience_s=patience)
        return order

    async def _tell_master(self, state: str, why: BaseException | None = None) -> None:
        try:
            await self._report(state, why)
        except SectorError as error:
            told = f"the master was not told that job {self.id} is {state}"
            log.warn("{told}: {why}", told=told, why=error.message)

    # -- small things ----------------------------------------------------------------------------
    def spawn(self, work: Any) -> Deferred[Any]:
        task: Deferred[Any] = Deferred.fromCoroutine(work)
        self._tasks.add(task)

        def ended(result: Any) -> None:
            self._tasks.discard(task)
            if isinstance(result, Failure) and not result.check(CancelledError, SectorError):
                log.failure("job {job}", result, job=self.id)
                self._fail(errors.SectorError(f"the driver of job {self.id} failed: {result.value!r}"))

        task.addBoth(ended)
        return task

    def _change(self) -> Deferred[None]:
        """Fires at the next change."""
        change: Deferred[None] = Deferred()
        self._changed.append(change)
        return change

    def _notify(self) -> None:
        """Wake those that wait for a change, outside of whatever runs now."""
        if not self._notified:
            self._notified = True
            self.clock.callLater(0, self._fire)

    def _fire(self) -> None:
        self._notified = False
        changed, self._changed = self._changed, []
        for change in changed:
            if not change.called:
                change.callback(None)
        for watcher in self.watchers:
            watcher()

    def output_stream(self) -> SphereStream:
        """The output as input of the next stage. Raises `UsageError`."""
        return self.output.stream(self.parts, self.row_size(), self.stage)
