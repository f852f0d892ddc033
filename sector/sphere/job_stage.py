"""The end of a stage with buckets: deliver what is still missing, then have the buckets sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.defer import Deferred, DeferredList, DeferredSemaphore
from twisted.logger import Logger
from twisted.python.failure import Failure

from sector.clock import pause
from sector.errors import Conflict, JobFailed, LeaseHeld, LeaseLost, NotFound, SectorError, Unavailable
from sector.sphere.job_buckets import BucketBook
from sector.sphere.job_nodes import LOST, SILENCE, UNFIT, is_silence
from sector.sphere.job_request import check_sealed
from sector.wire.sphere import BucketSeal, Deliver, DeliverDone, Route, SealDone, Sealed

if TYPE_CHECKING:
    from sector.sphere.job import JobDriver

log = Logger()
ROUNDS = 200
DELIVER_S = 3600.0
SEAL_MAX = 8192
SEAL_S = 7 * 24 * 3600.0
AT_ONCE = 8
AWAY_S = 1.0


class BucketStage:
    """Works on a driver whose plan has counted every segment."""

    def __init__(self, driver: JobDriver, book: BucketBook) -> None:
        assert driver.plan is not None and driver.nodes is not None and driver.box is not None
        self.driver = driver
        self.book = book
        self.plan = driver.plan
        self.nodes = driver.nodes
        self.box = driver.box

    @property
    def complete(self) -> bool:
        """Whether every segment counts."""
        return len(self.plan.done) == len(self.plan.segments)

    async def settle(self) -> bool:
        """True when all buckets are sealed; False when segments have to run again first. Raises
        `Unavailable` when deliveries do not get anywhere."""
        for rounds in range(ROUNDS):
            missing = self.book.missing(range(len(self.plan.segments)))
            if not missing:
                return await self._seal()
            if rounds:
                await pause(self.driver.clock, min(2.0, 0.1 * rounds))
            await self._deliver(missing)
            if not self.complete:
                return False
        raise Unavailable(f"job {self.driver.id}: buckets cannot be delivered, see the logs of the slaves")

    def _present(self, node: str | None) -> bool:
        return node is not None and node in self.nodes.links and self.nodes[node].up

    async def _deliver(self, missing: dict[int, list[Route]]) -> None:
        """Have kept results sent anew; segments whose result is lost run again."""
        if not all(self._present(route.node) for routes in missing.values() for route in routes):
            await self.driver.rejoin()
        gate = DeferredSemaphore(AT_ONCE)
        calls = []
        for segment, routes in missing.items():
            home = self.book.home.get(segment)
            if home is None or not self._present(home):
                self.driver.do(self.plan.redo(segment, self.driver.clock.seconds()))
            else:
                calls.append(gate.run(self._deliver_one, segment, home, routes))
        await DeferredList(calls, consumeErrors=True)

    async def _deliver_one(self, segment: int, home: str, routes: list[Route]) -> None:
        try:
            request = Deliver(self.driver.id, segment, routes)
            done: DeliverDone = await self.nodes.call(home, request, deadline_s=DELIVER_S)
        except SectorError as error:
            if is_silence(error) or self.nodes.forgot(home, error):
                self.driver.node_trouble(home)
            elif isinstance(error, UNFIT):
                self.driver.leave_out(home, error)
            self.book.home.pop(segment, None)
            self.driver.do(self.plan.redo(segment, self.driver.clock.seconds()))
            return
        self.book.took(segment, done.delivered)
        self.driver.bytes_moved += sum(item.moved for item in done.delivered)
        if done.undelivered:
            self.driver.spawn(self.driver.rejoin())

    async def _seal(self) -> bool:
        """Have all buckets put together and published; False when something is missing after all."""
        routes = self.book.routes()
        if not all(self._present(route.node) for route in routes):  # it comes back, or others take its place
            await pause(self.driver.clock, AWAY_S)
            await self.driver.rejoin()
            return False
        self.driver.output.seal_begun()
        calls = [Deferred.fromCoroutine(self._seal_one(route)) for route in routes]
        outcomes = await DeferredList(calls, consumeErrors=True)
        sealed: list[tuple[str, SealDone]] = []
        troubles = []
        silent: set[str] = set()
        for route, (good, answer) in zip(routes, outcomes, strict=True):
            if good and isinstance(answer, SealDone):
                self.book.unsealed.pop(route.first, None)
                sealed.append((route.node, answer))
            elif isinstance(answer, Failure):
                error = cast(BaseException, answer.value)
                if not isinstance(error, SILENCE):
                    self.nodes.answered(route.node)
                elif route.node in silent:
                    continue  # it counts once, whatever number of ranges it has
                else:
                    silent.add(route.node)
                troubles.append(Deferred.fromCoroutine(self._not_sealed(route, error)))
        for good, failure in await DeferredList(troubles, consumeErrors=True):
            if not good:
                cast(Failure, failure).raiseException()
        if len(sealed) < len(routes):
            return False
        for node, done in sealed:
            if not await self._fetch(node, done.sealed):
                return False
        self.driver.parts.sort(key=lambda part: part.index)
        return True

    async def _fetch(self, node: str, sealed: list[Sealed]) -> bool:
        """Take the buckets of a node that are not here yet, in their order; False when it was lost meanwhile.
        Raises `JobFailed` for a bucket that was lost too often."""
        here = {part.index for part in self.driver.parts}
        for item in sealed:
            if item.bucket in here:
                continue
            try:
                part = await self.box.of_bucket(item, node, self.driver.row_size())
            except (NotFound, *LOST) as error:
                if self.driver.error is not None:  # it is we who gave up
                    raise
                lost = self.box.lost[item.bucket] = self.box.lost.get(item.bucket, 0) + 1
                if lost >= self.plan.limits.attempts:
                    name = f"job {self.driver.id}: bucket {item.bucket}"
                    raise JobFailed(f"{name} was lost {lost} times, last: {error.message}") from None
                log.info("buckets of {node} do not arrive: {why}", node=node, why=error.message)
                self.nodes.forgot(node, error)
                await self._look_after(node)
                return False
            self.driver.parts.append(part)
        return True

    async def _look_after(self, node: str) -> None:
        """A node is in trouble: it comes back with what it has, or others take its place."""
        self.driver.node_trouble(node)
        await self.driver.rejoin()
        await self.driver.ask_ledger(node)

    async def _seal_one(self, route: Route) -> SealDone:
        """Have one node's buckets sealed, some thousands a request: an answer is limited."""
        sealed: list[Sealed] = []
        for first in range(route.first, route.last + 1, SEAL_MAX):
            request = BucketSeal(
                self.driver.id,
                self.driver.stage,
                len(self.plan.segments),
                first,
                min(route.last, first + SEAL_MAX - 1),
                self.driver.options.output,
            )
            done: SealDone = await self.nodes.call(
                route.node,
                request,
                deadline_s=SEAL_S,
                on_progress=lambda _: self.nodes.answered(route.node),
            )
            self.nodes.answered(route.node)
            check_sealed(request, done, route.node)
            sealed += done.sealed
        return SealDone(sealed)

    async def _not_sealed(self, route: Route, error: BaseException) -> None:
        """What to do about buckets that are not sealed; raises what cannot be helped."""
        forgot = isinstance(error, NotFound) and self.nodes.forgot(route.node, error)
        if not forgot and not isinstance(error, (LeaseHeld, *LOST, *UNFIT)):
            raise error
        if self.driver.error is not None:  # it is we who gave up
            raise error
        log.info("buckets on {node} are not sealed: {why}", node=route.node, why=str(error))
        if isinstance(error, LeaseLost):
            lost = self.book.unsealed[route.first] = self.book.unsealed.get(route.first, 0) + 1
            if lost >= self.plan.limits.attempts:
                name = f"job {self.driver.id}: buckets on slave {route.node}"
                raise JobFailed(f"{name} were not put together {lost} times, last: {error}") from None
        if isinstance(error, (LeaseHeld, LeaseLost)):  # of an attempt that was cut short; it ends by itself
            await pause(self.driver.clock, 2.0)
        elif isinstance(error, UNFIT) or (isinstance(error, SILENCE) and self.nodes.unanswered(route.node)):
            self.driver.leave_out(route.node, error)
        elif isinstance(error, Conflict):
            await self.driver.rejoin()
            await self.driver.ask_ledger(route.node)
        else:  # a slave that stops says Cancelled; of a job that a user ends the master tells
            await self._look_after(route.node)
