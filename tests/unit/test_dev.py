"""./dev, the door to a checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
