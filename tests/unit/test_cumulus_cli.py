"""The commands of Cumulus: text, JSON and exit status for success and refusal, on a real database."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from cumulus_commands import Commands

from cumulus import cli
from cumulus.admin.values import parse_count, parse_duration, parse_expiry, parse_size, time_text
from cumulus.cli import PROGRAM as CUMULUS
from cumulus.config import Config, load_config
from cumulus.index.api import OverQuota
from cumulus.opening import open_index
from cumulus.secrets import Keyring
from sector.cli.main import PROGRAM as SECTOR
from sector.cli.program import Program
from sector.errors import UsageError

REFUSED = [
    (["user", "add", "alice"], "exists", 1),
    (["user", "add", "other", "--email", "ALICE@example.org"], "exists", 1),
    (["user", "add", "a/b"], "usage", 2),
    (["user", "add", "bob", "--group", "none"], "not_found", 1),
    (["user", "add", "bob", "--access-key", "a b"], "usage", 2),
    (["user", "add", "bob", "--expires", "soon"], "usage", 2),
    (["user", "add", "bob", "--display", "a\nb"], "usage", 2),
    (["user", "change", "alice", "--email", "a\x1b@b"], "usage", 2),
    (["user", "add", "bob", "--id", "12"], "usage", 2),
    (["user", "add", "bob", "--secret-key-file", "/none"], "local_io", 1),
    (["user", "add", "bob", "--secret-key-file", "/dev/null"], "usage", 2),
    (["user", "show", "bob"], "not_found", 1),
    (["user", "change", "alice"], "usage", 2),
    (["user", "change", "bob", "--disable"], "not_found", 1),
    (["user", "rename", "alice", "admin"], "exists", 1),
    (["user", "remove", "bob"], "not_found", 1),
    (["user", "lst"], "usage", 2),
    (["usr", "list"], "usage", 2),
    (["key", "add", "bob"], "not_found", 1),
    (["key", "remove", "NONE"], "not_found", 1),
    (["key", "expire", "NONE"], "not_found", 1),
    (["key", "list", "bob"], "not_found", 1),
    (["group", "add", "a b"], "usage", 2),
    (["group", "add", "lab", "--weight", "0"], "usage", 2),
    (["group", "change", "lab"], "usage", 2),
    (["group", "change", "none", "--weight", "2"], "not_found", 1),
    (["group", "remove", "none"], "not_found", 1),
    (["group", "member", "none", "--add", "alice"], "not_found", 1),
    (["group", "member", "none"], "usage", 2),
    (["quota", "set", "alice"], "usage", 2),
    (["quota", "set", "--bytes", "1G"], "usage", 2),
    (["quota", "set", "alice", "--bucket", "b", "--bytes", "1G"], "usage", 2),
    (["quota", "set", "alice", "--bytes", "much"], "usage", 2),
    (["quota", "set", "alice", "--bytes", "1G", "--grace", "7d"], "usage", 2),
    (["quota", "set", "bob", "--bytes", "1G"], "not_found", 1),
    (["quota", "set", "--group", "none", "--bytes", "1G"], "not_found", 1),
    (["quota", "clear", "--bucket", "none"], "not_found", 1),
    (["usage", "--user", "bob"], "not_found", 1),
    (["usage", "--bucket", "none"], "not_found", 1),
]


@pytest.fixture
def bare(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """No Cumulus yet."""
    for name in ("CUMULUS_DIR", "CUMULUS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Commands(capsys, tmp_path / "cloud")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Cumulus with alice, to be copied."""
    where = tmp_path_factory.mktemp("once") / "cloud"
    assert cli.run(["init", str(where)]) == 0
    assert cli.run(["--dir", str(where), "user", "add", "alice", "--email", "Alice@example.org"]) == 0
    return where


@pytest.fixture
def run(bare: Commands, made_once: Path) -> Commands:
    """A Cumulus with alice."""
    shutil.copytree(made_once, bare.dir)
    return bare


