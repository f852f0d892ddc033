"""Parts of an upload in their final place on plain files: what clients may do with parts, without a copy."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_stores import STORES
from s3_world import World

from cumulus.backends.registry import make_store
from cumulus.index.api import Away
from cumulus.ops import parts
from cumulus.ops.jobs import STALE_S
from cumulus.ops.leftovers import sweep

SIZE = 200_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(STORES["posix"](tmp_path))
    assert made.ask("PUT", "/bkt").status == 200
    yield made
    made.close()


def begin(world: World) -> str:
    """The id of a new upload of the key "k"."""
    return str(world.boto().create_multipart_upload(Bucket="bkt", Key="k")["UploadId"])


def part(world: World, upload: str, number: int, body: bytes) -> str:
    """Upload a part; its ETag."""
    answer = world.ask("PUT", "/bkt/k", body, query={"partNumber": number, "uploadId": upload})
    assert answer.status == 200, answer.body
    assert answer.headers["etag"] == f'"{hashlib.md5(body).hexdigest()}"'
    return answer.headers["etag"]


def finish(world: World, upload: str, wanted: list[tuple[int, str]], **headers: str) -> Any:
    """Complete it."""
    rows = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{e}</ETag></Part>" for n, e in wanted)
    body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
    return world.ask("POST", "/bkt/k", body, query={"uploadId": upload}, headers=headers)


def stored(tmp_path: Path) -> dict[str, int]:
    """What lies in the bucket: names of files below `parts` (without the upload) and the blocks they have."""
    top = tmp_path / "store/data/bkt/.cumulus/parts"
    return {path.name: path.stat().st_blocks * 512 for path in top.rglob("*") if path.is_file()}


def body(number: int, size: int = SIZE) -> bytes:
    """Of a part."""
    return bytes([number]) * size


def inode(tmp_path: Path) -> int:
    """Of the one file of parts."""
    (path,) = (tmp_path / "store/data/bkt/.cumulus/parts").rglob("slots.*")
    return path.stat().st_ino


def test_equal_parts_become_the_object_as_they_lie(world: World, tmp_path: Path) -> None:
    """Whatever their order; the last may be shorter. No second copy at any time."""
    upload = begin(world)
    etags = {n: part(world, upload, n, body(n)) for n in (2, 1, 3)}
    etags[4] = part(world, upload, 4, body(4, 70))
    assert list(stored(tmp_path)) == [f"slots.{SIZE}"]
    assert stored(tmp_path)[f"slots.{SIZE}"] < 3 * SIZE + 3 * 4096
    number = inode(tmp_path)
    done = finish(world, upload, sorted(etags.items()))
    assert done.status == 200, done.body
    assert world.ask("GET", "/bkt/k").body == body(1) + body(2) + body(3) + body(4, 70)
    assert (tmp_path / "store/data/bkt/k").stat().st_ino == number
    assert stored(tmp_path) == {}
    assert not (tmp_path / "store/data/bkt/.cumulus/parts" / upload).exists()
    assert world.ask("GET", "/bkt/k", query={"partNumber": "4"}).body == body(4, 70)
    assert world.index.usage("bucket", "bkt").bytes == 3 * SIZE + 70
    again = finish(world, upload, sorted(etags.items()))
    assert (again.status, again.leaf("ETag")) == (200, done.leaf("ETag"))


def test_a_part_that_is_cut_off_or_sent_again_harms_nothing(world: World, tmp_path: Path) -> None:
    """The one that was acknowledged counts until another one is."""
    upload = begin(world)
    first, second = part(world, upload, 1, body(1)), part(world, upload, 2, body(2))
    for whole in (False, True):
        target = {"partNumber": 2, "uploadId": upload}
        _, sink = world.open("PUT", "/bkt/k", body(9), query=target)
        sink.write(memoryview(body(9))[: SIZE if whole else 1000])  # type: ignore[union-attr]
        sink.abort()  # type: ignore[union-attr]
    listed = world.boto().list_parts(Bucket="bkt", Key="k", UploadId=upload)["Parts"]
    assert [row["ETag"] for row in listed] == [first, second]
    other = part(world, upload, 2, body(5))
    assert finish(world, upload, [(1, first), (2, second)]).code == "InvalidPart"
    third = part(world, upload, 2, body(7))  # to the slot again, since nothing that counts is there
    assert finish(world, upload, [(1, first), (2, other)]).code == "InvalidPart"
    assert finish(world, upload, [(1, first), (2, third)]).status == 200
    assert world.ask("GET", "/bkt/k").body == body(1) + body(7)
    assert stored(tmp_path) == {}


def test_a_part_replaced_beside_its_slot_is_put_in(world: World, tmp_path: Path) -> None:
    """The file becomes the object all the same."""
    upload = begin(world)
    etags = {n: part(world, upload, n, body(n)) for n in (1, 2, 3)}
    number = inode(tmp_path)
    etags[2] = part(world, upload, 2, body(8))
    assert len(stored(tmp_path)) == 2
    assert finish(world, upload, sorted(etags.items())).status == 200
    assert world.ask("GET", "/bkt/k").body == body(1) + body(8) + body(3)
    assert (tmp_path / "store/data/bkt/k").stat().st_ino == number
    assert stored(tmp_path) == {}


@pytest.mark.parametrize(
    "sizes",
    [
        {1: SIZE, 2: SIZE + 1, 3: 10},  # of different sizes
        {3: 150_000, 1: SIZE, 2: SIZE},  # the last came first
        {1: SIZE, 3: SIZE},  # a number is missing
        {1: 500, 2: 200},  # small
        {7: SIZE},
    ],
)
def test_any_sizes_and_numbers_are_joined(world: World, tmp_path: Path, sizes: dict[int, int]) -> None:
    """In the order of their numbers; nothing is left over."""
    upload = begin(world)
    etags = {n: part(world, upload, n, body(n, size)) for n, size in sizes.items()}
    assert finish(world, upload, sorted(etags.items())).status == 200
    assert world.ask("GET", "/bkt/k").body == b"".join(body(n, sizes[n]) for n in sorted(sizes))
    assert stored(tmp_path) == {}


def test_a_completion_of_some_parts_that_fails_keeps_all(world: World, tmp_path: Path) -> None:
    """A condition does not hold; then all parts are taken."""
    world.ask("PUT", "/bkt/k", b"old")
    upload = begin(world)
    etags = {n: part(world, upload, n, body(n)) for n in (1, 2, 3)}
    wrong = {"if-match": '"0"'}
    for some in ([1, 2], [1, 2, 3], [2, 3]):
        refused = finish(world, upload, [(n, etags[n]) for n in some], **wrong)
        assert refused.code == "PreconditionFailed"
    assert finish(world, upload, sorted(etags.items())).status == 200
    assert world.ask("GET", "/bkt/k").body == body(1) + body(2) + body(3)
    upload = begin(world)
    etags = {n: part(world, upload, n, body(n)) for n in (1, 2, 3)}
    assert finish(world, upload, [(n, etags[n]) for n in (1, 2)]).status == 200
    assert world.ask("GET", "/bkt/k").body == body(1) + body(2)
    assert stored(tmp_path) == {}


def test_a_part_under_way_when_the_upload_ends_reaches_nobody(world: World, tmp_path: Path) -> None:
    """By completion or by abort: it is refused, and not a byte of it is in the object."""
    for end in ("complete", "abort"):
        upload = begin(world)
        first = part(world, upload, 1, body(1))
        query = {"partNumber": 2, "uploadId": upload}
        _, sink = world.open("PUT", "/bkt/k", body(9), query=query)
        sink.write(memoryview(body(9))[:100_000])  # type: ignore[union-attr]
        if end == "complete":
            assert finish(world, upload, [(1, first)]).status == 200
        else:
            assert world.ask("DELETE", "/bkt/k", query={"uploadId": upload}).status == 204
        refused = sink.write(memoryview(body(9))[100_000:])  # type: ignore[union-attr]
        reply = refused or sink.finish()  # type: ignore[union-attr]
        assert reply.status == 404
        sink.abort()  # type: ignore[union-attr]
        assert world.ask("GET", "/bkt/k").body == body(1)
        assert stored(tmp_path) == {}


def test_a_part_that_is_cut_off_takes_no_room(world: World, tmp_path: Path) -> None:
    """What a client announces is set aside before it comes. Nothing counts it when the client goes: with a
    quota of 100 MB one could fill any disk, part by part, for a few bytes each."""
    upload, size = begin(world), 4_000_000
    first = part(world, upload, 1, body(1, size))
    used = sum(stored(tmp_path).values())
    for number in (2, 3, 4):
        for sent in (0, 1_000_000):
            query = {"partNumber": number, "uploadId": upload}
            _, sink = world.open("PUT", "/bkt/k", body(9, size), query=query)
            sink.write(memoryview(body(9, sent)))  # type: ignore[union-attr]
            sink.abort()  # type: ignore[union-attr]
    assert sum(stored(tmp_path).values()) < used + 1_000_000
    second = part(world, upload, 2, body(2, size))
    assert finish(world, upload, [(1, first), (2, second)]).status == 200
    assert world.ask("GET", "/bkt/k").body == body(1, size) + body(2, size)


@pytest.mark.parametrize("there", [0, 1])
def test_who_sends_a_part_while_the_upload_is_aborted_is_told_that(world: World, there: int) -> None:
    """As when a program that sends parts side by side is interrupted: nobody is to believe that the bucket
    has gone."""
    upload = begin(world)
    for number in range(1, there + 1):
        part(world, upload, number, body(number))
    call, sink = world.open("PUT", "/bkt/k", body(9), query={"partNumber": 2, "uploadId": upload})
    sink.write(memoryview(body(9)))  # type: ignore[union-attr]
    assert world.ask("DELETE", "/bkt/k", query={"uploadId": upload}).status == 204
    reply = sink.finish()  # type: ignore[union-attr]
    assert (reply.status, call.notes["error"]) == (404, "NoSuchUpload")
    assert b"<Code>NoSuchUpload</Code>" in reply.body


def test_parts_through_two_servers_meet_in_one_file(world: World, tmp_path: Path) -> None:
    """Each with a store of its own on the same tree, and one index."""
    other = World(make_store(f"posix:{tmp_path}/store"), world.index)
    upload = begin(world)
    etags: dict[int, str] = {}

    def send(through: World, numbers: range) -> None:
        for number in numbers:
            etags[number] = part(through, upload, number, body(number))

    threads = [
        threading.Thread(target=send, args=(through, range(start, 21, 4)))
        for start, through in enumerate((world, other, world, other), 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(stored(tmp_path)) == [f"slots.{SIZE}"]
    number = inode(tmp_path)
    assert finish(other, upload, sorted(etags.items())).status == 200
    assert world.ask("GET", "/bkt/k").body == b"".join(body(n) for n in range(1, 21))
    assert (tmp_path / "store/data/bkt/k").stat().st_ino == number
    other.gateway.close()
    other.store.close()


@pytest.mark.parametrize("first", ["has begun", "is just behind", "does not come"])
def test_a_last_part_finds_the_slots_of_those_on_their_way(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Clients that send parts side by side: the small last one comes before any other has ended."""
    upload = begin(world)
    sinks: list[Any] = []
    waits: list[float] = []

    def send_first() -> None:
        sinks.append(world.open("PUT", "/bkt/k", body(1), query={"partNumber": 1, "uploadId": upload})[1])

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if first == "is just behind" and len(waits) == 2:
            send_first()

    monkeypatch.setattr(parts.time, "sleep", wait)
    if first == "has begun":
        send_first()
    last = part(world, upload, 2, body(2, SIZE - 1))
    assert len(waits) == {"has begun": 0, "is just behind": 2, "does not come": parts.LOOKS - 1}[first]
    assert sum(waits) < 0.03
    if first == "does not come":
        send_first()
    assert sinks[0].write(memoryview(body(1))) is None
    assert sinks[0].finish().status == 200
    both = sorted(stored(tmp_path))
    assert both == ([f"slots.{SIZE - 1}"] if first == "does not come" else []) + [f"slots.{SIZE}"]
    done = finish(world, upload, [(1, f'"{hashlib.md5(body(1)).hexdigest()}"'), (2, last)])
    assert done.status == 200, done.body
    assert world.ask("GET", "/bkt/k").body == body(1) + body(2, SIZE - 1)
    assert stored(tmp_path) == {}


