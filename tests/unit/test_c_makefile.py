"""What the Makefile of the C core finds out of date."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

MAKEFILE = Path(__file__).resolve().parents[2] / "csrc" / "Makefile"


def make(folder: Path, target: str) -> str:
    command = ["make", "-C", str(folder), target, "LDLIBS="]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_test_that_is_older_than_the_program_is_built_in(tmp_path: Path) -> None:
    """As after a checkout or a copy: make once took its missing object for one that nobody needs."""
    shutil.copy(MAKEFILE, tmp_path)
    tests = tmp_path / "test"
    tests.mkdir()
    (tests / "main.c").write_text("int main(void);\nint main(void)\n{\n    return 0;\n}\n")
    make(tmp_path, "build/test")
    late = tests / "test_late.c"
    late.write_text("int late;\n")
    os.utime(late, (0, 0))
    make(tmp_path, "build/test")
    assert (tmp_path / "build/obj/test/test_late.o").is_file()
    assert "gcc" not in make(tmp_path, "build/test")
