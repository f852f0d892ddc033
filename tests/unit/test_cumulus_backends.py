"""Backends by name, and what only the one over fsspec has to prove."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cumulus.backends import registry
from cumulus.backends.fsspec_store import FsspecStore
from cumulus.backends.memory import MemoryStore
from cumulus.backends.posix.store import PosixStore
from cumulus.backends.registry import UnknownBackend, make_store
from cumulus.storage.api import Changed, Entry, FileStore, Forbidden, NoSpace, Unavailable


def put(store: FileStore, name: str, body: bytes) -> Entry:
    """Write one object."""
    stream = store.open_write("b", name, len(body))
    try:
        stream.write(memoryview(body))
        return stream.commit(b"meta")
    finally:
        stream.close()


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("memory", MemoryStore),
        ("memory:1000", MemoryStore),
        ("posix:{path}/p", PosixStore),
        ("fsspec:file://{path}/f", FsspecStore),
        ("fsspec:memory://x", FsspecStore),
    ],
)
def test_a_backend_is_made_by_its_name(tmp_path: Path, spec: str, kind: type[FileStore]) -> None:
    """The part behind the first colon is its own."""
    store = make_store(spec.format(path=tmp_path))
    assert isinstance(store, kind)
    store.close()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("poxis:/srv", "no backend 'poxis'; there are: fsspec, memory, posix, sector"),
        ("posix", "give the directory"),
        ("memory:lots", "give a number of bytes"),
        ("fsspec:", "give a URL"),
        ("fsspec:nosuch://x", "nosuch"),
        ("sector", "give the path of a client.toml"),
        ("sector:/none/client.toml", "there is no such file"),
    ],
)
def test_a_wrong_backend_is_explained(spec: str, said: str) -> None:
    """One line that says what to write."""
    with pytest.raises(ValueError, match=said):
        make_store(spec)


def test_wrong_settings_of_sector_are_explained(tmp_path: Path) -> None:
    """With the file and what is wrong in it."""
    wrong = tmp_path / "client.toml"
    wrong.write_text("[client]\nnosuch = 1\n")
    with pytest.raises(ValueError, match="nosuch"):
        make_store(f"sector:{wrong}")


def test_a_package_of_others_brings_a_backend(tmp_path: Path) -> None:
    """By an entry point; one that cannot be loaded is an error of one line, and ours keep their names."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.GROUP}]\nvault = theirs:make\nbroken = theirs.none:make\nposix = theirs:make\n"
    )
    (tmp_path / "theirs.py").write_text(
        "from cumulus.backends.memory import MemoryStore\n"
        "def make(argument, *, fsync):\n    return MemoryStore(int(argument))\n"
    )
    program = (
        "from cumulus.backends.registry import make_store, names\n"
        "print(type(make_store('vault:5')).__name__, *names())\n"
        "print(type(make_store('posix:" + str(tmp_path / "p") + "')).__name__)\n"
        "try:\n    make_store('broken:1')\nexcept ValueError as error:\n    print(error)\n"
    )
    root = str(Path(registry.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, third = done.stdout.splitlines()
    assert first == "MemoryStore broken fsspec memory posix sector vault"
    assert second == "PosixStore"
    assert third.startswith("backend 'broken' of theirs.none:make cannot be loaded")


def test_fsspec_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback."""
    monkeypatch.setitem(sys.modules, "cumulus.backends.fsspec_store", None)
    with pytest.raises(UnknownBackend, match="needs the package fsspec"):
        make_store("fsspec:memory://x")


def test_memory_has_a_limit() -> None:
    """Uploads in progress count; what is aborted, replaced or removed is given back."""
    store = MemoryStore(100)
    store.create_bucket("b")
    put(store, "a", b"x" * 60)
    with pytest.raises(NoSpace):
        put(store, "c", b"x" * 41)
    with pytest.raises(NoSpace):
        store.open_write("b", "c", 41)
    stream = store.open_write("b", "c")
    stream.write(memoryview(b"x" * 40))
    with pytest.raises(NoSpace):
        stream.write(memoryview(b"x"))
    stream.abort()
    put(store, "c", b"x" * 40)
    store.delete("b", "a")
    put(store, "c", b"x" * 60)
    put(store, "d", b"x" * 40)


class Failing(MemoryFileSystem):
    """A file system that answers as it is told."""

    cachable = False
    protocol = "failing"
    error: Exception | None = None

    def info(self, path: str, **options: object) -> dict[str, object]:
        if self.error:
            raise self.error
        found: dict[str, object] = super().info(path, **options)
        return found


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError("no"), Forbidden),
        (OSError(28, "No space left on device"), NoSpace),
        (TimeoutError("away"), Unavailable),
        (RuntimeError("some library's own"), Unavailable),
    ],
)
def test_errors_of_any_file_system_have_names(error: Exception, kind: type[Exception]) -> None:
    """Whatever its library raises."""
    store = FsspecStore("memory://errors")
    store.create_bucket("b")
    put(store, "a", b"x")
    failing = Failing()
    failing.error = error
    store.fs = failing
    with pytest.raises(kind, match=r"a: "):
        store.stat("b", "a")


def test_files_of_others_have_no_meta(tmp_path: Path) -> None:
    """A file without our footer is all body; one cut or damaged, too."""
    store = FsspecStore(f"file://{tmp_path}/f")
    store.create_bucket("b")
    (tmp_path / "f/b/theirs").write_bytes(b"plain")
    put(store, "ours", b"x" * 100)
    assert [(entry.name, entry.size, entry.meta) for entry in store.names("b")] == [
        ("ours", 100, b"meta"),
        ("theirs", 5, None),
    ]
    path = tmp_path / "f/b/ours"
    path.write_bytes(path.read_bytes().replace(b"meta", b"atem"))
    assert store.stat("b", "ours").meta is None
    for cut in (60, 1):
        os.truncate(path, cut)
        assert (store.stat("b", "ours").size, store.stat("b", "ours").meta) == (cut, None)


def test_drafts_of_dead_writers_are_swept(tmp_path: Path) -> None:
    """By the time in their names."""
    store = FsspecStore(f"file://{tmp_path}/f")
    store.create_bucket("b")
    stream = store.open_write("b", "a")
    stream.write(memoryview(b"x"))
    assert store.sweep(60) == 0
    assert store.sweep(-60) == 1
    assert os.listdir(tmp_path / "f/b/.cumulus/tmp") == []
    stream.close()


def test_a_replaced_object_is_not_read_on(tmp_path: Path) -> None:
    """Where a file system replaces under readers, they hear of it."""
    store = FsspecStore("memory://replaced")
    store.create_bucket("b")
    put(store, "a", b"1" * 100)
    stream = store.open_read("b", "a")
    writer = threading.Thread(target=put, args=(store, "a", b"2" * 100))
    writer.start()
    writer.join()
    with pytest.raises(Changed):
        stream.read_at(0, 100)
    store.delete("b", "a")
    assert not stream.unchanged()
    stream.close()
