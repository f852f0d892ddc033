"""Two `cumulus serve` on one tree and one PostgreSQL, as processes: what is promised across servers."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from postgres import PASSWORD, Postgres, shared
from s3_server import CUMULUS, Server, boto, cumulus, started, wait_until

from cumulus.config import parse_config
from cumulus.parts import open_parts
from cumulus.secrets import Keyring
from sector.errors import LocalIO

until = partial(wait_until, within_s=60)

SETTINGS = """
[server]
port = 0
workers = {workers}
[admin]
port = 0
[storage]
path = "{tree}"
rescan_s = 1
[database]
url = "{url}"
password_file = "{tree}/db.password"
[auth]
source = "postgresql"
secret_key_file = "{tree}/secret.key"
"""


@pytest.fixture(scope="module")
def postgres() -> Postgres:
    """The database server of these tests."""
    return shared()


class Site:
    """A tree, a database, settings of two servers; the key of their administrator."""

    def __init__(self, where: Path, postgres: Postgres) -> None:
        self.tree = where / "tree"
        self.tree.mkdir()
        self.database = postgres.database()
        password = self.tree / "db.password"
        password.touch(0o600)
        password.write_text(PASSWORD + "\n")
        url = postgres.url(self.database)
        made = cumulus("init", str(self.tree), "--database", url, "--password-file", str(password))
        self.key, self.secret = made["access_key"], made["secret_key"]
        self.directories = [where / name for name in ("a", "b")]
        for workers, directory in zip((2, 1), self.directories, strict=True):
            directory.mkdir()
            text = SETTINGS.format(workers=workers, tree=self.tree, url=url)
            (directory / "cumulus.toml").write_text(text)

    @contextmanager
    def server(self, number: int) -> Iterator[Server]:
        """One of the two, running."""
        with started(self.directories[number], self.key, self.secret) as server:
            yield server

    def command(self, *words: str) -> Any:
        """An administrator's command."""
        return cumulus(*words, "--dir", str(self.directories[1]))


@pytest.fixture
def site(postgres: Postgres, tmp_path: Path) -> Site:
    """A new one."""
    return Site(tmp_path, postgres)


def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    """Status, code and headers of a refused request; {} if it was not."""
    try:
        call()
    except botocore.exceptions.ClientError as bad:
        answer = bad.response["ResponseMetadata"]
        return {"code": bad.response["Error"]["Code"], "status": answer["HTTPStatusCode"], **answer}
    return {}


def check_same_at_once(one: Any, other: Any) -> None:
    """What one server has done the other reads, heads and lists at once, both ways."""
    one.create_bucket(Bucket="shared")
    for turn in range(6):
        writer, reader = (one, other) if turn % 2 else (other, one)
        body = b"turn %d" % turn * (turn + 1)
        for key in ("k", "odd//k"):
            tag = writer.put_object(Bucket="shared", Key=key, Body=body)["ETag"]
            assert reader.get_object(Bucket="shared", Key=key)["Body"].read() == body
            assert reader.head_object(Bucket="shared", Key=key)["ETag"] == tag
            rows = {row["Key"]: row for row in reader.list_objects_v2(Bucket="shared")["Contents"]}
            assert (rows[key]["ETag"], rows[key]["Size"]) == (tag, len(body))
    other.delete_object(Bucket="shared", Key="k")
    assert [row["Key"] for row in one.list_objects_v2(Bucket="shared")["Contents"]] == ["odd//k"]


def check_upload_over_both(one: Any, other: Any) -> None:
    """Begun here, parts on both, completed there."""
    where = {"Bucket": "shared", "Key": "large"}
    upload = one.create_multipart_upload(**where)["UploadId"]
    parts = []
    for number, server in enumerate((one, other), 1):
        body = bytes([number]) * 5_300_000
        made = server.upload_part(**where, UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": made["ETag"]})
    other.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
    assert one.head_object(**where)["ContentLength"] == 10_600_000


def check_quota_over_both(site: Site, one: Any, other: Any) -> None:
    """16 threads on two servers: as much goes in as fits, to the byte."""
    one.create_bucket(Bucket="small")
    site.command("quota", "set", "--bucket", "small", "--bytes", "1000")
    time_known = time.monotonic()
    until(lambda: time.monotonic() - time_known > 1, "all servers know of the quota")

    def put(number: int) -> int:
        server = (one, other)[number % 2]
        call = lambda: server.put_object(Bucket="small", Key=f"k{number:02}", Body=bytes(100))  # noqa: E731
        refused = refusal(call)
        assert not refused or refused["code"] == "QuotaExceeded"
        return not refused

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(put, range(32))) == 10
    (usage,) = site.command("usage", "--bucket", "small")
    assert usage["bytes"] == 1000


