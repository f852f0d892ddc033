"""Journals of a machine that went down are replayed while other servers write in the same tree."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from posix_disk import Faulty

from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore

_GONE = """
import os, sys
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore
class Before(Files):
    def boot(self):
        return "another run of the machine"
store = PosixStore(sys.argv[1], files=Before())
store.create_bucket("b")
for name in ("first", "second"):
    stream = store.open_write("b", name, 3)
    stream.write(memoryview(b"old"))
    stream.commit(b"meta")
    os.unlink(f"{sys.argv[1]}/data/b/{name}")
os._exit(0)
"""


class Stopping(Faulty):
    """A body that is written again waits."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def create(self, directory: int, name: str, mode: int) -> int:
        fd = Files.create(self, directory, name, mode)
        if os.path.basename(os.readlink(f"/proc/self/fd/{directory}")) == "tmp":
            self.reached.set()
            self.goes_on.wait(30)
        return fd


def test_who_writes_beside_a_recovery_does_not_wait_for_it(tmp_path: Path) -> None:
    """Its first journal, or the next, is begun with the lock of the name held, which the recovery is about to
    ask for: neither of them ever went on."""
    tree = tmp_path / "store"
    subprocess.run([sys.executable, "-c", _GONE, str(tree)], check=True, timeout=60)
    files = Stopping()
    recovering, writing = PosixStore(str(tree), files=files), PosixStore(str(tree))
    taken: list[str] = []

    def recover() -> None:
        taken.extend(entry.name for _, entry in recovering.recover())
        recovering.recovered()

    def put() -> None:
        stream = writing.open_write("b", "second", 3)
        stream.write(memoryview(b"new"))
        stream.commit(b"meta")

    threads = [threading.Thread(target=work, daemon=True) for work in (recover, put)]
    threads[0].start()
    assert files.reached.wait(30)
    threads[1].start()
    threads[1].join(20)
    waits = threads[1].is_alive()
    files.goes_on.set()
    threads[0].join(20)
    assert not waits
    assert taken == ["first", "second"]
    bodies = {name: (tree / "data/b" / name).read_bytes() for name in taken}
    assert bodies == {"first": b"old", "second": b"new"}
    recovering.close()
    writing.close()
    assert os.listdir(tree / "journal") == []


def test_a_journal_that_never_began_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ended between two steps; a young one may be that of another process."""
    tree = tmp_path / "store"
    (tree / "journal").mkdir(parents=True)
    draft = tree / "journal/1.journal.new"
    draft.touch()
    store = PosixStore(str(tree))
    assert list(store.recover()) == []
    assert draft.exists()
    now = time.time()
    monkeypatch.setattr("cumulus.backends.posix.recovery.time.time", lambda: now + 7200)
    assert list(store.recover()) == []
    assert not draft.exists()
    store.close()
