"""Disks that return other bytes than were written: the doctor reads all objects and finds them."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
from by_the_rules import by_the_rules
from cumulus_commands import Commands

from cumulus.backends.posix.store import PosixStore
from cumulus.model import Acl, ObjectMeta, Part, encode_meta
from cumulus.ops.names import odd_name, version_name
from cumulus.storage.api import Unavailable


def md5(data: bytes) -> str:
    """As an ETag."""
    return hashlib.md5(data).hexdigest()


def crc32(data: bytes) -> str:
    """As S3 writes it."""
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def put(store: PosixStore, key: str, data: bytes, name: str = "", **fields: Any) -> None:
    """One object."""
    fields = {"etag": md5(data), "version": "null", **fields}
    meta = ObjectMeta(key=key, size=len(data), modified_ns=1, acl=Acl(owner="o"), **fields)
    stream = store.open_write("lab", name or key)
    stream.write(memoryview(data))
    stream.commit(encode_meta(meta))
    stream.close()


def rot(path: Path, at: int = 0) -> None:
    """One bit is another one; nothing else says so."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        bit = file.read(1)[0] ^ 1
        file.seek(at)
        file.write(bytes([bit]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A bucket with an object of each kind."""
    cloud("bucket", "add", "lab", "--owner", "admin")
    store = PosixStore(str(cloud.dir))
    one, two = b"1" * 500, b"2" * 300
    put(store, "d/plain", b"plain")
    put(store, "x/../odd", b"odd", odd_name("x/../odd"))
    put(store, "v", b"older", version_name("v", "v0"), version="v0")
    put(store, "whole", b"whole", etag="opaque-0", checksums={"crc32": crc32(b"whole")},
        checksum_type="FULL_OBJECT")  # fmt: skip
    put(store, "parts", one + two, etag=f"{'0' * 32}-2",
        parts=(Part(number=1, size=500, etag=md5(one)), Part(number=4, size=300, etag=md5(two))))  # fmt: skip
    put(store, "nothing", b"?", etag="unknown-0")
    put(store, "gone", b"", version_name("gone", "v1"), version="v1", etag="", marker=True)
    store.close()
    (cloud.dir / "data/lab/foreign").write_bytes(b"f")
    return cloud


def test_whole_objects_are_right(run: Commands) -> None:
    """Those without a sum are counted apart. What somebody has changed in the usual way is another file."""
    found = run.json("doctor", "--verify")
    assert [(one["right"], one["without_sum"], one["bytes"]) for one in found] == [(5, 2, 818)]
    assert found[0]["damaged"] == [] and not run.err
    (run.dir / "data/lab/d/plain").write_bytes(b"edited")
    assert run.json("doctor", "--verify")[0]["without_sum"] == 3


def test_one_bit_is_found_wherever_it_is(run: Commands) -> None:
    """Status 1, with key, version and file of each."""
    lab = run.dir / "data/lab"
    names = {
        "d/plain": "d/plain",
        "x/../odd": odd_name("x/../odd"),
        "v": version_name("v", "v0"),
        "whole": "whole",
        "parts": "parts",
    }
    for name in names.values():
        rot(lab / name, 700 if name == "parts" else 0)
    found = run.json("doctor", "--verify", status=1)[0]
    assert {one["key"]: one["name"] for one in found["damaged"]} == names and found["right"] == 0
    why = {one["key"]: one["why"] for one in found["damaged"]}
    assert "MD5 of part 2 " in why["parts"] and "CRC32 " in why["whole"] and "MD5 " in why["d/plain"]
    assert "damaged: lab/v (version null): " in run.err and "backup" in run.err
    assert " 5\n" in run("doctor", "--verify", status=1)


def test_what_cannot_be_read_keeps_nothing_else_from_being_looked_at(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another account, and one at which the disk fails."""
    lab = run.dir / "data/lab"
    rot(lab / "d/plain")
    (lab / "z").write_bytes(b"of others")
    os.chown(lab / "z", 12345, 12345)
    (lab / "z").chmod(0)
    real = PosixStore.open_read

    def open_read(store: PosixStore, bucket: str, name: str, *words: Any) -> Any:
        if name == "nothing":
            raise Unavailable("nothing: Input/output error")
        return real(store, bucket, name, *words)

    monkeypatch.setattr(PosixStore, "open_read", open_read)
    with by_the_rules():
        found = run.json("doctor", "--verify", status=1)[0]
    assert {one["name"] for one in found["damaged"]} == {"d/plain", "nothing", "z"} and found["right"] == 4
    assert "damaged: lab/z: " in run.err and "Permission denied" in run.err and "owner" in run.err
    assert "damaged: lab/nothing: nothing: Input/output error\n" in run.err


def test_a_disk_that_goes_meanwhile_has_no_damaged_objects(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bucket is left out."""
    place = tmp_path / "disk"
    place.mkdir()
    for name in ("a", "b"):
        (place / name).write_bytes(b"x")
    run("bucket", "add", "disk", "--owner", "admin", "--path", str(place))
    real = PosixStore.open_read

    def open_read(store: PosixStore, bucket: str, name: str, *words: Any) -> Any:
        if bucket == "disk" and place.exists():
            place.rename(tmp_path / "unplugged")
        return real(store, bucket, name, *words)

    monkeypatch.setattr(PosixStore, "open_read", open_read)
    found = {one["name"]: one for one in run.json("doctor", "--verify", status=1)}
    assert "is its disk mounted" in found["disk"]["left_out"] and found["lab"]["damaged"] == []


def test_it_is_done_alone(run: Commands) -> None:
    assert "changes nothing" in run.refused("doctor", "--verify", "--rebuild", status=2)["message"]
    assert run.refused("doctor", "--verify", "--storage", ".", status=2)["message"].startswith("--verify")
    (run.dir / "data").rename(run.dir / "away")
    assert run("doctor", "--verify", status=1) == ""
