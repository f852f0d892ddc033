"""Terasort: records of 100 bytes, sorted by their first 10, in two stages with NumPy batch functions.

Records are made on the slaves from a seed; stage 1 sends each to the bucket of its key range, stage 2 sorts
one bucket per segment. The buckets in order are the sorted data. Order, count and checksum are checked.

    python examples/terasort.py --records 1000000 --output /sorted
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

import sector

RECORD, KEY = 100, 10
CHUNK = 100_000


def mix(x: Any) -> Any:
    """SplitMix64 of uint64[n]: well mixed numbers from a counter."""
    x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def make_rows(first: int, count: int, seed: int) -> Any:
    """Records first..first+count-1 as uint8[count, 100]: 10 random bytes of key; then the record's number in
    32 hexadecimal digits and 58 times the letter number mod 26."""
    number = np.arange(first, first + count, dtype=np.uint64)
    base = np.uint64((seed * 0x5851F42D4C957F2D) % 2**64)
    rows = np.empty((count, RECORD), dtype=np.uint8)
    rows[:, :8] = mix(base + np.uint64(2) * number).astype(">u8").view(np.uint8).reshape(-1, 8)
    rows[:, 8:10] = (
        mix(base + np.uint64(2) * number + np.uint64(1)).astype(">u8").view(np.uint8).reshape(-1, 8)[:, :2]
    )
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    rows[:, 10:26] = ord("0")
    for place in range(16):
        rows[:, 41 - place] = digits[((number >> np.uint64(4 * place)) & np.uint64(15)).astype(np.intp)]
    rows[:, 42:] = (ord("A") + number % np.uint64(26)).astype(np.uint8)[:, None]
    return rows


def generate(order: memoryview, ctx: Any) -> Iterator[bytes]:
    """Granularity file: the file says which records to make."""
    job = json.loads(bytes(order))
    for first in range(job["first"], job["first"] + job["count"], CHUNK):
        count = min(CHUNK, job["first"] + job["count"] - first)
        yield make_rows(first, count, job["seed"]).tobytes()
        ctx.progress((first + count - job["first"]) / job["count"])


def partition(rows: Any, ctx: Any) -> Any:
    """Stage 1, granularity batch, rows: uint8[n, 100] -> (rows, bucket of each by its first 4 bytes)."""
    high = np.ascontiguousarray(rows[:, :4]).view(">u4")[:, 0].astype(np.uint64)
    return rows, (high * np.uint64(ctx.buckets) >> np.uint64(32)).astype(np.int64)


def sort(bucket: memoryview, ctx: Any) -> Any:
    """Stage 2, granularity file: uint8[n, 100] sorted by key; equal keys keep their order."""
    rows = np.frombuffer(bucket, dtype=np.uint8).reshape(-1, RECORD)
    high = np.ascontiguousarray(rows[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    low = np.ascontiguousarray(rows[:, 8:10]).view(">u2")[:, 0].astype(np.uint16)
    return rows[np.lexsort((low, high))]


def check(data: memoryview, ctx: Any) -> bytes:
    """Granularity file: count, sum of checksums, order, first and last key of a file."""
    total, count, ordered, last = 0, 0, True, b""
    weights = mix(np.arange(25, dtype=np.uint64)) | np.uint64(1)
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, RECORD)
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        words = part.view("<u4").astype(np.uint64)
        total += int(mix((words * weights).sum(axis=1, dtype=np.uint64)).sum(dtype=np.uint64))
        keys = np.ascontiguousarray(part[:, :KEY]).view(f"V{KEY}")[:, 0]
        high = np.ascontiguousarray(part[:, :8]).view(">u8")[:, 0].astype(np.uint64)
        low = np.ascontiguousarray(part[:, 8:10]).view(">u2")[:, 0]
        good = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] >= low[:-1]))
        ordered = ordered and bool(good.all()) and last <= keys[0].tobytes()
        last, count = keys[-1].tobytes(), count + len(part)
    first = bytes(data[:KEY])
    facts = {
        "count": count,
        "sum": total % 2**64,
        "sorted": ordered,
        "first": first.hex(),
        "last": last.hex(),
    }
    return json.dumps(facts).encode()


def facts_of(sphere: sector.SphereProcess, stream: sector.SphereStream) -> dict[str, Any]:
    """Count, checksum and order over all files of a stream, in their order."""
    job = sphere.run(stream.cut(granularity="file"), check, in_order=True)
    parts = [json.loads(part.data) for part in job.results()]
    parts = [part for part in parts if part["count"]]
    in_order = all(a["last"] <= b["first"] for a, b in pairwise(parts))
    return {
        "count": sum(part["count"] for part in parts),
        "checksum": f"{sum(part['sum'] for part in parts) % 2**64:016x}",
        "sorted": in_order and all(part["sorted"] for part in parts),
    }


def run(
    cloud: sector.Cloud,
    output: str,
    records: int,
    seed: int,
    *,
    buckets: int = 32,
    pieces: int = 16,
    segment_bytes: int | None = None,
    say: Any = print,
) -> sector.SphereStream:
    """Make, sort and check; the sorted files. Raises AssertionError when the result is wrong."""
    sphere = sector.SphereProcess(cloud)
    begin = time.monotonic()
    for piece in range(pieces):
        first, end = records * piece // pieces, records * (piece + 1) // pieces
        order = {"first": first, "count": end - first, "seed": seed}
        cloud.write(f"{output}/orders/{piece:04}", json.dumps(order).encode())
    orders = sector.SphereStream(cloud, f"{output}/orders", granularity="file")
    made = sphere.run(orders, generate, output=f"{output}/made").output
    say(f"made {records} records in {time.monotonic() - begin:.1f} s")
    before = facts_of(sphere, made)
    begin = time.monotonic()
    rows = made.cut(record_size=RECORD, granularity="batch")
    first_stage = sphere.run(
        rows, partition, output=f"{output}/bucket", buckets=buckets, segment_bytes=segment_bytes
    )
    buckets_done = first_stage.output.cut(granularity="file")
    middle = time.monotonic()
    result = sphere.run(buckets_done, sort, output=f"{output}/sorted").output
    end_s = time.monotonic()
    say(f"sorted in {end_s - begin:.1f} s: partition {middle - begin:.1f} s, sort {end_s - middle:.1f} s")
    after = facts_of(sphere, result)
    assert after["sorted"], "the output is not in order"
    assert before["count"] == after["count"] == records, f"{after['count']} records of {records}"
    assert before["checksum"] == after["checksum"], "the checksum has changed"
    say(f"checked: {after['count']} records in order, checksum {after['checksum']}")
    for file in (*made.files, *buckets_done.files):
        cloud.rm(file.path)
    cloud.rm(f"{output}/orders", recursive=True)
    return result


def fetch(cloud: sector.Cloud, result: sector.SphereStream, target: str) -> None:
    """The sorted files as one local file."""
    with open(target, "wb") as out, tempfile.TemporaryDirectory() as folder:
        for file in result.files:
            local = os.path.join(folder, "part")
            cloud.get(file.path, local)
            with open(local, "rb") as part:
                while block := part.read(1 << 24):
                    out.write(block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="/sorted", help="cloud directory")
    parser.add_argument("--buckets", type=int, default=32)
    parser.add_argument("--segment-bytes", type=int, help="about how large segments of stage 1 are")
    parser.add_argument("--fetch", metavar="FILE", help="fetch the sorted data into a local file")
    options = parser.parse_args()
    with sector.connect() as cloud:
        result = run(
            cloud,
            options.output,
            options.records,
            options.seed,
            buckets=options.buckets,
            segment_bytes=options.segment_bytes,
        )
        if options.fetch:
            fetch(cloud, result, options.fetch)


if __name__ == "__main__":
    try:
        main()
    except (sector.SectorError, OSError) as error:
        sys.exit(f"terasort: {error}")
