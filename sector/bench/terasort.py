"""`sector bench terasort`: records of 100 bytes made, sorted and checked on one's cluster."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from typing import Any

import click
import numpy as np

from sector.bench.common import document, show
from sector.client.blocking import Cloud, connected
from sector.config import load_client
from sector.errors import SectorError
from sector.sphere.blocking import SphereProcess, SphereStream

RECORD, KEY, CHUNK = 100, 10, 100_000


def _mix(x: Any) -> Any:
    """SplitMix64 of uint64[n]."""
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _key(rows: Any) -> tuple[Any, Any]:
    """The key of uint8[n, 100] as uint64[n] (8 bytes) and uint16[n] (2 bytes)."""
    high = np.ascontiguousarray(rows[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    low = np.ascontiguousarray(rows[:, 8:KEY]).view(">u2")[:, 0].astype(np.uint16)
    return high, low


def generate(order: memoryview, ctx: Any) -> Any:
    """Granularity file: random keys, then the number of the record and a filler; yields bytes."""
    job = json.loads(bytes(order))
    for first in range(job["first"], job["last"], CHUNK):
        number = np.arange(first, min(first + CHUNK, job["last"]), dtype=np.uint64)
        rows = np.full((len(number), RECORD), ord("."), dtype=np.uint8)
        base = np.uint64(job["seed"]) << np.uint64(40)
        for column, salt in ((0, 0), (8, 1)):
            random = _mix(base + np.uint64(2) * number + np.uint64(salt)).astype(">u8")
            width = min(8, KEY - column)
            rows[:, column : column + width] = random.view(np.uint8).reshape(-1, 8)[:, :width]
        rows[:, KEY : KEY + 8] = number.astype(">u8").view(np.uint8).reshape(-1, 8)
        yield rows.tobytes()


def partition(rows: Any, ctx: Any) -> Any:
    """Granularity batch: uint8[n, 100] to buckets by key range."""
    high = np.ascontiguousarray(rows[:, :4]).view(">u4")[:, 0].astype(np.uint64)
    return rows, (high * np.uint64(ctx.buckets) >> np.uint64(32)).astype(np.int64)


def sort(bucket: memoryview, ctx: Any) -> Any:
    """Granularity file: uint8[n, 100] in order of key."""
    rows = np.frombuffer(bucket, dtype=np.uint8).reshape(-1, RECORD)
    high, low = _key(rows)
    return rows[np.lexsort((low, high))]


def check(data: memoryview, ctx: Any) -> bytes:
    """Granularity file: count, checksum, order, first and last key as JSON."""
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, RECORD)
    weights = _mix(np.arange(RECORD // 4, dtype=np.uint64)) | np.uint64(1)
    total, ordered, last = 0, True, b""
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        words = part.view("<u4").astype(np.uint64)
        total += int(_mix((words * weights).sum(axis=1, dtype=np.uint64)).sum(dtype=np.uint64))
        high, low = _key(part)
        rising = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] >= low[:-1]))
        ordered = ordered and bool(rising.all()) and last <= part[0, :KEY].tobytes()
        last = part[-1, :KEY].tobytes()
    first = rows[0, :KEY].tobytes() if len(rows) else b""
    facts = {
        "count": len(rows),
        "sum": total % 2**64,
        "ok": ordered,
        "first": first.hex(),
        "last": last.hex(),
    }
    return json.dumps(facts).encode()


def facts_of(sphere: SphereProcess, stream: SphereStream) -> tuple[int, str, bool]:
    """(records, checksum, in order) of all files of a stream."""
    job = sphere.run(stream.cut(granularity="file"), check, in_order=True, progress=False)
    parts = [part for part in (json.loads(p.data) for p in job.results()) if part["count"]]
    ordered = all(part["ok"] for part in parts) and all(a["last"] <= b["first"] for a, b in pairwise(parts))
    total = sum(part["sum"] for part in parts) % 2**64
    return sum(part["count"] for part in parts), f"{total:016x}", ordered


def one_run(cloud: Cloud, folder: str, records: int, buckets: int, seed: int) -> dict[str, Any]:
    """Make, sort, check; times in seconds. Raises SectorErrors."""
    sphere = SphereProcess(cloud)
    pieces = max(4, min(64, records * RECORD // (64 << 20)))
    for piece in range(pieces):
        order = {
            "first": records * piece // pieces,
            "last": records * (piece + 1) // pieces,
            "seed": seed,
        }
        cloud.write(f"{folder}/orders/{piece:04}", json.dumps(order).encode())
    orders = SphereStream(cloud, f"{folder}/orders", granularity="file")
    made = sphere.run(orders, generate, output=f"{folder}/made", progress=False).output
    before = facts_of(sphere, made)
    begin = time.monotonic()
    rows = made.cut(record_size=RECORD, granularity="batch")
    first = sphere.run(rows, partition, output=f"{folder}/bucket", buckets=buckets, progress=False)
    split = first.output
    middle = time.monotonic()
    second = sphere.run(split.cut(granularity="file"), sort, output=f"{folder}/sorted", progress=False)
    result = second.output
    end = time.monotonic()
    after = facts_of(sphere, result)
    retries = first.status().counts.retries + second.status().counts.retries
    return {
        "peer": "sector",
        "seconds": round(end - begin, 3),
        "partition_seconds": round(middle - begin, 3),
        "sort_seconds": round(end - middle, 3),
        "records": after[0],
        "bytes": after[0] * RECORD,
        "gbps": round(records * RECORD * 8 / (end - begin) / 1e9, 3),
        "checksum": after[1],
        "retries": retries,
        "ok": after[2] and after[0] == before[0] == records and after[1] == before[1],
    }


@click.command(epilog="\b\nExample:\n  sector bench terasort --records 10000000 --json")
@click.option(
    "--records",
    type=click.IntRange(1, 10**11),
    default=10**6,
    show_default=True,
    help="Records of 100 bytes.",
)
@click.option("--buckets", type=click.IntRange(1, 65536), default=32, show_default=True, help="Buckets.")
@click.option("--runs", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the keys.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def terasort(records: int, buckets: int, runs: int, seed: int, as_json: bool) -> None:
    """Sort records by a 10-byte key: range partition to buckets, then one sort a bucket.

    Runs on the cluster one is logged in to. The records are made there first and removed afterwards;
    `seconds` are those of the two stages of sorting.
    """
    results = []
    folder = f"/bench-terasort-{os.urandom(4).hex()}"
    with connected(load_client()) as cloud:
        nodes = len(cloud.nodes())
        for run in range(1, runs + 1):
            try:
                results.append({"run": run} | one_run(cloud, folder, records, buckets, seed))
            finally:
                cloud.rm(folder, recursive=True)
    show(document("terasort", {"records": records, "buckets": buckets, "slaves": nodes}, results), as_json)
    if not all(row["ok"] for row in results):
        raise SectorError("the sorted data are wrong: count, order or checksum differ")
