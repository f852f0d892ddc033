"""Runs command lines of Cumulus in the process of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cumulus import cli


class Commands:
    """Runs command lines on one directory."""

    def __init__(self, capsys: pytest.CaptureFixture[str], directory: Path) -> None:
        self._capsys = capsys
        self.dir = directory
        self.err = ""

    def __call__(self, *words: str, status: int = 0) -> str:
        """What a command printed; errors are in `err`."""
        found = cli.run(["--dir", str(self.dir), *words])
        out, self.err = self._capsys.readouterr()
        assert found == status, (out, self.err)
        return out

    def json(self, *words: str, status: int = 0) -> Any:
        """The document that a command printed."""
        return json.loads(self(*words, "--json", status=status))

    def refused(self, *words: str, status: int = 1) -> dict[str, str]:
        """The error of a refused command: one line as text, an object as JSON."""
        self(*words, status=status)
        told = self.err
        assert told.startswith("cumulus: ") and told.count("\n") == 1
        found: dict[str, str] = json.loads(self(*words, "--json", status=status))["error"]
        assert found["message"] in told
        return found
