"""What a client of a recorded Cumulus was told, and whether a tree that a crash left still says the same."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from recording import Disk, Recording, State
from s3_server import Server, make, started
from s3_wire import Answer, Wire

from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore
from cumulus.errors import S3Error
from cumulus.index.api import Directory
from cumulus.index.sqlite import SqliteIndex
from cumulus.model import Credential, User
from cumulus.ops.find import find_open
from cumulus.ops.jobs import Done, forget_versions, rescan
from cumulus.ops.site import Site
from cumulus.parts import take_in

Content = tuple[bytes, str] | None  # body and x-amz-meta-n; None: no object
PLAIN, KEPT = "plain", "kept"  # buckets without and with versions
KEYS = ("a", "d/e/f", "d/e/g", "n", "n/m", "o//dd", "s" * 300, "k\u00e4se")
PART = 5 << 20
SETTINGS = "[server]\nport = 0\n[admin]\nport = 0\n[storage]\nfsync = {fsync}\n"


@dataclass
class Step:
    """One change that a client asked for. `request` is "" until it was answered."""

    client: int
    bucket: str
    key: str
    content: Content
    version: str = ""  # that was made
    removes: str = ""  # version that was removed
    upload: str = ""  # that is over then
    part: int = 0
    request: str = ""


@dataclass
class Book:
    """Everything that was asked, each client's steps in order; a client asks for one thing at a time."""

    steps: list[list[Step]] = field(default_factory=list)

    def known(self, answered: Callable[[str], bool]) -> list[tuple[Step, bool]]:
        """Steps that were answered (True), and of each client the one that may be under way (False)."""
        found = []
        for steps in self.steps:
            for step in steps:
                sure = bool(step.request) and answered(step.request)
                found.append((step, sure))
                if not sure:
                    last = step.request
                    found += [
                        (other, False) for other in steps if other.request == last and other is not step
                    ]
                    break
        return found


