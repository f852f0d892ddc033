"""What others put or edited in a slave's tree since the last scan is set aside before its name is needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from slave_disk import V1, V2, V3, content_of, meta_of, opened, store

from sector import errors
from sector.slave.disk import Disk


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Disk]:
    """An empty data directory."""
    target = opened(tmp_path / "d")
    yield target
    target.close_thd()


def native(target: Disk, path: str) -> Path:
    return Path(target.root, "files", path.lstrip("/"))


def attic(target: Disk) -> list[bytes]:
    """What is in the attic."""
    return sorted(file.read_bytes() for file in Path(target.root, ".sector/attic").glob("*/data"))


def edit(target: Disk, path: str) -> None:
    with native(target, path).open("a") as file:
        file.write(" EDITED")


def test_a_put_sets_aside_what_others_put_there(here: Disk) -> None:
    native(here, "/a").write_bytes(b"of others")
    store(here, "/a", b"put", V1)
    assert content_of(here, "/a", V1) == b"put"
    assert attic(here) == [b"of others"]


def test_a_put_sets_aside_what_others_edited(here: Disk) -> None:
    store(here, "/a", b"first", V1)
    edit(here, "/a")
    store(here, "/a", b"second", V2)
    store(here, "/a", b"third", V3)
    assert content_of(here, "/a", V3) == b"third"
    assert attic(here) == [b"first EDITED"]
    assert not list(Path(here.root, ".sector/meta").rglob("*.1.1.json"))


def test_a_deletion_sets_aside_what_others_edited(here: Disk) -> None:
    store(here, "/a", b"content", V1)
    edit(here, "/a")
    assert here.delete_thd("/a", V1)
    assert not native(here, "/a").exists() and here.entries == {}
    assert attic(here) == [b"content EDITED"]


def test_a_rename_sets_aside_what_others_put_there(here: Disk) -> None:
    store(here, "/a", b"content", V1)
    native(here, "/b").write_bytes(b"of others")
    assert here.rename_thd("/a", V1, meta_of("/b", b"content", V2))
    assert content_of(here, "/b", V2) == b"content"
    assert attic(here) == [b"of others"]


def test_a_rename_sets_aside_what_others_edited(here: Disk) -> None:
    """Also for good: nobody deletes it with the content that had the name."""
    store(here, "/a", b"content", V2)
    store(here, "/b", b"replaced", V1)
    edit(here, "/b")
    assert here.rename_thd("/a", V2, meta_of("/b", b"content", V3))
    here.delete_thd("/b", V1)
    assert content_of(here, "/b", V3) == b"content"
    assert attic(here) == [b"replaced EDITED"]


def test_a_rename_whose_sync_failed_sets_nothing_aside(here: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has its new name already when it is asked for again."""
    store(here, "/a", b"content", V1)
    with monkeypatch.context() as broken:
        sync = os.fsync

        def fails(fd: int) -> None:
            if native(here, "/b").exists():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            sync(fd)

        broken.setattr(os, "fsync", fails)
        with pytest.raises(errors.LocalIO):
            here.rename_thd("/a", V1, meta_of("/b", b"content", V2))
    assert native(here, "/b").exists()
    assert here.rename_thd("/a", V1, meta_of("/b", b"content", V2))
    assert content_of(here, "/b", V2) == b"content"
    assert attic(here) == []


def test_a_name_that_nobody_disturbed_costs_nothing(here: Disk) -> None:
    for version in (V1, V2, V3):
        store(here, "/a", str(version).encode(), version)
    assert here.delete_thd("/a", V3)
    assert attic(here) == [] and not os.listdir(Path(here.root, ".sector/attic"))


def test_what_has_gone_since_it_was_seen_leaves_no_box(here: Disk) -> None:
    """A scan saw a file that was to be removed, and was by the time it was to be set aside."""
    for path in ("/gone", "/no/directory"):
        here.aside_unknown_thd(path, "deleted while this slave was away")
    assert list(Path(here.root, ".sector/attic").iterdir()) == [] and here.warnings == []
    native(here, "/there").write_bytes(b"of others")
    here.aside_unknown_thd("/there", "not known, and this path was deleted")
    assert attic(here) == [b"of others"]


def test_exactly_one_content_is_dropped(here: Disk) -> None:
    """Not an older or newer one of its name, nor what waits aside under it."""
    store(here, "/a", b"content", V2)
    assert not here.drop_thd("/a", V1) and not here.drop_thd("/a", V3) and not here.drop_thd("/b", V2)
    assert content_of(here, "/a", V2) == b"content"
    assert here.drop_thd("/a", V2) and here.entries == {}
    assert not native(here, "/a").exists() and attic(here) == []
