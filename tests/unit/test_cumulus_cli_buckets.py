"""Commands of Cumulus that touch objects: buckets, users who leave, doctor; on a database and plain files."""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from by_the_rules import by_the_rules
from cumulus_commands import Commands
from s3_tls import write_certificate

from cumulus import cli
from cumulus.admin import data
from cumulus.admin.doctor import check_clock, check_directory
from cumulus.backends.posix.store import PosixStore
from cumulus.backends.posix.unserved import unserved
from cumulus.config import load_config
from cumulus.index.api import Put
from cumulus.index.sqlite import SqliteIndex
from cumulus.model import Acl, Bucket, ObjectMeta, decode_meta, encode_meta
from cumulus.opening import open_index, open_store
from cumulus.ops.names import odd_name
from cumulus.ops.rows import row_of
from cumulus.storage.api import Unavailable


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A Cumulus with alice and bob; alice has the bucket `data`."""
    cloud("user", "add", "alice")
    cloud("user", "add", "bob")
    cloud("bucket", "add", "data", "--owner", "alice")
    return cloud


def store_object(run: Commands, bucket: str, key: str, body: bytes, name: str = "") -> None:
    """As a server does it."""
    config = load_config(run.dir / "cumulus.toml")
    index, directory = open_index(config, lambda bad: None)
    store = open_store(config)
    found = index.bucket(bucket)
    assert found is not None
    meta = ObjectMeta(key=key, size=len(body), etag="e", modified_ns=1, acl=Acl(owner=found.owner))
    stream = store.open_write(bucket, name or key)
    stream.write(memoryview(body))
    entry = stream.commit(encode_meta(meta))
    stream.close()
    index.apply([Put(row=row_of(found, entry, meta))])
    store.close()
    index.close()
    directory.close()


def owner_on_disk(run: Commands, bucket: str, key: str) -> str:
    """Id of an object's owner as its record says."""
    store = open_store(load_config(run.dir / "cumulus.toml"))
    meta = store.stat(bucket, key).meta
    store.close()
    assert meta is not None
    return decode_meta(meta).acl.owner


# buckets ----------------------------------------------------------------------------------------------
def test_bucket_is_added_listed_shown_removed(run: Commands) -> None:
    """As text and JSON."""
    store_object(run, "data", "a.txt", b"hello")
    (one,) = run.json("bucket", "list")
    assert (one["name"], one["owner"], one["bytes"], one["objects"]) == ("data", "alice", 5, 1)
    assert run("bucket", "list", "--owner", "bob").splitlines()[1:] == []
    assert run.json("bucket", "show", "data") == one
    text = run("bucket", "show", "data")
    assert "alice" in text and "5 (5 B)" in text and re.search(r"created +20\d\d-\d\d-\d\d ", text)
    assert run.refused("bucket", "remove", "data")["code"] == "in_use"
    assert (run.dir / "data" / "data" / "a.txt").read_bytes() == b"hello"
    assert run.json("bucket", "remove", "data", "--delete-data")["objects"] == 1
    assert run.json("bucket", "list") == [] and not (run.dir / "data" / "data").exists()
    run("bucket", "add", "data", "--owner", "alice")
    run("bucket", "remove", "data")


def test_all_data_of_a_bucket_is_also_what_no_row_names(run: Commands) -> None:
    """Left by a server that died, or by a database that was lost; without --delete-data it keeps the bucket,
    and what is an object is listed then."""
    store_object(run, "data", "odd//key", b"12345", odd_name("odd//key"))
    with sqlite3.connect(run.dir / "cumulus.db") as database:
        database.execute("DELETE FROM objects")
    database.close()
    inside = run.dir / "data" / "data" / ".cumulus"
    for name in ("parts/u/1.etag", "versions/k/v"):
        (inside / name).parent.mkdir(parents=True)
        (inside / name).write_bytes(b"left")
    assert run.refused("bucket", "remove", "data")["code"] == "in_use"
    with sqlite3.connect(run.dir / "cumulus.db") as database:
        assert database.execute("SELECT key FROM objects").fetchall() == [(b"odd//key",)]
    database.close()
    run("bucket", "remove", "data", "--delete-data")
    assert not inside.parent.exists()


