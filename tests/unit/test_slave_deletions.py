"""Deletions that a slave was killed in the middle of."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from slave_disk import V1, V2, content_of, interrupted, meta_of, opened, store

from sector.model import Tombstone
from sector.slave.catalog import Record
from sector.slave.disk import Disk


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
