"""A key "a/" that two processes put at one moment, once empty (a directory) and once with bytes (under a name
of the service): one of them is the object, and nothing of the other comes back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from s3_processes import processes
from s3_world import World

WAIT_S = 0.5  # for the other process, which is to wait for us


def between(world: World, patch: pytest.MonkeyPatch, act: Any) -> threading.Thread:
    """`act` begins, in a thread, when this process has seen what is there and is about to publish, which goes
    on when that has ended or is taken to wait."""
    other = threading.Thread(target=act)
    real = type(world.store).open_write

    def open_write(store: Any, *words: Any) -> Any:
        stream = real(store, *words)
        commit = stream.commit

        def late(*words: Any, **options: Any) -> Any:
            if store is world.store and not other.ident:
                other.start()
                other.join(WAIT_S)
            return commit(*words, **options)

        stream.commit = late
        return stream

    patch.setattr(type(world.store), "open_write", open_write)
    return other


@pytest.mark.parametrize("first", [b"", b"bytes"])
def test_of_two_kinds_one_is_the_object(
    first: bytes, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = b"" if first else b"bytes"
    with processes("posix", database, tmp_path) as worlds:
        one, two, three = worlds
        answers: list[int] = []

        def put() -> None:
            answers.append(two.ask("PUT", "/bkt/a/", second).status)

        other = between(one, monkeypatch, put)
        assert one.ask("PUT", "/bkt/a/", first).status == 200
        other.join()
        assert answers == [200]
        body = three.ask("GET", "/bkt/a/").body
        assert body in (first, second)
        assert three.index.usage("bucket", "bkt").bytes == len(body)
        assert three.ask("DELETE", "/bkt/a/").status == 204
        for world in worlds:
            assert world.ask("GET", "/bkt/a/").status == 404
        assert three.ask("DELETE", "/bkt").status == 204
