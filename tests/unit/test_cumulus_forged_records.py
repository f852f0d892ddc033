"""Records of objects that somebody else has written, who may write in storage: the owner of an adopted
directory, a user of the Sector cloud. They say nothing to others that the service would not say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_world import World

from cumulus.backends.posix.files import XATTR
from cumulus.backends.posix.meta import Record, encode, mtime_of
from cumulus.backends.posix.store import PosixStore
from cumulus.http.reply import HeadWriter
from cumulus.model import ALL_USERS, Acl, Grant, ObjectMeta, encode_meta
from cumulus.ops.jobs import Done, rescan
from cumulus.rest.call import Reply

EVIL = "a: 1\r\nX-Evil: yes\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEvil"
GOOD = {f"x-amz-meta-{number}": "v" for number in range(3000)}  # more names than are kept


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A service with the bucket `bkt`."""
    made = World(PosixStore(str(tmp_path / "store")))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def forge(world: World, file: Path, **fields: Any) -> None:
    """Write a record for a file as its owner may."""
    acl = Acl(owner=world.people.users["alice"].id, grants=(Grant(grantee=ALL_USERS, permission="READ"),))
    known = {"key": file.name, "size": file.stat().st_size, "etag": "x", "modified_ns": 1, "acl": acl}
    meta = encode_meta(ObjectMeta(**(known | fields)))
    there = file.stat()
    record = Record(there.st_ino, there.st_size, mtime_of(there), there.st_ctime_ns, meta)
    os.setxattr(file, XATTR, encode(record))


def test_a_name_that_is_none_of_a_header_begins_no_reply(world: World, tmp_path: Path) -> None:
    """The names of metadata are those of headers, and of checksums too."""
    file = tmp_path / "store/data/bkt/k"
    file.write_bytes(b"hello")
    headers = {"content-type": "text/plain", EVIL: "v"}
    forge(world, file, user={EVIL: "v", "good": "v\r\nX-Evil: 2", "wide": "\u20ac"}, headers=headers,
          checksums={EVIL: "v"})  # fmt: skip
    _, reply = world.open("GET", "/bkt/k", headers={"x-amz-checksum-mode": "ENABLED"})
    assert isinstance(reply, Reply) and reply.status == 200
    head = HeadWriter("host").head(reply, "id", 5, close=False)
    lines = head.split(b"\r\n")
    assert lines[-2:] == [b"", b""] and b"" not in lines[:-2]
    assert b"x-amz-meta-good: v  X-Evil: 2" in lines and b"Content-Type: text/plain" in lines
    assert not any(line.startswith((b"X-Evil", b"HTTP/1.1")) for line in lines[1:])
    assert world.ask("GET", "/bkt/k").body == b"hello"


def test_names_of_headers_are_looked_at_again_and_again() -> None:
    """Each time, however many there are."""
    writer = HeadWriter("host")
    for _ in range(2):
        head = writer.head(Reply(200, [*GOOD.items(), (EVIL, "v"), ("", "v")]), "id", 0, close=True)
        assert head.count(b"x-amz-meta-") == len(GOOD) and b"Evil" not in head and b"\r\n: v" not in head


@pytest.mark.parametrize("said", [0, 3, 5000])
def test_the_size_of_an_object_is_that_of_its_bytes(world: World, tmp_path: Path, said: int) -> None:
    """Whatever its record says: so it counts in the quota, and is read to its end."""
    file = tmp_path / "store/data/bkt/k"
    file.write_bytes(b"hello")
    forge(world, file, size=said)
    bucket = world.index.bucket("bkt")
    assert bucket is not None
    rescan(world.site, bucket, Done())
    assert world.index.usage("bucket", "bkt").bytes == 5
    got = world.ask("GET", "/bkt/k")
    assert (got.body, got.headers["content-length"]) == (b"hello", "5")
