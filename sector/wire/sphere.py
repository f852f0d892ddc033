"""Sphere jobs: client to master (start, watch, cancel), master to slaves (job records), client to slaves
(blobs, segments, results, buckets), slave to slave (segment ranges, bucket runs). Numbers 0x0400-0x04ff.

A slave runs code only under a `JobRecord` that a master sent; client and slaves of the job talk under the
keys of that record and a slave checks for each request that the caller belongs to the job
(spec/security.md, "UDFs" and "Control messages").
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sector.model import (
    U32,
    U64,
    Address,
    Bytes32,
    Key,
    Name,
    Path,
    Right,
    Stored,
    Text,
    Ticket,
    Version,
)
from sector.wire.base import Message, Ok, Request, request

JobId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
BLOB_MAX = 60 << 20
"""Largest blob, bytes: below the 64 MiB that one GMP message may carry."""
INLINE_MAX = 256 << 10
"""Results up to this many bytes travel in the GMP answer, larger ones by ticket."""
BUCKETS_MAX = 1 << 20
Number = Annotated[int, Meta(ge=-1, le=1 << 62)]
"""-1 = none, or not known."""


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Code and parameters of a job, named by content; shipped once per slave."""

    sha256: Bytes32
    size: Annotated[int, Meta(ge=0, le=BLOB_MAX)]


class Runtime(msgspec.Struct, frozen=True, array_like=True):
    """What a pickled function needs: "cpython-3.11" and package versions by name."""

    python: Name
    packages: Annotated[
        dict[Annotated[str, Meta(max_length=128)], Annotated[str, Meta(max_length=128)]],
        Meta(max_length=65536),
    ] = {}


class SpeNode(msgspec.Struct, frozen=True, array_like=True):
    """A slave that takes part in a job, as the client sees it. `spes` = segments it runs at once. The key is
    HKDF(S, "cs" + node + instance + key_id) (sector.keys.client_slave_key): it does not travel. `token`
    introduces the client to the slave's GMP endpoint (spec/gmp.md 5.3): no HELLO; b"" = none."""

    node: Name
    instance: U64
    gmp: Address
    data: Address
    spes: U32
    key_id: U32
    token: Annotated[bytes, Meta(max_length=24)] = b""


class SpePeer(msgspec.Struct, frozen=True, array_like=True):
    """Another slave of the same job, as a slave sees it."""

    node: Name
    instance: U64
    gmp: Address
    data: Address
    key: Key


class UdfFault(msgspec.Struct, frozen=True, array_like=True):
    """One error of a user function, or (`segment` -1) why the job failed without one. `record` = number of
    the record in its segment, -1 unknown; `type` = exception class or "exit", "signal"; `code` as in
    sector.errors."""

    segment: Number
    record: Number
    type: Annotated[str, Meta(max_length=256)]
    message: Annotated[str, Meta(max_length=8192)]
    traceback: Annotated[str, Meta(max_length=65536)]
    code: Name = "udf_error"


# client -> master -----------------------------------------------------------------------------------
class JobStarted(Message, frozen=True, array_like=True):
    """The job's id and slaves. Report at least every `report_s`; after `silence_s` without one the
    master ends the job. `refused`: slaves that cannot run it and why."""

    job: JobId
    nodes: Annotated[list[SpeNode], Meta(max_length=4096)]
    report_s: float
    silence_s: float
    refused: dict[str, str] = {}


@request(0x0401, reply=JobStarted)
class JobStart(Request, frozen=True, array_like=True):
    """Needs the execute right. `timeout_s` per segment, 0 = none. `label` says what runs (for lists).
    Errors: denied, unavailable (no slave can run it), busy."""

    blobs: Annotated[list[Blob], Meta(max_length=64)]
    runtime: Runtime
    timeout_s: Annotated[float, Meta(ge=0, le=10**7)] = 0.0
    stage: U32 = 1
    label: Annotated[str, Meta(max_length=256)] = ""
    output: Annotated[str, Meta(max_length=4096)] = ""


@request(0x0402, reply=JobStarted, safe=True)
class JobJoin(Request, frozen=True, array_like=True):
    """Introduce the job to slaves that came (back) since; answers with the slaves of now.
    Errors: not_found, cancelled (the job has ended)."""

    job: JobId


class JobOrder(Message, frozen=True, array_like=True):
    """`cancel` = somebody cancelled the job, `why` says who."""

    cancel: bool
    why: Text = ""


