"""After a power cut at any system call: each name holds what was acknowledged last, or what was being put."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

from posix_disk import Crash, Forgetful

from cumulus.backends.posix.store import PosixStore
from cumulus.storage.api import Missing, Piece, StorageError

Content = tuple[bytes, bytes] | None  # body and meta, None for absent
SMALL, LARGE = 500, 100_000
WHOLE, LATE = ".cumulus/parts/u/slots.100000", ".cumulus/parts/u/3.late"


class Book:
    """What was acknowledged under each name, and what may be there instead."""

    def __init__(self) -> None:
        self.sure: dict[str, Content] = {}
        self.maybe: dict[str, Content] = {}
        self.parts = 0

    @contextlib.contextmanager
    def change(self, name: str, to: Content):  # type: ignore[no-untyped-def]
        """Around one change: before its end it may or may not have happened."""
        self.maybe[name] = to
        yield
        self.sure[name] = to
        del self.maybe[name]


def put(store: PosixStore, book: Book, name: str, mark: int, size: int, meta_size: int = 10) -> None:
    """One object of bytes `mark`."""
    body, meta = bytes([mark]) * size, bytes([mark]) * meta_size
    with book.change(name, (body, meta)):
        stream = store.open_write("b", name, size)
        try:
            stream.write(memoryview(body))
            stream.commit(meta)
        finally:
            stream.close()


def remove(store: PosixStore, book: Book, name: str) -> None:
    """One removal."""
    with book.change(name, None):
        store.delete("b", name)


def script(store: PosixStore, book: Book) -> None:
    """Small and large bodies, over each other, in directories old and new; removal; meta long and short;
    parts."""
    put(store, book, "a", 1, SMALL)
    put(store, book, "a", 2, SMALL)
    put(store, book, "d/e/f", 3, SMALL)
    put(store, book, "d/e/g", 4, LARGE)
    put(store, book, "a", 5, LARGE)
    put(store, book, "a", 6, SMALL, 5_000)
    remove(store, book, "d/e/f")
    put(store, book, "d/e/f", 7, SMALL)
    with book.change("a", (bytes([6]) * SMALL, b"meta")):
        store.set_meta("b", "a", b"meta", store.stat("b", "a").token)
    remove(store, book, "d/e/g")
    for number in (8, 9):
        put(store, book, f".cumulus/parts/u/{number}", number, LARGE)
    with book.change("d/e/g", (bytes([8]) * LARGE + bytes([9]) * LARGE, b"joined")):
        store.concat("b", [".cumulus/parts/u/8", ".cumulus/parts/u/9"], "d/e/g", b"joined")
    store.link("b", "d/e/f", ".cumulus/versions/f/1")
    book.sure[".cumulus/versions/f/1"] = book.sure["d/e/f"]
    put(store, book, "d/e/f", 10, SMALL)


def part(store: PosixStore, place: int, mark: int) -> None:
    """One part into its slot, durably."""
    found = store.open_range("b", WHOLE, place * LARGE, LARGE)
    assert found
    try:
        found.write(memoryview(bytes([mark]) * LARGE))
        found.sync()
    finally:
        found.close()


def slots(store: PosixStore, book: Book) -> None:
    """Two parts in their slots, a third beside, joined over an old object: before the join is acknowledged
    the parts are there, or the object is."""
    pieces = [Piece(WHOLE, 0, LARGE), Piece(WHOLE, LARGE, LARGE), Piece(LATE, 0, 700)]
    put(store, book, "d/w", 1, SMALL)
    for place, mark in enumerate((21, 22)):
        part(store, place, mark)
        book.parts = place + 1
    put(store, book, LATE, 23, 700)
    whole = (bytes([21]) * LARGE + bytes([22]) * LARGE + bytes([23]) * 700, b"joined")
    with book.change("d/w", whole):
        store.join("b", pieces, "d/w", b"joined", base=WHOLE)
    remove(store, book, LATE)


def together(store: PosixStore, book: Book) -> None:
    """Objects that go at once, and some that come again."""
    names = ["d/a", "d/b", "d/e/c", "x"]
    for mark, name in enumerate(names, 1):
        put(store, book, name, mark, LARGE if name == "d/b" else SMALL)
    with contextlib.ExitStack() as changes:
        for name in names:
            changes.enter_context(book.change(name, None))
        found = store.delete_all("b", [(name, store.stat("b", name).token) for name in names])
        assert all(isinstance(one, int) for one in found)
    put(store, book, "d/a", 9, SMALL)
    put(store, book, "d/b", 10, SMALL)


def content(store: PosixStore, name: str) -> Content:
    """What a reader gets."""
    try:
        stream = store.open_read("b", name)
    except Missing:
        return None
    try:
        return stream.read_at(0, stream.entry.size), stream.entry.meta or b""
    finally:
        stream.close()


def _short(found: Content) -> str:
    return f"{found[0][:1]!r} * {len(found[0])}, {found[1][:9]!r}" if found else "nothing"


def build(path: Path) -> tuple[Forgetful, PosixStore]:
    """A store whose disk forgets; all that there is at the beginning is durable."""
    disk = Forgetful(path / "store", path / "aside")
    store = PosixStore(str(path / "store"), files=disk)
    store.create_bucket("b")
    disk.settle()
    return disk, store


def run_until(
    disk: Forgetful, store: PosixStore, step: int, then: Callable[[PosixStore, Book], None]
) -> tuple[Book, bool]:
    """Run until call number `step` (from 1), which is not made; whether it came to that."""
    book, count, cut = Book(), 0, False

    def watch(_: str) -> None:
        nonlocal count, cut
        count += 1
        if cut or count >= step:
            cut = True
            raise Crash

    disk.before = watch
    try:
        then(store, book)
    except Crash:
        pass
    finally:
        disk.before = lambda _: None
    return book, cut


def check(
    path: Path,
    step: int,
    rng: random.Random | None,
    then: Callable[[PosixStore, Book], None] = script,
    also: Callable[[PosixStore, Book], None] = lambda store, book: None,
) -> bool:
    """One crash; whether there was still something to interrupt."""
    path.mkdir()
    disk, store = build(path)
    book, cut = run_until(disk, store, step, then)
    disk.crash(rng)
    disk.calls.clear()
    again = PosixStore(str(path / "store"), files=disk)
    told = {entry.name for _, entry in again.recover()}
    for name in {*book.sure, *book.maybe}:
        allowed = [book.sure.get(name)] + ([book.maybe[name]] if name in book.maybe else [])
        found = content(again, name)
        assert found in allowed, f"{name} after a crash before call {step}: {_short(found)}"
    again.recovered()
    assert list(again.recover()) == []
    assert {entry.name for entry in again.names("b")} <= {*book.sure, *book.maybe}
    inner = {".cumulus/parts/u/8", ".cumulus/parts/u/9", ".cumulus/versions/f/1", LATE}
    assert told <= {*book.sure, *book.maybe, *inner}
    also(again, book)
    with contextlib.suppress(StorageError, OSError):
        store.close()
    again.close()
    return cut


def last_step(path: Path, then: Callable[[PosixStore, Book], None] = script) -> int:
    """How many calls the script makes."""
    path.mkdir()
    disk, store = build(path)
    before = sum(disk.calls.values())
    run_until(disk, store, 1_000_000, then)
    count = sum(disk.calls.values()) - before
    store.close()
    return count


def test_a_crash_before_any_call_loses_nothing(tmp_path: Path) -> None:
    """Nothing that was not synced is left: acknowledged changes are there, the one under way is there or
    not."""
    for step in range(1, last_step(tmp_path / "count"), 3):
        check(tmp_path / str(step), step, None)


def test_a_crash_that_keeps_some_of_what_was_not_synced_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Any file, any directory may be older than the others."""
    rng = random.Random(seed)
    steps = last_step(tmp_path / "count")
    for step in rng.sample(range(1, steps), 30):
        check(tmp_path / str(step), step, rng)


