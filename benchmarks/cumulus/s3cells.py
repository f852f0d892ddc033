"""What the S3 benchmarks measure: one function a kind of cell, which returns the figures of one run."""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s3clients import CLIENTS, HERE, Client, Copy, boto_client, md5_s, synced_s
from s3servers import SERVERS, Served, Site, cumulus, load, make_bucket, origin

from sector.bench import cores
from sector.bench.common import program
from sector.errors import SectorError

SERVERS["opaque"] = lambda folder: cumulus(folder, '[storage]\netag = "opaque"\n', name="opaque")
BLOCK = 16_000_000
SPARE = 64_000_000
FOLIO = 1 << 19
NEAR_WAIT_S = 60.0
MB = 1_000_000


def spread(folder: Path) -> None:
    """Have ext4 put the directories in this one far from each other, as if each had a disk of its own.

    Without a journal it looks again at each inode freed in the last minutes when it makes a file near by, so
    one server would pay for what another has just removed.
    """
    get_flags, set_flags, top_directory = 0x80086601, 0x40086602, 0x00020000  # ioctl_iflags(2), <linux/fs.h>
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without such flags
            (flags,) = struct.unpack("i", fcntl.ioctl(fd, get_flags, bytes(4)))
            fcntl.ioctl(fd, set_flags, struct.pack("i", flags | top_directory))
    finally:
        os.close(fd)


def warm(folder: Path, size: int) -> None:
    """Have the kernel own the memory that a file of `size` bytes in `folder` needs: one is made and removed.

    The host of a virtual machine may take free memory back. Each page then waits for the host when it is
    used again: 2.3 ns a byte where 0.16 are spent otherwise, which is what would be measured. Of writes as
    long as these the kernel makes pieces of memory too small for the host, and large enough for a server.
    """
    block = bytes(FOLIO)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(0, size + SPARE, FOLIO):
            file.write(block)


