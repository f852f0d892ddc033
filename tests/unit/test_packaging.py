"""What packagers make: a source archive that builds by itself, and one wheel for every Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOOK_AT_TAG = """
import os
from setuptools import distutils
from distutils.core import run_setup
command = run_setup("setup.py", stop_after="config").get_command_obj("bdist_wheel")
command.ensure_finalized()
print(*command.get_tag()[:2])
"""


def run(where: Path, *arguments: str) -> str:
    """What Python prints in a directory."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=where, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept_files() -> list[str]:
    """All files of the checkout that belong to it."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_a_source_archive_is_the_checkout_and_builds_by_itself(tmp_path: Path) -> None:
    """`python -m build` makes the wheel from the archive, and so does who gets only that."""
    kept = [name for name in kept_files() if name != ".gitignore"]
    for name in kept:
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "from" / name)
    run(tmp_path / "from", "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path / "dist"))
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "to", filter="data")
    (tree,) = (tmp_path / "to").iterdir()
    assert [name for name in kept if not (tree / name).is_file()] == []
    run(tree, "setup.py", "-q", "egg_info")  # executes the builder of the C module


def test_one_wheel_serves_every_python() -> None:
    """The C module keeps to the stable ABI, so its wheel says so."""
    assert run(ROOT, "-c", LOOK_AT_TAG).split() == ["cp311", "abi3"]
