"""What of a local tree is put, and what a put or get refuses before it moves a byte."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from sector import errors
from sector.client.cloud import TREE_S, CloudClient
from sector.client.session import ClientSession
from sector.client.transfer import _drop_temp, _make_temp_thd, open_local_thd
from sector.client.tree import Tree, check_distinct, plan_tree_thd
from sector.model import Version
from sector.wire.files import Replicas


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A tree with a file, a pipe, links to a file, a directory, nowhere and above."""
    top = tmp_path / "tree"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "sub" / "a").write_bytes(b"abc")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b").write_bytes(b"b")
    os.mkfifo(top / "pipe")
    (top / "to-a").symlink_to("sub/a")
    (top / "to-other").symlink_to("../other")
    (top / "nowhere").symlink_to("missing")
    (top / "sub" / "above").symlink_to("..")
    return top


def plan(top: Path, follow: bool) -> Tree:
    """The plan of a tree that is a directory."""
    found = plan_tree_thd(str(top), True, follow)
    assert found is not None
    return found


def test_links_are_left_out_and_named(top: Path) -> None:
    """A link may lead out of the tree: it is taken only when asked for, and never dropped in silence."""
    found = plan(top, False)
    assert found.folders == ["sub", "sub/deep"]
    assert found.files == [("sub/a", 3)]
    assert sorted(found.links) == ["nowhere", "sub/above", "to-a", "to-other"]
    assert found.others == ["pipe"]
    links, others = found.notes("tree")
    assert links.startswith("4 symbolic links (tree/")
    assert others == "1 entry (tree/pipe) left out: not a regular file"


def test_followed_links_end_at_a_loop(top: Path) -> None:
    """With `follow` a link to a directory is a directory; one to a directory above would never end."""
    found = plan(top, True)
    assert sorted(found.folders) == ["sub", "sub/deep", "to-other"]
    assert sorted(found.files) == [("sub/a", 3), ("to-a", 3), ("to-other/b", 1)]
    assert (found.links, found.loops) == ([], ["sub/above"])
    assert found.others == ["nowhere", "pipe"]


def test_a_directory_that_cannot_be_read_is_an_error(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that lacks a part would be taken for a whole one."""
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(errors.LocalIO, match=r"deep: Permission denied"):
        plan(top, False)


def test_names_in_notes_do_not_move_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "a\n\x1b[2J").symlink_to("x")
    (line,) = plan(tmp_path, False).notes("t")
    assert line.isprintable()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A pipe without a writer is refused, not waited for; so is a device, a directory, a socket."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
        for place in (tmp_path / "pipe", tmp_path, "/dev/zero", tmp_path / "socket"):
            with pytest.raises(errors.LocalIO):
                open_local_thd(str(place))


def test_a_file_that_only_says_that_it_is_empty_is_refused(tmp_path: Path) -> None:
    """Files of the kernel, and of some file systems, have bytes but no size: nothing would be stored."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(errors.LocalIO, match="/proc/cpuinfo does not tell its size") as told:
        open_local_thd("/proc/cpuinfo")
    assert told.value.hint == "sector put - PATH < /proc/cpuinfo"
    with pytest.raises(errors.LocalIO, match="/proc/self/mem"):  # which cannot be read there
        open_local_thd("/proc/self/mem")
    assert len(os.listdir("/proc/self/fd")) == before
    (tmp_path / "empty").touch()
    fd, size = open_local_thd(str(tmp_path / "empty"))
    os.close(fd)
    assert size == 0


def test_a_file_that_is_written_while_it_is_opened_has_its_new_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "f"
    place.touch()
    read = os.pread

    def late(fd: int, size: int, at: int) -> bytes:
        place.write_bytes(b"late")
        return read(fd, size, at)

    monkeypatch.setattr(os, "pread", late)
    fd, size = open_local_thd(str(place))
    os.close(fd)
    assert size == 4


def test_two_sources_for_one_place_are_refused() -> None:
    """One of them would be lost without a word."""
    check_distinct([("a/f", "/d/f"), ("b/g", "/d/g")])
    with pytest.raises(errors.UsageError, match=r"a/f and b/f would both become /d/f"):
        check_distinct([("a/f", "/d/f"), ("b/f", "/d/f")])


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "n" + "ü" * 127])
def test_the_longest_names_can_be_got(tmp_path: Path, name: str) -> None:
    """The temporary file beside the target has a name that fits too."""
    temp, fd = _make_temp_thd(str(tmp_path / name), 1, True)
    os.close(fd)
    os.rename(temp, tmp_path / name)


def test_a_place_whose_directory_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(errors.LocalIO) as told:
        _make_temp_thd(str(tmp_path / "none" / "x"), 1, True)
    assert told.value.message.startswith(f"{tmp_path}/none/x: No such file")
    assert told.value.hint == "make its directory first, or choose another"


def test_a_file_system_without_locks_keeps_no_empty_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each get has a part of its own there, and leaves nothing else."""

    def refuse(fd: int, what: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    temp, fd = _make_temp_thd(str(tmp_path / "x"), 5, True, Version(1, 2))
    assert [str(one) for one in tmp_path.iterdir()] == [temp]
    _drop_temp((temp, fd))
    assert list(tmp_path.iterdir()) == []


class Asked:
    """A session that notes how long it is to wait for an answer."""

    clock = Clock()
    rpc = gmp = None

    def __init__(self) -> None:
        self.limits: list[float] = []

    def call(self, _request: Any, *, deadline_s: float = 10.0, patience_s: float = 0.0) -> Deferred[Any]:
        self.limits.append(deadline_s)
        return succeed(Replicas(1, 1, ["s1"]))


def test_replicate_has_the_time_that_a_directory_takes() -> None:
    """The master looks at every file below."""
    asked = Asked()
    cloud = CloudClient(cast(ClientSession, asked), cast(Any, None), cast(Any, None))
    done: list[Any] = []
    cloud.replicate("/d").addCallback(done.append)
    assert done == [Replicas(1, 1, ["s1"])]
    assert asked.limits == [TREE_S]
