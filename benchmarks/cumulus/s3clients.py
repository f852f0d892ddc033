"""Clients of the S3 benchmarks: a file up, a file down, and how long each took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config
from s3servers import REGION, Served

from sector.errors import SectorError

HERE = Path(__file__).resolve().parent
LIMIT_S = 900.0
S3CMD = """[default]
access_key = {key}
secret_key = {secret}
host_base = 127.0.0.1:{port}
host_bucket = 127.0.0.1:{port}
bucket_location = us-east-1
use_https = False
"""


@dataclass(frozen=True)
class Copy:
    """One file and where it is to go, or to come from."""

    served: Served
    file: Path
    key: str

    @property
    def s3(self) -> str:
        """`s3://BUCKET/KEY`."""
        return f"s3://{self.served.bucket}/{self.key}"


def run(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Seconds that a command took. Raises SectorError when it fails."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SectorError(f"{command[0]} did not end in {LIMIT_S:.0f} s") from None
    except OSError as error:
        raise SectorError(f"{command[0]}: {error.strerror}") from None
    took = time.monotonic() - began
    if done.returncode:
        raise SectorError(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return took


def boto_client(served: Served, **options: int) -> object:
    """boto3 in this process, path style."""
    return boto3.client(
        "s3",
        endpoint_url=served.url,
        aws_access_key_id=served.key,
        aws_secret_access_key=served.secret,
        region_name=REGION,
        config=Config(s3={"addressing_style": "path"}, signature_version="s3v4", **options),
    )


def presigned(copy: Copy, method: str) -> str:
    """A URL for an hour, so that no secret stands on a command line."""
    params = {"Bucket": copy.served.bucket, "Key": copy.key}
    url: str = boto_client(copy.served).generate_presigned_url(  # type: ignore[attr-defined]
        method, Params=params, ExpiresIn=3600
    )
    return url


# ---- each client: up, down -----------------------------------------------------------------------
def curl_up(copy: Copy) -> float:
    """PUT to a presigned URL."""
    url = presigned(copy, "put_object")
    return run(["curl", "-sS", "--fail", "-o", os.devnull, "-T", str(copy.file), url])


def curl_down(copy: Copy) -> float:
    """GET into nothing: of a presigned URL, of a plain file from nginx."""
    plain = copy.served.data is not None
    url = f"{copy.served.url}/{copy.key}" if plain else presigned(copy, "get_object")
    return run(["curl", "-sS", "--fail", "-o", os.devnull, url])


def boto3_timed(way: str, copy: Copy) -> float:
    """boto3's managed transfer with its defaults; the time of the transfer, without that of the imports."""
    command = [sys.executable, str(HERE / "boto3_copy.py"), way, copy.served.url]
    done = subprocess.run(
        [*command, copy.served.bucket, copy.key, str(copy.file)],
        capture_output=True,
        text=True,
        env=copy.served.environment,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise SectorError(f"boto3 failed: {done.stderr.strip()[-300:]}")
    return float(done.stdout)


def s3cmd(copy: Copy, *words: str) -> float:
    """s3cmd with a settings file of its own."""
    settings = copy.served.folder / "s3cfg"
    if not settings.exists():
        settings.touch(mode=0o600)
        settings.write_text(
            S3CMD.format(key=copy.served.key, secret=copy.served.secret, port=copy.served.port)
        )
    return run(["s3cmd", "-c", str(settings), "--no-progress", *words])


def aws(copy: Copy, *words: str) -> float:
    """`aws s3 cp`."""
    program = str(Path(sys.executable).with_name("aws"))
    return run(
        [program, "--endpoint-url", copy.served.url, "s3", "cp", "--only-show-errors", *words],
        copy.served.environment,
    )


def rclone(copy: Copy, *words: str) -> float:
    """`rclone copyto` with its defaults, but for copies even if the file is there."""
    prefix = "RCLONE_CONFIG_BENCH_"
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": copy.served.url,
        "ACCESS_KEY_ID": copy.served.key,
        "SECRET_ACCESS_KEY": copy.served.secret,
        "REGION": REGION,
        "FORCE_PATH_STYLE": "true",
        "NO_CHECK_BUCKET": "true",
    }
    environment = copy.served.environment | {prefix + name: value for name, value in settings.items()}
    return run(["rclone", "--config", os.devnull, "--ignore-times", "copyto", *words], environment)


def scp(copy: Copy, up: bool) -> float:
    """scp with the keys of the run."""
    folder, there = copy.served.folder, f"127.0.0.1:{copy.served.data}/{copy.key}"
    options = ["-q", "-P", str(copy.served.port), "-i", str(folder / "user")]
    for option in ("StrictHostKeyChecking=no", f"UserKnownHostsFile={folder}/known", "LogLevel=ERROR"):
        options += ["-o", option]
    return run(["scp", *options, *([str(copy.file), there] if up else [there, str(copy.file)])])


def gridftp(copy: Copy, up: bool) -> float:
    """globus-url-copy, anonymous, in the clear."""
    there = f"ftp://127.0.0.1:{copy.served.port}{copy.served.data}/{copy.key}"
    here = f"file://{copy.file}"
    return run(["globus-url-copy", *([here, there] if up else [there, here])])


def rclone_place(copy: Copy) -> str:
    """`bench:BUCKET/KEY`."""
    return f"bench:{copy.served.bucket}/{copy.key}"


@dataclass(frozen=True)
class Client:
    """How a client puts and gets; None where it cannot."""

    up: Callable[[Copy], float] | None
    down: Callable[[Copy], float]


CLIENTS = {
    "curl": Client(curl_up, curl_down),
    "s3cmd": Client(
        lambda c: s3cmd(c, "put", str(c.file), c.s3), lambda c: s3cmd(c, "get", "--force", c.s3, str(c.file))
    ),
    "boto3": Client(lambda c: boto3_timed("up", c), lambda c: boto3_timed("down", c)),
    "awscli": Client(lambda c: aws(c, str(c.file), c.s3), lambda c: aws(c, c.s3, str(c.file))),
    "rclone": Client(
        lambda c: rclone(c, str(c.file), rclone_place(c)), lambda c: rclone(c, rclone_place(c), str(c.file))
    ),
    "scp": Client(lambda c: scp(c, True), lambda c: scp(c, False)),
    "gridftp": Client(lambda c: gridftp(c, True), lambda c: gridftp(c, False)),
    "nginx": Client(None, curl_down),
}


def md5_s(file: Path) -> float:
    """Seconds that `openssl dgst -md5` takes for the file."""
    return run(["openssl", "dgst", "-md5", str(file)])


def synced_s(file: Path, folder: Path) -> float:
    """Seconds until `dd` has a copy of the file in the folder, and the disk has it: nothing that answers
    only then is faster."""
    copy = folder / "synced"
    try:
        return run(["dd", f"if={file}", f"of={copy}", "bs=1M", "conv=fsync", "status=none"])
    finally:
        copy.unlink(missing_ok=True)