class Client:
    """Changes things, and keeps the book."""

    def __init__(self, number: int, server: Server, book: list[Step], rng: random.Random) -> None:
        self.number = number
        self._wire = Wire(server.port, (server.key, server.secret))
        self._book = book
        self._rng = rng
        self._count = 0

    def close(self) -> None:
        """End the connection."""
        self._wire.close()

    def _ask(self, steps: list[Step], method: str, path: str, body: bytes = b"", **more: object) -> Answer:
        """A request that makes these steps."""
        self._book += steps
        answer = self._wire.ask(method, path, body, **more)  # type: ignore[arg-type]
        assert answer.status in (200, 204), (method, path[:80], answer.status, answer.body)
        for step in steps:
            step.request = answer.headers["x-amz-request-id"]
            step.version = "" if step.removes else answer.headers.get("x-amz-version-id", "")
        return answer

    def _content(self, size: int) -> tuple[bytes, str]:
        """A body that no other is part of."""
        self._count += 1
        mark = f"{self.number}-{self._count}"
        return ((f"<{mark}>").encode() * (size // 3))[:size], mark

    def step(self, bucket: str, key: str, content: Content, **more: str | int) -> Step:
        """Of this client."""
        return Step(self.number, bucket, key, content, **more)  # type: ignore[arg-type]

    def make_bucket(self, bucket: str) -> None:
        """Without versions, or with them for `KEPT`."""
        self._ask([self.step(bucket, "", None)], "PUT", f"/{bucket}")
        if bucket == KEPT:
            text = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
            self._ask([], "PUT", f"/{bucket}", text, query="versioning")

    def put(self, bucket: str, key: str, size: int) -> None:
        """One object."""
        body, mark = content = self._content(size)
        step = self.step(bucket, key, content)
        self._ask([step], "PUT", f"/{bucket}/{key}", body, headers={"x-amz-meta-n": mark})

    def delete(self, bucket: str, key: str) -> None:
        """The current version."""
        self._ask([self.step(bucket, key, None)], "DELETE", f"/{bucket}/{key}")

    def delete_version(self, bucket: str) -> None:
        """An older version that this client has made."""
        gone = {step.removes for step in self._book}
        last = {(step.bucket, step.key): step for step in self._book if not step.removes and not step.part}
        old = [
            step
            for step in self._book
            if step.bucket == bucket and step.version not in gone | {""} and step not in last.values()
        ]
        if old:
            one = self._rng.choice(old)
            step = self.step(bucket, one.key, None, removes=one.version)
            self._ask([step], "DELETE", f"/{bucket}/{one.key}", query=f"versionId={one.version}")

    def delete_many(self, bucket: str, keys: list[str]) -> None:
        """In one request."""
        rows = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
        text = f"<Delete>{rows}</Delete>".encode()
        crc = {"Content-MD5": _md5(text)}
        self._ask(
            [self.step(bucket, key, None) for key in keys],
            "POST", f"/{bucket}", text, query="delete", headers=crc,
        )  # fmt: skip

    def copy(self, bucket: str, key: str, to: str) -> None:
        """What is under one key to another."""
        now = [
            step.content
            for step in self._book
            if (step.bucket, step.key) == (bucket, key) and not step.part and not step.removes
        ]
        if now and now[-1] is not None and key != to:
            source = {"x-amz-copy-source": f"/{bucket}/{quote(key)}"}
            self._ask([self.step(bucket, to, now[-1])], "PUT", f"/{bucket}/{to}", headers=source)

    def upload(self, bucket: str, key: str, sizes: list[int], *, complete: bool = True) -> None:
        """In parts."""
        mark = self._content(1)[1]
        begun = self._ask([], "POST", f"/{bucket}/{key}", query="uploads=", headers={"x-amz-meta-n": mark})
        id = begun.leaf("UploadId")
        whole, rows = b"", ""
        for number, size in enumerate(sizes, 1):
            body = self._content(size)[0]
            step = self.step(bucket, key, (body, ""), part=number, upload=id)
            query = f"partNumber={number}&uploadId={id}"
            etag = self._ask([step], "PUT", f"/{bucket}/{key}", body, query=query).headers["etag"]
            rows += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            whole += body
        text = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
        if complete:
            step = self.step(bucket, key, (whole, mark), upload=id)
            self._ask([step], "POST", f"/{bucket}/{key}", text, query=f"uploadId={id}")

    def run(self, bucket: str, count: int) -> None:
        """Changes as they come; each kind at least once in any dozen."""
        self.make_bucket(bucket)
        for key in KEYS:
            self.put(bucket, key, 300)
        for number in range(count):
            key, other = self._rng.sample(KEYS, 2)
            kind = (number + self._rng.randrange(2)) % 12
            if kind in (0, 1, 2, 3, 4):
                self.put(bucket, key, (300, 4096, 0, 70_000, 1500)[kind])
            elif kind in (5, 6):
                self.delete(bucket, key)
            elif kind == 7:
                self.copy(bucket, key, other)
            elif kind == 8 and bucket == PLAIN:
                self.delete_many(bucket, [key, other])
            elif kind == 8:
                self.delete_version(bucket)
            elif kind in (9, 10):
                self.upload(bucket, key, [100_000 if kind == 9 else 900])
            else:
                self.upload(bucket, key, [700], complete=False)
        self.upload(bucket, KEYS[0], [PART, PART, 1000])  # equal parts share a file


def _md5(data: bytes) -> str:
    import base64

    return base64.b64encode(hashlib.md5(data).digest()).decode()


def record(path: Path, seed: int, *, workers: int, count: int, fsync: bool = True) -> tuple[Recording, Book]:
    """Run a service in `path`/D below the recorder; two clients change its two buckets."""
    directory = path / "D"
    key, secret = make(directory, SETTINGS.format(fsync=str(fsync).lower()))
    (directory / "serve.log").touch()
    recording = Recording(directory, path)
    book = Book([[], []])
    environment = recording.environment()
    with started(directory, key, secret, f"--workers={workers}", environment=environment) as server:
        clients = [
            Client(number, server, book.steps[number], random.Random(seed + number)) for number in range(2)
        ]
        with ThreadPoolExecutor(2) as threads:
            for done in [
                threads.submit(client.run, bucket, count)
                for client, bucket in zip(clients, (PLAIN, KEPT), strict=True)
            ]:
                done.result()
        for client in clients:
            client.close()
    return recording, book


# after the crash -----------------------------------------------------------------------------------------
class _Nobody(Directory):
    """Users are not asked for."""

    def credential(self, access_key: str) -> Credential | None:
        return None

    def user(self, id_or_name: str) -> User | None:
        return User(id=id_or_name, name=id_or_name)

    def by_email(self, email: str) -> User | None:
        return None

    def members(self, group: str) -> list[str] | None:
        return None


class _Rebooted(Files):
    """The machine has run anew since the recording; what is synced from now on does not matter."""

    def boot(self) -> str:
        return "after the crash"

    def sync(self, fd: int) -> None:
        return None

    sync_data = sync_all = sync


@contextmanager
def recovered(path: Path) -> Iterator[Site]:
    """The service's parts over what a crash left, as `cumulus serve` puts them together."""
    index = SqliteIndex(path / "cumulus.db", _Nobody(), sync=False)
    store = PosixStore(str(path), fsync=False, files=_Rebooted())
    try:
        take_in(store, index)
        site = Site(store, index, _Nobody(), time.time_ns)
        # a scan looks again later for removals that are under way; nobody is at work here
        site.pause = lambda seconds: site.stopping  # type: ignore[method-assign]
        yield site
        site.close()
    finally:
        store.close()
        index.close()


def look(site: Site, bucket: str, key: str, version: str | None = None) -> Content:
    """What a reader gets; the ETag is true."""
    there = site.index.bucket(bucket)
    if there is None:
        return None
    try:
        found, stream = find_open(site, there, key, version)
    except S3Error as error:
        if error.status not in (404, 405):
            raise
        return None
    try:
        body = stream.read_at(0, found.entry.size)
    finally:
        stream.close()
    if "-" not in found.meta.etag:
        assert found.meta.etag == hashlib.md5(body).hexdigest()
    assert found.meta.size == len(body)
    return body, found.meta.user.get("n", "")


def _short(content: Content) -> str:
    return "nothing" if content is None else f"{content[1]} ({len(content[0])} bytes of {content[0][:9]!r})"


def problems(site: Site, book: Book, answered: Callable[[str], bool], *, scanned: bool) -> Iterator[str]:
    """Each thing that is not as the clients were told; `scanned`: after the first scan of the directories,
    which the service begins with, and then the listings and the ledger are looked at, too."""
    known = book.known(answered)
    buckets = {step.bucket for step, sure in known if not step.key and sure}
    for name in buckets:
        bucket = site.index.bucket(name)
        if bucket is None:
            yield f"bucket {name} is lost"
        elif scanned:
            rescan(site, bucket, Done())
            forget_versions(site, bucket, Done())
    there: dict[tuple[str, str], Content] = {}
    for place in {(step.bucket, step.key) for step, _ in known if step.key and not step.part}:
        allowed = _allowed(place, known)
        there[place] = found = look(site, *place)
        if found not in allowed:
            told = " or ".join(map(_short, allowed))
            yield f"{place[0]}/{place[1][:20]} is {_short(found)}, should be {told}"
    yield from _versions(site, known)
    yield from _parts(site, known)
    for name in buckets if scanned else ():
        yield from _agreement(
            site, name, {key for (own, key), found in there.items() if own == name and found}
        )


def _allowed(place: tuple[str, str], known: list[tuple[Step, bool]]) -> list[Content]:
    allowed: list[Content] = [None]
    for step, sure in known:
        if (step.bucket, step.key) == place and not step.part and not step.removes:
            allowed = [step.content] if sure else [*allowed, step.content]
    return allowed


def _versions(site: Site, known: list[tuple[Step, bool]]) -> Iterator[str]:
    removed = {step.removes: sure for step, sure in known if step.removes}
    for step, sure in known:
        if step.bucket != KEPT or not sure or not step.version or step.content is None or step.part:
            continue
        found = look(site, step.bucket, step.key, step.version)
        gone = removed.get(step.version)
        allowed = [None] if gone else [step.content] if gone is None else [None, step.content]
        if found not in allowed:
            yield f"version {step.version} of {step.key[:20]} is {_short(found)}, not {_short(step.content)}"


def _parts(site: Site, known: list[tuple[Step, bool]]) -> Iterator[str]:
    """Of uploads that go on."""
    over = {step.upload for step, _ in known if step.upload and not step.part}
    for step, sure in known:
        if sure and step.part and step.upload not in over:
            parts = site.index.parts(step.upload)
            if step.part not in {part.number for part in parts}:
                yield f"part {step.part} of an upload to {step.key[:20]} is lost"


def _agreement(site: Site, name: str, keys: set[str]) -> Iterator[str]:
    """The listing and the ledger say what readers see."""
    listed = {row.key for row in site.index.page(name).rows}
    if listed != keys:
        yield f"{name}: listed but not there {listed - keys}, there but not listed {keys - listed}"
    rows = [row for row in site.index.page_versions(name).rows if not row.marker]
    usage = site.index.usage("bucket", name)
    if (usage.bytes, usage.objects) != (sum(row.size for row in rows), len(rows)):
        yield f"{name}: the ledger says {usage.bytes} bytes in {usage.objects}, the rows {rows}"
    for row in rows:
        if look(site, name, row.key, row.version) is None:
            yield f"{name}: version {row.version} of {row.key[:20]} is listed and not there"


def unsynced(state: State, step: Step) -> str:
    """Why what was synced does not hold this step; "" if it does. It needs no knowledge of Cumulus but that
    a body is somewhere in one piece, in a file that has a name, under its key or beside it."""
    if step.content is None:
        return ""
    body, key = step.content[0], os.fsencode(step.key)
    for path, inode in state.files():
        named = os.fsencode(path).endswith(b"/" + key) or key in inode.body
        named |= bool(step.part) and step.upload in path
        if body in inode.body and (named or any(key in value for value in inode.xattrs.values())):
            return ""
    return f"{step.bucket}/{step.key[:20]} ({len(body)} bytes) was answered before it was synced"


def moments(disk: Disk) -> Callable[[int], Callable[[str], bool]]:
    """For a moment: whether a request had been answered by then."""
    when = {event.request: event.begin for event in disk.answers}
    return lambda at: lambda request: when.get(request, at) < at
