"""Rate caps as users set them: put and get with --limit, a slave's settings; and what status says of it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, running, wait_for
from test_hostile import QuietUser, quiet_user

from sector._udt.traffic import LIMITS

pytestmark = pytest.mark.alone
MB = 1_000_000
FILES = 4


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One slave that sends 30 MB/s at most."""
    with running(tmp_path_factory.mktemp("rates"), slaves=1) as cluster:
        cluster.kill(cluster.slave("slave1")["pid"])
        settings = cluster.dir / "up" / "slave1.toml"
        cap = '\n[[data.link_cap]]\nto = "127.0.0.0/8"\nbandwidth = "30 MB/s"\n'
        settings.write_text(settings.read_text() + cap)
        cluster.start_missing()
        yield cluster


def sources(folder: Path, files: int, size: int) -> list[str]:
    """Files of random bytes."""
    found = []
    for i in range(files):
        (folder / f"{i}").write_bytes(os.urandom(size))
        found.append(str(folder / f"{i}"))
    return found


def waited(pid: int) -> dict[Path, float]:
    """Seconds that each thread of a process that moves bytes was ready to run and had no processor, as the
    kernel counts them."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text().startswith(("udt-", "sector-disk")):
                found[task] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return found


def kept(cluster: Cluster, size: int, cap: float, *words: str) -> None:
    """A put or get of `size` bytes in all keeps `cap` bytes a second within 10 %: never faster as a whole,
    and the bytes alone (without opening, fsync and publishing) not much slower in one of six tries at least,
    less what client and slave waited for a processor. 50 MB/s: csrc/test/test_io_caps.c."""
    slave = cluster.slave("slave1")["pid"]
    found = []
    for _ in range(6):
        before, client = waited(slave), cluster.popen(*words, "--stats", "--json")
        lost: dict[Path, float] = {}
        while client.poll() is None:
            lost |= waited(client.pid)  # looked at often, since a client's counts go with it
            time.sleep(0.02)
        lost |= {task: now - before.get(task, 0.0) for task, now in waited(slave).items()}
        out, err = client.communicate()
        assert client.returncode == 0, err
        shown = json.loads(out)
        moving = max(one["stats"]["us"] for one in shown["files"]) / 1e6
        found.append((size / shown["seconds"], size / moving, moving, sum(lost.values())))
        assert size / shown["seconds"] < 1.02 * cap, found
        if size > 0.9 * cap * (moving - sum(lost.values())):
            break
    else:
        raise AssertionError(found)
    print(json.dumps(found))


@pytest.mark.parametrize("files", [1, FILES])
def test_limits_are_kept(capped: Cluster, tmp_path: Path, files: int) -> None:
    """20 MB/s within 10 %, one file or four at once."""
    size = 32 * MB // files
    names, back = sources(tmp_path, files, size), tmp_path / "back"
    back.mkdir()
    remote = [f"/limit{files}/{i}" for i in range(files)]
    put = ("put", "--limit", "20MB/s", "-j", "4", *names, f"/limit{files}/")
    get = ("get", "--limit", "160Mb/s", "-j", "4", *remote, str(back))
    for words in (put, get):
        kept(capped, files * size, 20 * MB, *words)


def test_a_link_cap_of_a_slave_holds_for_all_its_transfers(capped: Cluster, tmp_path: Path) -> None:
    """`[[data.link_cap]]` in its settings; and `put --stats` of a limited file names the cap."""
    size = 12 * MB
    names, back = sources(tmp_path, FILES, size), tmp_path / "back"
    back.mkdir()
    shown = capped.json("put", "--stats", "--limit", "20MB/s", *names, "/link/")
    limited = shown["files"][0]["limited"]
    assert max(limited, key=lambda name: float(limited[name])) == "cap", limited
    remote = [f"/link/{i}" for i in range(FILES)]
    kept(capped, FILES * size, 30 * MB, "get", *remote, str(back))


def test_status_shows_who_moves_what(capped: Cluster, tmp_path: Path) -> None:
    """While a file moves: its rate and what limits; afterwards the sums. One program asks all the time: on a
    machine with other load a command for each look would see too little."""
    with quiet_user(capped) as user:
        look_at_traffic(capped, user, tmp_path)


def look_at_traffic(capped: Cluster, user: QuietUser, tmp_path: Path) -> None:
    """As `test_status_shows_who_moves_what` says."""
    (name,) = sources(tmp_path, 1, 60 * MB)

    def traffic() -> dict[str, Any]:
        found: dict[str, Any] = user.ask("status")["slave1"]
        return found

    time.sleep(1.5)  # a heartbeat a second tells: the transfers of the tests before are in the sums now
    before = traffic()
    capped.ok("put", name, "/seen")
    getting = capped.popen("get", "--limit", "6MB/s", "/seen", str(tmp_path / "seen"))
    try:
        moving = wait_for(
            "a transfer that its cap limits",
            lambda: (now := traffic())["out_Bps"] > 5 * MB and now["limit"] == LIMITS.index("cap") and now,
            seconds=20.0,
        )
        assert moving["transfers_now"] == 1 and moving["out_Bps"] < 6.6 * MB
        assert capped.json("node", "list")[0]["traffic"]["limit"] == "cap"
        assert "limited by" in capped.ok("status").out
    finally:
        getting.communicate(timeout=60)
    assert getting.returncode == 0
    done = wait_for("the sums", lambda: (found := traffic())["transfers_now"] == 0 and found)
    assert done["bytes_out"] - before["bytes_out"] >= 40 * MB
    assert done["bytes_in"] - before["bytes_in"] >= 40 * MB
    assert done["transfers_done"] == before["transfers_done"] + 2
    assert capped.json("node", "list")[0]["traffic"]["bytes_out"] == done["bytes_out"]
