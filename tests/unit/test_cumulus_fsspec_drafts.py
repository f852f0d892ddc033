"""Uploads over fsspec while they are under way: what they hold, and what is left of those that fail."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from cumulus.backends import fsspec_link
from cumulus.backends.fsspec_store import FsspecStore
from cumulus.storage.api import Changed, StorageError, Taken


class Upload(AbstractBufferedFile):
    """Sends block after block, as to an object store; `room` blocks are taken."""

    sent: list[int] = []
    blocks: list[Any] = []
    discarded = 0
    room = 1000

    def _upload_chunk(self, final: bool = False) -> bool:
        Upload.sent.append(self.buffer.tell())
        if len(Upload.sent) > Upload.room:
            raise OSError(28, "No space left on device")
        self.fs.store_block(self.path, self.buffer.getvalue(), final)
        return True

    def discard(self) -> None:
        Upload.discarded += 1
        self.buffer = None


class Blocks(MemoryFileSystem):
    """Files that hold a block in memory until it is sent."""

    protocol = "blocks"
    default_block_size = 50 << 20
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    parts: dict[str, bytes] = {}

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> Any:
        if mode == "rb":
            return super()._open(path, mode, block_size, **options)
        Upload.blocks.append(block_size)
        return Upload(self, path, mode, block_size or self.default_block_size)

    def store_block(self, path: str, data: bytes, final: bool) -> None:
        """The file is there when its last block is."""
        self.parts[path] = self.parts.get(path, b"") + data
        if final:
            self.pipe_file(path, self.parts.pop(path))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with MemoryFileSystem._open(self, self._strip_protocol(path), "wb") as file:
            file.write(value)


fsspec.register_implementation("blocks", Blocks, clobber=True)


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FsspecStore:
    """With the bucket "b"."""
    monkeypatch.setattr(Blocks, "store", {})
    monkeypatch.setattr(Blocks, "pseudo_dirs", [""])
    for name, value in (("sent", []), ("blocks", []), ("discarded", 0)):
        monkeypatch.setattr(Upload, name, value)
    store = FsspecStore(f"blocks://{tmp_path}")
    store.create_bucket("b")
    return store


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file becomes larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("ends", ["commit", "write", "set_meta"])
def test_an_upload_that_has_no_room_leaves_nothing(tmp_path: Path, ends: str) -> None:
    """Whatever is still in the file's buffer, and cannot be written either when the file is closed."""
    store = FsspecStore(f"file://{tmp_path}/f")
    store.create_bucket("b")
    if ends == "set_meta":
        stream = store.open_write("b", "k")
        stream.write(memoryview(bytes(1 << 20)))
        token = stream.commit(b"").token
        with room_for(1 << 20), pytest.raises(StorageError):
            store.set_meta("b", "k", b"other", token)
        assert store.stat("b", "k").meta == b""
    else:
        stream = store.open_write("b", "k")
        with room_for(1 << 20):
            if ends == "commit":
                stream.write(memoryview(bytes(1 << 20)))
                with pytest.raises(StorageError):
                    stream.commit(b"meta")
            else:
                with pytest.raises(StorageError):
                    stream.write(memoryview(bytes(2 << 20)))
            stream.close()
    assert os.listdir(tmp_path / "f/b/.cumulus/tmp") == []


def test_an_upload_that_is_given_up_sends_no_more(blocks: FsspecStore) -> None:
    """What it holds is of no use; where nothing can be sent, the first failure is the last attempt."""
    stream = blocks.open_write("b", "k", 100)
    stream.write(memoryview(b"x" * 100))
    stream.close()
    assert (Upload.sent, Upload.discarded) == ([], 1)
    assert blocks.fs.ls(blocks.path("b", ".cumulus/tmp")) == []


