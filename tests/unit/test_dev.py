"""./dev, the door to a checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_files_that_a_command_is_given_lie_where_the_caller_is(tmp_path: Path) -> None:
    """`../sector/dev sector put x /x` means the x here, not one in the checkout."""
    (tmp_path / "mine.py").write_text("def f(data, ctx):\n    return None\n")
    done = subprocess.run(
        [ROOT / "dev", "sector", "sphere", "run", "mine.py:f", "/in"],
        cwd=tmp_path,
        env=os.environ | {"SECTOR_CONFIG": str(tmp_path / "none.toml")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no master is known" in done.stderr and "no such file" not in done.stderr


@pytest.mark.parametrize("command", ["ctest", "lint", "fuzz", "sanitize", "build"])
def test_help_of_a_command_starts_nothing(command: str) -> None:
    shown = subprocess.run(
        [ROOT / "dev", command, "--help"], capture_output=True, text=True, timeout=20, check=True
    )
    assert shown.stdout.startswith("usage: ./dev COMMAND")
    assert shown.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ten"], "dev: fuzz: 'ten' is no number of seconds"),
        (["0"], "dev: fuzz: '0' is no number of seconds"),
        (["5", "sdc", "sdk"], "dev: fuzz: no target 'sdk'; there are: gmp gmp_codec"),
    ],
)
def test_what_fuzz_cannot_do_is_said(words: list[str], said: str) -> None:
    """libFuzzer takes words for a time without end."""
    run = subprocess.run([ROOT / "dev", "fuzz", *words], capture_output=True, text=True, timeout=20)
    assert run.returncode == 2
    assert run.stderr.startswith(said)