def test_directory_becomes_a_bucket_and_its_files_stay(run: Commands, tmp_path: Path) -> None:
    """Files that others add and remove are taken in by a rescan."""
    there = tmp_path / "climate"
    (there / "sub").mkdir(parents=True)
    (there / "sub" / "x.nc").write_bytes(b"1234")
    made = run.json("bucket", "add", "climate", "--owner", "bob", "--path", str(there))
    assert (made["files"], made["path"]) == (1, str(there))
    assert run.json("bucket", "show", "climate")["bytes"] == 4
    (there / "new").write_bytes(b"12")
    (there / "sub" / "x.nc").unlink()
    found = run.json("bucket", "rescan", "climate")
    assert (found["renewed"], found["gone"]) == (1, 1)
    assert run.json("usage", "--user", "bob")[0]["bytes"] == 2
    (there / "unseen").write_bytes(b"3")
    assert run.refused("bucket", "remove", "climate")["code"] == "in_use"
    assert (there / "new").exists() and (there / "unseen").exists()


def test_doctor_looks_into_a_directory_that_may_only_be_read(run: Commands, tmp_path: Path) -> None:
    """An archive of others: it is a bucket, and its names are checked like all."""
    there = tmp_path / "archive"
    there.mkdir()
    (there / "x.nc").write_bytes(b"1234")
    (there / os.fsdecode(b"\xff.nc")).write_bytes(b"1234")
    there.chmod(0o555)
    with by_the_rules():
        run("bucket", "add", "archive", "--owner", "bob", "--path", str(there))
    assert (run.dir / "adopted" / "archive").read_bytes().endswith(b"\0bare")
    found = {one["check"]: one for one in run.json("doctor")}
    assert found["names"]["state"] == "warning" and "archive/\\xff.nc" in found["names"]["text"]


