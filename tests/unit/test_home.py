"""Paths that begin with ~ where nobody knows that home directory, as with a user id that has no account."""

from __future__ import annotations

from pathlib import Path

import pytest

from cumulus.config import parse_config
from sector.cli import main
from sector.config import client_path, expanded
from sector.errors import BadConfig

NOBODYS = "~no-such-account/x"


def test_a_home_that_nobody_knows_is_told() -> None:
    """With what to do; a home that is known is taken."""
    with pytest.raises(BadConfig, match=r"^~no-such-account/x: no such home directory is known$") as told:
        expanded(NOBODYS)
    assert "set HOME" in told.value.hint
    assert expanded("~") == Path.home()


def test_where_a_home_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings of clients, directories of clusters, files of settings: one line, never a fault of ours."""
    monkeypatch.setenv("SECTOR_CONFIG", NOBODYS)
    with pytest.raises(BadConfig):
        client_path()
    for words in (["ls", "/"], ["init", NOBODYS], ["up", "--dir", NOBODYS], ["slave", "--config", NOBODYS]):
        assert main.run(words) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"sector: {NOBODYS}: no such home directory is known (")
        assert len(told.splitlines()) == 1
    with pytest.raises(BadConfig):
        parse_config("", "/etc/cumulus.toml").file(NOBODYS)
