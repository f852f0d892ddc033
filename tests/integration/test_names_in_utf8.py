"""Names of files are UTF-8 whatever the locale of who starts a program says: what one start has stored the
next one finds (decision 0253)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from s3_server import PORTS, boto, make, started

# as under LC_ALL=de_DE.ISO-8859-1, which not every machine has: names of files are not UTF-8
OTHER = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAME = "Zoë/中.txt"


def program(module: str, *words: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    """A command line in that locale."""
    command = [sys.executable, *python, "-m", module, *words]
    return subprocess.run(command, capture_output=True, env={**os.environ, **OTHER}, timeout=60, check=False)


def test_an_object_has_the_name_of_its_key(tmp_path: Path) -> None:
    """Stored in one locale, listed and read in another one."""
    key, secret = make(tmp_path / "D", PORTS)
    with started(tmp_path / "D", key, secret, "--workers", "2", environment=OTHER) as server:
        s3 = boto(server)
        s3.create_bucket(Bucket="lab")
        s3.put_object(Bucket="lab", Key=NAME, Body=b"one")
        assert (tmp_path / "D" / "data" / "lab" / NAME).read_bytes() == b"one"
    with started(tmp_path / "D", key, secret) as server:
        s3 = boto(server)
        assert [row["Key"] for row in s3.list_objects_v2(Bucket="lab")["Contents"]] == [NAME]
        assert s3.get_object(Bucket="lab", Key=NAME)["Body"].read() == b"one"


@pytest.mark.parametrize("module", ["sector.cli.main", "cumulus.cli"])
def test_what_is_said_is_utf_8(tmp_path: Path, module: str) -> None:
    """Also of a directory whose name the locale cannot spell."""
    where = tmp_path / "Zoë"
    made = program(module, "init", str(where), "--json")
    assert made.returncode == 0, made.stdout + made.stderr
    assert "Zoë" in str(json.loads(made.stdout.decode()))
    assert os.listdir(os.fsencode(tmp_path)) == ["Zoë".encode()]


@pytest.mark.parametrize("module", ["sector.cli.main", "cumulus.cli"])
def test_a_python_that_was_told_otherwise_is_refused(module: str) -> None:
    """In one line, with what to do."""
    told = program(module, "--version", python=("-X", "utf8=0"))
    assert (told.returncode, told.stdout) == (1, b"")
    assert told.stderr.decode().splitlines() == [
        f"{module.partition('.')[0]}: names of files are ascii here, and have to be UTF-8"
        " (set LC_ALL=C.UTF-8, or start Python with -X utf8)"
    ]
