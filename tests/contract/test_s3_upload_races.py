"""Three processes on one tree and one index begin, fill, complete and abort uploads of two keys at random,
beside PUTs, removals and upkeep: each object is one that somebody was told of, nothing is left of others."""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from s3_processes import STORAGE, processes
from s3_world import World

from cumulus.model import Bucket
from cumulus.ops.jobs import Done, rescan
from cumulus.ops.names import BODIES, PARTS

KEYS = ("k", "l")
SIZE = 70_000
ROUNDS = int(os.environ.get("SECTOR_TEST_S3_UPLOAD_ROUNDS", "120"))  # of each of three


@pytest.fixture(params=STORAGE)
def worlds(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[list[World]]:
    with processes(request.param, database, tmp_path) as made:
        yield made


class Open:
    """The uploads that all work on: their key, and by number the ETags of parts that somebody was told of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.uploads: dict[str, tuple[str, dict[int, set[str]]]] = {}

    def any(self, choose: random.Random) -> str | None:
        with self.lock:
            return choose.choice(sorted(self.uploads)) if self.uploads else None


class User:
    """`made`: ETags of objects that he was told of."""

    def __init__(self, world: World, opened: Open, seed: int) -> None:
        self.world, self.open, self.random = world, opened, random.Random(seed)
        self.made: set[str] = set()

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.random.choices(
                (self.begin, self.part, self.complete, self.abort, self.put, self.remove, self.get),
                (15, 40, 20, 4, 8, 5, 8),
            )[0]()

    def begin(self) -> None:
        key = self.random.choice(KEYS)
        answer = self.world.ask("POST", f"/bkt/{key}", query="uploads")
        assert answer.status == 200, answer.body
        upload = re.search(rb"<UploadId>([^<]+)", answer.body)
        assert upload is not None
        with self.open.lock:
            self.open.uploads[upload.group(1).decode()] = key, {1: set(), 2: set(), 3: set()}

    def part(self) -> None:
        upload = self.open.any(self.random)
        if upload is None:
            return
        key, parts = self.open.uploads.get(upload, ("", {}))
        number = self.random.randint(1, 3)
        body = self.random.randbytes(8) * (SIZE // 8 if number < 3 else 3)
        answer = self.world.ask("PUT", f"/bkt/{key}", body, query={"partNumber": number, "uploadId": upload})
        assert (answer.status, answer.code) in ((200, ""), (404, "NoSuchUpload")), answer.body
        if answer.status == 200:
            assert answer.headers["etag"] == f'"{hashlib.md5(body).hexdigest()}"'
            with self.open.lock:
                parts[number].add(answer.headers["etag"])

    def complete(self) -> None:
        upload = self.open.any(self.random)
        if upload is None:
            return
        with self.open.lock:
            key, parts = self.open.uploads.get(upload, ("", {}))
            chosen = {number: self.random.choice(sorted(etags)) for number, etags in parts.items() if etags}
        rows = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            for number, etag in sorted(chosen.items())
        )
        body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
        answer = self.world.ask("POST", f"/bkt/{key}", body, query={"uploadId": upload})
        allowed = ("", "NoSuchUpload", "InvalidPart", "MalformedXML", "OperationAborted")
        assert answer.code in allowed, answer.body
        if answer.status == 200 and not answer.code:
            digest = hashlib.md5(
                b"".join(bytes.fromhex(etag.strip('"')) for _, etag in sorted(chosen.items()))
            )
            self.made.add(f'"{digest.hexdigest()}-{len(chosen)}"')
            with self.open.lock:
                self.open.uploads.pop(upload, None)

    def abort(self) -> None:
        upload = self.open.any(self.random)
        if upload is not None:
            key = self.open.uploads.get(upload, ("k", {}))[0]
            answer = self.world.ask("DELETE", f"/bkt/{key}", query={"uploadId": upload})
            assert answer.status in (204, 404) or answer.code == "OperationAborted", answer.body
            if answer.status == 204:
                with self.open.lock:
                    self.open.uploads.pop(upload, None)

    def put(self) -> None:
        answer = self.world.ask("PUT", f"/bkt/{self.random.choice(KEYS)}", self.random.randbytes(50))
        assert answer.status == 200, answer.body
        self.made.add(answer.headers["etag"])

    def remove(self) -> None:
        assert self.world.ask("DELETE", f"/bkt/{self.random.choice(KEYS)}").status == 204

    def get(self) -> None:
        """A whole body, of the parts that its ETag says."""
        answer = self.world.ask("GET", f"/bkt/{self.random.choice(KEYS)}")
        assert answer.status in (200, 404), answer.body
        if answer.status == 200:
            check(answer.body, answer.headers["etag"])


def check(body: bytes, etag: str) -> None:
    if "-" not in etag:
        assert f'"{hashlib.md5(body).hexdigest()}"' == etag
        return
    count = int(etag.strip('"').partition("-")[2])
    whole = SIZE // 8 * 8
    pieces = [body[at : at + whole] for at in range(0, len(body), whole)]
    digest = hashlib.md5(b"".join(hashlib.md5(piece).digest() for piece in pieces)).hexdigest()
    assert (len(pieces), f'"{digest}-{count}"') == (count, etag)


def upkeep(world: World, over: threading.Event) -> None:
    bucket: Bucket = world.site.bucket("bkt")
    while not over.wait(0.02):
        if world.store.capabilities.outside:
            rescan(world.site, bucket, Done())


def test_uploads_of_three_processes_leave_what_they_were_told(worlds: list[World], seed: int) -> None:
    opened = Open()
    users = [User(world, opened, seed * 3 + number) for number, world in enumerate(worlds)]
    over = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        beside = pool.submit(upkeep, worlds[2], over)
        try:
            for done in [pool.submit(user.run, ROUNDS) for user in users]:
                done.result()
        finally:
            over.set()
        beside.result()
    world = worlds[0]
    for upload, (key, _) in opened.uploads.items():
        assert world.ask("DELETE", f"/bkt/{key}", query={"uploadId": upload}).status in (204, 404)
    for one in worlds:
        one.site.empty_bin(all_of_it=True)
    made = {etag for user in users for etag in user.made}
    sizes = []
    for key in KEYS:
        answer = world.ask("GET", f"/bkt/{key}")
        if answer.status == 200:
            assert answer.headers["etag"] in made
            check(answer.body, answer.headers["etag"])
            sizes.append(len(answer.body))
    usage = world.index.usage("bucket", "bkt")
    assert (usage.bytes, usage.objects) == (sum(sizes), len(sizes))
    assert world.index.uploads("bkt") == []
    assert [entry.name for entry in world.store.names("bkt", prefix=PARTS)] == []
    assert len(world.store.names("bkt", prefix=BODIES)) == (0 if world.site.atomic else len(sizes))