def test_a_file_over_one_connection_is_given_up_as_well(
    blocks: FsspecStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of FTP."""
    monkeypatch.setattr(fsspec_link, "ALONE", [*fsspec_link.ALONE, __name__])
    stream = FsspecStore(f"blocks://{tmp_path}").open_write("b", "k", 100)
    stream.write(memoryview(b"x" * 100))
    stream.close()
    assert (Upload.sent, Upload.discarded) == ([], 1)


def test_a_second_attempt_that_has_no_room_leaves_no_former_draft(tmp_path: Path) -> None:
    """The name was taken while the first one was made, so there are two for a moment."""
    store = FsspecStore(f"file://{tmp_path}/f")
    store.create_bucket("b")
    stream = store.open_write("b", "k")
    stream.write(memoryview(bytes(1 << 20)))
    real = store._check_free
    (tmp_path / "f/b/k").mkdir()
    store._check_free = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        stream.commit(b"")
    store._check_free = real  # type: ignore[method-assign]
    with pytest.raises(Taken):
        stream.commit(b"")
    with room_for(1 << 19), pytest.raises(StorageError):
        stream.commit(b"", name="other")
    stream.close()
    assert os.listdir(tmp_path / "f/b/.cumulus/tmp") == []


def test_an_upload_holds_little_in_memory_and_has_few_enough_blocks(blocks: FsspecStore) -> None:
    """S3 takes blocks of 5 MiB or more, and 10,000 of them. Of unknown size it may be a large one."""
    for hint in (0, 100, 40 << 30, 5 << 40, None):
        blocks.open_write("b", "k", hint).close()
    small, same, some, large, unknown = Upload.blocks
    assert small == same == some == 5 << 20
    assert (5 << 40) / 9500 < large < (5 << 40) / 8500
    assert unknown is None
    Upload.blocks.clear()
    stream = blocks.open_write("b", "k", 11 << 20)
    for _ in range(11):
        stream.write(memoryview(bytes(1 << 20)))
    stream.commit(b"meta")
    assert len(Upload.sent) == 3 and max(Upload.sent) < 7 << 20
    blocks.set_meta("b", "k", b"other", blocks.stat("b", "k").token)
    assert Upload.blocks == [5 << 20, 5 << 20]
    assert blocks.stat("b", "k").size == 11 << 20


def test_a_completion_holds_little_in_memory_too(blocks: FsspecStore) -> None:
    """Its size is known; the driver's 50 MiB end at 488 GiB, after hours of copying."""
    for name in ("p1", "p2"):
        stream = blocks.open_write("b", name, 3)
        stream.write(memoryview(b"abc"))
        stream.commit(b"")
        stream.close()
    Upload.blocks.clear()
    blocks.concat("b", ["p1", "p2"], "k", b"", size=6)
    blocks.concat("b", ["p1", "p2"], "large", b"", size=5 << 40)
    assert Upload.blocks[0] == 5 << 20 and Upload.blocks[1] > (5 << 40) / 9500


def test_files_of_other_drivers_are_opened_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFTP would hold so much in its buffer, and FTP sends after 64 KiB."""
    seen: list[dict[str, Any]] = []
    ask = MemoryFileSystem.open
    monkeypatch.setattr(
        MemoryFileSystem, "open", lambda *words, **options: seen.append(options) or ask(*words, **options)
    )
    store = FsspecStore(f"memory://{tmp_path}")
    store.create_bucket("b")
    seen.clear()
    store.open_write("b", "k", 100).close()
    assert seen == [{}]


@pytest.mark.parametrize("meta", [b"m" * 1_500_000, b"m", b""])
def test_a_block_of_a_download_costs_no_second_look_at_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meta: bytes
) -> None:
    """That of 10,000 parts is larger than the block. What was replaced is noticed all the same."""
    store = FsspecStore(f"memory://{tmp_path}")
    store.create_bucket("b")
    stream = store.open_write("b", "k")
    stream.write(memoryview(bytes(1 << 20)))
    stream.commit(meta)
    read: list[int] = []
    ask = MemoryFileSystem.cat_file
    monkeypatch.setattr(
        MemoryFileSystem,
        "cat_file",
        lambda fs, path, start, end: read.append(end - start) or ask(fs, path, start, end),
    )
    reader = store.open_read("b", "k")
    assert sum(read) <= len(meta) + 8192
    read.clear()
    assert b"".join(reader.read_at(offset, 1 << 16) for offset in range(0, 1 << 20, 1 << 16)) == bytes(
        1 << 20
    )
    assert sum(read) <= (1 << 20) + 16 * 40
    other = store.open_write("b", "k")
    other.write(memoryview(bytes(1 << 20)))
    other.commit(meta)
    assert not reader.unchanged()
    with pytest.raises(Changed):
        reader.read_at(0, 10)