class JobCounts(msgspec.Struct, frozen=True, array_like=True):
    """Progress of a job. Bytes as in `sector sphere run --json`."""

    total: U64 = 0
    done: U64 = 0
    failed: U64 = 0
    retries: U64 = 0
    duplicates: U64 = 0
    bytes_in: U64 = 0
    bytes_out: U64 = 0
    bytes_moved: U64 = 0
    seconds: Annotated[float, Meta(ge=0, le=1e12)] = 0.0


LeftOut = Annotated[dict[Name, Text], Meta(max_length=4096)]
"""Slaves that a job does without, and why: a full disk, a disk that fails."""


@request(0x0403, reply=JobOrder, safe=True)
class JobReport(Request, frozen=True, array_like=True):
    """The driver tells how the job stands. `state` "running", "done", "failed" or "cancelled"; the last
    three end it. Errors: not_found."""

    job: JobId
    state: Annotated[str, Meta(pattern="^(running|done|failed|cancelled)$")]
    counts: JobCounts
    stage: U32 = 1
    errors: Annotated[list[UdfFault], Meta(max_length=20)] = []
    left_out: LeftOut = {}


class SpeState(msgspec.Struct, frozen=True, array_like=True):
    """A worker process: `segment` -1 = idle; `progress` 0..1."""

    node: Name
    pid: Number
    segment: Number
    progress: Annotated[float, Meta(ge=0, le=1)]


class JobInfo(Message, frozen=True, array_like=True):
    """A job as lists show it. `state` also "lost" (its driver fell silent). Times: seconds since 1970."""

    id: JobId
    user: Name
    state: Name
    stage: U32
    label: Text
    started: float
    ended: float
    counts: JobCounts
    spes: Annotated[list[SpeState], Meta(max_length=65536)] = []
    errors: Annotated[list[UdfFault], Meta(max_length=20)] = []
    left_out: LeftOut = {}


class JobTable(Message, frozen=True, array_like=True):
    """Jobs without their `errors` and `left_out`: JobShow has those."""

    jobs: Annotated[list[JobInfo], Meta(max_length=10000)]


@request(0x0404, reply=JobTable, safe=True)
class JobList(Request, frozen=True, array_like=True):
    """The caller's jobs, newest first; all users' for an administrator."""

    limit: Annotated[int, Meta(ge=1, le=10000)] = 1000


@request(0x0405, reply=JobInfo, safe=True)
class JobShow(Request, frozen=True, array_like=True):
    """One job with its worker processes. Errors: not_found, denied."""

    job: Annotated[str, Meta(max_length=16)]


@request(0x0406, safe=True)
class JobCancel(Request, frozen=True, array_like=True):
    """End a job: its workers are killed, its keys die. Errors: not_found, denied."""

    job: Annotated[str, Meta(max_length=16)]


# master -> slave ------------------------------------------------------------------------------------
class PeerToken(Message, frozen=True, array_like=True):
    """The GMP token of one slave for another (spec/gmp.md 5.3). In JobTaken `node` is who may use it, in
    JobIntroduce whose it is."""

    node: Name
    instance: U64
    token: Annotated[bytes, Meta(min_length=24, max_length=24)]


class JobTaken(Message, frozen=True, array_like=True):
    """`token`: the slave's GMP token for the client's address and instance, b"" where none was asked;
    `peers`: its tokens for the other slaves of the job."""

    token: Annotated[bytes, Meta(max_length=24)] = b""
    peers: Annotated[list[PeerToken], Meta(max_length=256)] = []


@request(0x0421, reply=JobTaken, safe=True)
class JobRecord(Request, frozen=True, array_like=True):
    """A slave may run this job. `client` is the principal of the driver, under `client_key`; `rights` are
    the user's at this moment. Sent again when a slave comes back: it replaces keys and peers. `client_at`
    and `client_instance`: the driver's GMP endpoint as the master sees it, for which a token is minted.
    Errors: unavailable (another interpreter or package version; the message names both)."""

    epoch: U64
    job: JobId
    user: Name
    client: Name
    client_key: Key
    rights: Annotated[list[Right], Meta(max_length=1024)]
    blobs: Annotated[list[Blob], Meta(max_length=64)]
    runtime: Runtime
    timeout_s: Annotated[float, Meta(ge=0, le=10**7)]
    stage: U32
    peers: Annotated[list[SpePeer], Meta(max_length=4096)] = []
    client_at: Address | None = None
    client_instance: U64 = 0