class Bench:
    """The servers of a series and the files of its clients, which lie in memory where there is room."""

    def __init__(self, folder: Path) -> None:
        memory = Path("/dev/shm")
        roomy = memory.is_dir() and shutil.disk_usage(memory).free > 8_000 * MB
        self._clients = tempfile.TemporaryDirectory(prefix="s3bench-", dir=memory if roomy else folder)
        self.files = Path(self._clients.name)
        self.folder = folder
        spread(folder)
        self.site = Site(folder)

    def source(self, size: int, *, zeros: bool = False) -> Path:
        """A file of so many bytes that do not compress, or of zeros, as the sink sends them."""
        path = self.files / f"{'zeros' if zeros else 'source'}-{size}"
        if not path.exists():
            block = bytes(min(size, BLOCK)) if zeros else os.urandom(min(size, BLOCK))
            with path.open("wb") as out:
                for at in range(0, size, BLOCK):
                    out.write(block[: size - at])
        return path

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A directory on disk for the server of one cell."""
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=self.folder) as folder:
            yield Path(folder)

    def close(self) -> None:
        """Stop the servers, remove the files."""
        self.site.close()
        self._clients.cleanup()


# ---- throughput ----------------------------------------------------------------------------------
def timed(served: Served, size: int, into: Path, work: Callable[[], float]) -> tuple[float, float]:
    """(10^6 bytes/s, the server's processor seconds a 10^9 bytes), once what others wrote is on disk, there
    is memory for a file below `into`, and two cores that are all there are share a cache."""
    warm(into, size)
    os.sync()
    cores.HERE.near(NEAR_WAIT_S)
    cpu = served.cpu_s()
    seconds = work()
    return round(size / MB / seconds, 1), round((served.cpu_s() - cpu) / size * 1e9, 3)


def forget(served: Served, key: str) -> None:
    """Remove what a cell has put."""
    if served.data is not None:
        (served.data / key).unlink(missing_ok=True)
    elif served.name != "sink":
        boto_client(served).delete_object(Bucket=served.bucket, Key=key)  # type: ignore[attr-defined]


def transfer(bench: Bench, size: int, client: Client, server: str, check: bool) -> dict[str, Any]:
    """A file up and down again; `check`: compared as well. Raises SectorError."""
    served, back = bench.site.get(server), bench.files / "back"
    source = bench.source(size, zeros=server == "sink")  # clients verify what they get by their own hashes
    key, row = f"file-{size}", {"client_files": str(bench.files.parent)}
    up = client.up
    if up is None:
        assert served.data is not None
        shutil.copy(source, served.data / key)
    else:
        rate, cpu = timed(served, size, bench.folder, lambda: up(Copy(served, source, key)))
        row |= {"up_mb_per_s": rate, "up_cpu_s_per_gb": cpu}
    rate, cpu = timed(served, size, bench.files, lambda: client.down(Copy(served, back, key)))
    row |= {"down_mb_per_s": rate, "down_cpu_s_per_gb": cpu}
    if back.exists():
        same = back.stat().st_size == size
        if check and server != "sink":
            same = same and filecmp.cmp(source, back, shallow=False)
        back.unlink()
        if not same:
            raise SectorError(f"{server}: what came back is not what was put")
    forget(served, key)
    return row


def md5(bench: Bench, size: int) -> dict[str, Any]:
    """`openssl dgst -md5` of the same file; `synced_mb_per_s`: the same file written and synced by `dd`."""
    source = bench.source(size)
    warm(bench.folder, size)
    os.sync()
    cores.HERE.near(NEAR_WAIT_S)
    return {
        "up_mb_per_s": round(size / MB / md5_s(source), 1),
        "synced_mb_per_s": round(size / MB / synced_s(source, bench.folder), 1),
    }


def transfers(bench: Bench, size: int, client: str, server: str) -> Callable[[int], dict[str, Any]]:
    """The work of a cell."""
    return lambda run: transfer(bench, size, CLIENTS[client], server, run == 1)


# ---- small objects -------------------------------------------------------------------------------
def whole(found: dict[str, float], what: str) -> dict[str, float]:
    """The outcome of a run without errors. Raises SectorError."""
    if found["errors"] or found["unsent"] or found["unanswered"]:
        raise SectorError(
            f"{what}: {found['errors']} errors, {found['unsent']} not sent, {found['unanswered']} not"
            f" answered: {found['first_error']}"
        )
    return found


def fill(served: Served, keys: int) -> None:
    """Objects of 4 KB to be read and listed."""
    whole(load(served, "put", "--prefix", "r", "--keys", str(keys), "--requests", str(keys)), served.name)


def closed(served: Served, op: str, keys: int, seconds: float, run: int) -> dict[str, float]:
    """16 connections as fast as they are answered; PUTs make new objects."""
    prefix = f"w{run}-" if op == "put" else "r"
    words = ["--prefix", prefix, "--keys", str(10**7 if op == "put" else keys)]
    found = whole(load(served, op, *words, "--seconds", str(seconds), "--warm", "1"), f"{served.name} {op}")
    if not found["done"]:
        raise SectorError(f"{served.name} {op}: nothing was answered within {seconds:g} s")
    return found


def small(bench: Bench, server: str, keys: int, seconds: float, run: int) -> dict[str, Any]:
    """GET, LIST and PUT of 4 KB objects over 16 signed connections, in a fresh server."""
    row: dict[str, Any] = {"keys": keys}
    with bench.scratch(server) as folder, SERVERS[server](folder) as served:
        make_bucket(served)
        fill(served, keys)
        for op in ("get", "list", "put"):
            cpu = served.cpu_s()
            found = closed(served, op, keys, seconds, run)
            spent = served.cpu_s() - cpu
            row |= {f"{op}_per_s": found["rate_per_s"], f"{op}_p99_ms": found["p99_ms"]}
            row[f"{op}_cpu_ms"] = round(spent * 1e3 / (found["rate_per_s"] * (seconds + 1)), 3)
            if op == "list" and found["keys_per_s"] < 0.9 * found["rate_per_s"] * keys / -(-keys // 1000):
                keys_s, pages_s = found["keys_per_s"], found["rate_per_s"]
                raise SectorError(f"{server} list: {keys_s:.0f} keys a second on {pages_s:.0f} pages")
        row["rss_mb"] = round(served.rss_mb(), 1)
    return row


def opened(bench: Bench, server: str, keys: int, seconds: float, run: int) -> dict[str, Any]:
    """GET and PUT at 70 % of the rate that a closed loop has just reached."""
    row: dict[str, Any] = {"keys": keys}
    with bench.scratch(server) as folder, SERVERS[server](folder) as served:
        make_bucket(served)
        fill(served, keys)
        for op in ("get", "put"):
            rate = 0.7 * closed(served, op, keys, max(2.0, seconds / 4), run)["rate_per_s"]
            prefix = f"o{run}-" if op == "put" else "r"
            words = ["--prefix", prefix, "--keys", str(10**7 if op == "put" else keys)]
            found = whole(
                load(served, op, *words, "--seconds", str(seconds), "--rate", str(round(rate, 1))), server
            )
            row |= {f"{op}_offered_per_s": found["offered_per_s"], f"{op}_p50_ms": found["p50_ms"]}
            row |= {f"{op}_p99_ms": found["p99_ms"], f"{op}_max_ms": found["max_ms"]}
    return row


def slow_syncs(bench: Bench, seconds: float, run: int) -> dict[str, Any]:
    """PUTs to Cumulus while every sync takes 5 ms, and how many syncs a PUT needs."""
    with bench.scratch("slow") as folder:
        count = folder / "syncs"
        shim = {"LD_PRELOAD": program("slowsync.so"), "SLOWSYNC_US": "5000", "SLOWSYNC_COUNT": str(count)}
        with cumulus(folder, environment=shim) as served:
            make_bucket(served)
            closed(served, "put", 0, 1.0, 100 + run)
            before = sum(struct.unpack("4Q", count.read_bytes()))
            words = ["--prefix", f"s{run}-", "--keys", str(10**7), "--seconds", str(seconds)]
            found = whole(load(served, "put", *words), "cumulus put")
            syncs = sum(struct.unpack("4Q", count.read_bytes())) - before
    done = found["rate_per_s"] * found["seconds"]
    return {
        "put_per_s": found["rate_per_s"],
        "p99_ms": found["p99_ms"],
        "syncs_per_put": round(syncs / done, 3),
    }


# ---- multipart -----------------------------------------------------------------------------------
def complete(bench: Bench, server: str, parts: int, part_bytes: int) -> dict[str, Any]:
    """How long `CompleteMultipartUpload` of equal parts takes once they are on disk."""
    with bench.scratch(server) as folder, SERVERS[server](folder) as served:
        make_bucket(served)
        client: Any = boto_client(served, read_timeout=600)
        where = {"Bucket": served.bucket, "Key": "large"}
        upload = client.create_multipart_upload(**where)["UploadId"]
        data, tags, began = bench.source(part_bytes).read_bytes(), [], time.monotonic()
        for number in range(1, parts + 1):
            made = client.upload_part(**where, UploadId=upload, PartNumber=number, Body=data)
            tags.append({"PartNumber": number, "ETag": made["ETag"]})
        sent_s = time.monotonic() - began
        os.sync()
        began = time.monotonic()
        client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": tags})
        took = time.monotonic() - began
        size = client.head_object(**where)["ContentLength"]
        with contextlib.closing(client.get_object(**where, Range="bytes=-1000")["Body"]) as tail:
            good = tail.read() == data[-1000:]
    if size != parts * part_bytes or not good:
        raise SectorError(f"{server}: the object is not its parts")
    rate = parts * part_bytes / MB / sent_s
    return {"bytes": size, "parts": parts, "complete_s": round(took, 3), "up_mb_per_s": round(rate, 1)}


# ---- equal shares --------------------------------------------------------------------------------
MODES = ("down-same", "down-own", "up")
WEIGHTED = ("weights-down", "weights-up")


def fairness(bench: Bench, server: str, clients: int, megabytes: int) -> dict[str, Any]:
    """Spread of the rates of clients that want all there is (fairness.py), as `MODE_cv`, `MODE_farthest` (%)
    and `MODE_total_of_alone`; for ours also what weight 3 on one connection gets against 1 on sixteen."""
    words = ["--clients", str(clients), "--size", str(megabytes), "--workers", "2"]
    for mode in (*MODES, *(WEIGHTED if server == "cumulus" else ())):
        words += ["--mode", mode]
    with bench.scratch("fairness") as folder, contextlib.ExitStack() as stack:
        words += ["--dir", str(folder)]
        if server != "cumulus":
            served = stack.enter_context(SERVERS[server](folder))
            words += ["--url", served.url, "--key", f"{served.key}:{served.secret}"]
        done = subprocess.run(
            [sys.executable, str(HERE / "fairness.py"), *words],
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
    if done.returncode:
        raise SectorError(f"fairness.py failed: {done.stderr.strip()[-300:]}")
    row: dict[str, Any] = {"clients": clients, "megabytes": megabytes}
    for found in json.loads(done.stdout)["results"]:
        kept = ("cv", "farthest", "total_of_alone", "ratio", "total", "server_pss_mb", "rates")
        found["rates"].sort()
        row |= {f"{found['mode']}_{name}": found[name] for name in kept if name in found}
    return row


def memory(bench: Bench, clients: int, megabytes: int) -> dict[str, Any]:
    """The most memory (PSS) of Cumulus in a control group of 512 MiB while clients move an object each, up
    and down: `up_server_pss_mb`, `down-own_server_pss_mb`. Raises SectorError when not all is moved."""
    words = ["--clients", str(clients), "--size", str(megabytes), "--workers", "2", "--memory", "512"]
    with bench.scratch("memory") as folder:
        command = [sys.executable, str(HERE / "fairness.py"), *words, "--dir", str(folder)]
        command += ["--mode", "up", "--mode", "down-own"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise SectorError(f"fairness.py failed: {done.stderr.strip()[-300:]}")
    row: dict[str, Any] = {"clients": clients, "megabytes": megabytes}
    for found in json.loads(done.stdout)["results"]:
        row |= {f"{found['mode']}_{name}": found[name] for name in ("total", "server_pss_mb")}
    return row


# ---- clients x redirection x storage -------------------------------------------------------------
STORAGES = {
    "posix": "",
    "memory": 'backend = "memory"',
    "fsspec": 'backend = "fsspec:file://{folder}/objects"',
}
LOADED = MB  # bytes of an object
LOADED_WORDS = ("--size", str(LOADED), "--keys", "16")


def storage_settings(storage: str, folder: Path) -> str:
    """The section that chooses it."""
    return f"[storage]\n{STORAGES[storage].format(folder=folder)}\n"


@contextmanager
def reached(folder: Path, storage: str, redirected: bool) -> Iterator[Served]:
    """A server with that storage, or a point that redirects to it, with the bucket and its objects."""
    user = origin(folder)
    workers = 1 if storage == "memory" else 2
    with cumulus(folder, storage_settings(storage, folder), workers=workers, user=user) as served:
        make_bucket(served)
        whole(load(served, "put", *LOADED_WORDS, "--requests", "16", "--connections", "4"), storage)
        if not redirected:
            yield served
            return
        (folder / "hosts").write_text(f"{served.url}\n")
        more = f'[redirect]\nmode = "round-robin"\npoint = true\nhosts_file = "{folder}/hosts"\n'
        with cumulus(folder, more, name="point", user=user) as point:
            yield point


def loaded(bench: Bench, storage: str, redirected: bool, seconds: float) -> dict[str, Any]:
    """10^6 bytes/s that 1 to 64 clients get and put together."""
    row: dict[str, Any] = {"clients": [1, 4, 16, 64], "get_mbps": [], "put_mbps": []}
    with bench.scratch(storage) as folder, reached(folder, storage, redirected) as served:
        for op in ("get", "put"):
            for clients in row["clients"]:
                words = [*LOADED_WORDS, "--connections", str(clients)]
                timing = ["--seconds", str(seconds), "--warm", "1", "--grace", "60", "--follow"]
                found = whole(load(served, op, *words, *timing), f"{storage} {op}")
                rate = found["taken_per_s"] if op == "get" else found["bytes_out"] / found["seconds"]
                row[f"{op}_mbps"].append(round(rate / 1e6, 1))
    return row
