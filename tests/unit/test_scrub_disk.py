"""Looking for rot in a slave's directory, with faults of the disk put in where the file is read."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from slave_disk import V1, V2, content_of, meta_of, store
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.internet.task import Clock

from sector import errors
from sector._udt import checksum
from sector.model import Version
from sector.slave import area, rot
from sector.slave.pool import Inline
from sector.slave.rot import ScrubbedDisk
from sector.slave.scrub import Pace, Scrubber
from sector.wire.slave import Rotten, ScrubState

MIB = 1 << 20
CONTENT = random.Random(5).randbytes(9 * MIB + 5)
DAY = 86400.0


class Box:
    """A slave's directory with its scrub, in simulated time; what the master would be told is in `told`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.wall = 1_700_000_000.0
        self.told: list[tuple[str, Version]] = []
        self.busy = False
        self.start()

    def start(self) -> None:
        """The slave starts."""
        self.disk = ScrubbedDisk(str(self.root), "s1")
        self.disk.open_thd()
        self.scrub = Scrubber(
            self.disk,
            Inline(),
            self.clock,
            Pace(14 * DAY, 50_000_000),
            wall=lambda: self.wall + self.clock.seconds(),
            busy=lambda: self.busy,
            condemn=self._condemn,
            tell=self._tell,
            idle=False,
        )
        ensureDeferred(self.scrub.load())
        self.running: Deferred[Any] = ensureDeferred(self.scrub.run())
        self.running.addErrback(lambda failure: failure.trap(CancelledError) and None)

    async def _condemn(self, path: str, version: Version, why: str) -> bool:
        first = path in self.disk.entries
        with suppress(errors.SectorError):  # as Transfers.condemn
            self.disk.set_aside_thd(path, version, why)
        await self._tell(path, version, why)
        return first

    async def _tell(self, path: str, version: Version, why: str) -> None:
        self.told.append((path, version))

    def stop(self) -> None:
        """A clean stop."""
        self.scrub.stop()
        self.running.cancel()
        self.scrub.stopped()
        self.disk.close_thd()

    def kill(self) -> None:
        """Gone without a word."""
        self.running.cancel()
        self.disk.close_thd()

    def ask(self, seconds: float = 120.0) -> ScrubState:
        """A pass that a user asks for; how it ended."""
        self.scrub.answer(True)
        for _ in range(int(seconds * 10)):
            self.clock.advance(0.1)
        assert not self.scrub.state.running
        return self.scrub.state

    @property
    def found(self) -> list[Rotten]:
        return self.scrub.answer(False).found

    def attic(self) -> list[bytes]:
        """What was set aside."""
        return [(box / "data").read_bytes() for box in (self.root / ".sector/attic").iterdir()]

    def native(self, path: str) -> Path:
        return self.root / "files" / path[1:]

    def record(self, path: str) -> Path:
        return Path(self.disk._record_file(self.disk.entries[path]))


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A directory with two contents."""
    target = Box(tmp_path / "d")
    store(target.disk, "/a/x", CONTENT, V1)
    store(target.disk, "/b", b"small", V2)
    yield target
    target.stop()


def flip(file: Path, at: int) -> None:
    """One bit is another one, and the times of the file do not tell."""
    stamp = file.stat()
    with open(file, "r+b") as target:
        (byte,) = os.pread(target.fileno(), 1, at)
        os.pwrite(target.fileno(), bytes([byte ^ 1]), at)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


Crcs = Callable[..., list[int]]


def failing(monkeypatch: pytest.MonkeyPatch, block: int, times: int, number: int = errno.EIO) -> list[int]:
    """Reads of one block of large files fail so often; returns the list of the failed ones."""
    real: Crcs = checksum.block_crcs
    failed: list[int] = []

    def read(fd: int, offset: int, length: int, *rest: Any) -> list[int]:
        if offset == block * MIB and os.fstat(fd).st_size > MIB and len(failed) < times:
            failed.append(offset)
            raise OSError(number, os.strerror(number))
        return real(fd, offset, length, *rest)

    monkeypatch.setattr(rot.checksum, "block_crcs", read)
    return failed


def test_sound_contents_stay_and_all_is_read(box: Box) -> None:
    state = box.ask()
    assert (state.bad_files, state.files, state.done_bytes) == (0, 2, len(CONTENT) + 5)
    assert state.read_bytes == len(CONTENT) + 5 and box.told == [] and box.attic() == []


def test_a_flipped_bit_of_data(box: Box) -> None:
    """In the last, short block too; the content goes to the attic, the other one stays."""
    flip(box.native("/a/x"), len(CONTENT) - 1)
    flip(box.native("/a/x"), 8 * MIB + 3)
    state = box.ask()
    assert (state.bad_files, state.bad_blocks) == (1, 2)
    assert box.told == [("/a/x", V1)] and "block 8 " in box.found[0].why
    assert len(box.attic()) == 1 and list(box.disk.entries) == ["/b"]


def test_an_unreadable_block_counts_only_if_it_stays_so(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO once, as after a reset of the bus, is no rot; EIO each time is."""
    failed = failing(monkeypatch, 3, 1)
    assert box.ask().bad_files == 0 and len(failed) == 1
    failed = failing(monkeypatch, 3, 100)
    state = box.ask()
    assert (state.bad_files, state.bad_blocks) == (1, 1) and len(failed) == 3
    assert box.told == [("/a/x", V1)] and box.attic() == [CONTENT]