def add_bucket(run: Commands, name: str, owner: str) -> None:
    """As a server does it."""
    from cumulus.model import Acl, Bucket

    index, directory = open_index(load_config(run.dir / "cumulus.toml"), lambda bad: None)
    user = directory.user(owner)
    assert user is not None
    index.add_bucket(Bucket(name=name, owner=user.id, created_ns=1, acl=Acl(owner=user.id)))
    index.close()
    directory.close()


# init -------------------------------------------------------------------------------------------------
def test_init_makes_all_that_a_server_needs(bare: Commands) -> None:
    """Files of the right modes, and a key that opens."""
    made = bare.json("init", str(bare.dir), "--port", "9999", "--admin-port", "9998")
    assert made["port"] == 9999 and len(made["id"]) == 64 and made["name"] == "admin"
    assert (bare.dir / "secret.key").stat().st_mode & 0o777 == 0o600
    assert (bare.dir / "cumulus.db").stat().st_mode & 0o777 == 0o600
    config = load_config(bare.dir / "cumulus.toml")
    assert (config.server.port, config.admin.port) == (9999, 9998)
    index, directory = open_index(config, lambda bad: None)
    found = directory.credential(made["access_key"])
    assert found is not None and found.secret == made["secret_key"] and found.user.admin
    index.close()
    directory.close()
    assert made["secret_key"].encode() not in (bare.dir / "cumulus.db").read_bytes()


def test_init_leaves_what_is_there(run: Commands) -> None:
    """It never takes a directory that is one already."""
    before = (run.dir / "secret.key").read_text()
    assert run.refused("init", str(run.dir))["code"] == "exists"
    assert (run.dir / "secret.key").read_text() == before


def test_init_where_nothing_can_be_made(bare: Commands, tmp_path: Path) -> None:
    """One line."""
    (tmp_path / "file").write_text("")
    assert "Not a directory" in bare.refused("init", str(tmp_path / "file" / "x"))["message"]
    assert bare.refused("init", str(bare.dir), "--admin", "a b", status=2)["code"] == "usage"
    assert not bare.dir.exists()


def test_secret_may_go_to_a_file(bare: Commands) -> None:
    """Of mode 0600, and is not printed then."""
    target = bare.dir.parent / "admin.secret"
    out = bare("init", str(bare.dir), "--secret-to", str(target))
    assert target.stat().st_mode & 0o777 == 0o600
    secret = target.read_text().strip()
    assert len(secret) == 40 and secret not in out + bare.err
    other = target.with_name("x.secret")
    assert bare.json("user", "add", "x", "--secret-to", str(other))["secret_key_file"] == str(other)


def test_a_file_for_a_secret_is_looked_at_first(run: Commands, tmp_path: Path) -> None:
    """It replaces nothing, and nobody gets a key that nobody has seen."""
    (tmp_path / "thesis").write_text("years of work")
    for file, says in (("thesis", "is there already"), ("none/x", "no file can be made there")):
        refused = run.refused("user", "add", "carol", "--secret-to", str(tmp_path / file), status=2)
        assert says in refused["message"]
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert "carol" not in run("user", "list")


def test_settings_are_checked_without_doing_anything(run: Commands) -> None:
    """`--check-config`."""
    assert run("--check-config").strip() == f"{run.dir}/cumulus.toml: ok"
    (run.dir / "cumulus.toml").write_text("[server]\nprt = 1\n")
    error = run.refused("--check-config")
    assert error["code"] == "bad_config" and error["hint"] == "did you mean port?"


