"""Records of objects of very many parts: 10,000 with their sums are more than a megabyte. And longer ones."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cumulus.backends.fsspec_record import FOOTER_SIZE, Footer
from cumulus.backends.posix.records import PUT, Change, encode, read
from cumulus.backends.posix.store import PosixStore
from cumulus.model import Acl, ObjectMeta, Part, decode_meta, encode_meta

SUMS = {"crc32": 8, "crc64nvme": 12, "sha1": 28, "sha256": 44}  # characters in base64


def of_parts(algorithm: str) -> ObjectMeta:
    """Of an object as the largest uploads make it."""
    parts = tuple(
        Part(
            number=number,
            size=5 << 30,
            etag=hashlib.md5(str(number).encode()).hexdigest(),
            checksums={algorithm: "A" * SUMS[algorithm]},
            modified_ns=1_700_000_000_000_000_000 + number,
        )
        for number in range(1, 10_001)
    )
    user = {"a": "v" * 2047}
    return ObjectMeta(
        key="k" * 1024, size=3, etag="x" * 38, modified_ns=1, acl=Acl(owner="a" * 64), user=user, parts=parts
    )


@pytest.mark.parametrize("algorithm", SUMS)
def test_an_object_of_ten_thousand_parts_keeps_its_record(tmp_path: Path, algorithm: str) -> None:
    """ETag, owner, headers: also under the next process, in listings, and as an older version."""
    meta = of_parts(algorithm)
    store = PosixStore(str(tmp_path / "store"))
    store.create_bucket("b")
    stream = store.open_write("b", "k", 3)
    stream.write(memoryview(b"abc"))
    stream.commit(encode_meta(meta))
    store.link("b", "k", ".cumulus/versions/k/1")
    store.close()
    store = PosixStore(str(tmp_path / "store"))
    try:
        for name in ("k", ".cumulus/versions/k/1"):
            found = store.stat("b", name).meta
            assert found is not None and decode_meta(found) == meta
        assert [entry.meta is not None for entry in store.names("b")] == [True]
    finally:
        store.close()


def test_a_long_record_in_a_journal_hides_none_behind_it(tmp_path: Path) -> None:
    """What was acknowledged after it is there after a power cut."""
    changes = [Change(PUT, "b", str(number), meta=encode_meta(of_parts("sha256"))) for number in range(2)]
    changes.append(Change(PUT, "b", "small", meta=b"m", body=b"body"))
    file = tmp_path / "journal"
    file.write_bytes(b"".join(map(encode, changes)))
    fd = os.open(file, os.O_RDONLY)
    try:
        assert [change for _, change in read(fd)] == changes
    finally:
        os.close(fd)


@pytest.mark.parametrize(("size", "known"), [(1_500_000, True), (5 << 20, False)])
def test_a_footer_with_more_than_any_record_is_none(size: int, known: bool) -> None:
    """Who may write in the storage beside us would have us take all of it into memory."""
    file = b"body" + Footer(1, 2, b"n" * 8, b"m" * size).encode()
    asked: list[int] = []

    def read(start: int, end: int) -> bytes:
        asked.append(end - start)
        return file[start:end]

    found = Footer.decode(len(file), file[-FOOTER_SIZE:], read)
    assert (found is not None, asked) == ((True, [size]) if known else (False, []))
