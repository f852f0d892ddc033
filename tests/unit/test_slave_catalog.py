"""What a slave's directory means after any crash or tampering (pure rules)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sector.model import SliceMeta, Tombstone, Version
from sector.slave.catalog import Found, Record, reconcile, record_name, record_of

V1, V2 = Version(1, 1), Version(1, 2)


def meta(path: str = "/a", version: Version = V1, size: int = 10) -> SliceMeta:
    """Metadata of one file."""
    return SliceMeta(path, version, size, "alice", 0o644, 1.0, f"crc32c-1m:{version.counter}")


def seen(path: str = "/a", inode: int = 1, size: int = 10, mtime_ns: int = 5) -> Found:
    """A file on disk."""
    return Found(path, inode, size, mtime_ns)


def record(
    path: str = "/a", version: Version = V1, inode: int = 1, lease: bytes = b"", temp: str = ""
) -> Record:
    """The record that matches `seen(path, inode)`."""
    return record_of(meta(path, version), seen(path, inode), [7], lease=lease, temp=temp)


def test_matching_record_is_current() -> None:
    result = reconcile([seen()], [record()], {}, {})
    assert list(result.current) == ["/a"]
    assert not (result.adopt or result.attic or result.stale or result.gone)


def test_crash_before_rename_keeps_old_and_prepared() -> None:
    """The new record is written, the data not yet renamed: the old content stays, the new is prepared."""
    old, new = record(), record(version=V2, inode=2, lease=b"L" * 16, temp="t")
    result = reconcile([seen()], [old, new], {"t": seen("t", 2)}, {})
    assert result.current["/a"] == old
    assert result.prepared[b"L" * 16] == new
    assert result.temps == []


def test_crash_after_rename_takes_new_and_drops_old() -> None:
    old, new = record(), record(version=V2, inode=2, lease=b"L" * 16, temp="t")
    result = reconcile([seen(inode=2)], [old, new], {}, {})
    assert result.current["/a"] == new
    assert result.stale == [old]
    assert result.prepared == {}


def test_unfinished_temporary_files_are_removed() -> None:
    result = reconcile([], [], {"t": seen("t", 3)}, {})
    assert result.temps == ["t"]


def test_replica_sealed_but_not_renamed_is_forgotten() -> None:
    """A copy has no lease: nobody was told of it, so it is fetched again."""
    result = reconcile([], [record(temp="t")], {"t": seen("t", 1)}, {})
    assert result.temps == ["t"]
    assert len(result.stale) == 1
    assert result.gone == []


def test_unknown_file_is_adopted() -> None:
    assert reconcile([seen()], [], {}, {}).adopt == [seen()]


def test_file_not_newer_than_its_tombstone_goes_to_the_attic() -> None:
    stones = {"/a": Tombstone("/a", V1, 9.0)}
    assert [p for p, _ in reconcile([seen()], [record()], {}, stones).attic] == ["/a"]
    assert [p for p, _ in reconcile([seen()], [], {}, stones).attic] == ["/a"]
    assert reconcile([seen(inode=2)], [record(version=V2, inode=2)], {}, stones).attic == []


def test_changed_file_of_other_size_goes_to_the_attic() -> None:
    result = reconcile([seen(size=11, mtime_ns=6)], [record()], {}, {})
    assert [p for p, _ in result.attic] == ["/a"]
    assert result.gone == [("/a", V1)]


def test_touched_file_is_verified() -> None:
    result = reconcile([seen(mtime_ns=6)], [record()], {}, {})
    assert [f.path for f, _ in result.verify] == ["/a"]
    assert result.gone == []


def test_missing_file_is_gone() -> None:
    result = reconcile([], [record(), record(version=V2)], {}, {})
    assert result.gone == [("/a", V2)]
    assert len(result.stale) == 2


def test_record_names_fit_any_path() -> None:
    """Names of 255 bytes leave no room for a suffix: records are kept under a hash."""
    name = record_name("/" + "x" * 255, Version(2**63, 2**63))
    assert len(name.split("/")[1]) < 128
    assert record_name("/a", V1) != record_name("/a", V2)


paths = st.sampled_from(["/a", "/b", "/c"])
founds = st.builds(Found, paths, st.integers(1, 3), st.integers(1, 2), st.integers(1, 2))
records = st.builds(
    lambda f, c, lease: record_of(
        SliceMeta(f.path, Version(1, c), f.size, "u", 0o644, 0.0, "d"),
        f,
        [],
        lease=b"L" * 16 if lease else b"",
        temp=f"t{c}" if lease else "",
    ),
    founds,
    st.integers(1, 4),
    st.booleans(),
)


def test_a_copied_record_never_costs_the_one_that_is_kept() -> None:
    """Both have the same name on disk: neither is removed, and it is told."""
    result = reconcile([seen()], [record(), record()], {}, {})
    assert result.current["/a"] == record()
    assert result.stale == []
    assert result.doubles == [record()]


def test_an_altered_copy_of_a_record_loses_to_the_one_that_fits() -> None:
    result = reconcile([seen()], [record(inode=9), record()], {}, {})
    assert result.current["/a"] == record()
    assert result.stale == []
    assert result.doubles == [record(inode=9)]


@pytest.mark.parametrize("newest_first", [False, True])
def test_crash_while_the_masters_version_was_written(newest_first: bool) -> None:
    """Two records for one lease and one temporary file, in any order: the newer counts."""
    old, new = (record(version=v, inode=2, lease=b"L" * 16, temp="t") for v in (V1, V2))
    result = reconcile([], [new, old] if newest_first else [old, new], {"t": seen("t", 2)}, {})
    assert result.prepared == {b"L" * 16: new}
    assert result.stale == [old]
    assert result.temps == []


@given(
    st.lists(founds, unique_by=lambda f: f.path),
    st.lists(records, max_size=6),
    st.sets(st.sampled_from(["t1", "t2", "t3"])),
    st.dictionaries(paths, st.integers(1, 4)),
)
def test_every_file_has_exactly_one_fate(
    files: list[Found], known: list[Record], temps: set[str], dead: dict[str, int]
) -> None:
    """Each file is current, verified, adopted or set aside, never current when deleted. Each record is kept,
    stale or a double; what is removed never has the name of what is kept."""
    stones = {path: Tombstone(path, Version(1, c), 0.0) for path, c in dead.items()}
    result = reconcile(files, known, {t: Found(t, 1, 1, 1) for t in temps}, stones)
    fates = [*result.current, *(f.path for f, _ in result.verify), *(f.path for f in result.adopt)]
    fates += [path for path, _ in result.attic]
    assert sorted(fates) == sorted(f.path for f in files)
    for path, kept in result.current.items():
        assert path not in stones or kept.version > stones[path].version
    kept = [*result.current.values(), *result.prepared.values(), *(record for _, record in result.verify)]
    names = {record_name(one.path, one.version) for one in kept}
    assert len(names) == len(kept)
    assert not names & {record_name(one.path, one.version) for one in result.stale}
    assert len(kept) + len(result.stale) + len(result.doubles) == len(known)
    assert {one.temp for one in result.prepared.values()}.isdisjoint(result.temps)
    assert {*result.temps, *(one.temp for one in result.prepared.values())} == temps
