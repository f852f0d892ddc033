"""The data directory as Sphere jobs on this slave use it: replicas, scratch directories, publishing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred

from sector import errors
from sector._udt import checksum
from sector.clear import clear_thd
from sector.model import BLOCK_BYTES, FileInfo, SliceMeta, Version, check_path, digest_text
from sector.slave.disk import Disk
from sector.slave.pool import Pool
from sector.slave.transfer import MasterCall, Transfers
from sector.wire.slave import LocalDrop, LocalGrant, LocalPublish

_VERIFY_BYTES = 64 * BLOCK_BYTES


class LocalDisk:
    """Implements `sector.slave.context.SlaveDisk`."""

    def __init__(
        self,
        disk: Disk,
        pool: Pool,
        transfers: Transfers,
        master_call: MasterCall,
        now: Callable[[], float],
    ) -> None:
        self._disk = disk
        self._pool = pool
        self._transfers = transfers
        self._master_call = master_call
        self._now = now

    def open(self, path: str, version: Version, offset: int, length: int) -> Deferred[int]:
        return ensureDeferred(self._open(path, version, offset, length))

    async def _open(self, path: str, version: Version, offset: int, length: int) -> int:
        fd, record = await self._pool.run(self._disk.open_read_thd, path, version)
        try:
            for at in range(offset, offset + length, _VERIFY_BYTES):
                rest = min(_VERIFY_BYTES, offset + length - at)
                bad = await self._pool.run(self._disk.bad_blocks_thd, record, fd, at, rest)
                if bad:
                    self._transfers.doubts.add(path, version)
                    raise errors.Damaged(f"block {bad[0]} of {path} is damaged on {self._disk.where}")
        except BaseException:
            os.close(fd)
            raise
        return int(fd)

    def scratch(self, name: str) -> Deferred[str]:
        return self._pool.run(self._disk.scratch_thd, name)

    def remove_scratch(self, path: str) -> Deferred[None]:
        inside = os.path.join(self._disk.root, ".sector", "scratch")
        if os.path.dirname(os.path.abspath(path)) != inside:
            raise ValueError(f"{path} is no scratch directory")
        return self._pool.run(clear_thd, path)

    def run(self, function: Callable[..., Any], *args: Any) -> Deferred[Any]:
        return self._pool.run(function, *args)

    def publish_file(
        self,
        local_path: str,
        cloud_path: str,
        principal: str,
        *,
        mode: int = 0o644,
        create: str = "any",
        parents: bool = True,
    ) -> Deferred[FileInfo]:
        return ensureDeferred(
            self._publish_file(local_path, check_path(cloud_path), principal, mode, create, parents)
        )

    async def _publish_file(
        self, local: str, path: str, principal: str, mode: int, create: str, parents: bool
    ) -> FileInfo:
        slave_id = self._disk.slave_id
        temp, crcs, size = await self._pool.run(self._disk.import_thd, local)
        digest = digest_text(checksum.content_digest(crcs, size))
        grant: LocalGrant | None = None
        try:
            grant = await self._master_call(
                LocalPublish(slave_id, principal, path, size, digest, mode, create, parents)
            )
            owner = owner_of(principal)
            meta = SliceMeta(path, grant.version, size, owner, mode, round(self._now(), 6), digest)
            with self._transfers.parts.at_work(grant.lease):
                record = await self._pool.run(self._disk.seal_thd, temp, meta, crcs, grant.lease)
        except Exception:
            await self._pool.run(self._disk.put_back_thd, temp, local)
            if grant is not None:
                await self._drop(path, grant.lease)
            raise
        try:
            final = await self._transfers.publish(grant.lease, record, back=local)
        finally:
            os.close(temp.fd)
        return FileInfo(
            path, "file", size, final.version, final.owner, final.mode, final.mtime, digest, [slave_id]
        )

    async def _drop(self, path: str, lease: bytes) -> None:
        try:
            await self._master_call(LocalDrop(self._disk.slave_id, path, lease))
        except errors.SectorError:
            return  # the lease ends by itself


def owner_of(principal: str) -> str:
    """The user's name in "user:NAME#SESSION" or "job:JOBID/NAME"."""
    kind, _, rest = principal.partition(":")
    if kind == "job":
        return rest.partition("/")[2] or rest
    return rest.partition("#")[0] or principal
