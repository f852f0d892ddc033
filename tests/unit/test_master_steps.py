"""What the master asks its database often must not cost more the more files there are. Counted in steps of
SQLite's machine, which depend on the plan and the rows alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sector.master import namespace as ns
from sector.master import reconcile
from sector.master.store import SqlStore, SqlTx
from sector.model import SliceMeta, Version

FEW, MANY = 100, 3000


def meta(path: str, counter: int) -> SliceMeta:
    """A file as a slave reports it."""
    return SliceMeta(path, Version(1, counter), 3, "u", 0o644, 1.0, "crc32c-1m:00")


def made(folder: Path, files: int) -> SqlStore:
    """A database with so many files in /d, each on s1."""
    store = SqlStore(folder / "master.db")
    store.open()

    def fill(tx: SqlTx) -> None:
        for number in range(files):
            reconcile.merge_file(tx, "s1", meta(f"/d/{number:05d}", number + 1), 1.0, True)
        tx.set("counter", 10**6)

    store.write(fill)
    return store


def steps(store: SqlStore, rule: Callable[[SqlTx], Any]) -> int:
    """Steps that a rule takes, in tens."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    def run(tx: SqlTx) -> None:
        raw: Any = tx.connection.connection.driver_connection
        raw.set_progress_handler(count, 10)
        try:
            rule(tx)
        finally:
            raw.set_progress_handler(None, 0)

    failed: list[Any] = []
    store.write(run).addErrback(failed.append)
    assert not failed, failed
    return taken


def moved(tx: SqlTx) -> None:
    """The directory has another name, of which no slave has heard."""
    ns.move(tx, "/d", "/e", False, 2.0)


def removed(tx: SqlTx) -> None:
    """The directory was removed; no slave has heard of it."""
    ns.remove(tx, "/d", True, 2.0)


def mirrored(tx: SqlTx) -> None:
    """Two pages of the tombstones of one removed directory."""
    first = tx.mirror(0, 10**9, (0, 0, ""), 20)
    assert first.next is not None
    second = tx.mirror(0, 10**9, first.next, 20)
    assert len({stone.path for stone in (*first.tombstones, *second.tombstones)}) == 40


def last(tx: SqlTx) -> str:
    """The last but 20 of the files."""
    files = MANY if tx.entry(f"/d/{FEW:05d}") else FEW
    return f"/d/{files - 21:05d}"


def published(tx: SqlTx) -> None:
    """Each file was written in the last hour, and its lease is remembered for a day."""
    for number, file in enumerate(tx.listing("/d", False, "", MANY)):
        lease = ns.Lease(
            number.to_bytes(16), file.path, "s1", file.version, 3, "u", "u", 0o644, 9e9, ns.PUBLISHED
        )
        tx.put_lease(lease)


ASKED: dict[str, tuple[Callable[[SqlTx], Any], Callable[[SqlTx], Any]]] = {
    "a rename of one path": (moved, lambda tx: tx.renames("s1", 500, "/e/00007")),
    "a rename by the former name": (moved, lambda tx: tx.renames("s1", 500, "/d/00007")),
    "renames that are begun": (moved, lambda tx: tx.begin_renames("s1", tx.renames("s1", 100))),
    "the next deletions": (removed, lambda tx: tx.trash("s1", 10)),
    "pages of tombstones": (removed, mirrored),
    "a new file in a report": (
        lambda tx: None,
        lambda tx: reconcile.merge_part(tx, "s1", 9, [meta("/d/new", 10**5)], 1.0, True),
    ),
    "known files in a report": (
        lambda tx: None,
        lambda tx: reconcile.merge_part(
            tx, "s1", 9, [meta(f"/d/{n:05d}", n + 1) for n in range(9)], 1.0, True
        ),
    ),
    "a lease below a directory": (published, lambda tx: tx.leased_below("/d", 5.0)),
    "the first page of a directory": (lambda tx: None, lambda tx: tx.page("/d", "", 20)),
    "a late page of a directory": (lambda tx: None, lambda tx: tx.page("/d", last(tx), 20)),
    "a late page of all files": (lambda tx: None, lambda tx: tx.page("/", last(tx), 20)),
    "a late page of a long list": (lambda tx: None, lambda tx: tx.listing("/d", True, last(tx), 20)),
    "a report before its rename": (
        moved,
        lambda tx: reconcile.merge_part(tx, "s1", 9, [meta("/d/00007", 8)], 1.0, False),
    ),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Databases of FEW and MANY files, in directories of these names."""
    top = tmp_path_factory.mktemp("filled")
    for files in (FEW, MANY):
        made(top / str(files), files).close()
    return top


@pytest.mark.parametrize("case", list(ASKED))
def test_what_is_asked_often_does_not_grow_with_the_files(filled: Path, tmp_path: Path, case: str) -> None:
    """Thirty times the files may not take twice the steps."""
    before, asked = ASKED[case]
    taken = []
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    for files in (FEW, MANY):
        store = SqlStore(tmp_path / str(files) / "master.db")
        store.open()
        store.write(before)
        taken.append(steps(store, asked))
        store.close()
    assert taken[1] <= 2 * taken[0] + 10, (
        f"{case}: {taken[0]}0 steps with {FEW} files, {taken[1]}0 with {MANY}"
    )
