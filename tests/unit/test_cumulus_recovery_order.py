"""After a power cut the journals of all processes are replayed in the order of what happened."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cumulus.backends.posix.files import Files
from cumulus.backends.posix.recovery import Recovery
from cumulus.backends.posix.store import PosixStore


class Machine(Files):
    """One that can be started again."""

    def __init__(self, boot: str) -> None:
        super().__init__()
        self._boot = boot

    def boot(self) -> str:
        """Names this start of the machine."""
        return self._boot


def write(store: PosixStore, name: str, body: bytes) -> None:
    """A small object, in the journal."""
    stream = store.open_write("bkt", name, len(body))
    stream.write(memoryview(body))
    stream.commit(b"m")
    stream.close()


def until_the_power_cut(path: Path, before: Path, first: str, then: str) -> None:
    """Two processes, of which one removes `first` and the other puts `then`; ends this process."""
    import os

    one, two = (PosixStore(str(path), files=Machine("one")) for _ in range(2))
    one.create_bucket("bkt")
    write(one, first, b"old")
    one._journal.checkpoint()
    subprocess.run(["cp", "-al", str(path / "data"), str(before)], check=True)
    os.getpid = lambda: 0xF0  # the journal of the removal comes later by its name
    one.delete("bkt", first)
    os.getpid = lambda: 0x10
    write(two, then, b"acknowledged")
    os._exit(7)


@pytest.mark.parametrize("first", ["a", "a/b"])
def test_a_name_makes_way_before_what_was_put_in_its_place(first: str, tmp_path: Path) -> None:
    """Neither the removal nor the new file has reached the disk."""
    path, before, then = tmp_path / "store", tmp_path / "before", "a" if first == "a/b" else "a/b"
    command = [sys.executable, __file__, str(path), str(before), first, then]
    assert subprocess.run(command, check=False, timeout=60).returncode == 7
    shutil.rmtree(path / "data")
    before.rename(path / "data")
    store = PosixStore(str(path), files=Machine("two"))
    assert [entry.name for _, entry in store.recover()] == [then]
    store.recovered()
    stream = store.open_read("bkt", then)
    assert stream.read_at(0, 100) == b"acknowledged"
    stream.close()
    store.close()


def test_a_journal_that_another_process_drops_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives, and its checkpoint came between the list of journals and their reading."""
    one = PosixStore(str(tmp_path / "store"), files=Machine("one"))
    one.create_bucket("bkt")
    write(one, "a", b"body")
    opened = Recovery._open
    journals = tmp_path / "store" / "journal"
    names = sorted(path.name for path in journals.iterdir())
    (journals / "0.journal").write_bytes(b"")
    assert all(name > "0.journal" for name in names)

    def dropping(self: Recovery, directory: int, name: str) -> object:
        if name == "0.journal":
            one._journal.checkpoint()
            for path in journals.glob("[!0]*.journal"):
                path.unlink(missing_ok=True)
        return opened(self, directory, name)

    monkeypatch.setattr(Recovery, "_open", dropping)
    two = PosixStore(str(tmp_path / "store"), files=Machine("one"))
    assert list(two.recover()) == []
    two.close()
    one.close()


class Slow(Machine):
    """Dropping a journal takes a while."""

    def unlink(self, directory: int, name: str) -> None:
        if name.endswith(".journal"):
            time.sleep(0.3)
        super().unlink(directory, name)


def test_what_comes_after_a_checkpoint_is_not_at_once_in_another(tmp_path: Path) -> None:
    """The thread that makes them when they are due has seen that one was, and waited while it was made."""
    store = PosixStore(str(tmp_path / "store"), files=Slow("one"))
    store.create_bucket("bkt")
    write(store, "a", b"old")
    store._journal.checkpoint()
    write(store, "b", b"new")
    drops = store._journal.drops
    time.sleep(0.5)
    assert store._journal.drops == drops == 1
    store.close()


if __name__ == "__main__":
    until_the_power_cut(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
