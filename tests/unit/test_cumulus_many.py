"""Many files at once: what a scan takes in is what would come of it one by one, and sidecars are looked for
only where there are some."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from posix_disk import NoXattr
from s3_world import People, World

from cumulus.auth import lifecycle
from cumulus.backends.posix import scan, sidecar
from cumulus.backends.posix.store import PosixStore
from cumulus.index.api import Away, Change, Index, Put, Remove, Row
from cumulus.index.registry import make_index
from cumulus.index.sqlite import MANY
from cumulus.model import Acl, Bucket
from cumulus.ops import jobs
from cumulus.ops.jobs import Done, Jobs, rescan
from cumulus.ops.resting import Resting
from cumulus.ops.rows import meta_of, outside_row, row_of
from cumulus.storage.api import Entry, Missing, Token, Unavailable


def row(key: str, stamp: int, version: str = "null", marker: bool = False) -> Row:
    """One version of an object."""
    return Row(
        bucket="b",
        key=key,
        version=version,
        stamp=stamp,
        name="" if marker else key,
        token=b"%d" % stamp,
        size=0 if marker else stamp,
        etag="e",
        modified_ns=stamp,
        owner="o",
        marker=marker,
    )


def fill(index: Index, rng: random.Random) -> None:
    """A past: objects, older versions, delete markers, removals."""
    index.add_bucket(Bucket(name="b", owner="o", created_ns=1, acl=Acl(owner="o")))
    for number in range(0, 200, 3):
        key = f"k{number:04d}"
        index.apply([Put(row=row(key, 50, "v1"), keep=True)])
        kind = rng.randrange(4)
        if kind == 1:
            index.apply([Put(row=row(key, 60, "v2"), keep=True)])
        elif kind == 2:
            index.apply([Put(row=row(key, 60, "v2", marker=True), keep=True)])
        elif kind == 3:
            index.apply([Remove(bucket="b", key=key, stamp=70, version="v1")])


def state(index: Index) -> list[object]:
    """All rows, and the ledger."""
    found = index.usage("bucket", "b")
    return [*index.page_versions("b", limit=1000).rows, found.bytes, found.objects]


@pytest.mark.parametrize("count", [MANY, 51, 200])
def test_many_new_rows_at_once_are_what_they_are_one_by_one(tmp_path: Path, seed: int, count: int) -> None:
    """Beside keys that have a past, whose rule of the larger stamp holds."""
    rng = random.Random(seed)
    changes = [Put(row=row(f"k{n:04d}", rng.choice((40, 65, 80)))) for n in rng.sample(range(200), count)]
    states = []
    for name in ("one", "many"):
        index = make_index(f"sqlite:///{tmp_path}/{name}", directory=People())[0]
        fill(index, random.Random(seed))
        if name == "many":
            index.apply_soon(changes)
        else:
            for change in changes:
                index.apply([change])
        index.apply([*changes, *changes])  # twice is once
        states.append(state(index))
        index.close()
    assert states[0] == states[1]


def outside(tmp_path: Path, count: int) -> World:
    """A bucket with files that others made."""
    world = World(PosixStore(str(tmp_path / "store")))
    world.ask("PUT", "/bkt")
    for number in range(count):
        directory = tmp_path / f"store/data/bkt/d{number % 3}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number:03d}").write_text("x" * number)
    return world


def test_a_scan_of_several_pages_takes_in_all_and_removes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lot is looked at while the one before is taken in."""
    monkeypatch.setattr(jobs, "SCANNED", 40)
    world = outside(tmp_path, 130)
    done = Done()
    rescan(world.site, world.site.bucket("bkt"), done)
    assert (done.renewed, done.gone) == (130, 0)
    usage = world.index.usage("bucket", "bkt")
    assert (usage.objects, usage.bytes) == (130, sum(range(130)))
    for path in (tmp_path / "store/data/bkt/d1").iterdir():
        path.unlink()
    done = Done()
    rescan(world.site, world.site.bucket("bkt"), done)
    assert (done.renewed, done.gone) == (0, 43)
    assert world.index.usage("bucket", "bkt").objects == 87
    world.close()