def test_directory_that_cannot_be_a_bucket_is_told_why(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative one is meant from here."""
    (tmp_path / "file").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    for path, told in (
        (tmp_path / "none", f"there is no '{tmp_path}/none': make the directory, or see"),
        (tmp_path / "file", f"'{tmp_path}/file' is a file, not a directory"),
        (Path("nothere"), f"there is no '{tmp_path}/nothere': "),
    ):
        refusal = run.refused("bucket", "add", "some", "--owner", "bob", "--path", str(path))
        assert told in refusal["message"]
    made = run.json("bucket", "add", "some", "--owner", "bob", "--path", "here")
    assert made["path"] == str(tmp_path / "here")


def test_odd_keys_are_listed_with_their_files(run: Commands) -> None:
    """So that nobody needs Cumulus to find an object."""
    store_object(run, "data", "plain", b"1")
    store_object(run, "data", "a//b", b"2", odd_name("a//b"))
    (one,) = run.json("bucket", "show", "data", "--odd")
    assert one["key"] == "a//b" and (run.dir / "data" / "data" / one["name"]).read_bytes() == b"2"
    assert "a//b" in run("bucket", "show", "data", "--odd")


def test_bucket_changes_hands_with_its_objects(run: Commands) -> None:
    """In the index, on disk and in the quotas."""
    store_object(run, "data", "k", b"hello")
    bob = run.json("user", "show", "bob")["id"]
    assert run.json("bucket", "chown", "data", "bob")["objects"] == 1
    assert run.json("bucket", "show", "data")["owner"] == "bob"
    assert owner_on_disk(run, "data", "k") == bob
    assert [one["bytes"] for one in run.json("usage", "--user", "bob")] == [5]
    assert [one["bytes"] for one in run.json("usage", "--user", "alice")] == [0]
    found = run.json("bucket", "rescan", "data")
    assert (found["renewed"], found["gone"]) == (0, 0)


def test_refusals(run: Commands, tmp_path: Path) -> None:
    """One line each, and nothing is left of a bucket that could not be made."""
    cases: list[tuple[list[str], str, int]] = [
        (["bucket", "add", "data", "--owner", "alice"], "exists", 1),
        (["bucket", "add", "Data", "--owner", "alice"], "usage", 2),
        (["bucket", "add", "more", "--owner", "nobody"], "not_found", 1),
        (["bucket", "add", "more"], "usage", 2),
        (["bucket", "add", "more", "--owner", "bob", "--path", str(tmp_path / "none")], "failed", 1),
        (["bucket", "show", "none"], "not_found", 1),
        (["bucket", "rescan", "none"], "not_found", 1),
        (["bucket", "remove", "none"], "not_found", 1),
        (["bucket", "chown", "none", "bob"], "not_found", 1),
        (["bucket", "chown", "data", "nobody"], "not_found", 1),
        (["bucket", "list", "--owner", "nobody"], "not_found", 1),
        (["user", "remove", "alice"], "in_use", 1),
        (["user", "remove", "alice", "--give-to", "nobody"], "not_found", 1),
        (["user", "remove", "alice", "--give-to", "alice"], "usage", 2),
        (["user", "remove", "alice", "--give-to", "bob", "--delete-data"], "usage", 2),
    ]
    for words, code, status in cases:
        assert run.refused(*words, status=status)["code"] == code, words
    assert [one["name"] for one in run.json("bucket", "list")] == ["data"]
    assert not run.json("user", "show", "alice")["disabled"]


# users who leave --------------------------------------------------------------------------------------
def test_user_who_leaves_gives_buckets_to_another(run: Commands) -> None:
    """With the objects in them."""
    store_object(run, "data", "k", b"hello")
    assert run.json("user", "remove", "alice", "--give-to", "bob")["buckets"] == 1
    assert run.json("bucket", "show", "data")["owner"] == "bob"
    assert owner_on_disk(run, "data", "k") == run.json("user", "show", "bob")["id"]
    assert "alice" not in run("user", "list")


def test_user_who_leaves_with_all_data(run: Commands) -> None:
    """Files that others put there as well."""
    store_object(run, "data", "k", b"hello")
    (run.dir / "data" / "data" / "outside").write_bytes(b"x")
    assert run.json("user", "remove", "alice", "--delete-data")["buckets"] == 1
    assert run.json("bucket", "list") == [] and not (run.dir / "data" / "data").exists()


def adopted(run: Commands, tmp_path: Path) -> Path:
    """Alice's second bucket, `away`, with the object `a`: its directory."""
    place = tmp_path / "disk"
    place.mkdir()
    (place / "a").write_bytes(b"12345")
    run("bucket", "add", "away", "--owner", "alice", "--path", str(place))
    return place


def audited(run: Commands) -> list[str]:
    """What the audit log says was done."""
    return [json.loads(line)["what"] for line in (run.dir / "audit.log").read_text().splitlines()]


def test_bucket_whose_disk_is_away_does_not_change_hands(run: Commands, tmp_path: Path) -> None:
    """Neither by itself nor with a user who leaves; when the disk is back its objects go with it."""
    place = adopted(run, tmp_path)
    store_object(run, "data", "k", b"hello")
    place.rename(tmp_path / "unplugged")
    before = audited(run)
    for words in (
        ["bucket", "chown", "away", "bob"],
        ["user", "remove", "alice", "--give-to", "bob"],
        ["user", "remove", "alice", "--delete-data"],
    ):
        assert "is its disk mounted" in run.refused(*words)["message"], words
        assert {one["name"]: one["owner"] for one in run.json("bucket", "list")} == dict.fromkeys(
            ("away", "data"), "alice"
        )
        assert not run.json("user", "show", "alice")["disabled"]
    assert (
        audited(run) == before and owner_on_disk(run, "data", "k") == run.json("user", "show", "alice")["id"]
    )
    (tmp_path / "unplugged").rename(place)
    assert run.json("bucket", "chown", "away", "bob")["objects"] == 1
    assert [one["bytes"] for one in run.json("usage", "--user", "bob")] == [5]


def test_what_a_gift_did_before_it_failed_is_told_and_recorded(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket is still its owner's, who is let in as before; the same once more gives the rest."""
    for key in ("a", "b", "c"):
        store_object(run, "data", key, b"hello")
    given = PosixStore.set_meta

    def worn(store: PosixStore, bucket: str, name: str, *rest: Any) -> Any:
        if name == "c":
            raise Unavailable("the disk has a bad block")
        return given(store, bucket, name, *rest)

    monkeypatch.setattr(data, "_PAGE", 1)
    monkeypatch.setattr(PosixStore, "set_meta", worn)
    found = json.loads(run("user", "remove", "alice", "--give-to", "bob", "--json", status=1))["error"]
    done = "2 objects of bucket data given to bob"
    assert (found["code"], found["hint"]) == ("unfinished", "the same once more goes on from there")
    assert found["message"] == f"the disk has a bad block; done before: {done}"
    assert audited(run)[-1] == f"{done}; then it failed: the disk has a bad block"
    assert run.json("bucket", "show", "data")["owner"] == "alice"
    assert not run.json("user", "show", "alice")["disabled"]
    monkeypatch.setattr(PosixStore, "set_meta", given)
    assert run.json("user", "remove", "alice", "--give-to", "bob")["buckets"] == 1
    bob = run.json("user", "show", "bob")["id"]
    assert {owner_on_disk(run, "data", key) for key in ("a", "b", "c")} == {bob}
    assert [one["objects"] for one in run.json("usage", "--user", "bob")] == [3]


def test_bucket_given_to_its_owner_stays_as_it_is(run: Commands) -> None:
    """Nothing is counted as given."""
    store_object(run, "data", "k", b"hello")
    assert run.json("bucket", "chown", "data", "alice")["objects"] == 0
    assert run.json("bucket", "show", "data")["owner"] == "alice"


def test_what_came_while_a_bucket_was_given_goes_with_the_next_try(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its former owner puts one more before the bucket has changed hands, and the disk fails at that one."""
    store_object(run, "data", "a", b"hello")
    set_meta, set_bucket = PosixStore.set_meta, SqliteIndex.set_bucket

    def busy(index: SqliteIndex, bucket: Bucket, fields: list[str]) -> None:
        monkeypatch.setattr(SqliteIndex, "set_bucket", set_bucket)
        store_object(run, "data", "late", b"hello")
        index.set_bucket(bucket, fields)

    def worn(store: PosixStore, bucket: str, name: str, *rest: Any) -> Any:
        if name == "late":
            raise Unavailable("the disk has a bad block")
        return set_meta(store, bucket, name, *rest)

    monkeypatch.setattr(SqliteIndex, "set_bucket", busy)
    monkeypatch.setattr(PosixStore, "set_meta", worn)
    found = json.loads(run("bucket", "chown", "data", "bob", "--json", status=1))["error"]
    assert (found["code"], "done before: 1 object of" in found["message"]) == ("unfinished", True)
    assert run.json("bucket", "show", "data")["owner"] == "alice"
    monkeypatch.setattr(PosixStore, "set_meta", set_meta)
    assert run.json("bucket", "chown", "data", "bob")["objects"] == 1
    bob = run.json("user", "show", "bob")["id"]
    assert {owner_on_disk(run, "data", key) for key in ("a", "late")} == {bob}


@pytest.mark.parametrize("kind", ["pipe", "name"])
def test_pipe_or_name_that_can_be_no_key_is_named(run: Commands, kind: str) -> None:
    """As a path in the bucket."""
    place = run.dir / "data" / "data" / "deep"
    place.mkdir()
    if kind == "pipe":
        os.mkfifo(place / "pipe")
    else:
        (place / os.fsdecode(b"b\xe9ta")).touch()
    found = run.refused("bucket", "remove", "data", "--delete-data")
    assert found["code"] == "not_empty"
    assert ("'deep/pipe'" if kind == "pipe" else r"deep/b\\xe9ta") in found["message"]


def test_what_is_no_object_keeps_all_data_and_is_named(run: Commands) -> None:
    """A link in one bucket keeps the others too, until it is taken away; empty directories do not."""
    run("bucket", "add", "zeta", "--owner", "alice")
    store_object(run, "data", "k", b"hello")
    place = run.dir / "data" / "zeta"
    (place / "deep/er").mkdir(parents=True)
    (place / "deep/link").symlink_to("/etc/hostname")
    for words in (
        ["bucket", "remove", "zeta", "--delete-data"],
        ["user", "remove", "alice", "--delete-data"],
    ):
        found = run.refused(*words)
        assert found["code"] == "not_empty" and "'deep/link'" in found["message"] and found["hint"]
    assert run.json("bucket", "show", "data")["objects"] == 1
    assert not run.json("user", "show", "alice")["disabled"]
    assert run.refused("bucket", "remove", "zeta")["code"] == "in_use"
    (place / "deep/link").unlink()
    assert run.json("user", "remove", "alice", "--delete-data")["buckets"] == 2
    assert not place.exists()


def test_what_was_deleted_before_it_failed_is_told_and_recorded(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each bucket."""
    run("bucket", "add", "zeta", "--owner", "alice")
    store_object(run, "data", "k", b"hello")
    store_object(run, "zeta", "a", b"hello")
    store_object(run, "zeta", "b", b"hello")
    gone = PosixStore.delete

    def worn(store: PosixStore, bucket: str, name: str, *rest: Any) -> int:
        if (bucket, name) == ("zeta", "b"):
            raise Unavailable("the disk has a bad block")
        return gone(store, bucket, name, *rest)

    monkeypatch.setattr(data, "_PAGE", 1)
    monkeypatch.setattr(PosixStore, "delete", worn)
    run("user", "remove", "alice", "--delete-data", status=1)
    done = "bucket data deleted with 1 object; 1 object of bucket zeta deleted"
    assert f"the disk has a bad block; done before: {done}" in run.err
    assert audited(run)[-1].startswith(done)
    monkeypatch.setattr(PosixStore, "delete", gone)
    assert run.json("user", "remove", "alice", "--delete-data")["buckets"] == 1
    assert run.json("bucket", "list") == []


def test_last_administrator_does_not_go_unnoticed(run: Commands) -> None:
    """He goes, with a word about it."""
    run("user", "change", "admin", "--disable")
    assert "no administrator is left" in run.err and "--admin" in run.err
    run("user", "change", "alice", "--admin")
    run("user", "change", "admin", "--enable")
    run("user", "change", "alice", "--no-admin")
    assert run.err == ""
    run("user", "remove", "admin")
    assert "no administrator is left" in run.err


# doctor -----------------------------------------------------------------------------------------------
def test_doctor_finds_a_sound_service_sound(run: Commands) -> None:
    """A line for each check."""
    found = {one["check"]: one["state"] for one in run.json("doctor")}
    assert found["settings"] == found["database"] == found["secrets"] == found["rights"] == "ok"
    assert {"attributes", "hard links", "space", "clock"} <= set(found)
    assert len(run("doctor").splitlines()) == len(found)


def test_doctor_takes_the_directory_as_serve_does(run: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", str(run.dir)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and len(out.splitlines()) == len(run("doctor").splitlines())
    refused = run.refused("doctor", "/another", status=2)
    assert refused["message"] == f"/another and --dir {run.dir} are two directories"


def test_doctor_on_a_full_disk_says_so_beside_all_else(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cumulus.admin.doctor.tempfile.TemporaryDirectory", full)
    found = {one["check"]: one for one in run.json("doctor", status=1)}
    assert found["space"]["state"] == "failed" and "No space left" in found["space"]["text"]
    assert found["space"]["hint"].startswith("make room") and found["database"]["state"] == "ok"


def test_doctor_lists_names_that_can_be_no_keys(run: Commands, tmp_path: Path) -> None:
    """In buckets of the store and in adopted ones; nothing else lists them."""
    run("bucket", "add", "one", "--owner", "admin")
    other = tmp_path / "other"
    other.mkdir()
    run("bucket", "add", "two", "--owner", "admin", "--path", str(other))
    data = run.dir / "data" / "one"
    (data / "sub").mkdir()
    (data / "sub" / "käse").write_bytes(b"x")
    assert {one["check"]: one["text"] for one in run.json("doctor")}["names"] == "all of 2 names can be keys"
    for where in (data / "sub", other):
        (where / os.fsdecode(b"caf\xe9\n")).write_bytes(b"x")
    (data / "link").symlink_to("sub")
    long = data
    for _ in range(5):
        long /= "d" * 250
        long.mkdir()
    found = {one["check"]: one for one in run.json("doctor")}["names"]
    assert found["state"] == "warning" and "1,024 bytes" in found["hint"]
    told = sorted(found["text"].partition(": ")[2].split(", "))
    assert told == ["one/" + "/".join(["d" * 250] * 5), "one/sub/caf\\xe9\n", "two/caf\\xe9\n"]
    assert len(run("doctor").splitlines()) == len(run.json("doctor"))


def test_doctor_ends_its_look_at_names(tmp_path: Path) -> None:
    """After so many that it would tell, or when its time is over, and says so."""
    data = tmp_path / "data" / "b"
    data.mkdir(parents=True)
    for number in range(1100):
        (data / f"n{number}").touch()
    assert unserved(tmp_path, 10, 0) == ([], 1024, False)
    for number in range(5):
        (data / os.fsdecode(b"\xff%d" % number)).touch()
    look = unserved(tmp_path, 3, 60)
    assert len(look.names) == 3 and not look.whole
    assert unserved(tmp_path, 100, 60)[1:] == (1105, True)
    assert unserved(tmp_path / "none", 100, 60) == ([], 0, True)


@pytest.mark.parametrize(
    ("begins", "ends", "state", "says"),
    [
        (-1, 60, "ok", "good from"),
        (-1, 10, "warning", "days are left"),
        (-9, -1, "failed", "clients refuse it"),
        (2, 60, "failed", "not valid yet"),
    ],
)
def test_doctor_reads_the_dates_of_certificates(
    run: Commands, begins: float, ends: float, state: str, says: str
) -> None:
    """Of both ports."""
    cert, key = write_certificate(run.dir, begins=begins, ends=ends)
    files = f'cert = "{cert}"\nkey = "{key}"\n'
    (run.dir / "cumulus.toml").write_text(f"[tls]\n{files}[admin]\n{files}")
    found = {one["check"]: one for one in run.json("doctor", status=int(state == "failed"))}
    for section in ("tls", "admin"):
        one = found[f"certificate of [{section}]"]
        assert one["state"] == state and says in one["text"] + one["hint"]


def test_doctor_names_a_key_that_does_not_fit(run: Commands) -> None:
    """And a file that is missing, each by its section."""
    cert, _ = write_certificate(run.dir)
    other = write_certificate(run.dir, "other")[1]
    (run.dir / "cumulus.toml").write_text(
        f'[tls]\ncert = "{cert}"\nkey = "{other}"\n[admin]\ncert = "none"\nkey = "none"\n'
    )
    found = {one["check"]: one for one in run.json("doctor", status=1)}
    assert "are not a certificate chain" in found["certificate of [tls]"]["text"]
    assert "[admin] cert and key" in found["certificate of [admin]"]["hint"]


def test_doctor_names_what_is_broken(run: Commands, tmp_path: Path) -> None:
    """With what to do, and status 1."""
    (run.dir / "secret.key").chmod(0o644)
    for path in run.dir.glob("cumulus.db*"):
        path.unlink()
    found = {one["check"]: one for one in run.json("doctor", status=1)}
    assert found["secrets"]["state"] == "failed" and "chmod 600" in found["secrets"]["hint"]
    assert found["database"]["state"] == "failed"
    out = run("doctor", "--storage", str(tmp_path / "none"), status=1)
    assert f"{tmp_path / 'none'}: does not exist (make it, or" in out
    out = run("doctor", "--storage", str(run.dir / "secret.key"), status=1)
    assert "secret.key: is a file, not a directory" in out
    (run.dir / "cumulus.toml").write_text("[auth]\nsource = 'file'\nfile = 'users'\n")
    found = {one["check"]: one for one in run.json("doctor", status=1)}
    assert "users: No such file" in found["secrets"]["text"]
    assert check_clock(10**15).state == "failed"


def test_doctor_calls_no_database_lost_that_it_cannot_reach(run: Commands) -> None:
    """Who is told to make a new one believes it: only one that is gone or no good is to be replaced."""
    path, lost = run.dir / "cumulus.db", "--new-database"

    def hint() -> str:
        found = {one["check"]: one for one in run.json("doctor", status=1)}["database"]
        assert found["state"] == "failed"
        return str(found["hint"])

    kept = path.read_bytes()
    for file in run.dir.glob("cumulus.db*"):
        file.unlink()
    assert lost in hint()
    path.write_bytes(b"garbage" * 100)
    assert lost in hint()
    path.write_bytes(kept[:40_000])
    assert lost in hint()
    path.unlink()
    path.mkdir()  # as a file that this account may not open
    assert lost not in hint() and "account of the service" in hint()


@pytest.mark.parametrize("call", ["stat", "read_text"])
def test_a_key_file_that_may_not_be_read_is_not_called_missing(
    run: Commands, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(Path, call)

    def refused(path: Path, *words: Any, **named: Any) -> Any:
        if path.name == "secret.key":
            raise PermissionError(13, "Permission denied")
        return real(path, *words, **named)

    monkeypatch.setattr(Path, call, refused)
    error = run.json("key", "add", "admin", status=1)["error"]
    assert error["message"].endswith("secret.key: Permission denied")
    assert "account of the service" in error["hint"]


def test_doctor_tells_what_a_file_system_cannot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what is missing then."""

    def no(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.setxattr", no)
    monkeypatch.setattr("os.link", no)
    found = {one.check: one for one in check_directory(tmp_path)}
    assert found["hard links"].state == "warning" and "versioning" in found["hard links"].hint
    assert found["attributes"].state == "warning"
    assert list(tmp_path.iterdir()) == []


def test_rebuild_makes_the_index_fit_the_files(run: Commands) -> None:
    """Rows that were lost come back, those without a file go, the ledger is counted anew."""
    for key in ("a", "b", "c/d"):
        store_object(run, "data", key, b"12345")
    store_object(run, "data", "x//y", b"12", odd_name("x//y"))
    connection = sqlite3.connect(run.dir / "cumulus.db")
    connection.execute("DELETE FROM objects WHERE key IN (CAST('a' AS BLOB), CAST('x//y' AS BLOB))")
    connection.execute("UPDATE ledger SET bytes = 999, objects = 99, held = 7")
    connection.commit()
    connection.close()
    (run.dir / "data" / "data" / "b").unlink()
    (found,) = run.json("doctor", "--rebuild")
    assert found == {"name": "data", "objects": 3, "removed": 1}
    shown = run.json("bucket", "show", "data")
    assert (shown["bytes"], shown["objects"]) == (12, 3)
    assert run.json("usage", "--bucket", "data")[0]["reserved_bytes"] == 0
    assert run("doctor", "--rebuild").splitlines()[1].split() == ["data", "3", "0"]
    assert cli.run(["--dir", str(run.dir / "none"), "doctor", "--rebuild"]) == 1
