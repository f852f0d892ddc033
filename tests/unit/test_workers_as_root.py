"""Users' functions that would run as root: everybody who can start a slave is told, and why."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sector.cli import preflight_local
from sector.errors import BadConfig
from sector.sphere import tasks


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation of its own, which everybody may enter: pytest's closed folders are opened for it."""
    folder = tmp_path_factory.mktemp("root") / "sector" / "lib"
    folder.mkdir(parents=True)
    for place in (folder, *folder.parents):
        if place.stat().st_uid == os.geteuid() and place.is_relative_to(
            tmp_path_factory.getbasetemp().parent
        ):
            place.chmod(place.stat().st_mode | 0o001)
    monkeypatch.setattr(sys, "prefix", str(folder))
    monkeypatch.setattr(sys, "base_prefix", str(folder))
    monkeypatch.setattr(tasks, "__file__", str(folder / "tasks.py"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


def test_an_open_installation_leaves_the_rights_of_root(installation: Path) -> None:
    """Functions run as the named user, or as root when that was asked for."""
    assert tasks.why_root("nobody") == ""
    uid, gid = tasks.pick_user("nobody")
    assert uid > 0
    assert gid > 0
    assert tasks.pick_user("") == (0, 0)


def test_a_closed_directory_above_the_installation_is_named(installation: Path) -> None:
    """By the slave's choice and by `sector node preflight`."""
    closed = installation.parent
    closed.chmod(0o700)
    assert str(closed) in tasks.why_root("nobody")
    assert tasks.pick_user("nobody") == (0, 0)
    checks = list(preflight_local.workers_as_root("nobody"))
    assert [check.state for check in checks] == [preflight_local.WARNING]
    assert str(closed) in checks[0].text
    assert list(preflight_local.workers_as_root("")) == []
    sandbox = {check.name: check.text for check in preflight_local.sandbox("nobody")}
    assert "functions run as root, " in sandbox["sandbox"]
    closed.chmod(0o755)
    (told,) = preflight_local.sandbox("nobody")
    assert "functions run as user nobody" in told.text
    (wrong, _) = preflight_local.sandbox("nobody-of-that-name")
    assert wrong.state == preflight_local.FAILED and "no user 'nobody-of-that-name'" in wrong.text


def test_an_unknown_user_is_an_error(installation: Path) -> None:
    """It is not quietly replaced."""
    with pytest.raises(BadConfig, match="no user 'nobody-of-that-name'"):
        tasks.pick_user("nobody-of-that-name")
