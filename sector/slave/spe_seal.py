"""The end of a stage on one slave: its buckets put together and published, some at a time.

Each bucket that becomes a file waits for two commits of the master and four syncs, one after the other, and
does little meanwhile; those of many files cost the disk and the master hardly more than those of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from sector.errors import Cancelled
from sector.model import Version
from sector.slave.context import SlaveDisk
from sector.slave.spe_job import SpeJob
from sector.wire.sphere import BucketSeal, Sealed

AT_ONCE = 8


class Sealing:
    """One request. Its answer has the buckets in their order; after the first failure no other bucket is
    begun, and it is raised when none is under way."""

    def __init__(self, disk: SlaveDisk, job: SpeJob, request: BucketSeal) -> None:
        self._disk = disk
        self._job = job
        self._request = request
        self._store = job.store(request.stage)
        self._failed = False

    async def run(self) -> list[Sealed]:
        """Raises what a bucket meets, `Cancelled`."""
        turns = iter(range(self._request.first, self._request.last + 1))
        lines = [Deferred.fromCoroutine(self._line(turns)) for _ in range(AT_ONCE)]
        sealed: list[Sealed] = []
        failure: Failure | None = None
        for _, found in await DeferredList(lines, consumeErrors=True):
            if isinstance(found, Failure):
                failure = failure or found
            else:
                sealed += found
        if failure is not None:
            failure.raiseException()
        return sorted(sealed, key=lambda item: item.bucket)

    async def _line(self, turns: Iterator[int]) -> list[Sealed]:
        done = []
        try:
            for bucket in turns:
                if self._job.ended:
                    raise Cancelled(self._job.ended)
                if self._failed:
                    break
                done.append(await self._one(bucket))
        except BaseException:
            self._failed = True
            raise
        return done

    async def _one(self, bucket: int) -> Sealed:
        request, job = self._request, self._job
        target = os.path.join(job.folder, f"bucket{bucket}")
        size = await self._disk.run(self._store.seal_thd, bucket, request.segments, target)
        if not request.output:
            job.sealed[bucket] = (target, size)
            return Sealed(bucket, "", Version(0, 0), size)
        info = await self._disk.publish_file(target, f"{request.output}.{bucket}", job.principal)
        return Sealed(bucket, info.path, info.version, size)
