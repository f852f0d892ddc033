"""64 writers at a limit, two workers: uploads whole and in parts, copies, overwrites, removals, and uploads
that are broken off. What the writers know to be there is counted by themselves, and never more than the
limit; afterwards nothing is held, and the directory has what the ledger says.

SECTOR_TEST_QUOTA_ATTEMPTS: how many requests that need room are made.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from s3_server import Server, cumulus, serving
from s3_wire import Answer, Wire, signed

SETTINGS = "[server]\nport = 0\nworkers = 2\n[admin]\nport = 0\n"
ATTEMPTS = int(os.environ.get("SECTOR_TEST_QUOTA_ATTEMPTS", "2000"))
WRITERS = 64
LIMIT = 400_000
OBJECTS = 150


class Known:
    """What is surely there: counted from an answer until what removes it is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes = self.objects = self.most = self.most_objects = 0
        self.attempts = ATTEMPTS
        self.outcomes: Counter[str] = Counter()

    def add(self, size: int, objects: int) -> None:
        """It was answered."""
        with self._lock:
            self.bytes += size
            self.objects += objects
            self.most, self.most_objects = max(self.most, self.bytes), max(self.most_objects, self.objects)

    def next(self) -> bool:
        """Whether there is another attempt to make."""
        with self._lock:
            self.attempts -= 1
            return self.attempts >= 0

    def count(self, what: str, answer: Answer) -> None:
        """For the report."""
        with self._lock:
            self.outcomes[f"{what} {answer.status}"] += 1


class Writer(threading.Thread):
    """One client with keys of its own."""

    def __init__(self, number: int, server: Server, known: Known, seed: int) -> None:
        super().__init__()
        self._keys = [f"w{number}-{place}" for place in range(4)]
        self._sizes: dict[str, int] = {}
        self._server = server
        self._wire = Wire(server.port, (server.key, server.secret))
        self._known = known
        self._rng = random.Random(f"{seed} {number}")
        self.error: BaseException | None = None

    def run(self) -> None:
        """Until all attempts have been made."""
        ways: list[Callable[[str], None]] = [
            self._put, self._put, self._copy, self._parts, self._broken, self._remove,
        ]  # fmt: skip
        try:
            while self._known.next():
                self._rng.choice(ways)(self._rng.choice(self._keys))
        except BaseException as error:
            self.error = error
        finally:
            self._wire.close()

    def _change(self, key: str, size: int, ask: Callable[[], Answer]) -> Answer:
        """A request after which `key` has `size` bytes, or what it had."""
        old = self._sizes.get(key)
        if old is not None:
            self._known.add(-old, -1)
        answer = ask()
        now = size if answer.status == 200 else old
        if now is not None:
            self._known.add(now, 1)
            self._sizes[key] = now
        if answer.status != 200:
            assert answer.code == "QuotaExceeded", answer
        return answer

    def _put(self, key: str) -> None:
        body = bytes(self._rng.choice((100, 3000, 9000, 40_000)))
        self._known.count(
            "put", self._change(key, len(body), lambda: self._wire.ask("PUT", f"/race/{key}", body))
        )

    def _copy(self, key: str) -> None:
        source = self._rng.choice(self._keys)
        if source != key and source in self._sizes:
            headers = {"x-amz-copy-source": f"/race/{source}"}
            size = self._sizes[source]
            answer = self._change(key, size, lambda: self._wire.ask("PUT", f"/race/{key}", headers=headers))
            self._known.count("copy", answer)

    def _parts(self, key: str) -> None:
        begun = self._wire.ask("POST", f"/race/{key}", query="uploads=")
        id, body = begun.leaf("UploadId"), bytes(self._rng.choice((500, 20_000)))
        part = self._wire.ask("PUT", f"/race/{key}", body, query=f"partNumber=1&uploadId={id}")
        self._known.count("part", part)
        if part.status != 200 or self._rng.random() < 0.3:
            assert part.status == 200 or part.code == "QuotaExceeded", part
            assert self._wire.ask("DELETE", f"/race/{key}", query=f"uploadId={id}").status == 204
            return
        self._known.add(len(body), 0)
        row = f"<Part><PartNumber>1</PartNumber><ETag>{part.headers['etag']}</ETag></Part>"
        text = f"<CompleteMultipartUpload>{row}</CompleteMultipartUpload>".encode()
        self._known.add(-len(body), 0)

        def complete() -> Answer:
            return self._wire.ask("POST", f"/race/{key}", text, query=f"uploadId={id}")

        answer = self._change(key, len(body), complete)
        self._known.count("complete", answer)
        if answer.status != 200:
            assert self._wire.ask("DELETE", f"/race/{key}", query=f"uploadId={id}").status == 204

    def _broken(self, key: str) -> None:
        """Half a body, and then nothing."""
        target, host = f"/race/{key}", f"127.0.0.1:{self._server.port}"
        headers = signed((self._server.key, self._server.secret), "PUT", host, target, {})
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        size = self._rng.choice((3000, 30_000, 300_000))
        head = f"PUT {target} HTTP/1.1\r\nHost: {host}\r\n{lines}Content-Length: {size}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._server.port), 30) as wire:
            wire.sendall(head.encode() + bytes(size // 2))
            if self._rng.random() < 0.5:
                wire.shutdown(socket.SHUT_WR)

    def _remove(self, key: str) -> None:
        size = self._sizes.pop(key, None)
        if size is not None:
            self._known.add(-size, -1)
            assert self._wire.ask("DELETE", f"/race/{key}").status == 204


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for it."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_nobody_gets_beyond_the_limit_and_nothing_stays_held(tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "D"
    where = ("--dir", str(directory))
    with serving(directory, SETTINGS) as server:
        wire = Wire(server.port, (server.key, server.secret))
        assert wire.ask("PUT", "/race").status == 200
        cumulus("quota", "set", "--bucket", "race", "--bytes", str(LIMIT), "--objects", str(OBJECTS), *where)
        known = Known()
        writers = [Writer(number, server, known, seed) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert [writer.error for writer in writers if writer.error] == []

        outcomes = dict(known.outcomes)
        print(f"{ATTEMPTS} attempts of {WRITERS} writers, seed {seed}: {outcomes}, most {known.most}")
        assert known.most <= LIMIT and known.most_objects <= OBJECTS
        assert known.outcomes["put 403"] + known.outcomes["part 403"] >= ATTEMPTS // 50, "never at the limit"
        assert known.outcomes["complete 200"] and known.outcomes["copy 200"]
        until(lambda: '"requests_in_flight": 0' in server.admin("load"), "broken uploads are over")
        (used,) = cumulus("usage", "--bucket", "race", *where)
        assert (used["bytes"], used["objects"]) == (known.bytes, known.objects), used
        # all that is left of the limit can be had, to the byte and the object: nothing is held any more
        cumulus("quota", "set", "--bucket", "race", "--objects", str(known.objects + 1), *where)
        left = LIMIT - known.bytes
        assert wire.ask("PUT", "/race/last", bytes(left + 1)).code == "QuotaExceeded"
        last = wire.ask("PUT", "/race/last", bytes(left))
        assert last.status == 200, last.body
        assert wire.ask("PUT", "/race/more", b"x").code == "QuotaExceeded"
        wire.close()
    data = directory / "data" / "race"
    files = [path for path in data.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) == LIMIT, [
        path for path in files if ".cumulus" in str(path)
    ]
