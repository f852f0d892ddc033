"""A bucket changes hands by a command beside a server: nothing that was acknowledged is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from s3_processes import processes

from cumulus.admin import data
from cumulus.backends.fsspec_store import FsspecStore

WAIT_S = 0.5  # for the server, which is to wait for the command


def test_an_upload_is_not_lost_to_a_bucket_that_is_given(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a record is changed by writing the object again, and storage does not see to it that nothing else
    has come in its place."""
    with processes("local", database, tmp_path) as worlds:
        command, server, _ = worlds
        bob = command.people.users["bob"]
        assert server.ask("PUT", "/bkt/k", b"old").status == 200
        answers: list[int] = []
        upload = threading.Thread(target=lambda: answers.append(server.ask("PUT", "/bkt/k", b"new").status))
        real = FsspecStore._pour

        def pour(store: FsspecStore, *words: Any) -> None:
            real(store, *words)
            if store is command.store and not upload.ident:
                upload.start()
                upload.join(WAIT_S)

        monkeypatch.setattr(FsspecStore, "_pour", pour)
        assert data.give(command.index, command.store, command.site.bucket("bkt"), bob) >= 1
        upload.join()
        assert answers == [200]
        for world in worlds:
            assert world.ask("GET", "/bkt/k", user="root").body == b"new"
            page = world.boto("root").list_objects_v2(Bucket="bkt")["Contents"]
            assert [(one["Key"], one["Size"]) for one in page] == [("k", 3)]