def test_a_strange_file_among_the_slots_is_no_slot(world: World, tmp_path: Path) -> None:
    """Somebody has left one there by hand: parts pass it by."""
    upload = begin(world)
    sink = world.open("PUT", "/bkt/k", body(1), query={"partNumber": 1, "uploadId": upload})[1]
    (ours,) = (tmp_path / "store/data/bkt/.cumulus/parts").rglob(f"slots.{SIZE}")
    for name in ("slots.old", "slots.", "slots.\u0663"):
        ours.with_name(name).write_bytes(b"x")
    last = part(world, upload, 2, body(2, SIZE - 1))
    assert sink.write(memoryview(body(1))) is None
    assert sink.finish().status == 200
    done = finish(world, upload, [(1, f'"{hashlib.md5(body(1)).hexdigest()}"'), (2, last)])
    assert done.status == 200, done.body
    assert world.ask("GET", "/bkt/k").body == body(1) + body(2, SIZE - 1)


def test_the_sweep_leaves_parts_of_uploads_in_progress(world: World, tmp_path: Path) -> None:
    """However old they are; a file of parts without an upload goes after a day."""
    upload = begin(world)
    first = part(world, upload, 1, body(1))
    lost = world.store.open_range("bkt", ".cumulus/parts/00/slots.9", 0, 9)
    assert lost
    lost.close()
    world.skew_ns = 2 * STALE_S * 1_000_000_000
    assert sweep(world.site, world.site.bucket("bkt"), STALE_S) == 1
    assert list(stored(tmp_path)) == [f"slots.{SIZE}"]
    world.skew_ns = 0
    assert finish(world, upload, [(1, first)]).status == 200