def check_removed_key(site: Site, servers: list[Server]) -> None:
    """By all workers of both, within five seconds."""
    bob = site.command("user", "add", "bob")
    both = [boto(server, bob["access_key"], bob["secret_key"]) for server in servers]
    for s3 in both:
        s3.list_buckets()
    site.command("key", "remove", bob["access_key"])
    removed = time.monotonic()
    until(lambda: all(refusal(s3.list_buckets) for s3 in both), "the key is refused")
    assert time.monotonic() - removed < 5
    for s3 in both * 5:
        assert refusal(s3.list_buckets)["code"] == "InvalidAccessKeyId"


def check_database_away(site: Site, postgres: Postgres, servers: list[Server]) -> None:
    """503 with Retry-After within seconds; nobody has to be started again."""
    both = [boto(server) for server in servers]
    postgres.stop()
    try:
        until(lambda: refusal(both[0].list_buckets), "what was known has grown old")
        for s3 in both:
            for call in (
                lambda s3=s3: s3.put_object(Bucket="shared", Key="x", Body=b"x"),
                lambda s3=s3: s3.list_objects_v2(Bucket="shared"),
            ):
                began = time.monotonic()
                refused = refusal(call)
                assert (refused["status"], refused["code"]) == (503, "ServiceUnavailable")
                assert "retry-after" in refused["HTTPHeaders"] and time.monotonic() - began < 8
        done = subprocess.run(
            [CUMULUS, "user", "list", "--dir", str(site.directories[1])], capture_output=True, text=True
        )
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
        assert PASSWORD not in done.stderr
    finally:
        postgres.start()
    for s3 in both:
        until(lambda s3=s3: not refusal(s3.list_buckets), "it serves again")
        s3.put_object(Bucket="shared", Key="after", Body=b"x")


def test_two_servers_are_one_service(site: Site, postgres: Postgres) -> None:
    """One with two workers, one alone. What goes wrong with one database does so once for both."""
    with site.server(0) as a, site.server(1) as b:
        one, other = boto(a), boto(b)
        check_same_at_once(one, other)
        check_upload_over_both(one, other)
        check_quota_over_both(site, one, other)
        check_removed_key(site, [a, b])
        check_database_away(site, postgres, [a, b])
    for server in (a, b):
        assert PASSWORD not in server.log() and site.secret not in server.log()
    held = postgres.execute("SELECT count(*) FROM reservations", site.database)
    assert held == [(0,)]


def test_a_server_killed_under_load_loses_nothing(site: Site, postgres: Postgres) -> None:
    """What it has acknowledged is read and listed by the other one; what it had reserved comes back; it can
    be started again."""
    with site.server(1) as b:
        other = boto(b)
        other.create_bucket(Bucket="load")
        site.command("quota", "set", "--bucket", "load", "--bytes", "1GB")
        with site.server(0) as a:
            acknowledged = load_until_killed(a, other)
        listed = list_all(other, "load")
        assert acknowledged and set(acknowledged) <= listed
        for key in acknowledged:
            assert other.get_object(Bucket="load", Key=key)["Body"].read() == key.encode() * 50
        reserved = "SELECT count(*) FROM reservations r JOIN holders h ON h.id = r.holder"
        live = f"{reserved} WHERE h.expires > clock_timestamp()"
        until(lambda: postgres.execute(live, site.database) == [(0,)], "its reservations come back")
        with site.server(0) as again:
            tree = {str(path.relative_to(site.tree / "data/load")) for path in files(site)}
            until(lambda: list_all(boto(again), "load") == tree, "the index has what the tree has")
        usage = site.command("usage", "--bucket", "load")[0]
        assert usage["objects"] == len(tree) and usage["bytes"] == sum(len(key) * 50 for key in tree)


