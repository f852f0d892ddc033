"""What `sector node preflight` says of a data directory, and that it leaves none behind."""

from __future__ import annotations

from pathlib import Path

from sector.cli.preflight_local import FAILED, disk, disk_before


def test_a_directory_that_is_not_there_yet_is_tried_and_not_left(tmp_path: Path) -> None:
    """A typing error in [data] dir makes no directory, and one that was there stays."""
    (first, *others) = disk_before(tmp_path / "a" / "b")
    assert first.text.endswith("; the service makes it at its start")
    assert {"file_system", "disk_speed"} == {check.name for check in others}
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    (first, *_) = disk_before(tmp_path / "a")
    assert "makes it" not in first.text and list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_file_in_its_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "data"):
        (only,) = disk_before(place)
        assert (only.state, only.text) == (FAILED, f"{place}: there is a file in its place")
        assert "[data] dir" in only.remedy


def test_a_slave_that_starts_makes_it(tmp_path: Path) -> None:
    (first, *_) = disk(tmp_path / "data", measure=False)
    assert first.state != FAILED and (tmp_path / "data").is_dir()
