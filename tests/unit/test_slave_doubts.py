"""Replicas in doubt that turn out to be good, and a master that does not hear of it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from slave_disk import V1, V2, store
from twisted.internet.task import Clock

from sector import errors
from sector._udt.data_api import Data
from sector.model import Version
from sector.slave.core import SlaveCore
from sector.slave.pool import Inline
from sector.slave.rot import ScrubbedDisk
from sector.slave.transfer import Transfers
from sector.wire.slave import Adopted


class Far:
    """A master that the first messages do not reach."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.sent: list[tuple[str, Version]] = []

    async def call(self, request: Adopted, **_: Any) -> None:
        self.sent += [(meta.path, meta.version) for meta in request.found]
        self.lost -= 1
        if self.lost >= 0:
            raise errors.TimedOut("the master is away")


@pytest.mark.parametrize("replaced", [False, True])
def test_an_acquittal_is_repeated_as_long_as_the_replica_is_here(tmp_path: Path, replaced: bool) -> None:
    """Told later of what was replaced meanwhile, the master would have struck what replaced it."""
    disk = ScrubbedDisk(str(tmp_path), "s1")
    disk.open_thd()
    store(disk, "/a", b"old", V1)
    clock, master = Clock(), Far(2)
    core = SlaveCore("s1", 10, 30.0)
    transfers = Transfers(
        core, disk, Inline(), cast(Data, None), clock, master.call, now=lambda: 1.0, random=lambda: 0.5
    )
    transfers.doubts.add("/a", V1)
    assert master.sent == [("/a", V1)]
    if replaced:
        store(disk, "/a", b"new", V2)
    clock.pump([0.1] * 300)
    assert master.sent == [("/a", V1)] * (1 if replaced else 3)
    disk.close_thd()
