"""Deletions that a slave was killed in the middle of."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from slave_disk import V1, V2, content_of, interrupted, meta_of, opened, store

from sector.errors import LocalIO
from sector.model import Tombstone
from sector.slave.catalog import Record
from sector.slave.disk import Disk
from sector.slave.service import Slave
from sector.testing.cluster import SimCluster


def boxes(root: Path) -> list[str]:
    """What is in the attic."""
    return os.listdir(root / ".sector/attic")


def delete(target: Disk) -> None:
    """As an order of the master is carried out."""
    target.bury_thd([Tombstone("/a", V1, 5.0)])
    target.delete_thd("/a", V1)


def test_killed_at_every_step_of_a_deletion_takes_no_room_when_it_is_told_again(tmp_path: Path) -> None:
    """The master repeats what was not confirmed: nothing of the content stays, also not in the attic."""
    count, hit = 0, True
    while hit:
        root = tmp_path / str(count)
        first = opened(root)
        store(first, "/a", b"content", V1)
        first.close_thd()
        hit = interrupted(root, count, delete).hit
        again = opened(root)
        delete(again)
        assert not Path(root, "files/a").exists()
        assert boxes(root) == []
        again.close_thd()
        assert boxes(root) == []
        count += 1
    assert count > 4


def test_a_rename_finds_what_its_tombstone_sent_to_the_attic(tmp_path: Path) -> None:
    """The tombstone of a former name came first, and the slave was restarted before the rename."""
    here = opened(tmp_path)
    store(here, "/a", b"content", V1)
    here.bury_thd([Tombstone("/a", V1, 5.0)])
    here.close_thd()
    again = opened(tmp_path)
    assert len(boxes(tmp_path)) == 1
    assert again.rename_thd("/a", V1, meta_of("/b", b"content", V2))
    assert content_of(again, "/b", V2) == b"content"
    assert boxes(tmp_path) == []
    again.close_thd()


class Counted(dict[str, Record]):
    """A catalogue that counts how often it is gone through."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_the_sum_of_many_files_is_not_made_for_each_heartbeat(tmp_path: Path) -> None:
    """A slave of a million files spent seven hundredths of a processor on it, at rest."""
    here = opened(tmp_path)
    record = store(here, "/a", b"content", V1)
    assert here.space_thd()[1] == 7
    time.sleep(0.1)
    here.entries = many = Counted({f"/{number}": record for number in range(100_000)})
    assert {here.space_thd()[1] for _ in range(100)} == {700_000}
    assert many.looks < 10
    here.close_thd()


@pytest.mark.parametrize("change", ["rm", "mv"])
def test_a_path_that_the_disk_refuses_holds_up_no_other(tmp_path: Path, change: str) -> None:
    """Its directory is another user's. All else is removed and renamed there, and what users do is mirrored;
    when the directory is the slave's, the rest follows by itself."""
    with SimCluster(tmp_path / "sim", slaves=1, copies=1) as sim:
        cloud = sim.client()
        sim.wait(cloud.mkdir("/a"))
        for name in ("/a/bad", "/a/good", "/a/other", "/b"):
            sim.wait(cloud.write(name, name.encode()))
        service = sim.slaves["s1"].service
        assert isinstance(service, Slave)
        disk, refused = service.disk, [True]
        delete, rename = disk.delete_thd, disk.rename_thd

        def delete_thd(path: str, *rest: Any) -> bool:
            if path == "/a/bad" and refused:
                raise LocalIO("s1: /a/bad: Permission denied")
            return delete(path, *rest)

        def rename_thd(source: str, *rest: Any) -> bool:
            if source == "/a/bad" and refused:
                raise LocalIO("s1: /a/bad: Permission denied")
            return rename(source, *rest)

        disk.delete_thd, disk.rename_thd = delete_thd, rename_thd  # type: ignore[method-assign]
        if change == "rm":
            sim.wait(cloud.rm("/a", recursive=True))
        else:
            sim.wait(cloud.mv("/a", "/c"))
        sim.wait(cloud.rm("/b"))
        sim.advance(20)
        left = {"rm": ["/a/bad"], "mv": ["/a/bad", "/c/good", "/c/other"]}[change]
        names = ["/a/bad", "/a/good", "/a/other", "/b", "/c/bad", "/c/good", "/c/other"]
        assert [name for name in names if sim.serving(name)] == left
        master = sim.up()
        assert disk.mirror.serial == master.hub.serial
        assert sim.wait(cloud.status()).nodes["s1"]["errands_stuck"] == 1
        began = sim.clock.seconds()
        sim.wait(cloud.mkdir("/quick"))
        assert sim.clock.seconds() - began < 1
        refused.clear()
        sim.advance(620)
        left = {"rm": [], "mv": ["/c/bad", "/c/good", "/c/other"]}[change]
        assert [name for name in names if sim.serving(name)] == left
        assert sim.wait(cloud.status()).counters["errands_stuck"] == 0