def test_a_lack_of_descriptors_is_no_rot(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it lasts: the file is left out of this pass."""
    failing(monkeypatch, 3, 10**6, errno.ENOMEM)
    state = box.ask(300)
    assert state.bad_files == 0 and box.told == [] and "/a/x" in box.disk.entries


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1, 0])
def test_a_file_of_another_length(box: Box, size: int) -> None:
    os.truncate(box.native("/a/x"), size)
    assert box.ask().bad_files == 1
    assert box.told == [("/a/x", V1)] and [len(data) for data in box.attic()] == [size]
    assert f"has {size} bytes" in box.found[0].why


def test_a_file_that_is_gone_or_another_kind(box: Box) -> None:
    box.native("/a/x").unlink()
    box.native("/b").unlink()
    box.native("/b").mkdir()
    assert box.ask().bad_files == 2
    assert sorted(box.told) == [("/a/x", V1), ("/b", V2)] and box.disk.entries == {}


def test_what_readers_find_meanwhile_is_of_the_pass_too(box: Box) -> None:
    """Who waits for the pass hears of it, and hears of nothing twice."""
    box.scrub.heard("/old", V1, "before any pass")
    box.native("/b").unlink()
    box.scrub.answer(True)
    box.clock.advance(0.01)
    box.scrub.heard("/c", V1, "block 0 does not fit its checksum")
    assert box.ask().bad_files == 2
    assert sorted(bad.path for bad in box.found) == ["/b", "/c"]


def test_only_the_times_changed(box: Box) -> None:
    """Somebody's `touch` costs nothing."""
    os.utime(box.native("/a/x"), (1, 1))
    assert box.ask().bad_files == 0
    assert box.told == [] and content_of(box.disk, "/a/x", V1) == CONTENT


def spoilt(how: str, file: Path) -> None:
    """A record is damaged."""
    match how:
        case "gone":
            file.unlink()
        case "cut":
            os.truncate(file, file.stat().st_size // 2)
        case _:
            text = file.read_bytes()
            at = text.index(how.encode()) + len(how) + 4
            flip(file, at)


@pytest.mark.parametrize("how", ["gone", "cut", '"blocks"', '"digest"', '"owner"', '"path"'])
def test_a_bad_record_of_a_good_content_is_written_anew(box: Box, how: str) -> None:
    """The digest that the slave knows proves the content: it stays in its place, also as the last copy."""
    before = box.record("/a/x").read_bytes()
    spoilt(how, box.record("/a/x"))
    state = box.ask()
    assert (state.bad_files, state.mended) == (1, 1) and box.found[0].mended
    assert box.told == [] and box.attic() == []
    assert box.record("/a/x").read_bytes() == before
    assert box.ask().bad_files == 0


def test_a_bad_record_of_a_bad_content(box: Box) -> None:
    """Nothing proves it: it is set aside."""
    box.record("/a/x").unlink()
    flip(box.native("/a/x"), 5)
    assert box.ask().mended == 0
    assert box.told == [("/a/x", V1)] and len(box.attic()) == 1


def test_a_bad_replica_that_a_reader_sets_aside_first_counts_once(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read it at the same time: the reader's word counts, and the scrub's look adds nothing."""
    flip(box.native("/a/x"), 3 * MIB)
    look = box.disk.look_thd

    def reader_is_faster(record: Any, *args: Any) -> rot.Look:
        found = look(record, *args)
        if found.kind == "bad" and record.path in box.disk.entries and len(waited) == 2:
            box.scrub.heard(record.path, record.version, "damaged in block 3")
            box.disk.set_aside_thd(record.path, record.version, "damaged in block 3")
        elif found.kind == "bad":
            waited.append(found.why)
        return found

    waited: list[str] = []
    monkeypatch.setattr(box.disk, "look_thd", reader_is_faster)
    state = box.ask()
    assert len(waited) == 2 and len(box.attic()) == 1
    assert (state.bad_files, state.all_bad_files) == (1, 1)
    assert [bad.why for bad in box.found] == ["damaged in block 3"]


def no_attic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is too full for another folder in the attic."""
    real = os.mkdir

    def mkdir(path: Any, *args: Any, **options: Any) -> None:
        if "attic" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, *args, **options)

    monkeypatch.setattr(area.os, "mkdir", mkdir)


def test_what_a_full_disk_does_not_let_be_set_aside_is_no_good_replica_either(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after a restart either, and the scrub goes on to the next file; nothing is deleted."""
    flip(box.native("/a/x"), 7)
    os.utime(box.native("/b"), (1, 1))
    flip(box.native("/b"), 0)
    no_attic(monkeypatch)
    assert box.ask().bad_files == 2
    assert sorted(box.told) == [("/a/x", V1), ("/b", V2)]
    box.stop()
    monkeypatch.undo()
    box.start()
    assert "/a/x" not in box.disk.entries
    assert len(box.native("/a/x").read_bytes()) == len(CONTENT)


def test_what_is_renamed_or_replaced_meanwhile_is_no_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing and its turn a file gets another name, another is removed, a third is replaced: the
    renamed one is read all the same."""
    store(box.disk, "/c", b"old", V1)
    flip(box.native("/a/x"), 100)
    real = box.disk.order_thd

    def listed(after: int) -> Any:
        records = real(after)
        box.disk.rename_thd("/a/x", V1, meta_of("/z", CONTENT, Version(1, 9)))
        box.disk.delete_thd("/b", V2)
        store(box.disk, "/c", b"new", Version(1, 10))
        return records

    monkeypatch.setattr(box.disk, "order_thd", listed)
    assert box.ask().bad_files == 1
    assert box.told == [("/z", Version(1, 9))]
    assert content_of(box.disk, "/c", Version(1, 10)) == b"new"


def test_a_restart_goes_on_in_the_middle_of_a_file(box: Box) -> None:
    """What was read is not read again."""
    box.scrub.answer(True)
    for _ in range(20):
        if box.scrub._schedule.progress.at:
            break
        box.clock.advance(0.02)
    number = box.scrub.state.number
    assert box.scrub.state.running
    box.stop()
    flip(box.native("/a/x"), 10)  # in what is behind it
    box.start()
    for _ in range(600):
        box.clock.advance(0.1)
    state = box.scrub.state
    assert (state.number, state.running, state.asked) == (number, False, True)
    assert state.read_bytes <= len(CONTENT) + 5, "no byte twice"
    assert box.ask().bad_files == 1, "the next pass reads all"


def test_findings_outlive_a_restart(box: Box) -> None:
    box.native("/b").unlink()
    before = box.ask()
    box.stop()
    box.start()
    assert [bad.path for bad in box.found] == ["/b"]
    assert box.scrub.state == before


@pytest.mark.parametrize("body", [b"", b"{", b'{"state":[1,true],"age_s":-1e99}', b"\xff\xfe", b"[]"])
def test_a_damaged_state_begins_anew(box: Box, body: bytes) -> None:
    box.kill()
    (box.root / ".sector/scrub.json").write_bytes(body)
    box.start()
    assert box.ask().bad_files == 0
    assert box.scrub.state.files == 2


def test_a_user_who_asks_again_joins_the_pass_and_one_by_itself_gives_way(box: Box) -> None:
    """At its own pace a pass takes days; who asks waits for seconds."""
    box.clock.advance(70)
    state = box.scrub.state
    assert (state.running, state.asked) == (True, False)
    asked = box.scrub.answer(True).state
    assert (asked.number, asked.asked) == (state.number + 1, True)
    assert box.scrub.answer(True).state.number == asked.number
    assert box.ask().number == asked.number


def test_it_steps_back_while_transfers_run(box: Box) -> None:
    """For a user at a fourth of the rate, and by itself not at all."""
    box.clock.advance(70)
    box.busy = True
    before = box.scrub.state.read_bytes
    for _ in range(60):
        box.clock.advance(60)
    assert box.scrub.state.read_bytes == before
    box.scrub.answer(True)
    for _ in range(5):
        box.clock.advance(0.1)
    assert box.scrub.state.read_bytes < len(CONTENT)
    box.ask()


def test_reads_come_from_the_disk_and_leave_nothing_in_memory(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is told to forget each part before it is read and after."""
    told: list[tuple[int, int]] = []
    real = os.posix_fadvise

    def advise(fd: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        told.append((offset, length))
        real(fd, offset, length, advice)

    monkeypatch.setattr(rot.os, "posix_fadvise", advise)
    box.ask()
    assert sum(length for _, length in told) == 2 * (len(CONTENT) + 5)


def test_only_the_thread_of_the_scrub_is_idle() -> None:
    """Where the system has it: whoever else reads in this process keeps his turn at the disk."""
    libc = ctypes.CDLL(None)
    libc.syscall.restype = ctypes.c_long
    number = {"x86_64": 252, "aarch64": 31}.get(platform.machine(), 0)

    def priority() -> int:
        return int(libc.syscall(number, 1, 0)) if number else -1

    before = priority()
    seen: list[tuple[bool, int]] = []
    thread = threading.Thread(target=lambda: seen.append((rot.be_idle_thd(), priority())))
    thread.start()
    thread.join()
    ((idle, inside),) = seen
    assert priority() == before
    assert idle == (inside == 3 << 13) or not number
