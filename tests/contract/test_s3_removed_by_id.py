"""A version that is removed by its id while another process makes it the newest one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from s3_processes import processes
from s3_world import World
from test_s3_version_races import rows_of
from test_s3_versions_at_once import agree, delete, put, versioning

from cumulus.backends.posix.publish import SMALL, Publisher
from cumulus.index.api import Put
from cumulus.ops import current, deletes, jobs, publish


@pytest.fixture
def worlds(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    monkeypatch.setattr(jobs, "SETTLE_S", 0.01)
    with processes("posix", database, tmp_path) as made:
        versioning(made, "Enabled")
        yield made


def test_what_becomes_the_newest_while_it_is_removed_by_its_id_stays_removed(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order: it is looked up before it is the newest in the index, and its body goes after that."""
    one, two, three = worlds
    real, real_show, real_body = Publisher._settle, current.show, deletes._remove_body
    deleted: list[str] = []
    removed: list[str] = []

    def settle(*words: Any) -> int:
        stamp = real(*words)
        if not deleted:
            deleted.append(delete(two, "k"))
            row = three.index.lookup("bkt", "k")
            assert row is not None and row.marker
            three.index.apply([Put(row=msgspec.structs.replace(row, stamp=row.stamp + 10**10), keep=True)])
        return stamp

    def show(*words: Any) -> None:
        if removed:
            real_show(*words)
            return
        removed.append(words[3].version)
        shown: list[bool] = []

        def remove_body(*these: Any, **more: Any) -> int:
            if not shown:
                shown.append(True)
                real_show(*words)
            return real_body(*these, **more)

        with monkeypatch.context() as beside:
            beside.setattr(deletes, "_remove_body", remove_body)
            delete(two, "k", removed[0])

    monkeypatch.setattr(Publisher, "_settle", settle)
    monkeypatch.setattr(publish, "show", show)
    put(one, "k", b"x" * (SMALL + 1))
    assert removed and rows_of(three).keys() == {("k", deleted[0])}
    assert agree(worlds, "k") is None
