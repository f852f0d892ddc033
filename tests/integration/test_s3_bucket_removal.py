"""DeleteBucket of one worker beside PUTs of both, over HTTP: either the bucket stays with all that was
acknowledged, or it goes and everything was refused."""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from s3_server import boto, cumulus, serving
from s3_wire import Answer, Wire

SETTINGS = "[server]\nport = 0\nworkers = 2\n[admin]\nport = 0\n"
ROUNDS = 60
WRITERS = 6
KEYS = ("plain", "deep/er/plain", "odd//key", "x" * 300, "mark/", "other")


def round_of(rng: random.Random, wires: list[Wire], number: int) -> bool:
    """One removal beside some PUTs; whether the bucket stayed."""
    assert wires[0].ask("PUT", "/bkt").status == 200
    bodies = {
        key: b"" if key.endswith("/") else b"%d" % number * rng.choice((1, 50_000))
        for key in rng.sample(KEYS, rng.randint(1, WRITERS))
    }
    answers: dict[str, Answer] = {}
    ready = threading.Barrier(len(bodies) + 1)

    def put(wire: Wire, key: str, pause_s: float) -> None:
        ready.wait(10)
        time.sleep(pause_s)
        answers[key] = wire.ask("PUT", f"/bkt/{key}", bodies[key])

    threads = [
        threading.Thread(target=put, args=(wire, key, rng.uniform(0, 0.004)))
        for wire, key in zip(rng.sample(wires[1:], len(bodies)), bodies, strict=True)
    ]
    for thread in threads:
        thread.start()
    ready.wait(10)
    time.sleep(rng.uniform(0, 0.004))
    removed = wires[0].ask("DELETE", "/bkt")
    for thread in threads:
        thread.join(30)
    statuses = {key: answer.status for key, answer in answers.items()}
    if removed.status == 204:
        assert set(statuses.values()) == {404}, statuses
        return False
    assert (removed.status, removed.code) == (409, "BucketNotEmpty")
    assert set(statuses.values()) == {200}, statuses
    for key, body in bodies.items():
        assert wires[0].ask("GET", f"/bkt/{key}").body == body
        assert wires[0].ask("DELETE", f"/bkt/{key}").status == 204
    assert wires[0].ask("DELETE", "/bkt").status == 204
    return True


def test_a_bucket_goes_or_keeps_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    """Of the same name again and again; in the end it is as new."""
    rng = random.Random(seed)
    with serving(tmp_path / "D", SETTINGS) as server:
        wires = [Wire(server.port, (server.key, server.secret)) for _ in range(2 * WRITERS)]
        stayed = [round_of(rng, wires, number) for number in range(ROUNDS)]
        assert set(stayed) == {True, False}
        assert wires[0].ask("PUT", "/bkt").status == 200
        assert wires[0].ask("GET", "/bkt").body.count(b"<Contents>") == 0
        assert "ERROR" not in server.log()
        for wire in wires:
            wire.close()


@pytest.mark.parametrize("versions", [False, True])
def test_an_administrator_removes_a_bucket_that_is_written_to_all_the_time(
    versions: bool, tmp_path: Path
) -> None:
    """Its owner goes on putting objects; nothing of him is left."""
    with serving(tmp_path / "D", SETTINGS) as server:
        alice = cumulus("--dir", str(server.directory), "user", "add", "alice")
        s3 = boto(server, alice["access_key"], alice["secret_key"], max_pool_connections=WRITERS)
        s3.create_bucket(Bucket="bkt")
        if versions:
            status = {"Status": "Enabled"}
            s3.put_bucket_versioning(Bucket="bkt", VersioningConfiguration=status)
        answers: set[str] = set()
        over = threading.Event()

        def write(number: int) -> None:
            for count in itertools.count():
                if over.is_set():
                    return
                try:
                    s3.put_object(
                        Bucket="bkt", Key=f"dir{number}/{count % 9}", Body=b"x" * (count % 3 * 40_000)
                    )
                except ClientError as refused:
                    answers.add(refused.response["Error"]["Code"])

        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        try:
            cumulus("--dir", str(server.directory), "bucket", "remove", "bkt", "--delete-data")
            time.sleep(1)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert answers <= {"AccessDenied", "NoSuchBucket", "ServiceUnavailable"}
        assert not (server.directory / "data/bkt").exists()
        s3.create_bucket(Bucket="bkt")
        assert s3.list_object_versions(Bucket="bkt").get("Versions", []) == []