def test_ranges_of_objects_can_be_parts(world: World) -> None:
    """UploadPartCopy into slots, mixed with uploads."""
    client = world.boto()
    client.put_object(Bucket="bkt", Key="from", Body=body(3) + body(4))
    upload = begin(world)
    copy = {"Bucket": "bkt", "Key": "k", "UploadId": upload, "CopySource": "bkt/from"}
    etags = {2: part(world, upload, 2, body(2))}
    for number, start in ((1, 0), (3, SIZE)):
        piece = f"bytes={start}-{start + SIZE - 1}"
        answer = client.upload_part_copy(**copy, PartNumber=number, CopySourceRange=piece)
        etags[number] = answer["CopyPartResult"]["ETag"]
    assert finish(world, upload, sorted(etags.items())).status == 200
    assert world.ask("GET", "/bkt/k").body == body(3) + body(2) + body(4)


@pytest.mark.parametrize("how", ["refused", "cut", "no database"])
def test_a_part_that_is_sent_again_in_vain_leaves_the_one_that_counts(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its bytes are in the object, not zeros, whatever becomes of the second try."""
    upload = begin(world)
    etags = [part(world, upload, number, body(number)) for number in (1, 2, 3)]
    query = {"partNumber": 2, "uploadId": upload}
    if how == "refused":
        wrong = {"Content-MD5": base64.b64encode(bytes(16)).decode()}
        assert world.ask("PUT", "/bkt/k", body(9), query=query, headers=wrong).code == "BadDigest"
    elif how == "cut":
        there = world.index.upload("bkt", "k", upload)
        assert there is not None
        sent = parts.IncomingPart(world.site, there, 2, size=SIZE, limit=SIZE, algorithms=["md5"])
        sent.write(memoryview(body(9)[:1000]))
        sent.abort()
    else:
        real = world.index.parts

        def away(*arguments: Any, after: int = 0, **options: Any) -> Any:
            if after:
                raise Away("the database")
            return real(*arguments, after=after, **options)

        monkeypatch.setattr(world.site.index, "parts", away)
        assert world.ask("PUT", "/bkt/k", body(9), query=query).status == 503
        monkeypatch.undo()
    answer = finish(world, upload, list(enumerate(etags, 1)))
    assert answer.status == 200, answer.body
    assert world.ask("GET", "/bkt/k").body == body(1) + body(2) + body(3)


def test_racing_uploads_of_one_part_and_completions_are_never_mixed(world: World) -> None:
    """Threads send part 2 again and again while others complete: each answer 200 fits the bytes."""
    for _ in range(4):
        upload = begin(world)
        first = part(world, upload, 1, body(1))
        part(world, upload, 2, body(2))
        done: list[bytes] = []

        def send(mark: int, upload: str = upload) -> None:
            for turn in range(4):
                query = {"partNumber": 2, "uploadId": upload}
                world.ask("PUT", "/bkt/k", body(mark + turn), query=query)

        def complete(mark: int, upload: str = upload, first: str = first, done: list[bytes] = done) -> None:
            for turn in range(4):
                etag = f'"{hashlib.md5(body(mark + turn)).hexdigest()}"'
                if finish(world, upload, [(1, first), (2, etag)]).status == 200:
                    done.append(body(mark + turn))

        threads = [
            threading.Thread(target=work, args=(mark,)) for work in (send, complete) for mark in (10, 20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        there = world.ask("GET", "/bkt/k")
        if done:
            assert there.body in [body(1) + each for each in done]
            parts = [hashlib.md5(body(1)).digest(), hashlib.md5(there.body[SIZE:]).digest()]
            assert there.headers["etag"] == f'"{hashlib.md5(b"".join(parts)).hexdigest()}-2"'
