"""What `--as` prints is all that the client of that name needs: each does its work with nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import LOGGED, Server, boto, serving, wait_until

from cumulus.admin.clients import FORMS
from cumulus.config import parse_config
from cumulus.model import Credential, User

BODY = b"what is shared\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With one object whose name has a control character."""
    with serving(tmp_path_factory.mktemp("cumulus") / "D", LOGGED) as made:
        s3 = boto(made)
        s3.create_bucket(Bucket="settings")
        s3.put_object(Bucket="settings", Key="a\x01b", Body=BODY)
        s3.put_object(Bucket="settings", Key="plain", Body=BODY)
        yield made


def settings(server: Server, form: str, path: Path) -> Path:
    """The file of that client, as the command prints it."""
    key = Credential(access_key=server.key, secret=server.secret, user=User(id="1" * 64, name="admin"))
    path.write_text(FORMS[form](parse_config(f"[server]\nport = {server.port}\n", "/x/cumulus.toml"), key))
    return path


def run(*command: str, **environment: str) -> str:
    """What it printed; it must succeed. The caller's own settings of S3 clients do not count."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**own, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_awscli_signs_urls_that_are_served(server: Server, tmp_path: Path) -> None:
    """By version 4: left to itself botocore signs them by version 2, which is refused."""
    program = str(Path(sys.executable).parent / "aws")
    file = str(settings(server, "aws", tmp_path / "config"))
    url = run(
        sys.executable, program, "s3", "presign", "s3://settings/plain", AWS_CONFIG_FILE=file,
        AWS_SHARED_CREDENTIALS_FILE=str(tmp_path / "none"),
    )  # fmt: skip
    with urllib.request.urlopen(url.strip(), timeout=20) as answer:
        assert answer.read() == BODY


def test_rclone_lists_control_characters_at_once(server: Server, tmp_path: Path) -> None:
    """It asks for encoded names from the beginning, not after it has failed for most of a minute to read
    those that XML cannot hold."""
    file = str(settings(server, "rclone", tmp_path / "rclone.conf"))
    assert sorted(run("rclone", "--config", file, "lsf", "cumulus:settings").splitlines()) == ["a␁b", "plain"]
    wait_until(lambda: listings(server), "no line of the log", 20)
    assert listings(server) == 1


def listings(server: Server) -> int:
    """How many rclone has asked for."""
    lines = [json.loads(line) for line in (server.directory / "access.log").read_text().splitlines()]
    asked = [line["operation"] for line in lines if line.get("agent", "").startswith("rclone")]
    return asked.count("ListObjects")


def test_s3cmd_lists(server: Server, tmp_path: Path) -> None:
    file = str(settings(server, "s3cmd", tmp_path / "s3cfg"))
    assert "s3://settings/plain" in run("s3cmd", "-c", file, "ls", "s3://settings/plain")
