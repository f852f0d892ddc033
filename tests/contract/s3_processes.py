"""Several processes of Cumulus on one tree and one database, in one: each has a gateway, storage, an index
and locks of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cumulus_bench import emptied, empty_database, postgres_database
from s3_world import People, World

from cumulus.backends.registry import make_store
from cumulus.index.registry import make_index
from cumulus.index.remote import connect_index
from cumulus.index.server import IndexServer
from cumulus.index.sqlite import SqliteIndex
from cumulus.storage.api import FileStore

COUNT = 3
STORAGE: dict[str, Callable[[Path], FileStore]] = {
    "posix": lambda path: make_store(f"posix:{path}/store"),
    "local": lambda path: make_store(f"fsspec:file://{path}/store"),
    "memory": lambda path: make_store(f"fsspec:memory://{path.name}"),
}


@contextmanager
def processes(storage: str, database: str, path: Path) -> Iterator[list[World]]:
    """`COUNT` of them with a bucket "bkt". `database`: sqlite (head and workers) or postgresql (servers)."""
    people = People()
    with ExitStack() as ending:
        if database == "postgresql":
            url = emptied(postgres_database())
            indexes = [make_index(url, directory=people)[0] for _ in range(COUNT)]
        else:
            (path / "cumulus.db").write_bytes(empty_database())
            head, _ = make_index(f"sqlite:///{path / 'cumulus.db'}", directory=people, sync=False)
            assert isinstance(head, SqliteIndex)
            server = IndexServer(head, people, path / "index.sock")
            workers = (connect_index(path / "index.sock", path / "cumulus.db")[0] for _ in range(COUNT - 1))
            indexes = [head, *workers]
            ending.callback(head.close)
            ending.callback(server.close)
        made = [World(STORAGE[storage](path), index) for index in indexes]
        for world, index in zip(made, indexes, strict=True):
            if index is not indexes[0] or database == "postgresql":
                ending.callback(index.close)
            ending.callback(world.store.close)
            ending.callback(world.gateway.close)
        assert made[0].ask("PUT", "/bkt").status == 200
        yield made