def parts_or_object(store: PosixStore, book: Book) -> None:
    """What was acknowledged of the parts can be read where it was, unless the object is there."""
    found = content(store, "d/w")
    if found and found[1] == b"joined":
        return
    for place in range(book.parts):
        stream = store.open_read("b", WHOLE)
        try:
            assert stream.read_at(place * LARGE, LARGE) == bytes([21 + place]) * LARGE
        finally:
            stream.close()


def test_a_crash_while_parts_in_slots_become_an_object_loses_neither(tmp_path: Path) -> None:
    """Before any call: the parts that were acknowledged, or the whole object."""
    steps = last_step(tmp_path / "count", slots)
    assert steps > 30
    for step in range(1, steps):
        check(tmp_path / str(step), step, None, slots, parts_or_object)


def test_a_crash_that_keeps_some_bytes_of_slots_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Any file and any directory may be older than the others."""
    rng = random.Random(seed)
    for step in range(1, last_step(tmp_path / "count", slots), 2):
        check(tmp_path / str(step), step, rng, slots, parts_or_object)


def test_a_crash_while_objects_go_together_brings_none_back(tmp_path: Path, seed: int) -> None:
    """Before any call: before the removal was acknowledged each is whole or gone."""
    rng = random.Random(seed)
    steps = last_step(tmp_path / "count", together)
    assert steps > 30
    for step in range(1, steps):
        check(tmp_path / str(step), step, rng if step % 2 else None, together)
