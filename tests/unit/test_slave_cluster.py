"""A data directory belongs to one slave of one cluster: names of slaves are the same everywhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slave_disk import V1, content_of, store

from sector import errors
from sector.pki import cluster_mark, load_certificate, make_ca
from sector.slave.disk import Disk

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def of_cluster(root: Path, mark: str) -> Disk:
    """The directory as slave s1 of a cluster takes it."""
    target = Disk(str(root), "s1")
    target.cluster = mark
    target.open_thd()
    return target


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """A disk that was mounted at the wrong machine: `s1` is there too, and its files are newer."""
    here = of_cluster(tmp_path / "d", "a" * 64)
    store(here, "/f", b"mine", V1)
    here.close_thd()
    before = {p: p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file()}
    with pytest.raises(errors.BadConfig, match="of another cluster") as told:
        of_cluster(tmp_path / "d", "b" * 64)
    assert "check data_dir" in told.value.hint
    assert {p: p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file()} == before
    again = of_cluster(tmp_path / "d", "a" * 64)
    assert content_of(again, "/f", V1) == b"mine"
    again.close_thd()


def test_a_directory_of_before_gets_the_mark_of_its_cluster(tmp_path: Path) -> None:
    """And keeps it where the slave does not know its cluster."""
    of_cluster(tmp_path / "d", "").close_thd()
    of_cluster(tmp_path / "d", "a" * 64).close_thd()
    of_cluster(tmp_path / "d", "").close_thd()
    known = json.loads((tmp_path / "d/.sector/slave.json").read_text())
    assert known == {"slave_id": "s1", "format": 1, "cluster": "a" * 64}
    with pytest.raises(errors.BadConfig, match="of another cluster"):
        of_cluster(tmp_path / "d", "b" * 64)


def test_clusters_are_told_by_their_keys() -> None:
    """Not by the name, which most leave as it is."""
    one, other = (load_certificate(make_ca("sector", NOW)[0], "ca") for _ in range(2))
    assert cluster_mark(one) == cluster_mark(one) != cluster_mark(other)
