"""A tree that was copied to another disk, or comes back from a backup, with what belongs to its objects."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cumulus_commands import Commands
from posix_disk import NoXattr

from cumulus.backends.posix.copied import Look, look
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore
from cumulus.model import Acl, ObjectMeta, encode_meta, key_of
from cumulus.ops.names import odd_name, version_name
from cumulus.storage.api import Entry

NAMES = ("a", "d/e/b", "d/", "long", "edited", odd_name("x/../y"), version_name("a", "v0"))


def put(store: PosixStore, name: str, meta: bytes) -> None:
    """One object."""
    empty = name.endswith("/")
    stream = store.open_write("lab", "other" if empty else name)
    if not empty:
        stream.write(memoryview(b"body of " + name.encode()))
    stream.commit(meta, None, name)
    stream.close()


def filled(path: Path, files: Files | None = None) -> dict[str, bytes | None]:
    """A store of all kinds of objects, and a file of others; their records."""
    store = PosixStore(str(path), files=files)
    store.create_bucket("lab")
    for name in NAMES:
        put(store, name, b"record of " + name.encode() + b"x" * (9000 if name == "long" else 0))
    (path / "data/lab/foreign").write_bytes(b"x")
    found = metas(store, (*NAMES, "foreign"))
    store.close()
    assert found["foreign"] is None and None not in [found[name] for name in NAMES]
    return found


def metas(store: PosixStore, names: Sequence[str]) -> dict[str, bytes | None]:
    """The records that hold; None where there is none."""

    def entry(name: str) -> Entry | None:
        return next((one for one in store.names("lab", prefix=name) if one.name == name), None)

    return {name: one.meta if (one := entry(name)) else None for name in names}


def copy(path: Path, to: Path, how: str) -> None:
    """As administrators do. The first keeps whole seconds only."""
    to.mkdir()
    shutil.rmtree(path / "data/lab/.cumulus/tmp")  # a tool may leave out what is empty
    if how == "tar":
        pack = subprocess.run(
            ["tar", "--pax-option=delete=mtime", "--xattrs", "--xattrs-include=user.*", "-c", "."],
            cwd=path, capture_output=True, check=True,
        )  # fmt: skip
        subprocess.run(
            ["tar", "--xattrs", "--xattrs-include=user.*", "-x"], cwd=to, input=pack.stdout, check=True
        )
    else:
        subprocess.run(["cp", "-a", f"{path}/.", str(to)], check=True)


@pytest.mark.parametrize("how", ["tar", "cp"])
@pytest.mark.parametrize("files", [Files, NoXattr])
def test_records_are_given_to_the_copies_of_their_files(tmp_path: Path, files: type[Files], how: str) -> None:
    """Older versions, keys that no file system can name and directories that are objects, too; what somebody
    has edited since, and what is somebody else's, stays what it is. Once more changes nothing."""
    before = filled(tmp_path / "store", files())
    copy(tmp_path / "store", tmp_path / "copy", how)
    with (tmp_path / "copy/data/lab/edited").open("r+b") as edited:
        edited.write(b"B")
    store = PosixStore(str(tmp_path / "copy"), files=files())
    assert set(metas(store, NAMES).values()) == {None}
    assert look(str(tmp_path / "copy")) == (["lab"], False)
    assert look(str(tmp_path / "store")).copied == []
    assert store.take_over("lab").given == len(NAMES) - 1
    assert store.take_over("lab").given == 0
    assert metas(store, (*NAMES, "foreign")) == {**before, "edited": None}
    assert look(str(tmp_path / "copy")).copied == []
    store.close()
    again = PosixStore(str(tmp_path / "copy"), files=files())
    assert metas(again, ("long", "d/"))["long"] == before["long"]
    assert again.stat("lab", "d/").meta == before["d/"]
    again.close()


