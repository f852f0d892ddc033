"""What commands of Cumulus refuse though it could be typed: one line, a code, what to do; nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from cumulus_commands import Commands


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
