"""Files belong to the accounts of the users who made them, where the service may give them away."""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cumulus_commands import Commands
from posix_disk import Faulty
from s3_world import World
from twisted.logger import formatEvent, globalLogPublisher

from cumulus import unix
from cumulus.admin.accounts import add_user, change_user
from cumulus.backends.memory import MemoryStore
from cumulus.backends.posix.store import PosixStore
from cumulus.index.registry import make_admin
from cumulus.index.text_file import TextFile
from cumulus.model import Acl, ObjectMeta, encode_meta
from cumulus.parts import give_files
from cumulus.secrets import Keyring
from sector.errors import BadConfig, UsageError

THEIRS = pwd.getpwnam("nobody")


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What was logged."""
    lines: list[str] = []

    def keep(event: Any) -> None:
        lines.append(formatEvent(event))

    globalLogPublisher.addObserver(keep)
    yield lines
    globalLogPublisher.removeObserver(keep)


@pytest.fixture
def disk() -> Faulty:
    """The system calls of the store."""
    return Faulty()


def serve(tmp_path: Path, disk: Faulty, unix_user: str = "nobody") -> World:
    """A service whose user alice has an account."""
    made = World(PosixStore(str(tmp_path / "store"), files=disk))
    alice = msgspec.structs.replace(made.people.users["alice"], unix_user=unix_user)
    made.people.users["alice"] = alice
    made.people.unix_users = lambda: {"alice": unix_user}  # type: ignore[method-assign]
    give_files(made.store, made.people)
    assert made.ask("PUT", "/bkt").status == 200
    assert made.ask("PUT", "/bkt", query="acl", headers={"x-amz-acl": "public-read-write"}).status == 200
    return made


def owner(tmp_path: Path, name: str) -> tuple[int, int, int]:
    """uid, gid and mode of a file in the bucket."""
    found = (tmp_path / "store/data/bkt" / name).stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Faulty) -> dict[str, tuple[int, int]]:
    """Where this test is not run as root: who would have got which file."""
    given: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(unix, "may_give_files", lambda: True)
    if os.geteuid():

        def set_owner(fd: int, uid: int, gid: int) -> None:
            given[os.readlink(f"/proc/self/fd/{fd}")] = uid, gid

        monkeypatch.setattr(disk, "set_owner", set_owner)
    return given


@pytest.mark.parametrize("size", [10, 200_000])
def test_a_users_files_are_his_accounts(
    tmp_path: Path, disk: Faulty, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Small and large ones, copies and joined parts; those of others are the service's."""
    given = give(tmp_path, monkeypatch, disk)
    world = serve(tmp_path, disk)
    world.ask("PUT", "/bkt/dir/k", b"x" * size)
    world.ask("PUT", "/bkt/copy", headers={"x-amz-copy-source": "bkt/dir/k"})
    client = world.boto()
    upload = client.create_multipart_upload(Bucket="bkt", Key="joined")["UploadId"]
    target = {"Bucket": "bkt", "Key": "joined", "UploadId": upload}
    etag = client.upload_part(**target, PartNumber=1, Body=b"x" * size)["ETag"]
    done = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    client.complete_multipart_upload(**target, MultipartUpload=done)
    world.ask("PUT", "/bkt/bobs", b"x" * size, user="bob")
    names = ("dir/k", "copy", "joined")
    if os.geteuid():
        assert set(given.values()) == {(THEIRS.pw_uid, THEIRS.pw_gid)} and len(given) >= len(names)
    else:
        for name in names:
            assert owner(tmp_path, name) == (THEIRS.pw_uid, THEIRS.pw_gid, 0o640)
    assert owner(tmp_path, "bobs") == (os.geteuid(), os.getegid(), 0o640)
    assert world.ask("GET", "/bkt/joined").body == b"x" * size
    world.close()


