"""Files and buckets that commands of Cumulus cannot reach: they go on where they can, and say what helps."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from by_the_rules import by_the_rules
from cumulus_commands import Commands
from test_cumulus_cli_buckets import owner_on_disk, store_object
from test_cumulus_cli_listed import adopt

from cumulus.admin.places import way_back
from cumulus.backends.posix.files import Files
from cumulus.backends.posix.store import PosixStore
from cumulus.config import load_config
from cumulus.model import Acl, Bucket
from cumulus.opening import open_index


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A Cumulus with alice and bob."""
    cloud("user", "add", "alice")
    cloud("user", "add", "bob")
    return cloud


def told(run: Commands, check: str, status: int = 0) -> list[dict[str, str]]:
    """What the doctor finds amiss there."""
    found = run.json("doctor", status=status)
    return [one for one in found if one["check"] == check and one["state"] != "ok"]


@pytest.mark.parametrize("words", ["bucket chown shared bob", "user remove alice --give-to bob"])
def test_a_file_that_may_not_be_read_changes_hands_with_its_bucket(
    run: Commands, tmp_path: Path, words: str
) -> None:
    """Of another account, in a directory that others use as well."""
    adopt(run, tmp_path / "shared", "a", "closed", "z")
    store_object(run, "shared", "b", b"hello")
    bob = run.json("user", "show", "bob")["id"]
    os.chown(tmp_path / "shared/closed", 12345, 12345)
    (tmp_path / "shared/closed").chmod(0)
    with by_the_rules():
        run(*words.split())
    index, directory = open_index(load_config(run.dir / "cumulus.toml"), lambda bad: None)
    found = index.bucket("shared")
    assert found is not None and found.owner == bob
    assert {row.key: row.owner for row in index.page_versions("shared").rows} == dict.fromkeys(
        ("a", "b", "closed", "z"), bob
    )
    index.close()
    directory.close()


