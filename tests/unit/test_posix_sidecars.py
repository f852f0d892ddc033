"""Records in files of their own, where the file system has no extended attributes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from posix_disk import NoXattr

from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Entry


def opened(path: Path) -> PosixStore:
    """A store with a bucket."""
    store = PosixStore(str(path / "store"), files=NoXattr())
    store.create_bucket("b")
    return store


def put(store: PosixStore, name: str, body: bytes = b"body", meta: bytes = b"meta") -> None:
    """Write one object."""
    stream = store.open_write("b", name, len(body))
    try:
        stream.write(memoryview(body))
        stream.commit(meta)
    finally:
        stream.close()


def test_meta_has_sidecars_where_there_are_no_attributes(tmp_path: Path) -> None:
    """Read back by another process, gone with the object; directories are still known as ours."""
    store = opened(tmp_path)
    put(store, "d/a", b"1", b"first")
    put(store, "d/a", b"2", b"second")
    again = PosixStore(str(tmp_path / "store"), files=NoXattr())
    assert again.stat("b", "d/a").meta == b"second"
    entry = again.set_meta("b", "d/a", b"third", again.stat("b", "d/a").token)
    assert store.stat("b", "d/a") == entry
    sidecars = tmp_path / "store/data/b/.cumulus/meta"
    assert len([name for name in os.listdir(sidecars) if not name.startswith("dir-")]) == 1
    store.delete("b", "d/a")
    assert os.listdir(sidecars) == []
    assert not (tmp_path / "store/data/b/d").exists()
    store.close()
    again.close()


def test_a_sidecar_put_there_while_a_look_for_any_is_stopped_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, just after it, and within one tick of the file system's clock."""
    store = opened(tmp_path)
    foreign, meta = tmp_path / "store/data/b/foreign", tmp_path / "store/data/b/.cumulus/meta"
    foreign.write_bytes(b"x")
    (meta / "old").touch()
    (meta / "old").unlink()
    scandir = os.scandir

    def stopped(where: int) -> object:
        found = list(scandir(where))
        tick = meta.stat().st_mtime_ns
        put(store, "a", meta=b"m" * 10)
        os.utime(meta, ns=(tick, tick))
        time.sleep(0.15)
        return contextlib.nullcontext(found)

    monkeypatch.setattr("cumulus.backends.posix.sidecar.os.scandir", stopped)
    store.stat("b", "foreign")
    monkeypatch.undo()
    assert store.stat("b", "a").meta == b"m" * 10
    store.close()


def test_meta_in_sidecars_is_there_for_several_readers_at_once(tmp_path: Path) -> None:
    """A look for any sidecar reads the directory that all threads have open."""
    store = opened(tmp_path)
    names = [f"n{number}" for number in range(3)]
    for name in names:
        put(store, name)
    missed: list[Entry] = []
    ready = threading.Barrier(4)

    def look() -> None:
        ready.wait(10)
        for number in range(1500):
            entry = store.stat("b", names[number % 3])
            if entry.meta != b"meta":
                missed.append(entry)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not missed
    store.close()


def test_a_damaged_sidecar_is_no_meta(tmp_path: Path) -> None:
    """The body is served as one from outside."""
    store = opened(tmp_path)
    put(store, "a")
    (sidecar,) = (tmp_path / "store/data/b/.cumulus/meta").iterdir()
    sidecar.write_bytes(sidecar.read_bytes()[:-6] + b"damage")
    assert store.stat("b", "a").meta is None
    sidecar.write_bytes(b"")
    assert store.stat("b", "a").meta is None
    store.close()