def test_a_thread_rests_four_times_as_long_as_it_has_worked() -> None:
    """Its own work, not what others or the disk took."""
    used, rests, ends = [10.0], list[float](), [False]

    def pause(seconds: float) -> bool:
        rests.append(seconds)
        used[0] += 0.5  # what a rest itself costs is not paid back
        return ends[0]

    resting = Resting(pause, lambda: used[0])
    used[0] += 2
    assert not resting.rest()
    used[0] += 3
    ends[0] = True
    assert resting.rest()
    assert rests == [8, 12]


def test_a_scan_in_the_background_leaves_the_processor_to_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rest after each lot, whether or not anything had changed; who asks for a scan waits for none."""
    monkeypatch.setattr(jobs, "LOT", 40)
    world = outside(tmp_path, 130)
    rests: list[float] = []

    def pause(seconds: float) -> bool:
        rests.append(seconds)
        return False

    monkeypatch.setattr(world.site, "pause", pause)
    rescan(world.site, world.site.bucket("bkt"), Done())
    assert rests == []
    for _ in range(2):
        began = time.thread_time()
        done = Jobs(world.site, lifecycle).run()
        used = time.thread_time() - began
        assert (done.renewed, done.gone) == (0, 0)
        assert len(rests) == 4
        assert min(rests) > 0
        assert sum(rests) <= 4 * used
        rests.clear()
    world.close()


def test_a_scan_that_is_told_to_end_takes_nothing_for_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has not looked at stays as it was."""
    monkeypatch.setattr(jobs, "LOT", 40)
    world = outside(tmp_path, 130)
    rescan(world.site, world.site.bucket("bkt"), Done())
    monkeypatch.setattr(world.site, "pause", lambda _seconds: True)
    assert Jobs(world.site, lifecycle).run() == Done()
    assert world.index.usage("bucket", "bkt").objects == 130
    world.close()