# doctor -----------------------------------------------------------------------------------------------
def test_doctor_names_disks_of_buckets_that_have_no_hard_links(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are not the service's own, of which it says so anyway."""
    adopt(run, tmp_path / "disk", "a")
    run("bucket", "add", "plain", "--owner", "alice")
    assert told(run, "hard links") == []

    def link(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Files, "link", link)
    (one,) = told(run, "hard links")
    assert one["text"] == "not on the disks of disk" and "versioning" in one["hint"]
    (run.dir / "mounted/plain").touch()
    monkeypatch.setattr("cumulus.backends.posix.mounts.on_another_mount", lambda *_: True)
    (one,) = told(run, "hard links")
    assert one["text"] == "not on the disks of disk, plain"


def test_what_is_told_of_a_bucket_that_is_away_is_what_helps(run: Commands, tmp_path: Path) -> None:
    """By what it is; and who does so is rid of it."""
    adopt(run, tmp_path / "disk", "k")
    for name in ("lab", "lost", "shut"):
        run("bucket", "add", name, "--owner", "alice")
        store_object(run, name, "k", b"hello")
    (tmp_path / "disk").rename(tmp_path / "unplugged")
    (run.dir / "mounted/lab").touch()
    (run.dir / "data/lost").rename(tmp_path / "lost")
    (run.dir / "data/shut").chmod(0)
    note = run.dir / "mounted/lab"
    hints = {
        "disk": "mount it; or restore it; or cumulus bucket remove disk --forget",
        "lab": f"mount it; or, if that will never be done again, remove {note},"
        " then cumulus bucket remove lab --delete-data",
        "lost": "restore its directory; or cumulus bucket remove lost --delete-data",
        "shut": "run this as the account of the service, and check owner, mode and disk",
    }
    with by_the_rules():
        assert {one["text"].split()[0]: one["hint"] for one in told(run, "buckets", 1)} == hints
        for flag in ("--rebuild", "--verify"):
            run("doctor", flag, status=1)
            lines = dict(line.split(" is left out: ") for line in run.err.splitlines())
            assert all(lines[f"bucket {name}"].endswith(f" ({hint})") for name, hint in hints.items())
        for name in ("lab", "lost", "shut"):
            assert run.refused("bucket", "remove", name, "--forget", status=2)["hint"] == hints[name]
    (run.dir / "data/shut").chmod(0o750)
    assert run.refused("bucket", "remove", "shut", "--forget", status=2)["hint"] == "--delete-data deletes it"
    note.unlink()
    for name, flag in (("disk", "--forget"), ("lab", "--delete-data"), ("lost", "--delete-data")):
        run("bucket", "remove", name, flag)
    assert [one["name"] for one in run.json("bucket", "list")] == ["shut"]
    assert (tmp_path / "unplugged/k").exists()


def test_of_other_storage_nothing_is_told_that_is_of_plain_files() -> None:
    one = Bucket(name="lab", owner="o", created_ns=1, acl=Acl(owner="o"))
    assert way_back("fsspec:sftp://host/dir", one) == "see that its storage can be reached"


def test_a_directory_that_the_database_does_not_know_is_added_with_its_path(
    run: Commands, tmp_path: Path
) -> None:
    """Without, its bucket would be one of the service's own, and go with its files."""
    place = tmp_path / "climate data"
    place.mkdir()
    (place / "x.nc").write_bytes(b"1234")
    store = PosixStore(str(run.dir))
    store.create_bucket("climate", str(place))
    store.create_bucket("inside")
    store.close()
    (run.dir / "data/inside/k").write_bytes(b"1")
    (found,) = told(run, "buckets")
    assert "climate, inside" in found["text"]
    assert f"makes one again (climate with --path {shlex.quote(str(place))})," in found["hint"]
    run("bucket", "add", "climate", "--owner", "alice", "--path", str(place))
    (found,) = told(run, "buckets")
    assert "know inside," in found["text"] and "--path" not in found["hint"]


@pytest.mark.parametrize("words", ["bucket chown shared bob", "user remove alice --give-to bob"])
@pytest.mark.parametrize("scanned", [False, True])
def test_what_may_not_be_read_is_named_and_can_be_given_later(
    run: Commands, tmp_path: Path, words: str, scanned: bool
) -> None:
    """Its record says the former owner, and no command gave it any more."""
    adopt(run, tmp_path / "shared", "a")
    store_object(run, "shared", "closed", b"hello")
    alice, bob = (run.json("user", "show", name)["id"] for name in ("alice", "bob"))
    os.chown(tmp_path / "shared/closed", 12345, 12345)
    (tmp_path / "shared/closed").chmod(0)
    with by_the_rules():
        said = run(*words.split())
        again = f"cumulus bucket chown shared bob --from {'alice' if 'chown' in words else alice}"
        assert "1 object of bucket shared could not be changed" in run.err and "closed" in run.err
        assert again in run.err and ("with 1 object" in said or "chown" not in words)
        for mode in (0, 0o444):
            (tmp_path / "shared/closed").chmod(mode)
            assert run.json(*again.split()[1:])["objects"] == 0
            assert "could not be changed" in run.err
        (tmp_path / "shared/closed").chmod(0o666)
        if scanned:
            run("bucket", "rescan", "shared")
        given = run.json(*again.split()[1:])
        assert given["objects"] == 1 and run.err == ""
        assert run.json(*again.split()[1:])["objects"] == 0
    run("bucket", "rescan", "shared")
    index, directory = open_index(load_config(run.dir / "cumulus.toml"), lambda bad: None)
    assert {row.owner for row in index.page_versions("shared").rows} == {bob}
    assert owner_on_disk(run, "shared", "closed") == bob
    index.close()
    directory.close()


def test_over_fsspec_what_may_not_be_read_is_named_and_can_be_given_later(
    run: Commands, tmp_path: Path
) -> None:
    """Local files, where storage does not see to it that nothing else has come in an object's place."""
    tree = tmp_path / "tree"
    (run.dir / "cumulus.toml").write_text(f"[storage]\nbackend = 'fsspec:file://{tree}'\n")
    run("bucket", "add", "shared", "--owner", "alice")
    for key in ("closed", "open"):
        store_object(run, "shared", key, b"hello")
    bob = run.json("user", "show", "bob")["id"]
    os.chown(tree / "shared/closed", 12345, 12345)
    (tree / "shared/closed").chmod(0)
    again = ("bucket", "chown", "shared", "bob", "--from", "alice")
    with by_the_rules():
        run("bucket", "chown", "shared", "bob")
        assert "1 object of bucket shared could not be changed" in run.err and "closed" in run.err
        assert run.json(*again)["objects"] == 0 and "could not be changed" in run.err
        (tree / "shared/closed").chmod(0o666)
        assert run.json(*again)["objects"] == 1 and run.err == ""
        assert run.json(*again)["objects"] == 0
    assert {owner_on_disk(run, "shared", key) for key in ("closed", "open")} == {bob}
    run("bucket", "rescan", "shared")
    index, directory = open_index(load_config(run.dir / "cumulus.toml"), lambda bad: None)
    assert {row.owner for row in index.page_versions("shared").rows} == {bob}
    index.close()
    directory.close()


def test_only_the_rest_of_ones_own_bucket_is_given(run: Commands, tmp_path: Path) -> None:
    adopt(run, tmp_path / "shared", "a")
    refused = run.refused("bucket", "chown", "shared", "bob", "--from", "alice", status=2)
    assert "is not bob's" in refused["message"] and "bucket chown shared bob" in refused["hint"]
