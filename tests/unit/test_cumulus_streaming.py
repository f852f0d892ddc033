"""What the storage API does for backends that have no copy of their own: piece by piece, and nothing stays
open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cumulus.backends.memory import MemoryStore
from cumulus.storage.api import (
    PIECE,
    BadName,
    Changed,
    Entry,
    FileStore,
    IfToken,
    NoSpace,
    ObjectStream,
    Piece,
    Unavailable,
)


class Counted(ObjectStream):
    """A stream that tells its store of its end, and fails where the store says so."""

    def __init__(self, store: Watched, stream: ObjectStream) -> None:
        self.store, self.stream = store, stream
        store.opened.append(self)
        if hasattr(stream, "entry"):
            self.entry = stream.entry

    def read_at(self, offset: int, size: int) -> bytes:
        assert size <= PIECE
        if self.store.broken == "read":
            raise Unavailable("no answer")
        data = self.stream.read_at(offset, size)
        return data[:-1] if self.store.broken == "short" and offset + size == self.entry.size else data

    def unchanged(self) -> bool:
        return self.store.broken != "changed"

    def write(self, data: memoryview) -> None:
        if self.store.broken == "write":
            raise NoSpace("full")
        self.stream.write(data)

    def commit(self, meta: bytes, if_token: IfToken = None, name: str = "") -> Entry:
        return self.stream.commit(meta, if_token, name)

    def abort(self) -> None:
        self.stream.abort()

    def close(self) -> None:
        if self in self.store.opened:
            self.store.opened.remove(self)
        self.stream.close()


class Watched(MemoryStore):
    """Has only what every backend must have; knows which of its streams are open."""

    copy = FileStore.copy
    concat = FileStore.concat
    link = FileStore.link

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[ObjectStream] = []
        self.broken = ""

    def open_read(self, bucket: str, name: str, token: bytes | None = None) -> ObjectStream:
        return Counted(self, super().open_read(bucket, name, token))

    def open_write(self, bucket: str, name: str, size_hint: int | None = None) -> ObjectStream:
        return Counted(self, super().open_write(bucket, name, size_hint))


BODIES = {"p1": b"a" * (PIECE + 5), "p2": b"", "p3": b"c" * 10}


@pytest.fixture
def store() -> Iterator[Watched]:
    """With three parts and an object "old"."""
    made = Watched()
    made.create_bucket("b")
    for name, body in {**BODIES, "old": b"old"}.items():
        stream = made.open_write("b", name)
        stream.write(memoryview(body))
        stream.commit(b"part")
        stream.close()
    yield made
    made.close()


def read(store: FileStore, name: str) -> bytes:
    """Piece by piece."""
    stream = store.open_read("b", name)
    try:
        size = stream.entry.size
        return b"".join(stream.read_at(at, min(PIECE, size - at)) for at in range(0, size, PIECE))
    finally:
        stream.close()


def test_parts_are_joined_and_copied_piece_by_piece(store: Watched) -> None:
    """No more than a piece is held; the parts stay."""
    entry = store.concat("b", list(BODIES), "k", b"meta")
    assert (entry.size, entry.meta) == (PIECE + 15, b"meta")
    assert read(store, "k") == b"".join(BODIES.values())
    source = store.open_read("b", "k")
    store.copy(source, "b", "copy", b"m")
    source.close()
    assert read(store, "copy") == b"".join(BODIES.values())
    assert [entry.name for entry in store.names("b")] == ["copy", "k", "old", *BODIES]
    assert store.opened == []


@pytest.mark.parametrize(
    ("broken", "kind"),
    [("read", Unavailable), ("write", NoSpace), ("short", Changed), ("changed", Changed)],
)
def test_a_join_that_fails_closes_its_streams_and_leaves_the_parts(
    store: Watched, broken: str, kind: type[Exception]
) -> None:
    """The old object stays."""
    store.broken = broken
    with pytest.raises(kind):
        store.concat("b", list(BODIES), "old", b"meta")
    assert store.opened == []
    store.broken = ""
    source = store.open_read("b", "p1")
    store.broken = broken
    with pytest.raises(kind):
        store.copy(source, "b", "old", b"meta")
    source.close()
    assert store.opened == []
    store.broken = ""
    assert read(store, "old") == b"old"
    assert [entry.name for entry in store.names("b")] == ["old", *BODIES]


def test_second_names_and_ranges_are_only_where_they_are_promised(store: Watched) -> None:
    """By default there are none."""
    with pytest.raises(BadName):
        store.link("b", "p1", "other")
    assert store.open_range("b", ".cumulus/parts/u/slots.9", 0, 9) is None
    with pytest.raises(BadName):
        store.join("b", [Piece("p1", 0, 1)], "k", b"")