@request(0x0422, safe=True)
class JobEnd(Request, frozen=True, array_like=True):
    """Kill the job's workers, forget its keys, remove its scratch files."""

    epoch: U64
    job: JobId
    why: Text = ""


@request(0x0424, safe=True)
class JobIntroduce(Request, frozen=True, array_like=True):
    """Tokens of the job's other slaves for this one: its first message to each, in a shuffle, needs no
    HELLO."""

    epoch: U64
    job: JobId
    tokens: Annotated[list[PeerToken], Meta(max_length=256)]


class SpeStates(Message, frozen=True, array_like=True):
    spes: Annotated[list[SpeState], Meta(max_length=4096)]


@request(0x0423, reply=SpeStates, safe=True)
class SpeQuery(Request, frozen=True, array_like=True):
    """The worker processes of a job on this slave."""

    epoch: U64
    job: JobId


# client -> slave ------------------------------------------------------------------------------------
class BlobsMissing(Message, frozen=True, array_like=True):
    missing: Annotated[list[Bytes32], Meta(max_length=64)]


@request(0x0441, reply=BlobsMissing, safe=True)
class BlobHave(Request, frozen=True, array_like=True):
    """Which blobs of the job this slave does not hold yet."""

    job: JobId


@request(0x0442, safe=True)
class BlobPut(Request, frozen=True, array_like=True):
    """One blob (an over-size message when large). Errors: damaged (wrong SHA-256), denied (not named in
    the job record), no_space."""

    job: JobId
    sha256: Bytes32
    data: Annotated[bytes, Meta(max_length=BLOB_MAX)]


class Input(msgspec.Struct, frozen=True, array_like=True):
    """A byte range of one file. `records` from `first` on with an index (then `index_version` is that of
    `path`.idx) or of `record_size` bytes; records = 0: the range is not cut into records.
    `holders` = slaves that have a replica,
    `index_holders` of the index."""

    path: Path
    version: Version
    size: U64
    offset: U64
    length: U64
    first: U64 = 0
    records: U64 = 0
    record_size: U32 = 0
    index_version: Version = Version(0, 0)
    index_size: U64 = 0
    holders: Annotated[list[Name], Meta(max_length=64)] = []
    index_holders: Annotated[list[Name], Meta(max_length=64)] = []


class Route(msgspec.Struct, frozen=True, array_like=True):
    """Buckets first..last (inclusive) live on slave `node`."""

    first: U32
    last: U32
    node: Name


Routes = Annotated[list[Route], Meta(max_length=65536)]


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    """A range of buckets of one segment that its target has committed. `moved` bytes over the network."""

    first: U32
    last: U32
    node: Name
    moved: U64


class SegmentDone(Message, frozen=True, array_like=True):
    """A segment is complete. `kind` of the result: "none", "bytes", "array" (then `dtype` and `shape`),
    "buckets"; `pieces` = how many were returned. `inline`: data and behind it `table` int64 lengths of the
    pieces (left out when all are `row_bytes` long) are in `data`; else fetch both with ResultFetch, or
    `path` holds the data, or the buckets do. `undelivered`: bucket ranges whose
    target did not take them; Deliver sends them anew. `row_bytes` = length of every record, 0 = various.
    `fault` = the function failed."""

    segment: U32
    kind: Name
    bytes_in: U64
    bytes_out: U64
    bytes_moved: U64
    inline: bool = False
    data: Annotated[bytes, Meta(max_length=2 * INLINE_MAX)] = b""
    dtype: Annotated[str, Meta(max_length=65536)] = ""
    shape: Annotated[list[Stored], Meta(max_length=32)] = []
    table: U64 = 0
    pieces: U64 = 0
    row_bytes: U64 = 0
    path: Annotated[str, Meta(max_length=4096)] = ""
    version: Version = Version(0, 0)
    delivered: Annotated[list[Delivered], Meta(max_length=65536)] = []
    undelivered: Routes = []
    pid: Number = 0
    log: Text = ""
    fault: Annotated[list[UdfFault], Meta(max_length=1)] = []


@request(0x0443, reply=SegmentDone)
class SegmentRun(Request, frozen=True, array_like=True):
    """Run the function over one segment and deliver what it returns. `udf` = the blob. `output`: "" =
    back to the client, else path of the Sector file to write; `buckets` > 0 = to buckets along
    `routes`. A second request for a segment that is here already only delivers. An error of the function
    comes in `fault` of the answer. Errors: not_found, denied, unavailable (worker lost: try another
    SPE), busy, cancelled."""

    job: JobId
    segment: U32
    attempt: U32
    udf: Bytes32
    inputs: Annotated[list[Input], Meta(min_length=1, max_length=64)]
    granularity: Annotated[str, Meta(pattern="^(record|batch|segment|file)$")]
    dtype: Annotated[str, Meta(max_length=65536)] = ""
    output: Annotated[str, Meta(max_length=4096)] = ""
    buckets: Annotated[int, Meta(ge=0, le=BUCKETS_MAX)] = 0
    routes: Routes = []


