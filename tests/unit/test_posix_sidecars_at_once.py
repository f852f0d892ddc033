"""Records in files of their own, while others replace, change and sweep the same objects."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from posix_disk import NoXattr

from cumulus.backends.posix import bodies, paths
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.paths import Root
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Changed, Entry, FileStore

LONG: Final = b"m" * 5000  # a record that no extended attribute holds
LARGE: Final = b"x" * (100 << 10)


def opened(path: Path, files: Files | None = None) -> PosixStore:
    """A store with a bucket."""
    store = PosixStore(str(path / "store"), files=files)
    store.create_bucket("b")
    return store


def put(store: FileStore, body: bytes, meta: bytes) -> None:
    """Write the object."""
    stream = store.open_write("b", "k", len(body))
    try:
        stream.write(memoryview(body))
        stream.commit(meta)
    finally:
        stream.close()


def by_open(store: FileStore) -> Entry:
    """As GET finds it."""
    stream = store.open_read("b", "k")
    stream.close()
    return stream.entry


def by_look(store: FileStore) -> Entry:
    """As a scan finds it."""
    found = store.look("b", ["k"], {})["k"]
    assert found is not None
    return found


LOOKS: Final = [lambda store: store.stat("b", "k"), by_open, lambda store: store.names("b")[0], by_look]


@pytest.mark.parametrize("files", [NoXattr(), None], ids=["no attributes", "long record"])
@pytest.mark.parametrize("look", LOOKS, ids=["stat", "open", "list", "scan"])
def test_an_object_replaced_while_it_is_looked_at_has_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Files | None, look: Callable[[FileStore], Entry]
) -> None:
    """The file is open by then, and its sidecar has gone with its name: it counted as made by others, with
    another ETag, without metadata, and as the bucket owner's."""
    store = opened(tmp_path, files)
    put(store, b"first", LONG + b"1")
    find = bodies.record_of

    def replaced(root: Root, name: str, fd: int, status: os.stat_result) -> object:
        monkeypatch.undo()
        put(store, b"the second", LONG + b"2")
        return find(root, name, fd, status)

    monkeypatch.setattr(bodies, "record_of", replaced)
    entry = look(store)
    assert (entry.size, entry.meta) == (10, LONG + b"2")
    store.close()


def test_a_large_object_keeps_its_record_whoever_had_its_inode_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is replaced gives its inode free, another writer's draft gets it, and then the sidecar of the
    first is taken away, which has the same name."""
    store = opened(tmp_path)

    def noted(*_: object) -> None:
        monkeypatch.undo()
        (name,) = (tmp_path / "store/data/b/.cumulus/meta").iterdir()
        name.unlink()

    monkeypatch.setattr(store._journal, "note", noted)
    put(store, LARGE, LONG)
    assert store.stat("b", "k").meta == LONG
    store.close()


def test_writers_and_readers_of_one_object_find_its_record(tmp_path: Path) -> None:
    """Several processes would do the same."""
    stores = [opened(tmp_path, NoXattr()), PosixStore(str(tmp_path / "store"), files=NoXattr(), fsync=False)]
    put(stores[0], LARGE, b"meta")
    missed: list[str] = []
    end = time.monotonic() + 1.5

    def write(store: FileStore) -> None:
        while time.monotonic() < end:
            put(store, LARGE, b"meta")

    def read(store: FileStore) -> None:
        while time.monotonic() < end:
            missed.extend(
                str(entry) for entry in [look(store) for look in LOOKS[:2]] if entry.meta != b"meta"
            )

    threads = [threading.Thread(target=work, args=(store,)) for store in stores for work in (write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not missed
    assert stores[1].stat("b", "k").meta == b"meta"
    for store in stores:
        store.close()


@pytest.mark.parametrize("files", [NoXattr(), None], ids=["no attributes", "attributes"])
def test_changes_of_a_record_at_once_do_not_lose_one_another(tmp_path: Path, files: Files | None) -> None:
    """The second of two that have read the same record is refused, also where only a sidecar changes."""
    store = opened(tmp_path, files)
    put(store, b"body", b"0")
    known = store.stat("b", "k")
    after = store.set_meta("b", "k", b"1", known.token)
    assert after.token != known.token
    assert after == store.stat("b", "k")
    assert (after.mtime_ns, after.size) == (known.mtime_ns, known.size)
    with pytest.raises(Changed):
        store.set_meta("b", "k", b"2", known.token)

    def count() -> None:
        for _ in range(10):
            while True:
                entry = store.stat("b", "k")
                try:
                    store.set_meta("b", "k", b"%d" % (int(entry.meta or b"") + 1), entry.token)
                    break
                except Changed:
                    continue

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.stat("b", "k").meta == b"31"
    store.close()


def test_a_sweep_leaves_records_of_what_cannot_be_seen_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with errors, or a directory that is closed to the service for a while."""
    store = opened(tmp_path, NoXattr())
    put(store, b"body", b"meta")
    with monkeypatch.context() as patch:

        def fails(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(paths, "_walk", fails)
        store.sweep(-60)
    assert store.stat("b", "k").meta == b"meta"
    (tmp_path / "store/data/b/k").unlink()
    assert store.sweep(-60) == 1
    store.close()


def test_a_sweep_leaves_the_record_of_a_draft_that_is_about_to_get_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a name that somebody is just giving away."""
    store = opened(tmp_path, NoXattr())
    place = store._publisher._place
    swept: list[threading.Thread] = []

    def beside(*arguments: object) -> None:
        monkeypatch.undo()
        swept.append(threading.Thread(target=store.sweep, args=(-60,)))
        swept[0].start()
        swept[0].join(0.3)
        place(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store._publisher, "_place", beside)
    put(store, LARGE, b"meta")
    swept[0].join(10)
    assert store.stat("b", "k").meta == b"meta"
    store.close()