def test_files_that_settings_name_are_checked_too(run: Commands) -> None:
    """Servers, users, keys, certificate: one line with the file and what is wrong, also by `serve`."""
    hosts, settings = run.dir / "hosts", run.dir / "cumulus.toml"
    settings.write_text('[redirect]\nmode = "least-loaded"\nhosts_file = "hosts"\n')
    assert run.refused("--check-config")["message"] == f"{hosts}: No such file or directory"
    hosts.write_text("http://a:1 a:2\n# c\nhttp://b:1\n")
    told = f"{hosts}: line 3: least-loaded needs the admin port of each server"
    assert run.refused("--check-config")["message"] == told
    assert run.refused("serve", "--check-config")["message"] == told
    hosts.write_text("http://a:1 a:2\n")
    assert run.json("--check-config") == {"config": str(settings), "ok": True}
    assert run.json("serve", "--check-config")["ok"]
    settings.write_text('[auth]\nsource = "file"\nfile = "users"\n')
    (run.dir / "users").write_text("alice KEY\n")
    (run.dir / "users").chmod(0o600)
    assert "line 1: a name, an access key and a secret" in run.refused("--check-config")["message"]
    settings.write_text('[tls]\ncert = "c.pem"\nkey = "c.key"\n')
    assert "cannot read" in run.refused("--check-config")["message"]
    settings.write_text("")
    (run.dir / "secret.key").chmod(0o644)
    assert "others can read it" in run.refused("--check-config")["message"]


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ('[storage]\nbackend = "nonsense:x"', "[storage] backend: no backend 'nonsense'; there are: fsspec,"),
        ('[storage]\nbackend = "memory:many"', "[storage] backend: memory:many: give a number of bytes"),
        ('[storage]\nbackend = "fsspec:nowhere://x"', "[storage] backend: Protocol not known: nowhere"),
        ('[storage]\nbackend = "sector:none.toml"', "[storage] backend: sector:none.toml: there is no such"),
        ('[storage]\nbackend = "memory"\n[server]\nworkers = 2', "[storage] backend: memory lives in one"),
        ('[storage]\npath = "secret.key/x"', "[storage] path: {dir}/secret.key: Not a directory"),
        ("[server]\nport = 7\n[admin]\nport = 7", "[admin] port: is [server] port, 7"),
        ('[server]\nport = 7\n[admin]\nport = 7\nhost = "0.0.0.0"', "[admin] port: is [server] port, 7"),
        ('[server]\nhost = "192.0.2.1"', "[server] host: cannot listen on 192.0.2.1 port 8888: Cannot"),
        ('[server]\nhost = "a b"', "[server] host: cannot listen on a b port 8888: "),
        ('[admin]\nhost = "2001:db8::1"', "[admin] host: cannot listen on 2001:db8::1 port 8889: "),
        ('[log]\naccess = "none/access.log"', "[log] access: {dir}/none: No such file or directory"),
        ('[log]\naudit = "none/audit.log"', "[log] audit: {dir}/none: No such file or directory"),
        ('[log]\naudit = "."', "[log] audit: {dir}: Is a directory"),
        (
            '[database]\nurl = "postgresql://a@b/c"\npassword_file = "pw"\n[auth]\nsource = "postgresql"',
            "[database] password_file: {dir}/pw: No such file or directory",
        ),
    ],
)
def test_settings_that_cannot_be_served_are_named(run: Commands, settings: str, wrong: str) -> None:
    """By both ways to check them, in one line; nothing is made."""
    (run.dir / "cumulus.toml").write_text(settings + "\n")
    before = sorted(run.dir.iterdir())
    for words in (["--check-config"], ["serve", "--check-config"]):
        told = run.refused(*words)
        assert told["code"] == "bad_config"
        assert told["message"].startswith(f"{run.dir}/cumulus.toml: {wrong.format(dir=run.dir)}")
    assert sorted(run.dir.iterdir()) == before