def test_a_database_that_crashes_under_load_loses_nothing(site: Site, postgres: Postgres) -> None:
    """One of its processes is killed, which makes it start anew, then all of it: each key has what was
    acknowledged last, or what was under way, and listings, ledger and tree agree."""
    with site.server(0) as a, site.server(1) as b:
        both = [boto(a), boto(b)]
        both[0].create_bucket(Bucket="load")
        site.command("quota", "set", "--bucket", "load", "--bytes", "1GB")
        stop = threading.Event()
        writers = [Writer(number, both[number % 2], stop) for number in range(6)]
        for writer in writers:
            writer.start()
        for crash in (kill_one, kill_all) * CRASHES:
            done = sum(writer.acknowledged for writer in writers)
            until(lambda done=done: sum(w.acknowledged for w in writers) > done + 20, "objects are written")
            crash(postgres)
        for s3 in both:
            until(
                lambda s3=s3: not refusal(lambda: s3.put_object(Bucket="load", Key="z", Body=b"z")),
                "it serves",
            )
        stop.set()
        for writer in writers:
            writer.join()
        assert [writer.error for writer in writers if writer.error] == []
        allowed = {key: bodies for writer in writers for key, bodies in writer.allowed.items()}
        for key, bodies in allowed.items():
            missing = refusal(lambda key=key: both[0].head_object(Bucket="load", Key=key))
            body = None if missing else both[0].get_object(Bucket="load", Key=key)["Body"].read()
            assert body in bodies, (key, body, bodies)
        tree = {str(path.relative_to(site.tree / "data/load")): path.stat().st_size for path in files(site)}
        for s3 in both:
            until(lambda s3=s3: list_all(s3, "load") == set(tree), "the index has what the tree has")
        (usage,) = site.command("usage", "--bucket", "load")
        assert (usage["objects"], usage["bytes"]) == (len(tree), sum(tree.values()))
        held = "SELECT count(*) FROM reservations"
        until(lambda: postgres.execute(held, site.database) == [(0,)], "nothing is held")


def test_a_load_balancer_hears_that_the_database_is_away(site: Site, postgres: Postgres) -> None:
    """A server that answers 503 to whatever needs it is not taken for a good one, nor, by other servers, for
    the one with the least to do; and is when it is back."""

    def page(server: Server, name: str) -> tuple[int, Any]:
        try:
            return 200, json.loads(server.admin(name))
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.loads(refused.read())

    def health(server: Server) -> tuple[int, Any]:
        return page(server, "health")

    whole = (200, {"status": "ok", "workers": 2, "wanted": 2})
    with site.server(0) as server:
        assert health(server) == whole
        postgres.stop()
        try:
            gone = (503, {"status": "down", "workers": 2, "wanted": 2, "database": "away"})
            until(lambda: health(server) == gone, "it says that it cannot serve")
            assert page(server, "load")[0] == 503
            assert refusal(lambda: boto(server).create_bucket(Bucket="late"))["status"] == 503
        finally:
            postgres.start()
        until(lambda: health(server) == whole, "it says that it can")
        assert page(server, "load")[0] == 200
        until(lambda: not refusal(lambda: boto(server).create_bucket(Bucket="late")), "it serves")


CRASHES = int(os.environ.get("SECTOR_TEST_S3_CRASHES", "1"))  # of each kind


def kill_one(postgres: Postgres) -> None:
    """A process of the database that serves one connection; the others end with it."""
    query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cumulus%'"
    found = postgres.execute(query)
    os.kill(int(str(found[0][0])), signal.SIGKILL)
    until(postgres.answers, "the database has started anew")


def kill_all(postgres: Postgres) -> None:
    """As by a crash of its machine's software."""
    postgres.stop("QUIT")
    postgres.start()


