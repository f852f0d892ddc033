"""find, du, df with a fake cloud: what is picked, what is summed, how it is printed."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from sector.cli import files
from sector.cli.main import cli
from sector.model import Address, FileInfo, Version
from sector.wire.admin import NodeInfo

NOW = time.time()


def entry(path: str, size: int = -1, *, days: float = 0.0, owner: str = "alice", copies: int = 2) -> FileInfo:
    """A file of `size` bytes, or a directory."""
    kind = "dir" if size < 0 else "file"
    nodes = [f"s{number}" for number in range(copies)] if kind == "file" else []
    when = NOW - days * 86400
    return FileInfo(path, kind, max(0, size), Version(1, 1), owner, 0o644, when, "", nodes)


TREE = [
    entry("/d/a", days=9),
    entry("/d/a/deep"),
    entry("/d/a/deep/x.dat", 4_000_000, days=40, copies=3),
    entry("/d/a/y.dat", 1000, owner="bob", copies=1),
    entry("/d/empty"),
    entry("/d/z\n.txt", 10, days=2, copies=0),
]
NODES = [
    NodeInfo(f"s{n}", "h", "/x", state, 1, "/d", 10**9, 3 * 10**9, 7, Address("h", 1), Address("h", 2), 1)
    for n, state in ((1, "up"), (2, "suspect"), (3, "lost"))
]


class Fake:
    """A cloud with one directory."""

    def ls(self, path: str, *, recursive: bool) -> list[FileInfo]:
        assert recursive
        return [one for one in TREE if one.path == path or one.path.startswith(path.rstrip("/") + "/")]

    def nodes(self) -> list[NodeInfo]:
        return NODES


@pytest.fixture(autouse=True)
def cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connection(shared: Any) -> Any:
        yield Fake()

    monkeypatch.setattr(files, "connection", connection)


def out(*arguments: str) -> str:
    done = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ([], ["/d/a", "/d/a/deep", "/d/a/deep/x.dat", "/d/a/y.dat", "/d/empty", "/d/z\\n.txt"]),
        (["--name", "*.dat"], ["/d/a/deep/x.dat", "/d/a/y.dat"]),
        (["--name", "a", "--name", "*.txt"], ["/d/a", "/d/z\\n.txt"]),
        (["--type", "d"], ["/d/a", "/d/a/deep", "/d/empty"]),
        (["--larger", "3.9M"], ["/d/a/deep/x.dat"]),
        (["--larger", "3.9MiB"], []),
        (["--smaller", "1000"], ["/d/z\\n.txt"]),
        (["--type", "f", "--newer", "1"], ["/d/a/y.dat"]),
        (["--type", "f", "--older", "30"], ["/d/a/deep/x.dat"]),
        (["--owner", "bob"], ["/d/a/y.dat"]),
        (["--copies-below", "2"], ["/d/a/y.dat", "/d/z\\n.txt"]),
    ],
)
def test_find_picks_what_fits_all(asked: list[str], found: list[str]) -> None:
    assert out("find", "/d", *asked).splitlines() == found


def test_find_for_other_programs() -> None:
    """Names as they are, whatever is in them; entries as `ls --json` has them."""
    assert out("find", "/d", "--type", "f", "-0").split("\0") == [
        "/d/a/deep/x.dat",
        "/d/a/y.dat",
        "/d/z\n.txt",
        "",
    ]
    rows = json.loads(out("find", "/d", "--owner", "bob", "--json"))
    assert [(row["path"], row["size"], row["replicas"]) for row in rows] == [("/d/a/y.dat", 1000, ["s0"])]


def test_find_refuses_what_is_no_size() -> None:
    done = CliRunner().invoke(cli, ["find", "/d", "--larger", "much"])
    assert done.exit_code == 2 and "write 500, 10M or 10MiB" in done.output


def test_du_sums_files_and_their_replicas() -> None:
    rows = json.loads(out("du", "/d", "--depth", "2", "--json"))
    assert [(row["path"], row["files"], row["bytes"], row["replica_bytes"]) for row in rows] == [
        ("/d/a/deep", 1, 4_000_000, 12_000_000),
        ("/d/a", 2, 4_001_000, 12_001_000),
        ("/d/empty", 0, 0, 0),
        ("/d", 3, 4_001_010, 12_001_000),
    ]
    assert [row["path"] for row in json.loads(out("du", "/d", "-d", "1", "--json"))] == [
        "/d/a",
        "/d/empty",
        "/d",
    ]
    assert out("du", "/d/a/y.dat", "/d/empty").splitlines()[1:] == [
        "    1  1.0 kB       1.0 kB  /d/a/y.dat",
        "    0     0 B          0 B  /d/empty",
    ]


def test_df_shows_each_slave_and_the_sum_of_those_that_are_here() -> None:
    lines = out("df").splitlines()
    assert [line.split()[0] for line in lines] == ["slave", "s1", "s2", "s3", "all"]
    assert lines[-1].split() == ["all", "2", "here", "14", "2.0", "GB", "6.0", "GB"]
    assert [row["free_bytes"] for row in json.loads(out("df", "--json"))] == [3 * 10**9] * 3


def test_df_counts_the_room_of_a_disk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves of one host on one disk, another disk there, the same number on another host, slaves that do not
    say."""
    disks = (("a", "fe01"), ("a", "fe01"), ("a", "fe02"), ("b", "fe01"), ("c", ""), ("c", ""))
    nodes = [
        msgspec.structs.replace(NODES[0], id=f"s{n}", host=host, disk=disk)
        for n, (host, disk) in enumerate(disks)
    ]
    monkeypatch.setattr(Fake, "nodes", lambda self: nodes)
    assert out("df").splitlines()[-1].split()[-2:] == ["15.0", "GB"]
    assert [(row["host"], row["disk"]) for row in json.loads(out("df", "--json"))] == list(disks)


@pytest.mark.parametrize("name", ["find", "du", "df"])
def test_help_has_examples(name: str) -> None:
    text = out(name, "--help")
    assert "Examples:" in text and f"sector {name}" in text and "--json" in text
