"""Pipes where records and drafts of a bucket are: who owns its directory may put some there, and nobody waits
for what comes out of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cumulus.backends.posix.copied import look
from cumulus.backends.posix.store import PosixStore

PATIENCE_S = 10.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PosixStore]:
    """A bucket of somebody's directory, with an object whose record is a file of its own."""
    made = PosixStore(str(tmp_path / "store"))
    (tmp_path / "theirs").mkdir()
    made.create_bucket("b", str(tmp_path / "theirs"))
    stream = made.open_write("b", "k")
    stream.write(memoryview(b"body"))
    stream.commit(b"m" * 5000)
    yield made
    made.close()


def at_once(work: Callable[[], object], pipe: Path) -> object:
    """What the work gives; it is let go, and the test fails, if it waits for the pipe."""
    answer: list[object] = []
    thread = threading.Thread(target=lambda: answer.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    waits = thread.is_alive()
    if waits:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        thread.join()
    assert not waits
    return answer[0]


def test_a_pipe_in_the_place_of_a_record_is_none(store: PosixStore, tmp_path: Path) -> None:
    """Requests, scans, sweeping and the start of a service go on."""
    (record,) = (tmp_path / "theirs/.cumulus/meta").iterdir()
    record.unlink()
    os.mkfifo(record)
    assert at_once(lambda: store.stat("b", "k").meta, record) is None
    assert at_once(lambda: list(store.walk("b")), record) == [["k"]]
    assert at_once(lambda: look(str(tmp_path / "store")).copied, record) == []
    assert at_once(lambda: store.sweep(-1), record) == 1 and not record.exists()


def test_a_pipe_among_drafts_is_swept(store: PosixStore, tmp_path: Path) -> None:
    """As what dead writers left."""
    draft = tmp_path / "theirs/.cumulus/tmp/pipe"
    os.mkfifo(draft)
    assert at_once(lambda: store.sweep(-1), draft) == 1 and not draft.exists()