def test_a_scan_that_takes_long_is_not_begun_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it took, there is none."""
    world = outside(tmp_path, 1)
    begun: list[int] = []
    now = [10**18]

    def long_scan(*_: object) -> None:
        begun.append(now[0])
        now[0] += 100 * 10**9

    monkeypatch.setattr(jobs, "rescan", long_scan)
    monkeypatch.setattr(world.site, "clock", lambda: now[0])
    background = Jobs(world.site, lifecycle, rescan_s=60, seconds=lambda: now[0] / 10**9)
    while now[0] < 10**18 + 500 * 10**9:
        background.run()
        now[0] += 10**9
    assert [(at - begun[0]) // 10**9 for at in begun] == [0, 200, 400]
    world.close()


def test_a_clock_that_is_set_during_a_scan_puts_off_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour ahead, then two back."""
    world = outside(tmp_path, 1)
    begun, now, ahead = list[int](), [10**18], [3600 * 10**9, -7200 * 10**9, 0]

    def scan_meanwhile(*_: object) -> None:
        begun.append(now[0])
        world.skew_ns += ahead[len(begun) - 1]

    monkeypatch.setattr(jobs, "rescan", scan_meanwhile)
    monkeypatch.setattr(world.site, "clock", lambda: now[0] + world.skew_ns)
    background = Jobs(world.site, lifecycle, rescan_s=60, seconds=lambda: now[0] / 10**9)
    while len(begun) < 3 and now[0] < 10**18 + 200 * 10**9:
        background.run()
        now[0] += 10**9
    assert [(at - begun[0]) // 10**9 for at in begun] == [0, 60, 120]
    world.close()


def test_what_waits_has_its_turn_during_a_long_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of others that was asked for is hashed before the scan is over."""
    monkeypatch.setattr(jobs, "LOT", 40)
    world = outside(tmp_path, 130)
    rescan(world.site, world.site.bucket("bkt"), Done())
    now, left = [0.0], list[int]()

    def pause(_seconds: float) -> bool:
        left.append(len(world.site.unhashed))
        world.site.hash_later("bkt", "d1/f001")
        now[0] += jobs.BETWEEN_S
        return False

    monkeypatch.setattr(world.site, "pause", pause)
    world.site.unhashed.clear()
    Jobs(world.site, lifecycle, seconds=lambda: now[0]).run()
    assert left[1:4] == [0, 0, 0]
    world.close()


def test_work_on_versions_rests_after_each_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lifecycle rules and the search for lost versions; told to end, they do."""
    monkeypatch.setattr(jobs, "PAGE", 2)
    world = World(PosixStore(str(tmp_path / "store")))
    s3 = world.boto()
    s3.create_bucket(Bucket="bkt")
    s3.put_bucket_versioning(Bucket="bkt", VersioningConfiguration={"Status": "Enabled"})
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    s3.put_bucket_lifecycle_configuration(Bucket="bkt", LifecycleConfiguration={"Rules": [rule]})
    for number in range(5):
        s3.put_object(Bucket="bkt", Key=f"k{number}", Body=b"x")
    rests: list[float] = []

    def pause(seconds: float) -> bool:
        rests.append(seconds)
        return len(rests) > 6

    monkeypatch.setattr(world.site, "pause", pause)
    Jobs(world.site, lifecycle).run()
    assert len(rests) == 5, "one of the scan, two of each"
    world.skew_ns = 3 * 86400 * 10**9
    done = Jobs(world.site, lifecycle).run()
    assert 0 < done.expired < 5, "the second rest ended it"
    world.close()


def test_a_scan_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compared before is taken in."""
    monkeypatch.setattr(jobs, "SCANNED", 40)
    world = outside(tmp_path, 100)
    real = world.store.look
    calls: list[Sequence[str]] = []

    def look(bucket: str, names: Sequence[str], known: Mapping[str, Token]) -> object:
        calls.append(names)
        if len(calls) == 2:
            raise Unavailable("meanwhile")
        return real(bucket, names, known)

    world.store.look = look  # type: ignore[method-assign, assignment]
    with pytest.raises(Unavailable):
        rescan(world.site, world.site.bucket("bkt"), Done())
    assert world.index.usage("bucket", "bkt").objects == 40
    world.store.look = real  # type: ignore[method-assign]
    world.close()


def test_a_scan_whose_index_goes_away_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told beside the scan."""
    world = outside(tmp_path, 10)

    def away(changes: Sequence[Change]) -> None:
        raise Away("no database")

    monkeypatch.setattr(world.index, "apply_soon", away)
    with pytest.raises(Away):
        rescan(world.site, world.site.bucket("bkt"), Done())
    monkeypatch.undo()
    done = Done()
    rescan(world.site, world.site.bucket("bkt"), done)
    assert done.renewed == 10
    world.close()


def test_a_scan_of_a_bucket_that_has_gone_changes_nothing(tmp_path: Path) -> None:
    """Its disk may not be mounted now."""
    world = outside(tmp_path, 10)
    rescan(world.site, world.site.bucket("bkt"), Done())
    (tmp_path / "store/data/bkt").rename(tmp_path / "away")
    done = Done()
    rescan(world.site, world.site.bucket("bkt"), done)
    assert done == Done() and world.index.usage("bucket", "bkt").objects == 10
    (tmp_path / "away").rename(tmp_path / "store/data/bkt")
    world.close()


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_one_pass_gives_all_names_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, limit: int
) -> None:
    """Those of a large directory in several runs; what is ours, no plain file or no text is left out."""
    monkeypatch.setattr(scan, "RUN", 50)
    monkeypatch.setattr(scan, "_BLOCK", 8)
    rng = random.Random(seed)
    store = PosixStore(str(tmp_path / "store"))
    store.create_bucket("b")
    top = tmp_path / "store/data/b"
    wanted = {f"{rng.choice('ab')}{rng.choice('-./0x')}{number}" for number in range(400)}
    wanted = {name if name[1] != "/" else f"{name[0]}/{name[2:]}" for name in wanted}
    wanted |= {f"d{number}/e/{place}" for number in range(70) for place in "xy"} | {"k\u00e4se", "\U0001f600"}
    for name in wanted:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    (top / "link").symlink_to("x")
    os.mkfifo(top / "fifo")
    open(os.fsencode(top) + b"/\xff", "w").close()
    (top / "empty").mkdir()
    lots = list(store.walk("b", limit))
    assert [name for lot in lots for name in lot] == sorted(wanted, key=str.encode)
    assert all(len(lot) == limit for lot in lots[:-1]) and len(lots[-1]) <= limit
    assert [name for lot in lots for name in lot] == [entry.name for entry in store.names("b", limit=1000)]
    store.close()


