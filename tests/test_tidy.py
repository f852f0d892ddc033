"""House rules that a linter has no word for (CONTRIBUTING.md, ARCHITECTURE.md)."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# files that may be longer than 600 lines, each with its reason
LONG: dict[str, str] = {}


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository by git's patterns, new ones included."""
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def lines_with(pattern: str, files: list[Path], allowed: tuple[str, ...] = ()) -> list[str]:
    """`file:line: text` for each line that matches, outside of the allowed path prefixes."""
    found = []
    for path in files:
        name = str(path.relative_to(ROOT))
        if name.startswith(allowed):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{name}:{number}: {line.strip()[:90]}")
    return found


def test_no_file_is_too_long() -> None:
    """A file of more than 600 lines needs a reason in LONG."""
    long = []
    for path in tracked("*.py", "*.c", "*.h", "*.cpp", "dev"):
        count = len(path.read_text().splitlines())
        name = str(path.relative_to(ROOT))
        if count > 600 and name not in LONG:
            long.append(f"{name}: {count}")
    assert not long


def test_modules_of_tests_have_names_of_their_own() -> None:
    """Pytest imports them by name alone: with two of one name no run of all tests begins."""
    names = sorted(path.name for path in tracked("tests/*.py") if path.name != "conftest.py")
    assert not [one for one, other in pairwise(names) if one == other]


def test_reactor_is_imported_at_the_edge_only() -> None:
    """Everything else takes it as an argument."""
    allowed = ("sector/cli/", "sector/client/blocking.py", "sector/aio.py", "sector/daemon.py", "tests/")
    pattern = r"from twisted\.internet import .*\breactor\b"
    assert not lines_with(pattern, tracked("sector/*.py", "cumulus/*.py"), allowed)


def test_orm_and_cffi_stay_home() -> None:
    """SQLAlchemy in stores and models, cffi in sector/_udt."""
    sources = tracked("sector/*.py")
    home = (
        "sector/revisions",
        "sector/master/store",
        "sector/master/models",
        "sector/master/migrations",
        "sector/security/store",
        "sector/security/models",
        "sector/security/migrations",
    )
    assert not lines_with(r"^\s*(from|import) (sqlalchemy|alembic)", sources, home)
    assert not lines_with(r"_ffi\b", sources, ("sector/_udt/",))


def test_nothing_is_unpickled_outside_a_worker() -> None:
    """Pickles of users are opened in the process that may die of them."""
    allowed = ("sector/sphere/worker", "sector/sphere/udf")
    assert not lines_with(r"pickle\.loads?\(", tracked("sector/*.py", "cumulus/*.py"), allowed)


def test_nothing_is_left_undone() -> None:
    """No marker of unfinished work without an issue behind it."""
    sources = tracked("sector/*.py", "cumulus/*.py", "csrc/*.c", "csrc/*.h", "examples/*.py", "dev")
    assert not lines_with(r"\b(TODO|FIXME|XXX|HACK)\b", sources)


def test_no_large_blobs() -> None:
    """Nothing over 200 kB is in the repository."""
    assert not [str(path) for path in tracked() if path.stat().st_size > 200_000]


def test_no_shell_strings() -> None:
    """Programs are started from argument lists."""
    assert not lines_with(r"(shell=True|os\.system\()", tracked("sector/*.py", "cumulus/*.py"))


def test_no_program_outlives_a_failed_test() -> None:
    """`with subprocess.Popen` waits for ever for a program that nobody ends: tests take running.running."""
    pattern = r"(with .*subprocess\.Popen\(|subprocess\.Popen\(.*\) as )"
    assert not lines_with(pattern, tracked("tests/*.py"), ("tests/running.py", "tests/test_tidy.py"))
