"""Rules of the namespace against a naive model, and each refusal (design section 5)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from effort import effort
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.python.failure import Failure

from sector import errors
from sector.master import namespace as ns
from sector.master.store import SqlStore, SqlTx
from sector.model import SliceMeta, Version, is_below, parent

V = TypeVar("V")
NOW = 1_700_000_000.0


class Space:
    """A namespace on a database of its own, without threads."""

    def __init__(self, folder: Path) -> None:
        self.store = SqlStore(folder / "m.db")
        self.store.open()
        self.do(lambda tx: tx.set("epoch", 1))

    def do(self, rule: Callable[[SqlTx], V]) -> V:
        """Run a rule in a transaction; raises what it raises."""
        out: list[Any] = []
        self.store.write(rule).addBoth(out.append)
        if isinstance(out[0], Failure):
            out[0].raiseException()
        return out[0]  # type: ignore[no-any-return]

    def open(self, path: str, **options: Any) -> ns.Lease:
        """Take a lease."""
        now = options.pop("now", NOW)
        values = {"size": 10, "user": "u", "node": "s1", "id": os.urandom(16), "lease_s": 60.0, **options}
        return self.do(lambda tx: ns.open_write(tx, ns.WriteRequest(path, **values), now))

    def publish(self, lease: ns.Lease, size: int = 10, digest: str = "d", now: float = NOW) -> Version:
        """Publish what a lease was taken for."""
        meta = SliceMeta(lease.path, lease.version, size, lease.owner, lease.mode, NOW, digest)
        return self.do(lambda tx: ns.publish(tx, lease.node, lease.id, meta, now))

    def put(self, path: str, **options: Any) -> Version:
        """A whole write."""
        return self.publish(self.open(path, **options))

    def mkdir(self, path: str, parents: bool = False) -> None:
        """A directory."""
        self.do(lambda tx: ns.make_directory(tx, path, parents, "u", NOW))

    def paths(self) -> list[str]:
        """All paths, in order."""
        return [e.path for e in self.do(lambda tx: ns.list_entries(tx, "/", True, "", 10000))[0]]


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    made = Space(tmp_path)
    yield made
    made.store.close()


def test_mkdir_refusals(space: Space) -> None:
    space.mkdir("/a")
    space.put("/f")
    with pytest.raises(errors.Exists):
        space.mkdir("/a")
    space.mkdir("/a", parents=True)
    with pytest.raises(errors.Exists):
        space.mkdir("/f", parents=True)
    with pytest.raises(errors.NotFound):
        space.mkdir("/x/y")
    with pytest.raises(errors.NotDirectory):
        space.mkdir("/f/y/z", parents=True)
    with pytest.raises(errors.BadPath):
        space.mkdir("/.sector/x")
    space.mkdir("/x/y/z", parents=True)
    assert space.paths() == ["/a", "/f", "/x", "/x/y", "/x/y/z"]


def test_write_refusals(space: Space) -> None:
    space.mkdir("/a")
    space.put("/f")
    with pytest.raises(errors.IsDirectory):
        space.open("/a")
    with pytest.raises(errors.IsDirectory):
        space.open("/")
    with pytest.raises(errors.Exists):
        space.open("/f", create="new")
    with pytest.raises(errors.NotFound):
        space.open("/x/f")
    with pytest.raises(errors.NotDirectory):
        space.open("/f/g")
    with pytest.raises(errors.LeaseLost):
        space.open("/f", resume=b"x" * 16)
    lease = space.open("/f")
    with pytest.raises(errors.Conflict):
        space.publish(lease, size=11)
    assert space.publish(lease, size=9) == lease.version


def test_refused_rule_changes_nothing(space: Space) -> None:
    """A rule that raises in the middle leaves no trace."""

    def half(tx: SqlTx) -> None:
        ns.make_directory(tx, "/half", False, "u", NOW)
        raise errors.Busy("no")

    with pytest.raises(errors.Busy):
        space.do(half)
    assert space.paths() == []


def test_overwrite_keeps_owner_and_mode(space: Space) -> None:
    space.put("/f", user="a", mode=0o600)
    first = space.do(lambda tx: ns.stat(tx, "/f"))[0]
    space.put("/f", user="b", node="s2")
    entry, replicas = space.do(lambda tx: ns.stat(tx, "/f"))
    assert (entry.owner, entry.mode) == ("a", 0o600) and entry.version > first.version
    assert [(r.node, r.version == entry.version) for r in replicas] == [("s1", False), ("s2", True)]
    assert ns.info_of(entry, replicas).replicas == ["s2"]


def test_remove_and_move_refusals(space: Space) -> None:
    space.mkdir("/a/b", parents=True)
    space.put("/a/b/f")
    space.put("/g")
    for call, error in (
        (lambda tx: ns.remove(tx, "/", True, NOW), errors.BadPath),
        (lambda tx: ns.remove(tx, "/none", True, NOW), errors.NotFound),
        (lambda tx: ns.remove(tx, "/a", False, NOW), errors.NotEmpty),
        (lambda tx: ns.move(tx, "/a", "/a/b/c", False, NOW), errors.BadPath),
        (lambda tx: ns.move(tx, "/a", "/g", True, NOW), errors.Exists),
        (lambda tx: ns.move(tx, "/g", "/a", True, NOW), errors.Exists),
        (lambda tx: ns.move(tx, "/g", "/a/b/f", False, NOW), errors.Exists),
        (lambda tx: ns.move(tx, "/g", "/none/f", False, NOW), errors.NotFound),
        (lambda tx: ns.move(tx, "/a/b/f", "/g/f", False, NOW), errors.NotDirectory),
        (lambda tx: ns.move(tx, "/none", "/x", False, NOW), errors.NotFound),
        (lambda tx: ns.move(tx, "/", "/x", False, NOW), errors.BadPath),
        (lambda tx: ns.stat(tx, "/g/below"), errors.NotDirectory),
    ):
        with pytest.raises(error):
            space.do(call)
    assert space.paths() == ["/a", "/a/b", "/a/b/f", "/g"]


def test_only_a_hollow_directory_is_removed(space: Space) -> None:
    """One whose files are all in the place for scraps: any other file, or a writer, keeps all of it."""
    hollow = lambda now=NOW: space.do(lambda tx: ns.remove_hollow(tx, "/a", ".x/meta", now))  # noqa: E731
    for path in ("/a/empty/dir", "/a/.x/meta/ab", "/ab"):
        space.mkdir(path, parents=True)
    space.put("/a/.x/meta/ab/scrap")
    space.put("/ab/f")
    for other in ("/a/.x/metal", "/a/.x/f", "/a/empty/dir/f", "/a/g"):
        space.put(other)
        with pytest.raises(errors.NotEmpty):
            hollow()
        assert other in space.paths()
        space.do(lambda tx, other=other: ns.remove(tx, other, False, NOW))  # type: ignore[misc]
    space.open("/a/late")
    with pytest.raises(errors.LeaseHeld):
        hollow()
    assert "/a/.x/meta/ab/scrap" in space.paths()
    assert hollow(NOW + 61).files == 1
    assert space.paths() == ["/ab", "/ab/f"]
    for path, error in (("/a", errors.NotFound), ("/ab/f", errors.NotDirectory)):
        with pytest.raises(error):
            space.do(lambda tx, path=path: ns.remove_hollow(tx, path, "x", NOW))  # type: ignore[misc]


def test_a_removal_of_one_version_spares_the_next(space: Space) -> None:
    """Who has looked at a file removes that and no other."""
    space.mkdir("/d")
    first = space.put("/f")
    second = space.put("/f")
    for path, error in (("/f", errors.Conflict), ("/d", errors.IsDirectory), ("/g", errors.NotFound)):
        with pytest.raises(error):
            space.do(lambda tx, path=path: ns.remove_version(tx, path, first, NOW))  # type: ignore[misc]
    assert space.do(lambda tx: ns.remove_version(tx, "/f", second, NOW)).files == 1
    assert space.paths() == ["/d"]


def test_open_lease_holds_its_directory(space: Space) -> None:
    """While a file is written its directory is neither removed nor moved, until the lease is over."""
    space.mkdir("/a")
    lease = space.open("/a/f")
    for call in (
        lambda tx: ns.remove(tx, "/a", True, NOW),
        lambda tx: ns.move(tx, "/a", "/b", False, NOW),
        lambda tx: ns.move(tx, "/x", "/a/f", True, NOW),
    ):
        with pytest.raises((errors.LeaseHeld, errors.NotFound)):
            space.do(call)
    space.do(lambda tx: ns.remove(tx, "/a", True, NOW + 61))
    with pytest.raises(errors.LeaseLost):
        space.publish(lease)


def test_a_name_that_is_written_becomes_no_directory_from_below(space: Space) -> None:
    """Neither for a directory nor for a file below it, until the lease is over."""
    lease = space.open("/a/big", parents=True)
    with pytest.raises(errors.LeaseHeld, match="/a/big is being written"):
        space.mkdir("/a/big/sub", parents=True)
    with pytest.raises(errors.LeaseHeld, match="/a/big is being written"):
        space.open("/a/big/x/f", parents=True)
    space.publish(lease)
    late = space.open("/a/late")
    space.do(lambda tx: ns.make_directory(tx, "/a/late/sub", True, "u", late.expires))
    with pytest.raises(errors.LeaseLost):
        space.publish(late)


def test_a_copy_that_is_dropped_goes_by_the_name_its_slave_knows_too(space: Space) -> None:
    """A rename that was still to come is not sent any more, or is on its way."""
    version = space.put("/d", node="s1")
    space.do(lambda tx: ns.replica_arrived(tx, "s2", "/d", version, NOW))
    space.do(lambda tx: ns.move(tx, "/d", "/e", False, NOW))
    moved = space.do(lambda tx: tx.entry("/e")).version  # type: ignore[union-attr]
    space.do(lambda tx: ns.replica_surplus(tx, "s2", "/e", moved, NOW))
    assert space.do(lambda tx: tx.renames("s2", 9)) == []
    trash = space.do(lambda tx: tx.trash("s2", 9))
    assert [(t.path, t.version, t.surplus) for t in trash] == [("/d", version, True), ("/e", moved, True)]


def test_move_limits_the_length_of_paths(space: Space) -> None:
    deep = "/d" + "".join("/" + "x" * 250 for _ in range(15))
    space.mkdir(deep, parents=True)
    with pytest.raises(errors.BadPath):
        space.do(lambda tx: ns.move(tx, "/d", "/" + "y" * 255 + "é", False, NOW))
    space.mkdir("/e")
    with pytest.raises(errors.BadPath):
        space.do(lambda tx: ns.move(tx, "/d", "/e/" + "y" * 250 + "é" * 40, False, NOW))
    space.do(lambda tx: ns.move(tx, "/d", "/e/z", False, NOW))
    assert "/e/z" + deep[2:] in space.paths()


def test_move_remembers_what_slaves_know(space: Space) -> None:
    """Two renames before a slave confirmed one: it is told from the name it knows to the last."""
    version = space.put("/f")
    space.do(lambda tx: ns.move(tx, "/f", "/g", False, NOW))
    space.do(lambda tx: ns.move(tx, "/g", "/h", False, NOW))
    renames = space.do(lambda tx: tx.renames("s1", 10))
    assert [(r.old_path, r.old_version, r.meta.path) for r in renames] == [("/f", version, "/h")]
    assert space.do(lambda tx: tx.moving("s1", "/f", version))
    space.do(lambda tx: tx.renames_done("s1", renames, NOW))
    assert not space.do(lambda tx: tx.renames("s1", 10))
    space.do(lambda tx: ns.move(tx, "/h", "/f", False, NOW))
    assert space.do(lambda tx: tx.tombstone("/f")) is None
    assert space.do(lambda tx: tx.tombstone("/h")) is not None


def test_a_rename_that_was_sent_is_finished_before_the_next(space: Space) -> None:
    """Until the slave has confirmed it the content may have either name; then it is moved on from there."""
    first = space.put("/f")
    moves = []
    for source, target in (("/f", "/g"), ("/g", "/h")):
        space.do(lambda tx, way=(source, target): ns.move(tx, *way, False, NOW))
        begun = space.do(lambda tx: tx.begin_renames("s1", tx.renames("s1", 10)))
        moves.append([(r.old_path, r.old_version, r.meta.path) for r in begun])
    assert moves == [[("/f", first, "/g")]] * 2
    second = begun[0].meta.version
    for path, version in (("/f", first), ("/g", second)):
        assert space.do(lambda tx, at=(path, version): tx.moving("s1", *at))
        assert space.do(lambda tx, path=path: len(tx.renames("s1", 10, path))) == 1
    assert not space.do(lambda tx: tx.moving("s1", "/g", first))
    space.do(lambda tx: tx.renames_done("s1", begun, NOW))
    space.do(lambda tx: tx.renames_done("s1", begun, NOW))  # another answer to the same
    renames = space.do(lambda tx: tx.renames("s1", 10))
    assert [(r.old_path, r.old_version, r.meta.path, r.begun) for r in renames] == [
        ("/g", second, "/h", False)
    ]
    assert not space.do(lambda tx: tx.moving("s1", "/f", first))
    space.do(lambda tx: tx.renames_done("s1", tx.begin_renames("s1", renames), NOW))
    assert space.do(lambda tx: tx.renames("s1", 10)) == []
    (row,) = space.do(lambda tx: tx.replicas("/h"))
    assert (row.old_path, row.sent_path) == ("", "")


def test_what_a_moved_file_replaces_may_go_first(space: Space) -> None:
    """On a full disk its removal makes room for the move, which may or may not be made: it is older."""
    space.put("/x")
    space.put("/y")
    space.do(lambda tx: ns.move(tx, "/x", "/y", True, NOW))
    (begun,) = space.do(lambda tx: tx.begin_renames("s1", tx.renames("s1", 10)))
    (item,) = space.do(lambda tx: tx.trash("s1", 10, settled=True))
    assert item.path == "/y" and item.version < begun.meta.version


def test_what_was_moved_is_removed_by_all_names_it_may_have(space: Space) -> None:
    """The one the slave had confirmed, the one it was told, and the one it has not heard of."""
    first = space.put("/f")
    space.do(lambda tx: ns.move(tx, "/f", "/g", False, NOW))
    begun = space.do(lambda tx: tx.begin_renames("s1", tx.renames("s1", 10)))
    space.do(lambda tx: ns.move(tx, "/g", "/h", False, NOW))
    space.do(lambda tx: ns.remove(tx, "/h", False, NOW))
    trash = {item.path: item.version for item in space.do(lambda tx: tx.trash("s1", 10))}
    assert set(trash) == {"/f", "/g", "/h"}
    assert (trash["/f"], trash["/g"]) == (first, begun[0].meta.version)


def test_removed_content_is_queued_by_every_name(space: Space) -> None:
    space.put("/f")
    space.do(lambda tx: ns.move(tx, "/f", "/g", False, NOW))
    space.do(lambda tx: ns.remove(tx, "/g", False, NOW))
    trash = space.do(lambda tx: tx.trash("s1", 10))
    assert [t.path for t in trash] == ["/f", "/g"]
    space.do(lambda tx: tx.trash_done("s1", trash))
    assert not space.do(lambda tx: tx.trash("s1", 10))


def test_a_removal_by_a_former_name_spares_what_has_it_now(space: Space) -> None:
    """A slave that has not heard of the rename yet is told to drop what it knew, not what came after."""
    first = space.put("/f")
    space.do(lambda tx: ns.move(tx, "/f", "/g", False, NOW))
    later = space.put("/f", node="s2")
    space.do(lambda tx: ns.remove(tx, "/g", False, NOW))
    trash = {t.path: t.version for t in space.do(lambda tx: tx.trash("s1", 10))}
    assert trash["/f"] == first < later < trash["/g"]


NAMES = st.sampled_from(["a", "b", "é", "a b", "a0", "a-"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
NODES = st.sampled_from(["s1", "s2"])


class NamespaceMachine(RuleBasedStateMachine):
    """Random changes; the model is a dictionary of path -> None (directory) or version (file)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.space = Space(self.folder)
        self.model: dict[str, Version | None] = {}
        self.dead: dict[str, Version] = {}
        self.highest = Version(0, 0)
        self.now = NOW

    def teardown(self) -> None:
        self.space.store.close()
        shutil.rmtree(self.folder)

    def _is_dir(self, path: str) -> bool:
        return path == "/" or (path in self.model and self.model[path] is None)

    def _inside(self, path: str) -> list[str]:
        return [p for p in self.model if is_below(p, path)]

    def _bury(self, path: str, version: Version) -> None:
        for name in self._inside(path):
            del self.model[name]
            self.dead[name] = version

    def _drawn(self) -> Version:
        counter = self.space.do(lambda tx: tx.setting("counter"))
        return Version(1, counter)

    @rule(path=PATHS)
    def mkdir(self, path: str) -> None:
        good = self._is_dir(parent(path)) and path not in self.model
        try:
            self.space.mkdir(path)
        except errors.SectorError:
            assert not good
            return
        assert good
        self.model[path] = None

    @rule(path=PATHS, node=NODES)
    def write(self, path: str, node: str) -> None:
        good = self._is_dir(parent(path)) and not self._is_dir(path)
        try:
            version = self.space.put(path, node=node)
        except errors.SectorError:
            assert not good
            return
        assert good
        assert version > self.highest
        self.highest = version
        self.model[path] = version

    @rule(path=PATHS, recursive=st.booleans())
    def remove(self, path: str, recursive: bool) -> None:
        good = path in self.model and (recursive or len(self._inside(path)) == 1)
        try:
            totals = self.space.do(lambda tx: ns.remove(tx, path, recursive, self.now))
        except errors.SectorError:
            assert not good
            return
        assert good
        assert totals.files == sum(self.model[p] is not None for p in self._inside(path))
        self._bury(path, self._drawn())

    @rule(source=PATHS, to=PATHS, overwrite=st.booleans())
    def move(self, source: str, to: str, overwrite: bool) -> None:
        target = to
        good = (
            source in self.model
            and not is_below(target, source)
            and self._is_dir(parent(target))
            and (
                target not in self.model
                or (overwrite and self.model[target] is not None and self.model[source] is not None)
            )
        )
        try:
            self.space.do(lambda tx: ns.move(tx, source, target, overwrite, self.now))
        except errors.SectorError:
            assert not good
            return
        if source == target:
            return
        assert good
        version = self._drawn()
        moved = {target + p[len(source) :]: self.model[p] for p in self._inside(source)}
        self._bury(source, version)
        for path, old in moved.items():
            self.model[path] = None if old is None else version
            self.dead.pop(path, None)
        self.highest = version

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def confirm_renames(self, data: st.DataObject) -> None:
        node = data.draw(NODES)
        self.space.do(lambda tx: tx.renames_done(node, tx.renames(node, 100), NOW))

    @invariant()
    def same_as_model(self) -> None:
        found = self.space.do(lambda tx: ns.list_entries(tx, "/", True, "", 1000))[0]
        assert [e.path for e in found] == sorted(self.model)
        for entry in found:
            version = self.model[entry.path]
            assert (entry.kind == "dir") == (version is None)
            if version is not None:
                assert entry.version == version and entry.replicas
            assert self._is_dir(parent(entry.path))
            listed = self.space.do(lambda tx, d=parent(entry.path): ns.list_entries(tx, d, False, "", 1000))[
                0
            ]
            assert entry.path in [e.path for e in listed]

    @invariant()
    def tombstones_cover_what_is_dead(self) -> None:
        for path, version in self.dead.items():
            if path not in self.model:
                assert self.space.do(lambda tx, p=path: tx.tombstone(p)) == version


TestNamespaceMachine = NamespaceMachine.TestCase
TestNamespaceMachine.settings = effort(25, stateful_step_count=25)


def test_publish_repeated_counts_a_replica_that_was_taken_for_lost(space: Space) -> None:
    """A reader came before the slave had made the content visible; then the slave asks once more."""
    lease = space.open("/f")
    version = space.publish(lease)
    space.do(lambda tx: ns.replica_gone(tx, "s1", "/f", version))
    assert space.publish(lease) == version
    assert [r.node for r in space.do(lambda tx: tx.replicas("/f"))] == ["s1"]