@request(0x0449, safe=True)
class SegmentCancel(Request, frozen=True, array_like=True):
    """Stop a segment that runs or waits here (another SPE has it, or the job ends)."""

    job: JobId
    segment: U32
    attempt: U32


class Pickup(Message, frozen=True, array_like=True):
    """Read `size` bytes with this ticket from the slave's data port."""

    ticket: Ticket
    size: U64


@request(0x0444, reply=Pickup, safe=True)
class ResultFetch(Request, frozen=True, array_like=True):
    """The result of a segment (or, `bucket` >= 0, a sealed bucket that was not published) as a ticket.
    Errors: not_found."""

    job: JobId
    segment: U32
    bucket: Annotated[int, Meta(ge=-1, le=BUCKETS_MAX)] = -1


@request(0x0445, safe=True)
class ResultDrop(Request, frozen=True, array_like=True):
    """The results of these segments are no longer needed."""

    job: JobId
    segments: Annotated[list[U32], Meta(max_length=100000)]


class BucketsHeld(Message, frozen=True, array_like=True):
    """Committed (segment, first bucket, last bucket) on this slave, from its ledger."""

    held: Annotated[list[tuple[U32, U32, U32]], Meta(max_length=4000000)]


@request(0x0446, reply=BucketsHeld, safe=True)
class BucketState(Request, frozen=True, array_like=True):
    """What the ledger of the job's buckets here holds (also after a restart of the slave)."""

    job: JobId
    stage: U32


class DeliverDone(Message, frozen=True, array_like=True):
    delivered: Annotated[list[Delivered], Meta(max_length=65536)]
    undelivered: Routes = []


@request(0x0447, reply=DeliverDone, safe=True)
class Deliver(Request, frozen=True, array_like=True):
    """Send the kept result of a segment to these (new) targets. Errors: not_found (run it again)."""

    job: JobId
    segment: U32
    routes: Routes


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """A finished bucket; `path` "" = kept for ResultFetch."""

    bucket: U32
    path: Annotated[str, Meta(max_length=4096)]
    version: Version
    size: U64


class SealDone(Message, frozen=True, array_like=True):
    sealed: Annotated[list[Sealed], Meta(max_length=65536)]


@request(0x0448, reply=SealDone, safe=True)
class BucketSeal(Request, frozen=True, array_like=True):
    """End of the stage: buckets first..last have all of segments 0..`segments`-1, put together in order
    of segments and publish as `output`.B (or keep them, output ""). Errors: conflict (some
    segment is not committed; nothing is published), denied, no_space."""

    job: JobId
    stage: U32
    segments: U32
    first: U32
    last: U32
    output: Annotated[str, Meta(max_length=4096)] = ""


# slave -> slave -------------------------------------------------------------------------------------
@request(0x0461, reply=Pickup, safe=True)
class RangeFetch(Request, frozen=True, array_like=True):
    """A ticket for a byte range of a replica. Errors: not_found, denied, busy."""

    job: JobId
    path: Path
    version: Version
    offset: U64
    length: U64


class BucketGrant(Message, frozen=True, array_like=True):
    """`have` = this set is committed already, send nothing; else send with `ticket` (absent when have)."""

    have: bool
    ticket: Annotated[list[Ticket], Meta(max_length=1)] = []


@request(0x0462, reply=BucketGrant, safe=True)
class BucketOffer(Request, frozen=True, array_like=True):
    """A segment's run for buckets first..first+len(lengths)-1, `lengths` bytes each, in this order in
    one transfer; DONE on the data channel = committed in the ledger. Errors: busy (try later), no_space."""

    job: JobId
    stage: U32
    segment: U32
    first: U32
    lengths: Annotated[list[U64], Meta(min_length=1, max_length=BUCKETS_MAX)]


BETWEEN_SLAVES = (RangeFetch.NUMBER, BucketOffer.NUMBER)
"""What slaves of a job ask one another; a master passes it on where UDP between them is blocked."""

__all__ = ["Ok"]