class Writer(threading.Thread):
    """Puts and deletes keys of its own, one after the other; keeps book of what each may have."""

    def __init__(self, number: int, s3: Any, stop: threading.Event) -> None:
        super().__init__()
        self._number, self._s3, self._stop_it = number, s3, stop
        self.allowed: dict[str, list[bytes | None]] = {}
        self.acknowledged = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Until it is stopped."""
        try:
            for step in itertools.count():
                if self._stop_it.is_set():
                    return
                key = f"w{self._number}/k{step % 5}"
                body = None if step % 7 == 6 else f"{key} {step} ".encode() * (1 + step % 40)
                self._change(key, body)
        except BaseException as error:
            self.error = error

    def _change(self, key: str, body: bytes | None) -> None:
        allowed = self.allowed.setdefault(key, [None])
        allowed.append(body)
        if body is None:
            refused = refusal(lambda: self._s3.delete_object(Bucket="load", Key=key))
        else:
            refused = refusal(lambda: self._s3.put_object(Bucket="load", Key=key, Body=body))
        if not refused:
            self.allowed[key] = [body]
            self.acknowledged += 1
        else:
            assert refused["status"] == 503, refused


def files(site: Site) -> list[Path]:
    """All objects of bucket load as the tree has them."""
    root = site.tree / "data" / "load"
    return [path for path in root.rglob("*") if path.is_file() and ".cumulus" not in path.parts]


def list_all(s3: Any, bucket: str) -> set[str]:
    """All keys."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return {row["Key"] for page in pages for row in page.get("Contents", [])}


def load_until_killed(a: Server, other: Any) -> list[str]:
    """Writers on both servers; one upload hangs in the middle; then the first server is killed. What it had
    acknowledged."""
    acknowledged: list[str] = []
    numbers = itertools.count()
    stop = threading.Event()

    def writer() -> None:
        s3 = boto(a)
        while not stop.is_set():
            key = f"dir{next(numbers) % 7}/k{next(numbers)}"
            try:
                s3.put_object(Bucket="load", Key=key, Body=key.encode() * 50)
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
                return
            acknowledged.append(key)

    threads = [threading.Thread(target=writer) for _ in range(6)]
    for thread in threads:
        thread.start()
    with hanging(a):
        until(lambda: len(acknowledged) > 60, "objects are written")
        os.killpg(os.getpgid(a.process.pid), 0)  # it lives
        for pid in [*children(a.process.pid), a.process.pid]:
            os.kill(pid, signal.SIGKILL)
        a.process.wait(10)
        other.put_object(Bucket="load", Key="other", Body=b"other" * 50)
    stop.set()
    for thread in threads:
        thread.join()
    return acknowledged


@contextmanager
def hanging(server: Server) -> Iterator[None]:
    """An upload whose body does not come to its end."""
    url = boto(server).generate_presigned_url("put_object", {"Bucket": "load", "Key": "hangs"})
    with socket.create_connection(("127.0.0.1", server.port), 10) as wire:
        target = url.removeprefix(server.url)
        head = f"PUT {target} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 9000000\r\n\r\n"
        wire.sendall(head.encode() + bytes(1000))
        until(lambda: '"requests_in_flight": 0' not in server.admin("load"), "it has begun")
        yield


def children(pid: int) -> set[int]:
    """Process ids of its children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {int(word) for word in text.split()}


def test_errors_of_the_database_at_the_start_are_one_line(postgres: Postgres, tmp_path: Path) -> None:
    """A wrong password, a database that is not there."""
    Keyring.create(tmp_path / "secret.key")
    password = tmp_path / "db.password"
    password.touch(0o600)

    def refused(database: str, word: str) -> str:
        password.write_text(word + "\n")
        text = SETTINGS.format(workers=1, tree=tmp_path, url=postgres.url(database))
        with pytest.raises(LocalIO) as bad:
            open_parts(parse_config(text, str(tmp_path / "cumulus.toml")))
        assert "\n" not in bad.value.message
        return bad.value.message

    assert 'database "nowhere" does not exist' in refused("nowhere", PASSWORD)
    said = refused("postgres", "wrong-word")
    assert 'password authentication failed for user "cumulus"' in said and "wrong-word" not in said
