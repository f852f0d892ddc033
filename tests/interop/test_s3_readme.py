"""README's way from `pip install` to the first `s3cmd put`, run as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def block() -> list[str]:
    """The commands of README's block that begins with pip install."""
    blocks = re.findall(r"```sh\n(pip install .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    return [line.split("#")[0].strip() for line in blocks[0].splitlines() if line.strip()]


def sources(where: Path) -> Path:
    """What a clone holds, and what is new in it."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, where / name)
    return where


def environment(where: Path) -> dict[str, str]:
    """A fresh virtual environment that finds the pinned dependencies, so that pip fetches nothing."""
    venv.create(where, with_pip=False, symlinks=True)
    site = where / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (where / "bin" / "pip").write_text(f'#!/bin/sh\nexec "{where}/bin/python" -m pip "$@"\n')
    (where / "bin" / "pip").chmod(0o755)
    # it runs for a moment only: not optimised it is built in a third of the time, whatever setup.py asks for
    (where / "bin" / "quick-cc").write_text('#!/bin/sh\nexec cc "$@" -O0 -g0\n')
    (where / "bin" / "quick-cc").chmod(0o755)
    return {
        "PATH": f"{where}/bin:{os.environ['PATH']}",
        "HOME": str(where),
        "LANG": "C.UTF-8",
        "PIP_NO_INDEX": "1",
        # as a variable this option is turned round: 0 says no isolation
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_IGNORE_INSTALLED": "1",
        "PIP_NO_DEPS": "1",
        "CC": f"{where}/bin/quick-cc",
    }


def run(commands: list[str], where: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The commands in one shell, alone in a network where port 8888 is free; its server is ended."""
    script = "\n".join(["set -e", "ip link set lo up", "trap 'cumulus stop my-s3' EXIT", *commands])
    process = subprocess.Popen(
        ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script],
        cwd=where,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=270)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"did not end: {output}")
    return subprocess.CompletedProcess(commands, process.returncode, output)


def test_five_commands_from_pip_to_the_first_put(tmp_path: Path) -> None:
    """The object is a plain file with the bytes that were put, and the key's file is private."""
    commands = block()
    assert len(commands) <= 5
    clone = sources(tmp_path / "clone")
    done = run(commands, clone, environment(tmp_path / "venv"))
    assert done.returncode == 0, done.stdout
    assert "serving http://127.0.0.1:8888; admin page http://127.0.0.1:8889/; process " in done.stdout
    stored = clone / "my-s3" / "data" / "lab" / "README.md"
    assert stored.read_bytes() == (ROOT / "README.md").read_bytes(), done.stdout
    assert (clone / "s3cfg").stat().st_mode & 0o777 == 0o600
    assert (
        str(tmp_path / "venv")
        in subprocess.run(
            [tmp_path / "venv/bin/python", "-c", "import cumulus; print(cumulus.__file__)"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    ), f"another installation was used, beside {sys.executable}"
