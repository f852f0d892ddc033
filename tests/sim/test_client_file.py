"""File objects over a simulated cluster: seeking, read-ahead, text, writers that fail."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sector import errors
from sector.client.cloud import CloudClient
from sector.client.file import CloudReader, CloudWriter, Ranges, TextWriter, check_mode
from sector.client.progress import Progress
from sector.client.transfer import Get
from sector.testing.cluster import SimCluster
from sector.testing.data import SimDataPort

SIZE = 9_000_001


@pytest.fixture
def sim(tmp_path: Path, seed: int) -> Iterator[SimCluster]:
    """Two slaves and a master, running."""
    with SimCluster(tmp_path / "sim", slaves=2, seed=seed) as cluster:
        yield cluster


def reader(sim: SimCluster, cloud: Any, path: str) -> CloudReader:
    """An open file."""
    return CloudReader(Ranges(cloud, sim.wait(cloud.stat(path))), lambda f, *a: sim.wait(f(*a)))


def test_random_reads_equal_a_local_file(sim: SimCluster, rng: random.Random) -> None:
    """Any mix of seeks and reads gives what a local file gives."""
    cloud = sim.client()
    content = rng.randbytes(SIZE)
    sim.wait(cloud.write("/f", content))
    model = io.BytesIO(content)
    with io.BufferedReader(reader(sim, cloud, "/f"), 65536) as file:
        for _ in range(60):
            match rng.randrange(4):
                case 0:
                    place = rng.randrange(SIZE + 10)
                    assert file.seek(place) == model.seek(place)
                case 1:
                    back = -rng.randrange(SIZE)
                    assert file.seek(back, 2) == model.seek(back, 2)
                case _:
                    count = rng.choice([0, 1, 1000, 70_000, 3_000_000])
                    assert file.read(count) == model.read(count)
            assert file.tell() == model.tell()
        file.seek(5)
        assert file.read() == content[5:]


def test_reading_beyond_the_end_gives_nothing(sim: SimCluster) -> None:
    """As pread does; a file that is missing is still an error."""
    cloud = sim.client()
    sim.wait(cloud.write("/f", b"0123456789"))
    got = [sim.wait(cloud.read_at("/f", offset, 5)) for offset in (3, 8, 10, 11, 1 << 40)]
    assert got == [b"34567", b"89", b"", b"", b""]
    with pytest.raises(errors.NotFound):
        sim.wait(cloud.read_at("/g", 11, 5))


def test_reading_in_order_asks_for_growing_windows(sim: SimCluster) -> None:
    """Read-ahead: far fewer transfers than reads, and no more than the bytes of the file."""
    cloud = sim.client()
    sim.wait(cloud.write("/f", bytes(SIZE)))
    before = sum(sim.net.moved.values())
    sim.advance(20)
    copied = sum(sim.net.moved.values())
    with reader(sim, cloud, "/f") as file:
        asked = 0
        while file.read(100_000):
            asked += 1
    moved = sum(sim.net.moved.values()) - copied
    assert before <= copied
    assert asked == 91
    assert moved <= SIZE + (2 << 20)


def test_a_limit_holds_for_all_that_is_read_at_once(sim: SimCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves keep it for each transfer: one follows the other. Progress is told as the reader gets it."""
    cloud = sim.client()
    size = 60_000_000
    content = random.Random(1).randbytes(size)
    sim.wait(cloud.write("/f", content))
    limits, running, most = [], [0], [0]
    receive = SimDataPort.receive_file

    def ended(result: Any) -> Any:
        running[0] -= 1
        return result

    def counted(port: SimDataPort, *args: Any, **kwargs: Any) -> Any:
        running[0] += 1
        most[0] = max(most[0], running[0])
        receiving = receive(port, *args, **kwargs)
        receiving.fin.addBoth(ended)
        return receiving

    open_read = Get.open

    def noted(get: Get, *args: Any, **kwargs: Any) -> Any:
        limits.append(get.limit)
        return open_read(get, *args, **kwargs)

    monkeypatch.setattr(SimDataPort, "receive_file", counted)
    monkeypatch.setattr(Get, "open", noted)
    told: list[tuple[int, int, int, int]] = []
    progress = Progress(
        listener=lambda now: told.append((now.files_done, now.files_total, now.bytes_done, now.bytes_total))
    )
    ranges = Ranges(cloud, sim.wait(cloud.stat("/f")), limit=5_000_000, progress=progress)
    with CloudReader(ranges, lambda f, *a: sim.wait(f(*a))) as file:
        assert b"".join(iter(lambda: file.read(55_000_000), b"")) == content
    assert set(limits) == {5_000_000} and most == [1]
    assert told == [(0, 1, 55_000_000, size), (1, 1, size, size)]


