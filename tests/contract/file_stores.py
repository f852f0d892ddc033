"""The backends that the contract suite runs on, and what its tests share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cumulus.backends.fsspec_store import FsspecStore
from cumulus.backends.memory import MemoryStore
from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Entry, FileStore, IfToken


def example() -> Any:
    """The module that shows how to write a backend."""
    path = Path(__file__).resolve().parents[2] / "examples/cumulus_backend.py"
    spec = importlib.util.spec_from_file_location("cumulus_backend", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BACKENDS: dict[str, Callable[[Path], FileStore]] = {
    "example": lambda path: example().make(str(path / "vault.db")),
    "memory": lambda _: MemoryStore(),
    "fsspec file": lambda path: FsspecStore(f"file://{path}/fsspec"),
    "fsspec memory": lambda path: FsspecStore(f"memory://{path}"),
    "posix": lambda path: PosixStore(str(path / "store")),
}


@pytest.fixture(params=sorted(BACKENDS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileStore]:
    """A fresh store with one bucket, "b"."""
    made = BACKENDS[request.param](tmp_path)
    assert list(made.recover()) == []
    made.create_bucket("b")
    yield made
    made.close()


@pytest.fixture
def ease() -> int:
    """By what the work of the long tests is divided, where a store is slow."""
    return 1


def put(
    store: FileStore, name: str, body: bytes = b"x", meta: bytes = b"m", if_token: IfToken = None
) -> Entry:
    """Write one object whole."""
    stream = store.open_write("b", name, len(body))
    try:
        for start in range(0, len(body), 100_000):
            stream.write(memoryview(body)[start : start + 100_000])
        return stream.commit(meta, if_token)
    finally:
        stream.close()


def get(store: FileStore, name: str) -> bytes:
    """Read one object whole."""
    stream = store.open_read("b", name)
    try:
        body = stream.read_at(0, stream.entry.size + 10)
        assert len(body) == stream.entry.size
        assert stream.unchanged()
        return body
    finally:
        stream.close()


def listed(store: FileStore, **asked: Any) -> list[str]:
    """Names only."""
    return [entry.name for entry in store.names("b", **asked)]
