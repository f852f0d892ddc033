"""What programs need not do: load for --help what only work needs, and say a word when the reader of a list
has gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = """
import contextlib, io, sys
from sector.cli.main import PROGRAM
with contextlib.redirect_stdout(io.StringIO()):
    status = PROGRAM.run(sys.argv[1:])
heavy = ("twisted", "asyncio", "cryptography", "numpy", "sqlalchemy", "OpenSSL", "cffi")
print(status, *(name for name in heavy if name in sys.modules))
"""


@pytest.mark.parametrize(
    "command", ["ls", "put", "user add", "node list", "sphere run", "job list", "udtcat"]
)
def test_help_does_not_wait_for_what_only_work_needs(command: str) -> None:
    """The reactor and TLS alone are 0.3 s of a processor."""
    told = subprocess.run(
        [sys.executable, "-c", LOADED, *command.split(), "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert (told.stdout, told.stderr) == ("0\n", "")


@pytest.mark.parametrize("program", ["table.py", "cumulus/s3table.py"])
@pytest.mark.parametrize("what", ["--list", "--show"])
def test_a_list_whose_reader_has_gone_ends_without_a_word(program: str, what: str, tmp_path: Path) -> None:
    """As under `| head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, str(ROOT / "benchmarks" / program), what, "--results", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with os.fdopen(writer, "wb") as out:
        ended = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, env=environment)
    assert (ended.returncode, ended.stderr) == (1, b"")