def test_a_writer_tells_its_progress_and_keeps_its_limit(
    sim: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = sim.client()
    limits: list[int] = []

    def limited(_cloud: Any, rate: int) -> Any:
        limits.append(rate)
        return lambda: limits.append(0)

    monkeypatch.setattr(CloudClient, "_limit", limited)
    progress = Progress()
    writer = CloudWriter(cloud, "/f", "any", lambda f, *a: sim.wait(f(*a)), limit=5, progress=progress)
    writer.write(b"12345")
    assert limits == []
    writer.close()
    assert limits == [5, 0]
    assert (progress.files_done, progress.bytes_done, progress.bytes_total) == (1, 5, 5)


def test_an_open_file_keeps_its_version(sim: SimCluster) -> None:
    """Replaced while open: the reader gets the old bytes or a Conflict, never a mix."""
    cloud = sim.client()
    sim.wait(cloud.write("/f", b"a" * 3_000_000))
    with reader(sim, cloud, "/f") as file:
        assert file.read(10) == b"a" * 10
        sim.wait(cloud.write("/f", b"b" * 3_000_000))
        try:
            rest = file.read_at(2_500_000, 10)
        except (errors.Conflict, errors.NotFound, errors.Unavailable):
            rest = b"a" * 10
        assert rest == b"a" * 10


def fail_while_writing(file: Any) -> None:
    """Leave the file's block by an exception."""
    with file:
        file.write("half" if isinstance(file, TextWriter) else b"half")
        raise RuntimeError


def test_writers_publish_at_close_or_not_at_all(sim: SimCluster) -> None:
    cloud = sim.client()

    def wait(function: Any, *args: Any) -> Any:
        return sim.wait(function(*args))

    with CloudWriter(cloud, "/f", "any", wait) as file:
        file.write(b"hello ")
        file.write(b"world")
        assert not sim.wait(cloud.exists("/f"))
    assert file.published is not None
    assert sim.wait(cloud.read("/f")) == b"hello world"
    for broken in (
        CloudWriter(cloud, "/f", "any", wait),
        TextWriter(CloudWriter(cloud, "/f", "any", wait), "utf-8", None, None),
    ):
        with pytest.raises(RuntimeError):
            fail_while_writing(broken)
    assert sim.wait(cloud.read("/f")) == b"hello world"
    with TextWriter(CloudWriter(cloud, "/t", "new", wait), "utf-8", None, None) as text:
        text.write("żółw\n")
    assert sim.wait(cloud.read("/t")) == "żółw\n".encode()


@pytest.mark.parametrize("how", ["text", "detached", "binary"])
@pytest.mark.parametrize("cyclic", [False, True])
def test_a_writer_that_is_forgotten_publishes_nothing(sim: SimCluster, how: str, cyclic: bool) -> None:
    """An exception without a `with` block: half of the file would replace the whole one at some later time,
    whichever of its parts is collected first."""
    cloud = sim.client()
    sim.wait(cloud.write("/f", b"before"))
    writer = CloudWriter(cloud, "/f", "any", lambda f, *a: sim.wait(f(*a)))
    place: Any = writer
    if how != "binary":
        place = TextWriter(writer, "utf-8", None, None)
        place.write("half")
        if how == "detached":
            place = place.detach()
    if how != "text":
        place.write(b"half")
    if cyclic:
        ring: list[Any] = [place]
        ring.append(ring)
        for _ in range(3):
            gc.collect()
        del ring
    del writer, place
    gc.collect()
    assert sim.wait(cloud.read("/f")) == b"before"


def test_a_detached_buffer_publishes_at_its_close(sim: SimCluster) -> None:
    """It is its own master, also when the text file has gone."""
    cloud = sim.client()
    text = TextWriter(CloudWriter(cloud, "/f", "any", lambda f, *a: sim.wait(f(*a))), "utf-8", None, None)
    text.write("whole")
    buffer = text.detach()
    del text
    gc.collect()
    buffer.write(b" file")
    buffer.close()
    assert sim.wait(cloud.read("/f")) == b"whole file"


class FullOnce:
    """A temporary file whose disk is full for one write."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._full = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, body: Any, /) -> int:
        if self._full:
            self._full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(self._file.write(body))


@pytest.mark.parametrize("text", [True, False])
def test_a_write_that_failed_publishes_nothing(sim: SimCluster, text: bool) -> None:
    """The local disk has no room while the last bytes are flushed, or for a write whose error somebody
    catches: what was there before stays, and close() says so."""
    cloud = sim.client()
    sim.wait(cloud.write("/f", b"before"))
    writer = CloudWriter(cloud, "/f", "any", lambda f, *a: sim.wait(f(*a)))
    writer._spool = FullOnce(writer._spool)  # type: ignore[assignment]
    if text:
        with pytest.raises((OSError, errors.LocalIO)):
            with TextWriter(writer, "utf-8", None, None) as file:
                file.write("only part of this would come")
    else:
        with contextlib.suppress(OSError):
            writer.write(b"lost")
        writer.write(b"and then some")
        with pytest.raises(errors.LocalIO, match="/f was not published"):
            writer.close()
    assert writer.closed and writer.published is None
    assert sim.wait(cloud.read("/f")) == b"before"


def test_modes() -> None:
    assert check_mode("rb") == ("r", False)
    assert check_mode("x") == ("new", True)
    for bad in ("a", "r+b", "", "rw"):
        with pytest.raises(errors.UsageError):
            check_mode(bad)