def test_no_service_begins_on_copies_before_their_records_hold(cloud: Commands, tmp_path: Path) -> None:
    """It would take them for files of others, and what it writes to them would replace their records. The
    doctor says what to do, and does it; the index has all of them then."""
    run = cloud
    owner = run.json("user", "show", "admin")["id"]
    run("bucket", "add", "lab", "--owner", "admin")
    store = PosixStore(str(run.dir))
    for key, version in (("x/../y", "null"), ("a", "v0"), ("a", "v1")):
        if version == "v1":
            store.link("lab", "a", version_name("a", "v0"))
        meta = ObjectMeta(key=key, size=0, etag="e", modified_ns=1, acl=Acl(owner=owner), version=version)
        put(store, key if key == "a" else odd_name(key), encode_meta(meta))
    store.close()
    copy(run.dir, tmp_path / "copy", "cp")
    there = Commands(run._capsys, tmp_path / "copy")
    (there.dir / "cumulus.toml").write_text("[server]\nport = 0\n[admin]\nport = 0\n")
    told = next(one for one in there.json("doctor", status=1) if one["check"] == "records")
    assert told["state"] == "failed" and "lab" in told["text"] and "doctor --copied" in told["hint"]
    command = [sys.executable, "-P", "-m", "cumulus.cli", "serve", str(there.dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "doctor --copied" in done.stderr
    found = there.json("doctor", "--copied")
    assert [(one["name"], one["taken_over"], one["changed"]) for one in found] == [("lab", 3, 0)]
    assert "3 records taken over" in (there.dir / "audit.log").read_text()
    assert not [one for one in there.json("doctor") if one["check"] == "records"]
    assert there.json("bucket", "show", "lab")["versioning"] == "Enabled"
    assert [one["key"] for one in there.json("bucket", "show", "lab", "--odd")] == ["x/../y"]


def with_keys(path: Path, names: Sequence[str]) -> None:
    """A store of objects that are called so."""
    store = PosixStore(str(path))
    store.create_bucket("lab")
    for name in names:
        meta = ObjectMeta(key=name, size=8 + len(name), etag="e", modified_ns=1, acl=Acl(owner="o"))
        put(store, name, encode_meta(meta))
    store.close()


def test_copies_beside_their_originals_are_no_copied_tree(tmp_path: Path) -> None:
    """More of them than files are looked at, before all others. They have not the owners of their originals,
    and all is served."""
    with_keys(tmp_path / "store", [f"run/{number:02}" for number in range(20)])
    lab = tmp_path / "store/data/lab"
    subprocess.run(["cp", "-a", f"{lab}/run/.", str(lab)], check=True)
    assert look(str(tmp_path / "store"), key_of) == ([], True)
    with contextlib.ExitStack() as held:  # the copies get none of their numbers
        for number in range(10):  # others are put there meanwhile
            held.enter_context((lab / f"run/{number:02}").open())
            (lab / f"run/{number:02}").unlink()
        assert look(str(tmp_path / "store"), key_of) == ([], True)
        copy(tmp_path / "store", tmp_path / "copy", "cp")
        assert look(str(tmp_path / "copy"), key_of) == (["lab"], False)


def test_no_link_leads_from_a_copied_tree_to_its_originals(tmp_path: Path) -> None:
    """They would speak for the copies."""
    with_keys(tmp_path / "store", ["run/a", "b", "run/deep/c"])
    copy(tmp_path / "store", tmp_path / "copy", "cp")
    lab, there = tmp_path / "store/data/lab", tmp_path / "copy/data/lab"
    for name in ("b", "run"):
        (there / name).rename(there / f"{name}-moved")
        (there / name).symlink_to(lab / name)
    assert look(str(tmp_path / "copy"), key_of) == (["lab"], False)


@pytest.mark.parametrize(
    "key", ["", "a//b", "../../store/data/lab/k", "k/", "\0", "k/k", ".cumulus", "\ud800"]
)
def test_a_key_under_which_nothing_can_be_is_no_way_out_of_a_copied_tree(tmp_path: Path, key: str) -> None:
    with_keys(tmp_path / "store", ["k"])
    copy(tmp_path / "store", tmp_path / "copy", "cp")
    assert look(str(tmp_path / "copy"), lambda _: key) == Look(["lab"], False)
    assert key_of(b"no record") is None


def test_what_cannot_be_looked_at_was_not_copied(tmp_path: Path) -> None:
    """A bucket whose disk is away, an empty one, pipes and links."""
    filled(tmp_path / "store")
    (tmp_path / "store/adopted/away").write_text(str(tmp_path / "none"))
    (tmp_path / "store/data/aaa").mkdir()
    os.mkfifo(tmp_path / "store/data/aaa/pipe")
    (tmp_path / "store/data/aaa/link").symlink_to(tmp_path / "store/data/lab/a")
    assert look(str(tmp_path / "store")) == ([], True)
    assert look(str(tmp_path / "none")) == ([], False)


def test_other_storage_has_nothing_to_take_over(cloud: Commands) -> None:
    (cloud.dir / "cumulus.toml").write_text('[storage]\nbackend = "memory"\n')
    assert "plain files" in cloud.refused("doctor", "--copied", status=2)["message"]
    assert cloud.refused("doctor", "--copied", "--storage", ".", status=2)["message"].startswith("--copied")
