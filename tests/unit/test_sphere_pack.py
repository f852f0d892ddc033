"""Programs whose functions are to be sent: what is wrong with them is told in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sector.errors import UsageError
from sector.sphere.pack import load_function, pack

PROGRAMS = {
    "exits": ("import sys\ndef f(data, ctx): pass\nsys.exit(3)\n", "SystemExit: 3"),
    "wrong": ("x = undefined\ndef f(data, ctx): pass\n", "NameError"),
    "torn": ("def f(data, ctx) return\n", "SyntaxError"),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("suffix", [".py", ""], ids=["file", "module"])
def test_a_program_that_cannot_be_loaded_is_the_users_error(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends itself, too: `sphere run` ended with its status and without a word."""
    text, why = PROGRAMS[name]
    (tmp_path / f"prog_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"prog_{name}(.py)? cannot be loaded: {why}") as refused:
        load_function(f"prog_{name}{suffix}:f")
    assert ("__main__" in refused.value.hint) == (name == "exits")
    assert f"prog_{name}" not in sys.modules


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """Of a/table.csv and b/table.csv the function saw only the second."""
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "table.csv").write_text(folder)
    with pytest.raises(UsageError, match=r"two files are named table\.csv"):
        pack(lambda data, ctx: None, None, (tmp_path / "a" / "table.csv", tmp_path / "b" / "table.csv"))
