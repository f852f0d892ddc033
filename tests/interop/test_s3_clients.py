"""Unmodified S3 clients against a running Cumulus: boto3 in both checksum modes, awscli, s3cmd, rclone, curl,
restic, s3fs.

Each puts, gets, lists, copies, uploads in parts, signs in advance and deletes, on each backend: plain files,
fsspec, and a real Sector cluster.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from boto3.s3.transfer import TransferConfig
from s3_server import LOGGED, Server, boto, serving

sys.path.append(str(Path(__file__).resolve().parents[1] / "integration"))

from cluster import running

BACKENDS = {"posix": "", "fsspec": '[storage]\nbackend = "fsspec:memory://s3"\n', "sector": ""}
PART = 5 << 20
SMALL = b"a small object\n"
LARGE = os.urandom(1 << 20) * 11 + b"tail"


@pytest.fixture(scope="module", params=list(BACKENDS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for each backend; a cluster of one slave below the last."""
    settings = LOGGED + BACKENDS[request.param]
    with ExitStack() as stack:
        if request.param == "sector":
            cloud = stack.enter_context(running(tmp_path_factory.mktemp("cloud"), slaves=1))
            settings += f'[storage]\nbackend = "sector:{cloud.dir}/client.toml"\n'
        made = stack.enter_context(serving(tmp_path_factory.mktemp("cumulus") / "D", settings))
        yield made
        secrets = (made.directory / "access.log").read_text() + made.log()
        assert made.secret not in secrets
        assert "Signature=" not in secrets


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of more than two parts."""
    path = tmp_path_factory.mktemp("files") / "large"
    path.write_bytes(LARGE)
    return path


def fetch(url: str, data: bytes | None = None) -> tuple[int, bytes]:
    """By urllib, without any headers of S3."""
    request = urllib.request.Request(url, data=data, method="GET" if data is None else "PUT")
    request.add_header("Content-Type", "")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


MODES = {
    "default": {},
    "legacy": {
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    },
}


@pytest.mark.parametrize("mode", MODES)
def test_boto3(server: Server, mode: str) -> None:
    s3, bucket = boto(server, **MODES[mode]), f"boto3-{mode}"
    s3.create_bucket(Bucket=bucket)
    assert bucket in [one["Name"] for one in s3.list_buckets()["Buckets"]]
    put = s3.put_object(Bucket=bucket, Key="a/ä b+c", Body=SMALL, Metadata={"k": "v"}, ContentType="text/x")
    got = s3.get_object(Bucket=bucket, Key="a/ä b+c")
    assert (got["Body"].read(), got["Metadata"], got["ContentType"]) == (SMALL, {"k": "v"}, "text/x")
    assert got["ETag"] == put["ETag"]
    part = s3.get_object(Bucket=bucket, Key="a/ä b+c", Range="bytes=2-6")
    assert (part["Body"].read(), part["ResponseMetadata"]["HTTPStatusCode"]) == (b"small", 206)
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "a/ä b+c"})
    s3.upload_fileobj(io.BytesIO(LARGE), bucket, "large", Config=TransferConfig(PART, 2, PART))
    head = s3.head_object(Bucket=bucket, Key="large")
    assert (head["ContentLength"], head["ETag"][-3:]) == (len(LARGE), '-3"')
    out = io.BytesIO()
    s3.download_fileobj(bucket, "large", out, Config=TransferConfig(PART, 4, PART))
    assert out.getvalue() == LARGE
    listed = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [one["Key"] for one in listed["Contents"]] == ["copy", "large"]
    assert [one["Prefix"] for one in listed["CommonPrefixes"]] == ["a/"]
    gone = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "a/ä b+c"}, {"Key": "copy"}]})
    assert len(gone["Deleted"]) == 2
    s3.delete_object(Bucket=bucket, Key="large")
    assert "Contents" not in s3.list_objects(Bucket=bucket)
    s3.delete_bucket(Bucket=bucket)
    with pytest.raises(s3.exceptions.NoSuchBucket):
        s3.list_objects_v2(Bucket=bucket)


def test_urls_signed_in_advance(server: Server) -> None:
    s3 = boto(server, signature_version="s3v4")
    s3.create_bucket(Bucket="presigned")
    where = {"Bucket": "presigned", "Key": "k e y"}
    assert fetch(s3.generate_presigned_url("put_object", where), SMALL)[0] == 200
    url = s3.generate_presigned_url("get_object", where)
    assert fetch(url) == (200, SMALL)
    assert fetch(url[:-1] + ("0" if url[-1] != "0" else "1"))[0] == 403
    assert fetch(url.split("?")[0])[0] == 403


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What it printed; it must succeed. The caller's own settings of AWS clients do not count."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    words, environment = [str(part) for part in command], {**inherited, **(env or {})}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def awscli(server: Server, directory: Path) -> Callable[..., str]:
    """aws s3 …"""
    settings = directory / "aws"
    settings.write_text(
        "[default]\nregion = us-east-1\ns3 =\n  addressing_style = path\n  signature_version = s3v4\n"
    )
    env = {
        "AWS_CONFIG_FILE": str(settings),
        "AWS_ACCESS_KEY_ID": server.key,
        "AWS_SECRET_ACCESS_KEY": server.secret,
        "AWS_ENDPOINT_URL": server.url,
    }
    program = Path(sys.executable).parent / "aws"
    return lambda *parts: run(sys.executable, program, *parts, env=env)


def test_awscli(server: Server, tmp_path: Path, large: Path) -> None:
    """Commands at once, and not all on each backend: each takes seconds to start."""
    aws = awscli(server, tmp_path)
    s3 = boto(server)
    s3.create_bucket(Bucket="awscli")
    s3.put_object(Bucket="awscli", Key="dir/small", Body=SMALL)
    with ThreadPoolExecutor() as threads:
        up = threads.submit(aws, "s3", "cp", "--quiet", large, "s3://awscli/large")
        url = threads.submit(aws, "s3", "presign", "s3://awscli/dir/small")
        up.result()
    assert fetch(url.result().strip()) == (200, SMALL)
    assert s3.get_object(Bucket="awscli", Key="large")["Body"].read() == LARGE
    if "backend" in (server.directory / "cumulus.toml").read_text():
        return
    with ThreadPoolExecutor() as threads:
        listed = threads.submit(aws, "s3", "ls", "s3://awscli/dir/")
        marked = threads.submit(aws, "s3api", "put-object", "--bucket", "awscli", "--key", "marked/")
        aws("s3", "sync", "--quiet", "s3://awscli", tmp_path / "back")
    assert (tmp_path / "back" / "dir" / "small").read_bytes() == SMALL
    assert listed.result().split()[2:] == [str(len(SMALL)), "small"]
    assert "ETag" in marked.result() and (server.directory / "data/awscli/marked").is_dir()
    aws("s3", "rb", "--force", "s3://awscli")
    assert "awscli" not in [one["Name"] for one in s3.list_buckets()["Buckets"]]


def test_s3cmd(server: Server, tmp_path: Path, large: Path) -> None:
    settings = tmp_path / "s3cfg"
    settings.write_text(
        f"[default]\naccess_key = {server.key}\nsecret_key = {server.secret}\nuse_https = False\n"
        f"host_base = 127.0.0.1:{server.port}\nhost_bucket = 127.0.0.1:{server.port}\n"
        "multipart_chunk_size_mb = 5\n"
    )

    def s3cmd(*parts: str | Path) -> str:
        return run("s3cmd", "-c", settings, "--no-progress", *parts)

    s3cmd("mb", "s3://s3cmd")
    s3cmd("put", large, "s3://s3cmd/dir/large")
    s3cmd("cp", "s3://s3cmd/dir/large", "s3://s3cmd/copy")
    s3cmd("get", "s3://s3cmd/copy", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == LARGE
    assert "s3://s3cmd/copy" in s3cmd("ls", "s3://s3cmd/")
    s3cmd("del", "--recursive", "--force", "s3://s3cmd/")
    s3cmd("rb", "s3://s3cmd")


def test_rclone(server: Server, tmp_path: Path, large: Path) -> None:
    settings = tmp_path / "rclone.conf"
    settings.write_text(
        f"[c]\ntype = s3\nprovider = Other\naccess_key_id = {server.key}\n"
        f"secret_access_key = {server.secret}\nendpoint = {server.url}\nregion = us-east-1\n"
        "upload_cutoff = 5M\nchunk_size = 5M\n"
    )

    def rclone(*parts: str | Path) -> str:
        return run("rclone", "--config", settings, *parts)

    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "small").write_bytes(SMALL)
    (tree / "large").write_bytes(large.read_bytes())
    rclone("mkdir", "c:rclone")
    boto(server).put_object(Bucket="rclone", Key="t/sub/")  # as newer ones do with directory markers
    rclone("copy", tree, "c:rclone/t")
    assert rclone("check", tree, "c:rclone/t") == ""
    boto(server).delete_object(Bucket="rclone", Key="t/sub/")  # this one leaves it there
    rclone("copyto", "c:rclone/t/large", "c:rclone/copy")
    rclone("copyto", "c:rclone/copy", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == LARGE
    assert fetch(rclone("link", "c:rclone/copy").strip()) == (200, LARGE)
    rclone("purge", "c:rclone")


def test_curl(server: Server, tmp_path: Path, large: Path) -> None:
    def curl(*parts: str | Path) -> str:
        signed = ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{server.key}:{server.secret}"]
        return run("curl", "-sS", "--fail-with-body", *signed, *parts)

    curl("-X", "PUT", f"{server.url}/curl")
    curl("-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "-T", large, f"{server.url}/curl/large")
    curl("-o", tmp_path / "back", f"{server.url}/curl/large")
    assert (tmp_path / "back").read_bytes() == LARGE
    assert "<Key>large</Key>" in curl(f"{server.url}/curl")
    with pytest.raises(AssertionError, match="Missing required header"):
        curl("-T", large, f"{server.url}/curl/small")
    curl("-X", "DELETE", f"{server.url}/curl/large")
    curl("-X", "DELETE", f"{server.url}/curl")


def test_restic(server: Server, tmp_path: Path) -> None:
    """A repository in a bucket: two backups, checked to the last byte, and what they hold restored."""
    env = {
        "AWS_ACCESS_KEY_ID": server.key,
        "AWS_SECRET_ACCESS_KEY": server.secret,
        "RESTIC_REPOSITORY": f"s3:{server.url}/restic/repo",
        "RESTIC_PASSWORD": "only for this test",
        "RESTIC_CACHE_DIR": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }

    def restic(*parts: str | Path) -> str:
        return run("restic", "--quiet", *parts, env=env)

    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "small").write_bytes(SMALL)
    (tree / "large").write_bytes(LARGE[: 3 << 20])
    restic("init")
    restic("backup", tree)
    if "backend" not in (server.directory / "cumulus.toml").read_text():
        (tree / "sub" / "small").write_bytes(SMALL * 2)
        restic("backup", tree)
    restic("check", "--read-data")
    restic("restore", "latest", "--target", tmp_path / "back")
    back = tmp_path / "back" / tree.relative_to("/")
    for name in ("sub/small", "large"):
        assert (back / name).read_bytes() == (tree / name).read_bytes()


def test_s3fs(server: Server) -> None:
    """In a process of its own, since it starts an event loop in a thread."""
    env = {"AWS_ACCESS_KEY_ID": server.key, "AWS_SECRET_ACCESS_KEY": server.secret}
    run(sys.executable, Path(__file__).with_name("s3fs_user.py"), server.url, env=env)


def test_the_admin_port_counts_it(server: Server) -> None:
    s3 = boto(server)
    s3.list_buckets()
    assert 'cumulus_requests_total{operation="ListBuckets",status="200"}' in server.admin("metrics")
    assert 'cumulus_user_requests_total{user="admin"}' in server.admin("metrics")
    assert '"status": "ok"' in server.admin("health")