def test_a_service_that_runs_does_not_disturb_the_check(run: Commands) -> None:
    """Its port is in use, and its own."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        (run.dir / "cumulus.toml").write_text(f"[server]\nport = {port}\n")
        assert run("--check-config").endswith(": ok\n")


# users and keys ---------------------------------------------------------------------------------------
def test_users_are_added_listed_shown_renamed_changed(run: Commands) -> None:
    """As text and as JSON."""
    alice = run.json("user", "show", "alice")
    assert alice["email"] == "alice@example.org" and len(alice["keys"]) == 1 and alice["buckets"] == []
    assert [one["name"] for one in run.json("user", "list")] == ["admin", "alice"]
    assert run("user", "list").splitlines()[1].split()[0] == "admin"
    run("user", "rename", "alice", "alicia")
    run("user", "change", "alicia", "--disable", "--weight", "3", "--display", "Alicia A.")
    changed = run.json("user", "show", alice["id"])
    assert (changed["name"], changed["disabled"], changed["weight"]) == ("alicia", True, 3)
    assert "disabled" in run("user", "show", "alicia")
    run("user", "change", "alicia", "--enable")
    assert not run.json("user", "show", "alicia")["disabled"]
    run("user", "remove", "alicia")
    assert [one["name"] for one in run.json("user", "list")] == ["admin"]


def test_given_key_is_used(run: Commands, tmp_path: Path) -> None:
    """A site moves users with the keys that they have."""
    (tmp_path / "secret").write_text("a-secret-of-old\n")
    made = run.json(
        "user", "add", "bob", "--access-key", "BOB", "--secret-key-file", str(tmp_path / "secret")
    )
    assert (made["access_key"], made["secret_key"]) == ("BOB", "a-secret-of-old")
    moved = run.json("user", "add", "dora", "--id", "d" * 64)
    assert moved["id"] == "d" * 64
    assert run.refused("user", "add", "eve", "--id", "d" * 64)["code"] == "exists"
    taken = run.refused("user", "add", "carol", "--access-key", "BOB")
    assert taken["code"] == "exists"
    assert [one["name"] for one in run.json("user", "list")] == ["admin", "alice", "bob", "dora"]


def test_refusals_are_one_line(run: Commands) -> None:
    """With a code, a hint, and the exit status; nothing is left of a user whose key was refused."""
    for words, code, status in REFUSED:
        error = run.refused(*words, status=status)
        assert error["code"] == code, words
    assert [one["name"] for one in run.json("user", "list")] == ["admin", "alice"]


def test_keys_are_added_listed_expired_removed(run: Commands) -> None:
    """Several for a user; a secret is never shown again."""
    made = run.json("key", "add", "alice", "--expires", "2030-01-01")
    listed = run.json("key", "list", "alice")
    assert [one["expires"] for one in listed] == [None, 1893456000.0]
    assert made["secret_key"] not in json.dumps(listed)
    assert "2030-01-01" in run("key", "list")
    run("key", "expire", made["access_key"])
    assert "(over)" in run("key", "list")
    run("key", "expire", made["access_key"], "never")
    run("key", "remove", made["access_key"])
    assert len(run.json("key", "list", "alice")) == 1


def test_rotation_of_the_key_file_keeps_every_secret(run: Commands) -> None:
    """The file changes, users' keys do not."""
    made = run.json("key", "add", "alice")
    before = (run.dir / "secret.key").read_text()
    assert run.json("key", "rotate")["sealed"] == 3
    assert (run.dir / "secret.key").read_text() != before
    index, directory = open_index(load_config(run.dir / "cumulus.toml"), lambda bad: None)
    found = directory.credential(made["access_key"])
    assert found is not None and found.secret == made["secret_key"]
    index.close()
    directory.close()


def test_groups_have_members(run: Commands) -> None:
    """In both ways of printing."""
    run("group", "add", "lab")
    run("user", "add", "bob", "--group", "lab")
    assert run.json("group", "member", "lab", "--add", "alice", "--remove", "bob")["members"] == ["alice"]
    assert run.json("group", "list") == [{"name": "lab", "members": ["alice"], "weight": 1}]
    assert run.json("user", "show", "alice")["groups"] == ["lab"]
    assert run("group", "list").splitlines()[1].split() == ["lab", "1", "alice"]
    run("group", "add", "ops", "--weight", "3")
    run("group", "change", "lab", "--weight", "4")
    assert [one["weight"] for one in run.json("group", "list")] == [4, 3]
    assert run.json("user", "show", "alice")["group_weights"] == [4]
    run("group", "remove", "ops")
    run("group", "remove", "lab")
    assert run.json("group", "list") == []


