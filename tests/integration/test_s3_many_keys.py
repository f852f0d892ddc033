"""Many keys: 50,000 on each kind of storage are listed in order with flat memory, and files that others made
in a bucket's directory are taken in quickly.

SECTOR_TEST_S3_FILES: how many files are taken in; with a million the rate is held against the requirement.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from cluster import running, wait_for
from s3_server import CUMULUS, PORTS, Server, boto, cumulus, make, serving, started
from s3_wire import Wire

from cumulus.config import load_config
from cumulus.index.api import Put, Row
from cumulus.opening import open_index

KEYS = 50_000
FILES = int(os.environ.get("SECTOR_TEST_S3_FILES", "10000"))
REQUIRED = 20_000  # files a second that are taken in, of a million
GROWTH_KB = 20 << 10  # of a server while it lists
ORDER = ("a-b", "a.c", "a/d", "a0", "k\u00e4se", "\u0fff", "\ufffd", "\U0001f600", "~")  # as UTF-8 has it


def many(count: int) -> list[str]:
    """Keys in order of their UTF-8, most of them in a few directories."""
    plain = [f"d{number % 40:02}/{number:07}" for number in range(count - len(ORDER))]
    return sorted([*plain, *ORDER], key=str.encode)


def make_files(top: Path, keys: list[str]) -> None:
    """As someone else makes them, empty."""
    for directory in {key.rpartition("/")[0] for key in keys}:
        (top / directory).mkdir(parents=True, exist_ok=True)
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for key in keys:
            os.mknod(key, stat.S_IFREG | 0o644, dir_fd=fd)
    finally:
        os.close(fd)


def make_rows(where: Path, bucket: str, keys: list[str]) -> None:
    """In the index alone, as the storage's own floor above makes them: listings look no further."""
    index, directory = open_index(load_config(where / "cumulus.toml"), lambda bad: None)
    found = index.bucket(bucket)
    assert found is not None
    for at in range(0, len(keys), 5000):
        index.apply_soon(
            [
                Put(
                    row=Row(
                        bucket=bucket,
                        key=key,
                        stamp=10**18,
                        name=key,
                        token=b"t",
                        size=1,
                        etag="9dd4e461268c8034f5c8564e155c67a6",
                        modified_ns=10**18,
                        owner=found.owner,
                    )
                )
                for key in keys[at : at + 5000]
            ]
        )
    index.close()
    directory.close()


