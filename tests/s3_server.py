"""A Cumulus as a person would run it: made and started by its commands, in a process of its own."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

PORTS = "[server]\nport = 0\n[admin]\nport = 0\n"
LOGGED = f'{PORTS}[log]\naccess = "access.log"\n'
CUMULUS = str(Path(sys.executable).parent / "cumulus")


def cumulus(*arguments: str) -> Any:
    """Run a command with --json; what it printed."""
    done = subprocess.run([CUMULUS, *arguments, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


class Server:
    """A running service. `key` and `secret` are those of its first user."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes], key: str, secret: str) -> None:
        self.directory = directory
        self.process = process
        self.key = key
        self.secret = secret
        self.port = 0
        self.admin_port = 0

    @property
    def url(self) -> str:
        """Where S3 is."""
        return f"http://127.0.0.1:{self.port}"

    def admin(self, page: str) -> str:
        """A page of the admin port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/{page}", timeout=10) as answer:
            return str(answer.read().decode())

    def log(self) -> str:
        """What it has said."""
        return (self.directory / "serve.log").read_text()

    def wait(self) -> None:
        """Until it has said that it serves."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            for line in self.log().splitlines():
                fields = json.loads(line).get("fields", {}) if line.startswith("{") else {}
                if "admin_port" in fields:
                    self.port, self.admin_port = fields["port"], fields["admin_port"]
                    return
            assert self.process.poll() is None, self.log()
            time.sleep(0.02)
        raise AssertionError(f"does not serve: {self.log()}")

    def stop(self) -> int:
        """End it by SIGTERM; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(25)


@functools.cache
def _template() -> tuple[Path, str, str]:
    """A new Cumulus to be copied: the command takes a second."""
    scratch = tempfile.TemporaryDirectory(prefix="cumulus-")
    atexit.register(scratch.cleanup)
    directory = Path(scratch.name, "D")
    made = cumulus("init", str(directory))
    return directory, made["access_key"], made["secret_key"]


def make(directory: Path, settings: str) -> tuple[str, str]:
    """A new Cumulus with these settings; key and secret of its user."""
    template, key, secret = _template()
    shutil.copytree(template, directory)
    (directory / "cumulus.toml").write_text(settings)
    return key, secret


@contextmanager
def serving(directory: Path, settings: str, *options: str) -> Iterator[Server]:
    """`cumulus init` and `cumulus serve`; stopped at the end."""
    key, secret = make(directory, settings)
    with started(directory, key, secret, *options) as server:
        yield server


@contextmanager
def started(
    directory: Path,
    key: str,
    secret: str,
    *options: str,
    environment: dict[str, str] | None = None,
    before: tuple[str, ...] = (),
) -> Iterator[Server]:
    """`cumulus serve` in a directory that was made before, with `environment` besides that of the tests;
    `before` is a command that runs it."""
    with (directory / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [*before, CUMULUS, "serve", str(directory), "--log-format", "json", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
    server = Server(directory, process, key, secret)
    try:
        server.wait()
        yield server
    finally:
        if process.poll() is None:
            status = server.stop()
            assert status == 0, server.log()
    assert "Traceback" not in server.log(), server.log()


def boto(
    server: Server, key: str = "", secret: str = "", *, url: str = "", verify: str = "", **settings: Any
) -> Any:
    """A boto3 client without retries; of the service's first user unless a key is given."""
    config = {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}, **settings}
    return boto3.client(
        "s3",
        endpoint_url=url or server.url,
        aws_access_key_id=key or server.key,
        aws_secret_access_key=secret or server.secret,
        region_name="us-east-1",
        verify=verify or None,
        config=Config(**config),
    )


def status(call: Any, **arguments: Any) -> int:
    """Of an answer to a client, 200 = it was served."""
    try:
        call(**arguments)
    except ClientError as refused:
        return int(refused.response["ResponseMetadata"]["HTTPStatusCode"])
    return 200


def wait_until(condition: Callable[[], Any], what: str, within_s: float, every_s: float = 0.05) -> None:
    """Fails with what is wrong after that time."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(every_s)
