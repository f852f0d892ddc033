"""What others move to a name after its change was acknowledged is there after a power cut, and so is what was
acknowledged where nobody can tell which came later."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from posix_disk import NoXattr, get, put

from cumulus.backends.posix.files import Files
from cumulus.backends.posix.journal import Journal
from cumulus.backends.posix.store import PosixStore


class Boots(Files):
    """A machine that can be started again."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def boot(self) -> str:
        """Names this start of the machine."""
        return self._run


class BareBoots(NoXattr):
    """The same, its file system without attributes."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run

    def boot(self) -> str:
        """Names this start of the machine."""
        return self._run


class Machine:
    """A store with a bucket, and what happens to it."""

    def __init__(self, path: Path, files: type[Boots | BareBoots]) -> None:
        self.path, self.files = path / "store", files
        self.store = self._opened("one")
        self.store.create_bucket("b")
        self.told: set[str] = set()
        self._runs = 1

    def _opened(self, run: str) -> PosixStore:
        return PosixStore(str(self.path), files=self.files(run))

    @property
    def bucket(self) -> Path:
        """Its directory."""
        return self.path / "data/b"

    def later(self) -> None:
        """The clock of the file system goes on."""
        time.sleep(0.05)

    def power_cut(self) -> None:
        """All of it was written already; only the journal does not know."""
        journal = self.store._journal
        if journal._generation:
            os.close(journal._generation.fd)  # its lock ends with the process
        self._runs += 1
        self.store = self._opened(str(self._runs))
        self.told = {entry.name for _, entry in self.store.recover()}
        self.store.recovered()


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread makes checkpoints."""
    monkeypatch.setattr(Journal, "_keep", lambda _: None)


@pytest.fixture(params=[Boots, BareBoots], ids=["attributes", "sidecars"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    """With and without extended attributes."""
    return Machine(tmp_path, request.param)


def checkpoint(machine: Machine) -> None:
    """What was put before is on the plain files, and in no journal."""
    machine.store._journal.checkpoint()


@pytest.mark.parametrize("removed", [False, True], ids=["put", "removed"])
def test_an_object_that_others_move_to_a_changed_name_stays(machine: Machine, removed: bool) -> None:
    """`mv b k` within a bucket: the record in the file is older than the change of `k`."""
    put(machine.store, "b", b"moved", b"of b")
    put(machine.store, "k", b"old")
    checkpoint(machine)
    if removed:
        machine.store.delete("b", "k")
    else:
        put(machine.store, "k", b"new")
    machine.later()
    os.replace(machine.bucket / "b", machine.bucket / "k")
    before = get(machine.store, "k")
    machine.power_cut()
    assert get(machine.store, "k") == before
    assert before is not None and before[0] == b"moved"
    assert machine.told == {"k"}


@pytest.mark.parametrize("removed", [False, True], ids=["put", "removed"])
def test_a_file_of_others_with_an_inode_that_was_ours_stays(machine: Machine, removed: bool) -> None:
    """The file system has given it the inode of what was replaced, which a second name of that inode stands
    for, and `cp -p` an old time."""
    put(machine.store, "k", b"old")
    theirs = machine.path / "theirs"
    os.link(machine.bucket / "k", theirs)
    if removed:
        machine.store.delete("b", "k")
    else:
        put(machine.store, "k", b"new")
    machine.later()
    theirs.write_bytes(b"theirs")
    for name in os.listxattr(theirs):
        os.removexattr(theirs, name)
    os.utime(theirs, (1_000_000_000, 1_000_000_000))
    os.replace(theirs, machine.bucket / "k")
    machine.power_cut()
    assert get(machine.store, "k") == (b"theirs", None)


@pytest.mark.parametrize("removed", [False, True], ids=["put", "removed"])
@pytest.mark.parametrize("gone", [0, 1, 2], ids=["whole", "without a middle", "without an end"])
def test_a_body_before_without_its_record_is_replaced(machine: Machine, removed: bool, gone: int) -> None:
    """Both changes are in the journal alone. The crash has brought back the file of the first, perhaps in
    parts, without its record, with another time, and with a ctime from when it lost its name."""
    body = bytes(range(1, 251)) * 80
    put(machine.store, "k", body)
    plain = machine.bucket / "k"
    os.link(plain, machine.path / "kept")
    status = plain.stat()
    if removed:
        machine.store.delete("b", "k")
    else:
        put(machine.store, "k", b"new")
    machine.later()
    with open(machine.path / "kept", "r+b") as file:
        start, end = (0, 0) if not gone else (8192, 12288) if gone == 1 else (8192, len(body))
        file.seek(start)
        file.write(bytes(end - start))
    for name in os.listxattr(machine.path / "kept"):
        os.removexattr(machine.path / "kept", name)
    os.utime(machine.path / "kept", ns=(status.st_atime_ns, status.st_mtime_ns - 1_000_000))
    os.replace(machine.path / "kept", plain)
    machine.power_cut()
    assert get(machine.store, "k") == (None if removed else (b"new", b"meta"))
    assert not (machine.bucket / "k.aside-1").exists()


@pytest.mark.parametrize("removed", [False, True], ids=["put", "removed"])
@pytest.mark.parametrize("ours", [False, True], ids=["theirs", "ours"])
def test_what_may_be_older_or_younger_is_put_aside(machine: Machine, removed: bool, ours: bool) -> None:
    """A directory that was moved there with all its files: nothing tells when they got their names. What was
    acknowledged is there, and so are the bytes of the others, with their headers."""
    put(machine.store, "d/k", b"old")
    if ours:
        put(machine.store, "other/k", b"their bytes", b"theirs")
    else:
        (machine.bucket / "other").mkdir()
        (machine.bucket / "other/k").write_bytes(b"their bytes")
    checkpoint(machine)
    machine.later()
    if removed:
        machine.store.delete("b", "d/k")
    else:
        put(machine.store, "d/k", b"new")
    if (machine.bucket / "d").exists():
        os.rename(machine.bucket / "d", machine.path / "away")
    os.rename(machine.bucket / "other", machine.bucket / "d")
    machine.power_cut()
    assert get(machine.store, "d/k") == (None if removed else (b"new", b"meta"))
    found = get(machine.store, "d/k.aside-1")
    assert found is not None and found[0] == b"their bytes"
    if ours and machine.files is Boots:
        assert found[1] == b"theirs"
    assert "d/k.aside-1" in machine.told
    listed = {entry.name for entry in machine.store.names("b")}
    assert listed == ({"d/k.aside-1"} if removed else {"d/k", "d/k.aside-1"})