@pytest.mark.parametrize("size", [10, 200_000])
def test_what_replaces_a_file_keeps_its_owner_and_mode(
    tmp_path: Path, disk: Faulty, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Whoever writes it."""
    give(tmp_path, monkeypatch, disk)
    world = serve(tmp_path, disk)
    world.ask("PUT", "/bkt/k", b"first", user="bob")
    (tmp_path / "store/data/bkt/k").chmod(0o604)
    world.ask("PUT", "/bkt/k", b"x" * size)
    assert owner(tmp_path, "k") == (os.geteuid(), os.getegid(), 0o604)
    world.close()


def test_without_the_right_files_are_the_services_and_the_log_says_so(
    tmp_path: Path, disk: Faulty, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """At the start, with the names of the users."""
    monkeypatch.setattr(unix, "may_give_files", lambda: False)
    world = serve(tmp_path, disk)
    world.ask("PUT", "/bkt/k", b"x")
    assert owner(tmp_path, "k") == (os.geteuid(), os.getegid(), 0o640)
    assert (
        said.count(
            "files of alice will be the service's: it needs CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER"
        )
        == 1
    )
    give_files(MemoryStore(), world.people)
    assert said[-1] == "files of alice will be the service's: the storage has no owners of files"
    count = len(said)
    give_files(MemoryStore(), world.people, warn=False)
    world.people.unix_users = dict  # type: ignore[method-assign]
    give_files(MemoryStore(), world.people)
    assert len(said) == count
    world.close()


def test_an_account_that_has_gone_harms_no_upload(
    tmp_path: Path, disk: Faulty, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """One line in the log."""
    give(tmp_path, monkeypatch, disk)
    world = serve(tmp_path, disk, "no-such-account")
    for name in ("k", "l"):
        assert world.ask("PUT", f"/bkt/{name}", b"x").status == 200
    assert owner(tmp_path, "k") == (os.geteuid(), os.getegid(), 0o640)
    assert len([line for line in said if "no account no-such-account" in line]) == 1
    world.close()


def test_a_file_system_that_gives_no_files_away_keeps_them(
    tmp_path: Path, disk: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an NFS server does that squashes root."""
    give(tmp_path, monkeypatch, disk)
    world = serve(tmp_path, disk)

    def refuse(fd: int, uid: int, gid: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(disk, "set_owner", refuse)
    assert world.ask("PUT", "/bkt/k", b"x").status == 200
    assert owner(tmp_path, "k") == (os.geteuid(), os.getegid(), 0o640)
    world.close()


def test_a_file_that_a_crash_lost_comes_back_with_its_owner(tmp_path: Path, disk: Faulty) -> None:
    """The journal's record says whose it is."""
    meta = encode_meta(ObjectMeta(key="k", size=1, etag="e", modified_ns=1, acl=Acl(owner="alice")))
    given: list[tuple[int, int]] = []
    disk.set_owner = lambda fd, uid, gid: given.append((uid, gid))  # type: ignore[method-assign]
    store = PosixStore(str(tmp_path / "store"), files=disk)
    store.create_bucket("b")
    stream = store.open_write("b", "k", 1)
    stream.write(memoryview(b"x"))
    stream.commit(meta)
    (tmp_path / "store/data/b/k").unlink()
    disk.fail("sync_all", 5)
    with pytest.raises(Exception, match="Input/output"):
        store.close()
    disk.heal()
    disk.boot = lambda: "another run"  # type: ignore[method-assign]
    again = PosixStore(str(tmp_path / "store"), files=disk)
    again.own_by(lambda record: (77, 78) if record == meta else None)
    assert [entry.name for _, entry in again.recover()] == ["k"]
    assert given == [(77, 78)]
    again.close()


def test_an_account_must_exist_when_a_user_gets_it(tmp_path: Path) -> None:
    """Adding and changing; one that has gone since can stay."""
    (tmp_path / "key").write_text("00" * 32 + "\n")
    (tmp_path / "key").chmod(0o600)
    admin = make_admin(f"sqlite:///{tmp_path}/db", Keyring(tmp_path / "key"))
    with pytest.raises(UsageError, match="no account no-such-account"):
        add_user(admin, name="a", unix_user="no-such-account")
    assert admin.users() == []
    add_user(admin, name="a", unix_user="nobody")
    with pytest.raises(UsageError, match="no account"):
        change_user(admin, "a", unix_user="no-such-account")
    assert admin.user("a").unix_user == "nobody"
    admin.set_user(msgspec.structs.replace(admin.user("a"), unix_user="gone"))
    assert change_user(admin, "a", unix_user="gone", weight=3).weight == 3
    assert change_user(admin, "a", unix_user="").unix_user == ""
    admin.close()


def test_an_account_in_a_text_file_must_exist(tmp_path: Path) -> None:
    """The line is named."""
    path = tmp_path / "users"
    path.write_text("a AK1 secretsecret unix-user=nobody\nb AK2 secretsecret\n")
    path.chmod(0o600)
    assert TextFile(path, print).unix_users() == {"a": "nobody"}
    path.write_text("a AK1 secretsecret unix-user=no-such-account\n")
    with pytest.raises(BadConfig, match=r"line 1.*unix-user=no-such-account") as raised:
        TextFile(path, print)
    assert "no such account" in json.dumps([raised.value.message, raised.value.hint])


def test_what_the_kernel_says_of_this_process() -> None:
    """Of the account of the test."""
    assert unix.may_give_files() == (os.geteuid() == 0)
    assert unix.account("nobody") == (THEIRS.pw_uid, THEIRS.pw_gid)
    assert unix.account("no-such-account") is unix.account("\0") is None


def test_what_root_makes_is_of_the_service(cloud: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of an account of its own could not read `secret.key` after root had rotated it, so nobody got
    in any more; nor add to an audit log that root had begun, nor use what root made in storage."""
    run = cloud
    if os.geteuid() == 0:
        for path in (run.dir, *run.dir.rglob("*")):
            os.chown(path, THEIRS.pw_uid, THEIRS.pw_gid)
    theirs = run.dir.stat()
    given: dict[str, tuple[int, int]] = {}

    is_root, chown = os.geteuid() == 0, os.fchown

    def fchown(fd: int, uid: int, gid: int) -> None:
        if is_root:
            chown(fd, uid, gid)
        given[Path(os.readlink(f"/proc/self/fd/{fd}")).name.split(".")[-2]] = (uid, gid)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", fchown)
    (run.dir / "audit.log").unlink()
    run("key", "rotate")
    assert given == {"key": (theirs.st_uid, theirs.st_gid), "audit": (theirs.st_uid, theirs.st_gid)}
    account = pwd.getpwuid(theirs.st_uid).pw_name
    run("user", "add", "bob")
    for words in (
        ("bucket", "add", "lab", "--owner", "admin"),
        ("bucket", "chown", "lab", "bob"),
        ("user", "remove", "bob", "--give-to", "admin"),
        ("doctor", "--copied"),
    ):
        told = run.refused(*words)
        assert f"belongs to {account}" in told["message"] and f"sudo -u {account} cumulus" in told["hint"]
    assert not (run.dir / "data").exists() and run.json("bucket", "list") == []
    assert given.pop("db") == (theirs.st_uid, theirs.st_gid)  # cumulus.db.lock, which the service has to lock
    run("key", "add", "admin", "--secret-to", str(run.dir / "mine"))
    assert len(given) == 2  # a secret that was asked for is of who asked