def rescan(directory: Path, bucket: str) -> dict[str, Any]:
    """By the command; what it says, with its seconds and those of its processor."""
    before, began = os.times(), time.monotonic()
    done = subprocess.run(
        [CUMULUS, "bucket", "rescan", bucket, "--dir", str(directory), "--json"],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    seconds, after = time.monotonic() - began, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {**json.loads(done.stdout), "seconds": seconds, "cpu": used}


class Memory:
    """Of a server: how far it has grown."""

    def __init__(self, server: Server) -> None:
        self._path = Path(f"/proc/{server.process.pid}/status")
        self._first = self._most = self._now()

    def _now(self) -> int:
        lines = self._path.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def look(self) -> int:
        """Kilobytes so far."""
        self._most = max(self._most, self._now())
        return self._most - self._first


def pages(wire: Wire, memory: Memory, query: str) -> Iterator[str]:
    """All keys of bucket `many`, page by page, by requests as they are written down; `query` is what they
    have in common. The server's memory is looked at after each."""
    second = "list-type=2" in query
    where = ""
    while True:
        parts = sorted([*query.split("&"), *([where] if where else [])])
        answer = wire.ask("GET", "/many", query="&".join(parts))
        assert answer.status == 200, answer
        found = [unquote(key) for key in answer.leaves("Key")]
        yield from found
        assert memory.look() <= GROWTH_KB, f"the server has grown by {memory.look()} kB"
        if answer.leaf("IsTruncated") == "false":
            return
        last = answer.leaf("NextContinuationToken") if second else quote(found[-1], safe="")
        where = f"continuation-token={quote(last, safe='')}" if second else f"marker={last}"


def check_listings(server: Server, keys: list[str]) -> None:
    """Version 1 and 2 by hand, version 2 and common prefixes by boto3."""
    wire, memory = Wire(server.port, (server.key, server.secret)), Memory(server)
    assert list(pages(wire, memory, "encoding-type=url&list-type=2")) == keys
    assert list(pages(wire, memory, "encoding-type=url")) == keys
    few = (
        boto(server)
        .get_paginator("list_objects_v2")
        .paginate(Bucket="many", Delimiter="/", PaginationConfig={"PageSize": 7})
    )
    found = [
        name
        for page in few
        for name in sorted(
            [row["Key"] for row in page.get("Contents", [])]
            + [row["Prefix"] for row in page.get("CommonPrefixes", [])],
            key=str.encode,
        )
    ]
    assert found == sorted({key.partition("/")[0] + "/" * ("/" in key) for key in keys}, key=str.encode)
    listed = boto(server).get_paginator("list_objects_v2").paginate(Bucket="many", Prefix="d01/")
    assert [row["Key"] for page in listed for row in page["Contents"]] == [
        key for key in keys if key.startswith("d01/")
    ]
    assert memory.look() <= GROWTH_KB
    wire.close()
    print(f"{len(keys)} keys listed twice, the server has grown by {memory.look()} kB")


@contextmanager
def compared(directory: Path, settings: str) -> Iterator[Server]:
    """A server with a bucket `many` that has been compared with its storage, as at each start; that comes
    again in an hour, and would find rows without objects."""
    key, secret = make(directory, settings)
    (owner,) = cumulus("user", "list", "--dir", str(directory))
    cumulus("bucket", "add", "many", "--owner", owner["name"], "--dir", str(directory))
    make_rows(directory, "many", ["lost"])
    with started(directory, key, secret) as server:
        wire = Wire(server.port, (key, secret))
        wait_for("the row without an object is gone", lambda: not wire.ask("GET", "/many").leaves("Key"))
        wire.close()
        yield server


@pytest.mark.parametrize("kind", ["posix", "memory", "fsspec", "sector"])
def test_keys_are_listed_in_order_with_flat_memory(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = many(KEYS)
    with ExitStack() as stack:
        backend = {"memory": "memory", "fsspec": f"fsspec:file://{tmp_path}/files"}.get(kind, "posix")
        if kind == "sector":
            cloud = stack.enter_context(running(tmp_path_factory.mktemp("cloud"), slaves=1))
            backend = f"sector:{cloud.dir}/client.toml"
        settings = f'{PORTS}[storage]\nbackend = "{backend}"\n'
        if kind == "fsspec":
            server = stack.enter_context(compared(tmp_path / "D", settings))
        else:
            server = stack.enter_context(serving(tmp_path / "D", settings))
            wire = Wire(server.port, (server.key, server.secret))
            assert wire.ask("PUT", "/many").status == 200
            wire.close()
        if kind == "posix":
            make_files(server.directory / "data/many", keys)
            rescan(server.directory, "many")
        else:
            make_rows(server.directory, "many", keys)
        check_listings(server, keys)


def test_files_of_others_are_taken_in(tmp_path: Path) -> None:
    """Half of them in one directory, half in directories of a thousand."""
    half = FILES // 2
    keys = [f"flat/{number:08}.dat" for number in range(half)]
    keys += [f"tree/{number // 1000:04}/{number % 1000:03}.dat" for number in range(FILES - half)]
    directory = tmp_path / "D"
    key, secret = make(directory, PORTS)
    (owner,) = cumulus("user", "list", "--dir", str(directory))
    cumulus("bucket", "add", "many", "--owner", owner["name"], "--dir", str(directory))
    make_files(directory / "data/many", keys)
    first, second = rescan(directory, "many"), rescan(directory, "many")
    assert (first["renewed"], first["gone"]) == (FILES, 0)
    assert (second["renewed"], second["gone"]) == (0, 0)
    rate = FILES / first["seconds"]
    print(
        f"{FILES} files: {rate:.0f} a second taken in ({FILES / first['cpu']:.0f} for a second of CPU), "
        f"{FILES / second['seconds']:.0f} looked at again ({FILES / second['cpu']:.0f})"
    )
    assert FILES < 1_000_000 or rate >= REQUIRED
    with started(directory, key, secret) as server:  # which scans, too
        wire, memory = Wire(server.port, (key, secret)), Memory(server)
        assert list(pages(wire, memory, "encoding-type=url&list-type=2")) == keys
        wire.close()
        print(f"the server has grown by {memory.look()} kB")
