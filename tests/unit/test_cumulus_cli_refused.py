"""What commands of Cumulus refuse though it could be typed: one line, a code, what to do; nothing is left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cumulus_commands import Commands

from cumulus import cli
from cumulus.admin import keys, setup
from cumulus.config import load_config
from cumulus.opening import open_admin
from sector.errors import LocalIO


@pytest.fixture
def bare(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """No Cumulus yet."""
    for name in ("CUMULUS_DIR", "CUMULUS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Commands(capsys, tmp_path / "cloud")


@pytest.fixture
def run(bare: Commands) -> Commands:
    """A Cumulus with alice."""
    bare("init", str(bare.dir))
    bare("user", "add", "alice", "--email", "alice@example.org")
    return bare


def told(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> str:
    """The line of a command that is given no --dir of its own."""
    assert cli.run(list(words)) == status
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


# hints ------------------------------------------------------------------------------------------------
def test_an_address_in_use_is_not_called_a_name(run: Commands) -> None:
    for words in (["user", "add", "bob"], ["user", "change", "admin"]):
        error = run.refused(*words, "--email", "Alice@example.org")
        assert error["code"] == "exists" and "alice has the e-mail address" in error["message"]
        assert "another address" in error["hint"] and "name" not in error["hint"].partition("user change")[0]


def test_a_file_given_as_directory_is_called_a_file(
    run: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what looks for a Cumulus and by what makes one."""
    file = run.dir / "cumulus.toml"
    line = told(capsys, "--dir", str(file), "user", "list", status=1)
    assert f"{file}: is a file, not a directory" in line and f"--config {file}" in line
    line = told(capsys, "init", str(file), status=1)
    assert line == f"cumulus: {file}: is a file, not a directory (name another directory)\n"
    line = told(capsys, "--config", str(run.dir), "user", "list", status=1)
    assert f"--dir {run.dir}" in line
    assert "cumulus init" not in line