def test_directories_that_go_during_a_pass_are_left_out(tmp_path: Path) -> None:
    """And their names are told as gone."""
    store = PosixStore(str(tmp_path / "store"))
    store.create_bucket("b")
    top = tmp_path / "store/data/b"
    for name in ("a/1", "b/1", "c/1"):
        (top / name).parent.mkdir()
        (top / name).touch()
    under_way = store.walk("b", 1)
    assert next(under_way) == ["a/1"]
    (top / "b").rename(tmp_path / "gone")
    assert list(under_way) == [["c/1"]]
    found = store.look("b", ["a/1", "b/1", "c/1"], {"c/1": store.stat("b", "c/1").token})
    assert found == {"a/1": store.stat("b", "a/1"), "b/1": None}
    store.close()
    with pytest.raises(Missing):
        list(store.walk("none"))


def test_a_directory_that_cannot_be_read_ends_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails must not look like one that is empty."""
    store = PosixStore(str(tmp_path / "store"))
    store.create_bucket("b")

    def broken(path: object) -> object:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", broken)
    with pytest.raises(Unavailable):
        list(store.walk("b"))
    monkeypatch.undo()
    store.close()


def test_the_short_way_to_a_row_leads_to_the_same() -> None:
    """For what others have made; names that are no keys have none."""
    bucket = Bucket(name="b", owner="o", created_ns=1, acl=Acl(owner="o"))
    entry = Entry(name="a/b", size=7, mtime_ns=8, token=b"t", stamp=9)
    meta = meta_of(bucket, entry)
    assert meta is not None
    assert outside_row(bucket, entry) == row_of(bucket, entry, meta)
    assert outside_row(bucket, Entry(name=".cumulus/x", size=7, mtime_ns=8, token=b"t", stamp=9)) is None


def test_a_scan_finds_sidecars_of_files_that_have_just_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of old files are not looked for where there were none when it began."""
    store = PosixStore(str(tmp_path / "store"), files=NoXattr())
    store.create_bucket("b")
    stream = store.open_write("b", "ours", 1)
    stream.write(memoryview(b"x"))
    stream.commit(b"meta")
    stream.close()
    real, none_yet = sidecar.any_in, [True]
    monkeypatch.setattr(sidecar, "any_in", lambda root: not (none_yet and none_yet.pop()) and real(root))
    assert store.look("b", ["ours"], {}) == {"ours": store.stat("b", "ours")}
    assert store.stat("b", "ours").meta == b"meta" and not none_yet
    store.close()


def test_the_first_sidecar_of_a_bucket_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was known that there are none; marks of directories are no sidecars."""
    store = PosixStore(str(tmp_path / "store"), files=NoXattr())
    store.create_bucket("b")
    (tmp_path / "store/data/b/theirs").write_text("x")
    inside = tmp_path / "store/data/b/.cumulus/meta"
    (inside / "dir-0-0").touch()
    os.utime(inside, ns=(1, 10**18))
    looked: list[str] = []
    real = sidecar.load
    monkeypatch.setattr(sidecar, "load", lambda root, file: looked.append(file) or real(root, file))
    for _ in range(2):
        assert [entry.meta for entry in store.names("b")] == [None]
    assert looked == []
    stream = store.open_write("b", "ours", 1)
    stream.write(memoryview(b"x"))
    stream.commit(b"meta")
    stream.close()
    assert [(entry.name, entry.meta) for entry in store.names("b")] == [("ours", b"meta"), ("theirs", None)]
    assert looked
    store.close()


def test_what_is_no_plain_file_any_more_is_not_listed(tmp_path: Path) -> None:
    """Names are kept between pages as long as their directory shows no change."""
    store = PosixStore(str(tmp_path / "store"))
    store.create_bucket("b")
    top = tmp_path / "store/data/b"
    for name in ("a", "b", "c", "d"):
        (top / name).write_text("x")
    os.utime(top, ns=(1, 10**18))
    assert len(store.names("b")) == 4
    (top / "a").unlink()
    (top / "b").unlink()
    os.mkfifo(top / "b")
    (top / "c").unlink()
    (top / "c").symlink_to("d")
    os.utime(top, ns=(1, 10**18))
    assert [entry.name for entry in store.names("b")] == ["d"]
    store.close()
