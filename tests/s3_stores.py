"""Kinds of storage on which the S3 tests run: name -> a function of a directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cumulus.backends.memory import MemoryStore
from cumulus.backends.registry import make_store
from cumulus.storage.api import FileStore

STORES: dict[str, Callable[[Path], FileStore]] = {
    "memory": lambda _path: MemoryStore(),
    "fsspec": lambda path: make_store(f"fsspec:memory://{path.name}"),
    "posix": lambda path: make_store(f"posix:{path}/store"),
}
