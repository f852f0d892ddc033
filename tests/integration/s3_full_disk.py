"""Runs inside a mount namespace of its own: a Cumulus whose storage, and one whose database, is on a disk of
a few megabytes, and a bucket on a disk that is read-only. Prints how many cases held; it fails otherwise.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from s3_raw import Ask, Raw
from s3_server import PORTS, Server, cumulus, make, started

OLD = b"what was there before\n"
BIG = bytes(7 << 20)


@contextmanager
def disk(where: Path, size: str) -> Iterator[Path]:
    """A file system in memory."""
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(where: Path) -> Path:
    """Take all that is left; the file to be removed afterwards."""
    filler = where / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


def expect(raw: Raw, ask: Ask, status: int, code: str = "") -> None:
    """One answer; and what was there stays."""
    answer = raw.send(ask)
    assert (answer.status, answer.code) == (status, code), (ask.method, ask.target, answer)
    assert raw.get("/box/old").body == OLD


def full_storage(base: Path, where: Path) -> int:
    """507 for bodies of every size and kind; a deletion makes room, with versions too, and so does an
    administrator; the service goes on."""
    key, secret = make(base, PORTS + f'[storage]\npath = "{where}"\n')
    with started(base, key, secret) as server:
        raw = Raw(server.port, key, secret)
        raw.send(Ask("PUT", "/box"))
        raw.send(Ask("PUT", "/box/room", bytes(1 << 20)))
        for bucket in ("kept", "doomed"):
            raw.send(Ask("PUT", f"/{bucket}"))
        enable = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        assert raw.send(Ask("PUT", "/kept?versioning", enable)).status == 200
        for target in ("/kept/one", "/doomed/one", "/doomed/two"):
            assert raw.send(Ask("PUT", target, OLD)).status == 200
        assert raw.send(Ask("PUT", "/box/old", OLD)).status == 200
        started_upload = raw.send(Ask("POST", "/box/parts?uploads")).body.decode()
        upload = started_upload.partition("<UploadId>")[2].partition("<")[0]
        expect(raw, Ask("PUT", "/box/new", BIG), 507, "StorageFull")
        expect(raw, Ask("PUT", "/box/old", BIG), 507, "StorageFull")
        expect(raw, Ask("PUT", f"/box/parts?partNumber=1&uploadId={upload}", BIG), 507, "StorageFull")
        filler = fill(where)
        expect(raw, Ask("PUT", "/box/new", bytes(200_000)), 507, "StorageFull")
        expect(raw, Ask("DELETE", "/kept/one"), 204)
        cumulus("bucket", "remove", "doomed", "--delete-data", "--dir", str(base))
        assert raw.get("/kept/one").status == 404
        end = time.monotonic() + 20
        while (
            seen := raw.get("/doomed")
        ).code != "NoSuchBucket":  # a server hears of commands within a second
            assert time.monotonic() < end, seen
            time.sleep(0.1)
        expect(raw, Ask("DELETE", "/box/room"), 204)
        expect(raw, Ask("PUT", "/box/new", bytes(200_000)), 200)
        filler.unlink()
        assert raw.get("/box?list-type=2").body.count(b"<Key>") == 2
        quiet(server)
    return 6


def full_database(base: Path, where: Path) -> int:
    """503 for uploads until there is room again; what was acknowledged is listed. Removals go on, also by
    commands when nothing serves."""
    key, secret = make(base, PORTS + f'[database]\nurl = "sqlite:///{where}/cumulus.db"\n')
    for path in base.glob("cumulus.db*"):
        shutil.copy(path, where)
    with started(base, key, secret) as server:
        raw = Raw(server.port, key, secret)
        raw.send(Ask("PUT", "/box"))
        assert raw.send(Ask("PUT", "/box/old", OLD)).status == 200
        filler = fill(where)
        failed = 0
        for number in range(400):
            answer = raw.send(Ask("PUT", f"/box/{number:04}{'x' * 200}", b"x"))
            if answer.status != 200:
                failed += 1
                assert (answer.status, answer.code) == (503, "ServiceUnavailable"), answer
                assert "retry-after" in answer.headers
                if failed == 3:
                    break
        assert failed == 3, "the database was never full"
        for number in range(40):  # far more than fits into what is kept at a time
            expect(raw, Ask("DELETE", f"/box/{number:04}{'x' * 200}"), 204)
        filler.unlink()
        until(lambda: raw.send(Ask("PUT", "/box/new", b"x")).status == 200)
        quiet(server)
        fill(where)
    cumulus("bucket", "remove", "box", "--delete-data", "--dir", str(base))
    assert cumulus("bucket", "list", "--dir", str(base)) == []
    return 3


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def read_only(base: Path, where: Path) -> int:
    """A directory that becomes a bucket: it is read, and nothing in it changes."""
    (where / "old").write_bytes(OLD)
    key, secret = make(base, PORTS)
    subprocess.run(["mount", "-o", "remount,ro", str(where)], check=True)
    owner = cumulus("user", "list", "--dir", str(base))
    cumulus("bucket", "add", "box", "--path", str(where), "--owner", owner[0]["name"], "--dir", str(base))
    with started(base, key, secret) as server:
        raw = Raw(server.port, key, secret)
        expect(raw, Ask("PUT", "/box/new", b"x"), 405, "ReadOnlyStorage")
        expect(raw, Ask("PUT", "/box/old", bytes(3 << 20)), 405, "ReadOnlyStorage")
        expect(raw, Ask("DELETE", "/box/old"), 405, "ReadOnlyStorage")
        quiet(server)
    return 3


def quiet(server: Server) -> None:
    """No traceback; what went wrong is in the log."""
    assert "Traceback" not in server.log(), server.log()


def main() -> None:
    """All of it."""
    # inside a chroot "/" is no mount point and cannot be made private; then the mounts are undone below
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, stderr=subprocess.DEVNULL)
    count = 0
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        base = Path(scratch)
        for number, check in enumerate((full_storage, full_database, read_only)):
            where = stack.enter_context(disk(base / f"disk{number}", "6m"))
            count += check(base / f"D{number}", where)
    print(json.dumps({"cases": count}))


if __name__ == "__main__":
    main()
