"""The files that a job leaves, as its driver knows them when nothing of it can publish any more."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from twisted.internet.defer import Deferred, DeferredList, DeferredSemaphore
from twisted.logger import Logger

from sector.client.cloud import CloudClient
from sector.errors import SectorError, UsageError
from sector.model import FileInfo
from sector.sphere.result import Part
from sector.sphere.stream import KnownFile, SphereStream

log = Logger()
AT_ONCE = 16


class JobOutput:
    """Which files may be there more than once: two slaves may have published one after the other. Each is
    whole, the last one counts; which one that is is known once the master lets the job publish no more."""

    def __init__(self, client: CloudClient, prefix: str) -> None:
        """`prefix` "" = the job leaves no files."""
        self._client = client
        self._prefix = prefix
        self._begun: set[int] = set()
        self._again: set[int] = set()
        self._seals = 0

    def begun(self, segment: int) -> None:
        """An attempt of a segment begins."""
        (self._again if segment in self._begun else self._begun).add(segment)

    def seal_begun(self) -> None:
        """All buckets are to be put together, perhaps not for the first time."""
        self._seals += 1

    async def look_again(self, parts: list[Part]) -> None:
        """Have the parts that may have been replaced name what is there now. The job has ended."""
        if not self._prefix:
            return
        gate = DeferredSemaphore(AT_ONCE)
        calls = [
            gate.run(self._looking, parts, at)
            for at, part in enumerate(parts)
            if part.path is not None
            and (self._seals > 1 if part.segment < 0 else part.segment in self._again)
        ]
        await DeferredList(calls, consumeErrors=True)

    def _looking(self, parts: list[Part], at: int) -> Deferred[None]:
        return Deferred.fromCoroutine(self._look(parts, at))

    async def _look(self, parts: list[Part], at: int) -> None:
        part = parts[at]
        assert part.path is not None
        try:
            info: FileInfo = await self._client.stat(part.path)
        except SectorError as error:  # the next stage says so, too, if it is asked for
            log.info("{path} cannot be looked at: {why}", path=part.path, why=error.message)
            return
        if info.version != part.version and info.kind == "file":
            parts[at] = dataclasses.replace(
                part, size=info.size, version=info.version, holders=tuple(info.replicas)
            )

    def stream(self, parts: Sequence[Part], row_size: int, stage: int) -> SphereStream:
        """The files as input of the next stage. Raises `UsageError`."""
        if not self._prefix:
            raise UsageError("the job has no output files", hint="give run(..., output=PREFIX)")
        files = [
            KnownFile(part.path, part.size, part.version, part.holders)
            for part in sorted(parts, key=lambda part: part.index)
            if part.path is not None
        ]
        return SphereStream.of_files(self._client, files, record_size=row_size, stage=stage)