# quotas -----------------------------------------------------------------------------------------------
def test_quotas_are_set_shown_and_cleared(run: Commands) -> None:
    """Sizes G = 10^9 and GiB = 2^30; what is not given stays."""
    add_bucket(run, "data", "alice")
    run("group", "add", "lab")
    run("quota", "set", "alice", "--bytes", "10G", "--objects", "100k")
    run("quota", "set", "alice", "--bytes", "8GiB", "--soft", "--grace", "3d")
    found = run.json("quota", "show", "alice")
    assert (found["hard_bytes"], found["hard_objects"]) == (10**10, 100_000)
    assert (found["soft_bytes"], found["grace_s"]) == (8 * 2**30, 3 * 86400)
    run("quota", "set", "--group", "lab", "--bytes", "1T")
    run("quota", "set", "--bucket", "data", "--objects", "5")
    assert {(one["scope"], one["name"]) for one in run.json("quota", "show")} == {
        ("user", "alice"),
        ("group", "lab"),
        ("bucket", "data"),
    }
    assert "10.0 GB, soft 8.6 GB" in run("quota", "show", "alice")
    assert re.search(r"GRACE.*\n.* 3d ", run("quota", "show", "alice"))
    run("quota", "set", "alice", "--objects", "5", "--soft")
    assert run.json("quota", "show", "alice")["grace_s"] == 3 * 86400
    run("quota", "set", "alice", "--grace", "5d")
    found = run.json("quota", "show", "alice")
    assert (found["grace_s"], found["soft_objects"], found["hard_objects"]) == (5 * 86400, 5, 100_000)
    assert (
        "no soft limit"
        in run.refused("quota", "set", "--bucket", "data", "--grace", "2d", status=2)["message"]
    )
    run("quota", "set", "--group", "lab", "--bytes", "1G", "--soft")
    assert run.json("quota", "show", "--group", "lab")["grace_s"] == 7 * 86400
    run("quota", "set", "alice", "--objects", "none")
    assert run.json("quota", "show", "alice")["hard_objects"] == 0
    run("quota", "clear", "alice")
    assert [one["scope"] for one in run.json("quota", "show")] == ["bucket", "group"]


def test_usage_lists_all_or_one(run: Commands) -> None:
    """Users, groups, buckets."""
    add_bucket(run, "data", "alice")
    assert [(one["scope"], one["name"], one["bytes"]) for one in run.json("usage")] == [
        ("user", "admin", 0),
        ("user", "alice", 0),
        ("bucket", "data", 0),
    ]
    assert len(run("usage").splitlines()) == 4
    assert run.json("usage", "--bucket", "data")[0]["objects"] == 0


