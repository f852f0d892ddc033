"""A new key as settings of S3 clients: each read back by the client's own rules."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest
from cumulus_commands import Commands

from cumulus.admin.clients import FORMS, endpoint
from cumulus.config import parse_config
from cumulus.model import Credential, User

KEY = Credential(access_key="AK", secret="s3/cr+t", user=User(id="1" * 64, name="alice"))
SETTINGS = '[server]\nhost = "10.1.2.3"\nport = 9000\nregion = "eu"\n'


def ini(form: str, settings: str = SETTINGS) -> configparser.SectionProxy:
    """The one section of a client's file."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(FORMS[form](parse_config(settings, "/x/cumulus.toml"), KEY))
    return parser[parser.sections()[0]]


def test_each_file_has_key_region_and_address() -> None:
    """Under the names that the client looks for."""
    found = ini("s3cmd")
    assert (found["access_key"], found["secret_key"]) == ("AK", "s3/cr+t")
    assert (found["host_base"], found["host_bucket"]) == ("10.1.2.3:9000", "10.1.2.3:9000")
    assert found["use_https"] == "False"
    found = ini("aws")
    assert (found["aws_secret_access_key"], found["endpoint_url"]) == ("s3/cr+t", "http://10.1.2.3:9000")
    assert found["region"] == "eu"
    found = ini("rclone")
    assert (found["secret_access_key"], found["endpoint"]) == ("s3/cr+t", "http://10.1.2.3:9000")
    assert found["force_path_style"] == "true"


def test_the_shell_reads_its_form() -> None:
    """As `eval "$(cumulus key add alice --as env)"` does."""
    text = FORMS["env"](parse_config(SETTINGS, "/x/cumulus.toml"), KEY)
    shown = 'echo "$AWS_ACCESS_KEY_ID $AWS_SECRET_ACCESS_KEY $AWS_DEFAULT_REGION $AWS_ENDPOINT_URL"'
    done = subprocess.run(["sh", "-c", text + shown], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["AK", "s3/cr+t", "eu", "http://10.1.2.3:9000"]


def test_a_domain_is_where_clients_go() -> None:
    """With buckets in front of it; without one the machine's name stands for all of its addresses."""
    settings = '[server]\nhost = "0.0.0.0"\ndomain = "s3.example.org"\n'
    assert ini("s3cmd", settings)["host_bucket"] == "%(bucket)s.s3.example.org:8888"
    assert ini("rclone", settings)["force_path_style"] == "false"
    where, secure = endpoint(parse_config('[server]\nhost = "0.0.0.0"\n', "/x/cumulus.toml"))
    assert not where.startswith("0.0.0.0") and where.endswith(":8888") and not secure


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """No Cumulus yet."""
    return Commands(capsys, tmp_path / "cloud")


def test_commands_give_a_key_in_the_form_asked(commands: Commands) -> None:
    """In a private file, or alone on standard output, so that it can be appended to a client's file."""
    target = commands.dir.parent / "s3cfg"
    printed = commands("init", str(commands.dir), "--as", "s3cmd", "--secret-to", str(target))
    assert target.stat().st_mode & 0o777 == 0o600
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(target)
    assert parser["default"]["access_key"] in printed and parser["default"]["secret_key"] not in printed
    assert commands("user", "add", "alice", "--as", "rclone").startswith("[cumulus]\n")
    assert commands("key", "add", "alice", "--as", "env").startswith("export AWS_ACCESS_KEY_ID=")
    commands("key", "add", "alice", "--as", "none", status=2)
