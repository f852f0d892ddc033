"""Buckets of `data` that are mount points (the whole path, with real mounts: tests/integration)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cumulus.backends.posix import mounts
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Unavailable


def test_a_disk_that_goes_while_its_bucket_is_opened_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bare directory is not taken for the bucket, then or later."""
    store = PosixStore(str(tmp_path))
    store.create_bucket("b")
    store.close()
    answers = [True]  # it is there when that is asked first
    monkeypatch.setattr(mounts, "on_another_mount", lambda *_: bool(answers) and answers.pop())
    again = PosixStore(str(tmp_path))
    for _ in range(2):
        with pytest.raises(Unavailable, match="is its disk mounted"):
            again.names("b")
    again.close()


def test_a_directory_is_on_the_mount_of_the_one_above(tmp_path: Path) -> None:
    """Unless something is mounted there, as on /proc."""
    (tmp_path / "a").mkdir()
    assert not mounts.on_another_mount(str(tmp_path / "a"), str(tmp_path))
    assert mounts.on_another_mount("/proc", "/")