# where ------------------------------------------------------------------------------------------------
def test_directory_comes_from_option_file_or_environment(
    run: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options before or behind the command."""
    file = str(run.dir / "cumulus.toml")
    for words in (["user", "list", "--dir", str(run.dir)], ["--config", file, "user", "list"]):
        assert cli.run(words) == 0
    assert cli.run(["user", "list"]) == 2
    assert "--dir DIR or --config FILE" in capsys.readouterr().err
    monkeypatch.setenv("CUMULUS_DIR", str(run.dir))
    assert cli.run(["user", "list"]) == 0
    monkeypatch.delenv("CUMULUS_DIR")
    monkeypatch.setenv("CUMULUS_CONFIG", file)
    assert cli.run(["user", "list"]) == 0
    assert cli.run(["--dir", str(run.dir / "none"), "user", "list"]) == 1
    assert "cumulus init" in capsys.readouterr().err


def test_users_of_a_text_file_are_changed_there(run: Commands) -> None:
    """The commands say so."""
    (run.dir / "cumulus.toml").write_text('[auth]\nsource = "file"\nfile = "users"\n')
    assert "change it with an editor" in run.refused("user", "add", "bob", status=2)["hint"]
    (run.dir / "users").touch(mode=0o600)
    (run.dir / "users").write_text("bob AKB longsecret groups=lab\n")
    assert run.json("usage", "--user", "bob")[0]["bytes"] == 0
    assert run.json("usage", "--group", "lab")[0]["scope"] == "group"
    for words in (
        ["user", "change", "bob", "--disable"],
        ["user", "rename", "bob", "robert"],
        ["user", "remove", "bob"],
        ["key", "add", "bob"],
        ["key", "remove", "AKB"],
        ["key", "expire", "AKB"],
        ["key", "rotate"],
        ["group", "add", "new"],
        ["group", "change", "lab", "--weight", "2"],
        ["group", "remove", "lab"],
        ["group", "member", "lab", "--add", "bob"],
    ):
        assert "users are in the file" in run.refused(*words, status=2)["message"]


def test_users_of_a_text_file_are_read_and_have_quotas(run: Commands) -> None:
    """Of lists only what the file cannot know is missing; quotas are in the database, and count."""
    add_bucket(run, "data", "alice")
    alice = run.json("user", "show", "alice")["id"]
    (run.dir / "cumulus.toml").write_text('[auth]\nsource = "file"\nfile = "users"\n')
    (run.dir / "users").touch(mode=0o600)
    (run.dir / "users").write_text(
        f"bob AKB longsecret groups=lab,web\nalice AKA longsecret id={alice} groups=lab weight=3\n"
        "alice AKA2 longsecret expires=2027-12-31\ngroup=lab weight=4\n"
    )
    assert [(one["name"], one["weight"]) for one in run.json("user", "list")] == [("alice", 3), ("bob", 1)]
    assert run.json("user", "show", "alice")["buckets"] == ["data"]
    keys = run.json("key", "list", "alice")
    assert [(one["access_key"], one["created"]) for one in keys] == [("AKA", None), ("AKA2", None)]
    assert "2027-12-31" in run("key", "list") and "longsecret" not in run("key", "list")
    assert [(one["name"], one["members"], one["weight"]) for one in run.json("group", "list")] == [
        ("lab", ["alice", "bob"], 4),
        ("web", ["bob"], 1),
    ]
    assert {(one["scope"], one["name"]) for one in run.json("usage")} == {
        ("user", "alice"), ("user", "bob"), ("group", "lab"), ("group", "web"), ("bucket", "data"),
    }  # fmt: skip
    run("quota", "set", "--bucket", "data", "--bytes", "3G")
    run("quota", "set", "alice", "--bytes", "2G")
    run("quota", "set", "--group", "lab", "--objects", "5")
    assert {(one["name"], one["hard_bytes"]) for one in run.json("quota", "show")} == {
        ("alice", 2 * 10**9),
        ("lab", 0),
        ("data", 3 * 10**9),
    }
    for words in (["carol"], ["--group", "none"], ["--bucket", "none"]):
        assert run.refused("quota", "set", *words, "--bytes", "1G")["code"] == "not_found"
    index, directory = open_index(load_config(run.dir / "cumulus.toml"), lambda bad: None)
    with pytest.raises(OverQuota, match="alice"):
        index.reserve("data", 2 * 10**9 + 1, 1)
    index.close()
    directory.close()
    (run.dir / "users").write_text("bob AKB longsecret\n")
    assert [one["scope"] for one in run.json("quota", "show")] == ["bucket"]


def test_missing_key_file_and_broken_database_are_told(run: Commands) -> None:
    """In one line each."""
    key = (run.dir / "secret.key").read_text()
    (run.dir / "secret.key").unlink()
    assert "secret.key: No such file" in run.refused("user", "list")["message"]
    (run.dir / "secret.key").touch(mode=0o600)
    (run.dir / "secret.key").write_text(key)
    for path in run.dir.glob("cumulus.db*"):
        path.unlink()
    (run.dir / "cumulus.db").write_text("this is not a database at all, " * 40)
    refused = run.refused("user", "list")
    assert "not a database" in refused["message"] and "cumulus doctor" in refused["hint"]


def test_commands_work_while_another_process_writes(run: Commands) -> None:
    """They wait for its transaction."""
    other = sqlite3.connect(run.dir / "cumulus.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO groups (name, created_ns) VALUES ('theirs', 1)")
    assert run.json("group", "list") == []
    other.execute("COMMIT")
    other.close()
    run("group", "add", "ours")
    assert [one["name"] for one in run.json("group", "list")] == ["ours", "theirs"]


def test_help_of_every_command_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """And the table names what there is."""
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    context = click.Context(cli.cli)
    for name in cli.COMMANDS:
        command = cli.cli.get_command(context, name)
        assert command is not None and command.help and name in out
        for sub in getattr(command, "commands", {}).values():
            assert sub.help, sub.name
    assert cli.run([]) == 2
    assert "Usage: cumulus" in capsys.readouterr().err
    assert cli.run(["--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"


# values -----------------------------------------------------------------------------------------------
def test_sizes_counts_times() -> None:
    """As people write them."""
    sizes = {
        "10G": 10**10,
        "10GB": 10**10,
        "1.5k": 1500,
        "2GiB": 2**31,
        "7": 7,
        "7 b": 7,
        "1Ti": 2**40,
        "none": 0,
    }
    assert {text: parse_size(text) for text in sizes} == sizes
    assert [parse_count(text) for text in ("5", "100k", "2M", "none")] == [5, 100_000, 2_000_000, 0]
    assert [parse_duration(text) for text in ("7d", "12h", "90m", "30s", "2W")] == [
        604800,
        43200,
        5400,
        30,
        1209600,
    ]
    assert parse_expiry("30d", 5) == 30 * 86400 * 10**9 + 5 and parse_expiry("now", 5) == 5
    assert parse_expiry("1970-01-02T00:00:00+01:00", 0) == 82_800 * 10**9
    assert time_text(parse_expiry("2027-01-31", 0)) == "2027-01-31 00:00:00Z" and time_text(0) == "never"
    bad: list[tuple[Any, str]] = [
        *((parse_size, text) for text in ("", "0", "-1", "1X", "1e9", "9" * 30, "G")),
        *((parse_count, text) for text in ("", "0", "1.5", "x", "9" * 5000)),
        *((parse_duration, text) for text in ("", "0d", "7", "7y", "9999999s", "999999w")),
    ]
    for parse, text in bad:
        with pytest.raises(UsageError):
            parse(text)
    for text in (
        "",
        "tomorrow",
        "1960-01-01",
        "2027-13-01",
        "9999-12-31",
        "2262-04-12",
        "9999-12-31T23:59-12",
    ):
        with pytest.raises(UsageError):
            parse_expiry(text, 0)


def test_defaults_need_no_file(bare: Commands) -> None:
    """A directory with keys is enough for settings; one without is told how to get them."""
    bare.dir.mkdir()
    assert "cumulus init" in bare.refused("--check-config")["hint"]
    Keyring.create(bare.dir / "secret.key")
    assert bare("--check-config").startswith(str(bare.dir) + os.sep)
    assert Config().server.port == 8888


def groups(command: click.Command, context: click.Context) -> Iterator[tuple[click.Group, click.Context]]:
    """A group and all below it."""
    if isinstance(command, click.Group):
        yield command, context
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            assert one is not None
            yield from groups(one, click.Context(one, info_name=name, parent=context))


@pytest.mark.parametrize("program", [CUMULUS, SECTOR])
def test_lists_of_commands_say_whole_sentences(program: Program) -> None:
    """In 80 columns."""
    top = program.command
    settings = top.context_settings | {"info_name": program.name, "terminal_width": 80}
    for group, context in groups(top, click.Context(top, **settings)):
        lines = group.get_help(context).partition("Commands:")[2].splitlines()
        assert not [line for line in lines if line.endswith("...")], context.command_path
