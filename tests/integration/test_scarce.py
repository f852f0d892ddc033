"""Commands where descriptors, memory or threads are short: one line that says what to do; `python -m`."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sector.pki import make_ca


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user who has logged in once; no master runs."""
    (tmp_path / "ca.pem").write_bytes(make_ca("sector", datetime.now(UTC))[0])
    settings = tmp_path / ".config/sector/client.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f"""[client]
masters = ["127.0.0.1:9"]
user = "alice"
ca = "{tmp_path}/ca.pem"
session = "{"01" * 16}"
secret = "{"02" * 32}"
expires = 99999999999.0
master_id = "m1"
gmp = "127.0.0.1:9"
key_id = 16777217
"""
    )
    settings.chmod(0o600)
    return tmp_path


def run(home: Path, limit: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m sector` under a limit of the shell."""
    command = f'{limit}; exec "{sys.executable}" -m sector "$@"'
    env = {name: value for name, value in os.environ.items() if not name.startswith("SECTOR_")}
    return subprocess.run(
        ["sh", "-c", command, "sh", *arguments],
        env={**env, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("command", [("ls",), ("status",), ("user", "list"), ("put", "/etc/passwd", "/p")])
def test_too_few_descriptors_are_told_with_the_remedy(home: Path, command: tuple[str, ...]) -> None:
    ended = run(home, "ulimit -n 9", *command)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "Too many open files" in ended.stderr
    assert "(raise the limit of open files: ulimit -n 1024)" in ended.stderr


@pytest.mark.parametrize("kib", [60_000, 70_000, 80_000])
def test_too_little_memory_is_no_fault_of_the_program(home: Path, kib: int) -> None:
    ended = run(home, f"ulimit -v {kib}", "ls")
    assert ended.returncode != 0
    assert "fault of the program" not in ended.stderr


@pytest.mark.parametrize("program", ["sector", "cumulus"])
def test_programs_are_modules_too(program: str) -> None:
    """For an interpreter whose scripts are not in PATH."""
    ended = subprocess.run(
        [sys.executable, "-m", program, "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.startswith(f"{program}, version ")
