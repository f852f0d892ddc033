"""Somebody keeps the database locked: who changes something waits, and who reads does not."""

from __future__ import annotations

import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from s3_server import LOGGED, boto, serving

CHANGES = 80  # more than two processes have threads
PATIENCE_S = 8.0  # less than that of the database with the lock
BODY = b"x" * 300_000


@pytest.mark.parametrize("workers", [1, 2])
def test_a_locked_database_keeps_nobody_from_reading(workers: int, tmp_path: Path) -> None:
    with serving(tmp_path / "D", LOGGED, f"--workers={workers}") as server:
        s3 = boto(server, read_timeout=60, max_pool_connections=CHANGES + 4)
        s3.create_bucket(Bucket="bkt")
        for key in ("read", *(f"k{number}" for number in range(CHANGES))):
            s3.put_object(Bucket="bkt", Key=key, Body=BODY)

        def delete(number: int) -> None:
            s3.delete_object(Bucket="bkt", Key=f"k{number}")

        path = tmp_path / "D/cumulus.db"
        with (
            closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as lock,
            ThreadPoolExecutor(CHANGES) as pool,
        ):
            lock.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            waiting = [pool.submit(delete, number) for number in range(CHANGES)]
            time.sleep(1.5)  # all of them are under way
            for _ in range(3):
                assert s3.get_object(Bucket="bkt", Key="read")["Body"].read() == BODY
            read_s = time.monotonic() - began
            lock.execute("ROLLBACK")
            for one in waiting:
                one.result()
        assert read_s < PATIENCE_S, "it waited for the lock"
        assert [one["Key"] for one in s3.list_objects_v2(Bucket="bkt")["Contents"]] == ["read"]
