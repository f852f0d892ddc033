"""How results reach the client: small ones in the answer, larger ones by ticket through the data channel."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from twisted.internet.defer import DeferredSemaphore

from sector._udt.data_api import OWN_DISK, TransferError, arrival
from sector.client.cloud import CloudClient
from sector.client.transfer import channel, local_error
from sector.clock import pause
from sector.errors import Damaged, LocalIO, Protocol, Unavailable, UsageError
from sector.model import Version
from sector.resolve import literal_host
from sector.sphere.job_nodes import Nodes
from sector.sphere.result import Part, Spool
from sector.wire.sphere import Pickup, ResultFetch, Sealed, SegmentDone

TRIES = 3
AT_ONCE = 4


class ResultBox:
    """Results of one job in a local spool file. `fetch` reads a cloud file (for parts that are files);
    `lost`: how often a bucket's slave was lost while it was fetched."""

    def __init__(self, client: CloudClient, job: str, nodes: Nodes, fetch: Callable[[str], bytes]) -> None:
        self.client = client
        self.job = job
        self.nodes = nodes
        self.fetch = fetch
        self.spool = Spool()
        self.lost: dict[int, int] = {}
        self._gate = DeferredSemaphore(AT_ONCE)

    async def of_segment(self, done: SegmentDone, node: str) -> Part | None:
        """The part for a segment's answer; None when the function returned nothing."""
        if done.path:
            return self._file(done.segment, done.segment, done.path, done.bytes_out, done.version, node)
        if done.kind == "none":
            return None
        size = done.bytes_out + 8 * done.table
        at = self.spool.room(size)
        if done.inline:
            if len(done.data) != size:
                raise Protocol(f"slave {node} sent {len(done.data)} bytes for a result of {size}")
            await self.client.run(self.spool.put_thd, at, done.data)
        elif size:
            await self._gate.run(self._pick_up, node, ResultFetch(self.job, done.segment), at, size)
        return Part(
            done.segment,
            done.segment,
            None,
            done.bytes_out,
            dtype=done.dtype,
            shape=tuple(done.shape),
            pieces=done.pieces,
            row_bytes=done.row_bytes,
            table=done.table,
            spool=self.spool,
            at=at,
        )

    async def of_bucket(self, item: Sealed, node: str, row_bytes: int) -> Part:
        """The part for a sealed bucket."""
        if item.path:
            return self._file(item.bucket, -1, item.path, item.size, item.version, node)
        at = self.spool.room(item.size)
        if item.size:
            request = ResultFetch(self.job, 0, item.bucket)
            await self._gate.run(self._pick_up, node, request, at, item.size)
        pieces = item.size // row_bytes if row_bytes else 0
        return Part(
            item.bucket, -1, None, item.size, pieces=pieces, row_bytes=row_bytes, spool=self.spool, at=at
        )

    def _file(self, index: int, segment: int, path: str, size: int, version: Version, node: str) -> Part:
        return Part(index, segment, path, size, version, (node,), fetch=self.fetch)

    async def _pick_up(self, node: str, request: ResultFetch, at: int, size: int) -> None:
        """Receive a result into the spool."""
        trouble = "no answer"
        for attempt in range(TRIES):
            if attempt:
                await pause(self.client.clock, 0.3 * attempt)
            pickup: Pickup = await self.nodes.call(node, request)
            if pickup.size != size:
                raise Protocol(f"slave {node} offers {pickup.size} bytes for a result of {size}")
            try:
                moved = await self._receive(node, pickup, at)
            except TransferError as error:
                if error.code in OWN_DISK:  # ours: no other slave helps
                    what = f"a result in {tempfile.gettempdir()}"
                    raise local_error(error, what, self.spool.fd, size) or LocalIO(
                        f"{what}: {error}"
                    ) from None
                trouble = str(error)
                continue
            if moved != size:
                raise Damaged(f"slave {node} sent a result of another length")
            return
        raise Unavailable(f"a result did not arrive from slave {node}: {trouble}")

    async def _receive(self, node: str, pickup: Pickup, at: int) -> int:
        address = self.nodes[node].info.data
        host = await literal_host(self.client.clock, address.host)
        receiving = self.client.data.receive_file(
            channel(pickup.ticket),
            self.spool.fd,
            offset=at,
            limit=pickup.size,
            to=(host, address.port),
            fsync=False,
        )
        try:
            result = await arrival(receiving)
        except TransferError:
            raise
        except BaseException:
            receiving.cancel()
            raise
        receiving.finish()
        return int(result.moved)


def no_fetch(path: str) -> bytes:
    """Until a face sets its own way to read a cloud file."""
    raise UsageError(f"open {path} with the cloud")
