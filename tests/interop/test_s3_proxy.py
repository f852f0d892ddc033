"""A proxy before two servers: clients that do not follow a redirection are served through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from s3_server import LOGGED, Server, boto, make, started, wait_until

until = partial(wait_until, within_s=20)

PAGE = Path(__file__).resolve().parents[2] / "docs/guide/cumulus-redirect.md"
BIG = os.urandom(1 << 20) * 12 + b"end"

Site = tuple[Server, list[Server], Path]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A proxy with two workers, one server behind it and another one for later, and the file of servers. All
    know the same user and have the same secret.key."""
    base = tmp_path_factory.mktemp("proxy")
    hosts = base / "hosts"
    hosts.write_text("http://127.0.0.1:1\n")
    redirect = f'[redirect]\nmode = "proxy"\npoint = true\nhosts_file = "{hosts}"\n'
    with ExitStack() as stack:
        made = [(base / name, *make(base / name, LOGGED)) for name in ("one", "two")]
        front = (base / "point", *make(base / "point", LOGGED + redirect), "--workers", "2")
        with ThreadPoolExecutor(3) as threads:
            one, two, point = threads.map(lambda it: stack.enter_context(started(*it)), [*made, front])
        with pytest.raises(ClientError, match="503"):
            boto(point).head_bucket(Bucket="box")
        hosts.write_text(one.url + "\n")
        until(Reached(point), "the server is not reached")
        yield point, [one, two], hosts
        for server in (point, one, two):
            assert server.secret not in server.log() + (server.directory / "access.log").read_text()


class Reached:
    """Which workers of the proxy have reached the server; each has its own idea of the file of servers. One
    worker may take most connections, so several are open at a time."""

    def __init__(self, point: Server) -> None:
        self._point = point
        self._workers: set[str] = set()

    def __call__(self) -> bool:
        """Each of the two."""
        with ThreadPoolExecutor(8) as threads:
            self._workers.update(threads.map(self._worker, range(8)))
        return len(self._workers - {""}) == 2

    def _worker(self, _number: int) -> str:
        try:
            answer = boto(self._point).list_buckets()
        except ClientError:
            return ""
        return str(answer["ResponseMetadata"]["HTTPHeaders"]["x-amz-id-2"])


def test_boto3_through_the_proxy(site: Site) -> None:
    """Signed for the proxy, served by the server: every way to sign a body, parts, ranges, refusals."""
    point, (server, _), _hosts = site
    s3 = boto(point)
    s3.create_bucket(Bucket="box")
    modes = ({}, {"request_checksum_calculation": "when_required"}, {"signature_version": "s3v4"})
    for number, mode in enumerate(modes):
        put = boto(point, **mode).put_object(
            Bucket="box", Key=f"ä b+{number}", Body=b"data", Metadata={"m": "1"}
        )
        got = boto(point, **mode).get_object(Bucket="box", Key=f"ä b+{number}")
        assert (got["Body"].read(), got["ETag"], got["Metadata"]) == (b"data", put["ETag"], {"m": "1"})
    s3.upload_fileobj(_stream(), "box", "big", Config=TransferConfig(5 << 20, 2, 5 << 20))
    assert s3.get_object(Bucket="box", Key="big")["Body"].read() == BIG
    part = s3.get_object(Bucket="box", Key="big", Range="bytes=7000000-7000009")
    assert part["Body"].read() == BIG[7_000_000:7_000_010]
    assert boto(server).head_object(Bucket="box", Key="big")["ContentLength"] == len(BIG)
    with pytest.raises(ClientError) as refused:
        s3.get_object(Bucket="box", Key="none")
    assert refused.value.response["Error"]["Code"] == "NoSuchKey"
    wrong = Server(point.directory, point.process, point.key, "x" * 40)
    wrong.port = point.port
    with pytest.raises(ClientError) as refused:
        boto(wrong).put_object(Bucket="box", Key="k", Body=BIG)
    assert refused.value.response["Error"]["Code"] == "SignatureDoesNotMatch"
    s3.delete_object(Bucket="box", Key="big")


def _stream() -> Any:
    import io

    return io.BytesIO(BIG)


def test_awscli_through_the_proxy(site: Site, tmp_path: Path) -> None:
    point, (server, _), _hosts = site
    (tmp_path / "f").write_bytes(BIG[: 3 << 20])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env = inherited | {
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_ACCESS_KEY_ID": point.key,
        "AWS_SECRET_ACCESS_KEY": point.secret,
        "AWS_ENDPOINT_URL": point.url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    boto(server).create_bucket(Bucket="aws")
    program = str(Path(sys.executable).parent / "aws")
    for words in (["cp", "f", "s3://aws/f"], ["cp", "s3://aws/f", "back"]):
        command = [sys.executable, program, "s3", *words, "--quiet"]
        subprocess.run(command, check=True, capture_output=True, timeout=60, env=env, cwd=tmp_path)
    assert (tmp_path / "back").read_bytes() == BIG[: 3 << 20]


def test_one_request_has_one_id_and_the_clients_address(site: Site) -> None:
    """In both logs; a policy of addresses is about the client, not about the proxy."""
    point, (server, _), _hosts = site
    s3 = boto(point)
    s3.create_bucket(Bucket="traced")
    told = s3.put_object(Bucket="traced", Key="k", Body=b"x")["ResponseMetadata"]["RequestId"]

    def lines(of: Server) -> list[dict[str, Any]]:
        *whole, _under_way = (of.directory / "access.log").read_text().split("\n")
        return [line for line in map(json.loads, whole) if line["id"] == told]

    until(lambda: lines(point) and lines(server), "both logs have it")
    front, behind = lines(point)[0], lines(server)[0]
    assert (front["operation"], front["status"], front["bytes_in"]) == ("Forwarded", 200, behind["bytes_in"])
    assert (behind["operation"], behind["peer"], behind["key"]) == ("PutObject", "127.0.0.1", "k")
    assert 'operation="Forwarded"' in point.admin("metrics")


def test_a_server_that_ends_is_replaced(site: Site) -> None:
    """Without it 503; with another one in the file, that one."""
    point, (one, two), hosts = site
    boto(two).create_bucket(Bucket="second")
    hosts.write_text(one.url + "\n" + two.url + "\n")
    assert one.stop() == 0

    def seen() -> bool:
        try:
            return all("second" in _names(point) for _ in range(8))
        except ClientError as refused:
            codes.add(refused.response["Error"]["Code"])
            return False

    codes = set[str]()
    until(seen, "the other server serves")
    assert codes <= {"ServiceUnavailable"}
    assert "cannot be reached" in point.log()


def _names(server: Server) -> list[str]:
    return [one["Name"] for one in boto(server).list_buckets()["Buckets"]]