def test_settings_that_may_not_be_read_are_not_called_missing(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, or its directory."""
    real = {name: getattr(Path, name) for name in ("read_text", "exists")}
    for name, function in real.items():

        def refused(path: Path, *words: Any, _real: Any = function, **named: Any) -> Any:
            if path.name == "cumulus.toml":
                raise PermissionError(13, "Permission denied")
            return _real(path, *words, **named)

        with monkeypatch.context() as patch:
            patch.setattr(Path, name, refused)
            error = run.refused("user", "list")
        assert error["message"] == f"{run.dir}/cumulus.toml: Permission denied"
        assert error["code"] == "bad_config" and "account of the service" in error["hint"]


# what cannot be right -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words",
    [
        ["user", "add", "bob", "--email", "bob"],
        ["user", "add", "bob", "--email", "b ob@example.org"],
        ["user", "add", "bob", "--email", "@example.org"],
        ["user", "add", "bob", "--email", "bob@"],
        ["user", "add", "bob", "--email", "a@b@c"],
        ["user", "add", "bob", "--email", "Bob <bob@example.org>"],
        ["user", "change", "alice", "--email", "nobody"],
        ["user", "add", "bob", "--expires", "2020-01-01"],
        ["user", "add", "bob", "--expires", "now"],
        ["user", "add", "bob", "--secret-key-file", "", "--access-key", "BOB"],
        ["user", "add", "bob", "--secret-to", ""],
        ["doctor", "--storage", ""],
        ["key", "add", "alice", "--expires", "1999-12-31T23:59:59+01:00"],
        *(["user", "add", name] for name in ("*", "..", ".", "...", "a*", "")),
        *(["user", "rename", "alice", name] for name in ("*", "..")),
        *(["group", "add", name] for name in ("*", "..")),
        *(["bucket", "add", name, "--owner", "alice"] for name in ("*", "..", "a..b", "")),
        ["bucket", "add", "data", "--owner", "alice", "--path", ""],
        ["group", "member", "lab", "--add", "alice", "--remove", "alice"],
    ],
)
def test_what_cannot_be_meant_is_refused(run: Commands, words: list[str]) -> None:
    """And changes nothing."""
    run("group", "add", "lab")
    before = [run.json(what, "list") for what in ("user", "key", "group", "bucket")]
    error = run.refused(*words, status=2)
    assert error["code"] == "usage" and error["hint"]
    assert [run.json(what, "list") for what in ("user", "key", "group", "bucket")] == before


def test_a_user_who_is_named_twice_is_not_put_in_and_out(run: Commands) -> None:
    """By name and by id; several at once are fine."""
    run("user", "add", "bob", "--email", "")
    run("group", "add", "lab")
    alice = run.json("user", "show", "alice")["id"]
    error = run.refused("group", "member", "lab", "--add", "alice", "--remove", alice, status=2)
    assert "alice: --add and --remove exclude each other" in error["message"]
    found = run.refused("group", "member", "lab", "--add", "alice", "--add", "nobody")
    assert found["code"] == "not_found" and run.json("group", "list")[0]["members"] == []
    run("group", "member", "lab", "--add", "alice", "--add", "bob")
    members = run.json("group", "member", "lab", "--remove", "bob", "--remove", "alice")["members"]
    assert members == []


def test_keys_may_end_soon_and_addresses_may_be_short(run: Commands) -> None:
    """What is unusual but right is taken; a key that is there may end in the past."""
    made = run.json("user", "add", "bob", "--email", " Bob.B+x@localhost ", "--expires", "30s")
    assert made["email"] == "bob.b+x@localhost"
    run("key", "expire", made["access_key"], "2020-01-01")
    run("user", "change", "bob", "--email", "")
    run("user", "add", "o'brian..x", "--email", "käse@bücher.example")


def test_names_that_stand_for_all_are_refused_in_a_file_of_users_too(run: Commands) -> None:
    (run.dir / "cumulus.toml").write_text('[auth]\nsource = "file"\nfile = "users"\n')
    (run.dir / "users").touch(mode=0o600)
    for name in ("*", ".."):
        (run.dir / "users").write_text(f"{name} AKB longsecret\n")
        assert f"line 1: {name!r} is no name" in run.refused("user", "list")["message"]


# where --------------------------------------------------------------------------------------------------
def test_two_places_are_not_one(
    run: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options twice, beside an argument, both variables."""
    here, other = str(run.dir), str(run.dir.parent / "other")
    file = str(run.dir / "cumulus.toml")
    for words, says in (
        (["--dir", here, "--dir", other, "user", "list"], "--dir is given twice"),
        (["--dir", here, "user", "list", "--dir", here], "--dir is given twice"),
        (["--config", file, "user", "list", "--config", file], "--config is given twice"),
        (["--dir", "", "user", "list"], "--dir is empty"),
        (["--dir", here, "--config", file, "user", "list"], "name the same thing"),
        (["serve", other, "--dir", here], f"{other} and --dir {here} are two directories"),
        (["stop", other, "--dir", here], f"{other} and --dir {here} are two directories"),
        (["init", other, "--dir", here], f"{other} and --dir {here} are two directories"),
        (["serve", other, "--config", file], f"{other} and --config name the same thing"),
        (["init", other, "--config", file], f"{other} and --config name the same thing"),
        (["stop", ""], "DIR is empty"),
    ):
        assert says in told(capsys, *words, status=2), words
    assert not Path(other).exists()
    assert cli.run(["serve", here, "--dir", f"{here}/.", "--check-config"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("CUMULUS_DIR", here)
    monkeypatch.setenv("CUMULUS_CONFIG", file)
    line = told(capsys, "user", "list", status=2)
    assert "CUMULUS_DIR and CUMULUS_CONFIG are both set (unset one of them, or give --dir or" in line
    assert cli.run(["user", "list", "--dir", here]) == 0


# init ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "host", ["not a host", "http://here", "300.1.2.3", "192.0.2.1", "2001:db8::1", "a" * 70]
)
def test_init_refuses_a_host_that_can_be_none(bare: Commands, host: str) -> None:
    error = bare.refused("init", str(bare.dir), "--host", host, status=2)
    assert error["code"] == "usage" and repr(host) in error["message"]
    assert "address of this machine" in error["hint"] and not bare.dir.exists()


def test_init_takes_a_host_whose_port_is_in_use_or_for_root(bare: Commands) -> None:
    """The service may be another account's."""
    assert bare.json("init", str(bare.dir), "--host", "localhost", "--port", "80")["host"] == "localhost"


def test_settings_of_a_client_need_a_port(bare: Commands) -> None:
    """One that is drawn at each start is none."""
    words = ["init", str(bare.dir), "--port", "0"]
    assert "--as env needs a port" in bare.refused(*words, "--as", "env", status=2)["message"]
    assert not bare.dir.exists()
    bare(*words)
    for words in (["user", "add", "bob"], ["key", "add", "admin"]):
        assert bare.refused(*words, "--as", "s3cmd", status=2)["code"] == "usage"
    assert len(bare.json("key", "list")) == 1


def everything(where: Path) -> dict[str, bytes]:
    """All files there, and their bytes."""
    return {str(one): one.read_bytes() if one.is_file() else b"" for one in where.rglob("*")}


POSTGRES = ["--database", "postgresql://nobody@127.0.0.1:1/none"]


def test_a_failed_init_leaves_nothing(
    bare: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it fails: the database away, settings or secret that cannot be written."""
    deep = tmp_path / "a" / "b"
    bare.dir = deep
    bare.refused("init", str(deep), *POSTGRES)
    assert everything(tmp_path) == {}
    secret = tmp_path / "secret"

    def full(*_: object, **__: object) -> None:
        raise LocalIO(f"{secret}: No space left on device")

    for step in ("write_private", "tell_key"):
        with monkeypatch.context() as patch:
            patch.setattr(setup, step, full)
            bare.refused("init", str(deep), "--secret-to", str(secret))
        assert everything(tmp_path) == {}, step
    bare("init", str(deep), "--secret-to", str(secret))


def test_a_failed_init_keeps_what_was_there(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other files, a key, a database with users."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret.key").write_bytes((run.dir / "secret.key").read_bytes())
    (other / "secret.key").chmod(0o600)
    (other / "cumulus.db-wal.old").write_text("mine")
    (other / "thesis").write_text("years of work")
    run.dir = other
    before = everything(other)
    run.refused("init", str(other), *POSTGRES)
    assert everything(other) == before

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    database = tmp_path / "cloud" / "cumulus.db"
    with monkeypatch.context() as patch:
        patch.setattr(setup, "write_private", full)
        run.refused("init", str(other), "--admin", "eve")
        assert everything(other) == before
        run.refused("init", str(other), "--admin", "eve", "--database", f"sqlite:///{database}")
    assert everything(other) == before
    admin = open_admin(load_config(tmp_path / "cloud" / "cumulus.toml"))
    assert [one.name for one in admin.users()] == ["admin", "alice"]
    admin.close()


def test_a_new_database_needs_no_other_name_of_the_directory(
    run: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where users are in a file; what fails leaves the settings."""
    for path in run.dir.glob("cumulus.db*"):
        path.unlink()
    (run.dir / "users").touch(mode=0o600)
    (run.dir / "cumulus.toml").write_text('[auth]\nsource = "file"\nfile = "users"\n')
    assert cli.run(["init", str(run.dir), "--new-database"]) == 0
    assert "is made, without buckets" in capsys.readouterr().out
    assert os.path.exists(run.dir / "cumulus.db")


def test_two_inits_at_once_do_not_undo_each_other(
    bare: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins while the first has made the secret key and the database."""
    seen: list[dict[str, Any]] = []
    write = setup.write_private

    def late(*given: Any) -> None:
        before = everything(bare.dir)
        assert "secret.key" in {Path(name).name for name in before}
        seen.append(bare.refused("init", str(bare.dir), "--admin", "eve"))
        assert everything(bare.dir) == before
        write(*given)

    monkeypatch.setattr(setup, "write_private", late)
    bare("init", str(bare.dir))
    (error,) = seen
    assert error["code"] == "exists" and "another command is making a Cumulus there" in error["message"]
    assert [one["name"] for one in bare.json("user", "list")] == ["admin"]


# keys that cannot be told -----------------------------------------------------------------------------
def test_what_was_added_goes_again_when_its_secret_cannot_be_written(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full, for example; the audit log knows nothing of it."""
    (run.dir / "cumulus.toml").write_text('[log]\naudit = "audit.log"\n')
    known = run.json("key", "list"), run.json("user", "list")
    secret = tmp_path / "secret"

    def full(path: Path, *_: object) -> None:
        raise LocalIO(f"{path}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keys, "write_private", full)
        for words in (["key", "add", "alice"], ["user", "add", "bob"]):
            error = run.refused(*words, "--secret-to", str(secret))
            assert error == {"code": "local_io", "message": f"{secret}: No space left on device"} | {
                "hint": error["hint"]
            }
            assert (run.json("key", "list"), run.json("user", "list")) == known
    log = run.dir / "audit.log"
    assert not log.exists() or "bob" not in log.read_text()
    run("user", "add", "bob", "--secret-to", str(secret))
    assert "user bob added" in log.read_text() and secret.stat().st_mode & 0o077 == 0


def test_a_port_that_is_any_free_one_is_no_endpoint(bare: Commands) -> None:
    assert bare.json("init", str(bare.dir), "--port", "0")["endpoint"] is None
    assert bare.json("user", "add", "alice")["endpoint"] is None


def test_rebuild_is_of_the_storage_in_the_settings(run: Commands, tmp_path: Path) -> None:
    error = run.refused("doctor", "--rebuild", "--storage", str(tmp_path), status=2)
    assert error["code"] == "usage" and "--rebuild works on the storage of the settings" in error["message"]


# bytes that are no text ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words",
    [
        ("user", "show", "\udcff"),
        ("key", "list", "\udcff"),
        ("key", "remove", "\udcff"),
        ("bucket", "show", "\udcff"),
        ("bucket", "add", "box", "--owner", "\udcff"),
        ("quota", "show", "--bucket", "\udcff"),
    ],
)
def test_what_is_not_utf_8_is_wrong_use(run: Commands, words: tuple[str, ...]) -> None:
    """As Python has bytes of the command line that are none; it was called a fault of the program."""
    error = run.refused(*words, status=2)
    assert error["code"] == "usage" and "not UTF-8" in error["message"]


def test_a_directory_whose_name_is_not_utf_8_is_no_bucket(run: Commands, tmp_path: Path) -> None:
    """Nothing of it is left."""
    there = tmp_path / "climate-\udcff"
    there.mkdir()
    error = run.refused("bucket", "add", "climate", "--owner", "alice", "--path", str(there), status=2)
    assert "not UTF-8" in error["message"]
    assert run.json("bucket", "list") == [] and list(there.iterdir()) == []
    assert not list((run.dir / "adopted").iterdir())
