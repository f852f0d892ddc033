"""What a renewed session and a login write into client.toml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sector import errors
from sector.cli import tls_once
from sector.client.kept import saver
from sector.config import ClientSection, load_client, override_client, save_client
from sector.model import Address
from sector.tls import Trust
from sector.wire.login import Session

ALICE = ClientSection(
    masters=["m:7001", "n:7001"], user="alice", ca_sha256="aa" * 32, session="00" * 16, secret="5e" * 32,
    gmp="m:7002", key_id=7, master_id="m1", password_file="alice.pw",
)  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Alice's client.toml."""
    for name in list(os.environ):
        if name.startswith("SECTOR_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SECTOR_CONFIG", str(tmp_path / "client.toml"))
    save_client(ALICE)
    return tmp_path / "client.toml"


def renewed(section: ClientSection) -> ClientSection:
    """Another session of the same user."""
    return msgspec.structs.replace(section, session="11" * 16, secret="ee" * 32, expires=9e9, key_id=8)


def save(config: Any) -> None:
    """What the session of these settings does when it is renewed."""
    keep = saver(config)
    assert keep is not None
    keep(renewed(config.client))


def test_a_renewed_session_is_kept() -> None:
    save(load_client())
    assert load_client().client == renewed(ALICE)


@pytest.mark.parametrize(
    ("name", "value"), [("SECTOR_USER", "admin"), ("SECTOR_MASTER", "other:7001"), ("SECTOR_USER", "alic")]
)
def test_a_session_of_another_user_or_master_stays_out_of_the_file(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Who ran one command as admin ran all that followed so, and with the password."""
    before = place.read_bytes()
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("SECTOR_PASSWORD_FILE", "/adm.pw")
    with pytest.raises(errors.Conflict):
        save(load_client())
    monkeypatch.undo()
    assert place.read_bytes() == before


def test_options_count_as_the_environment_does(place: Path) -> None:
    before = place.read_bytes()
    for changed in ({"user": "admin"}, {"master": "other:7001"}):
        with pytest.raises(errors.Conflict):
            save(override_client(load_client(), **changed))
    assert place.read_bytes() == before


@pytest.mark.parametrize("master", ["m", "m:7001", " n ", "n:07001"])
def test_a_master_counts_as_the_stored_one_however_its_address_is_written(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """Each command logged in anew, and left a session behind."""
    config = load_client()
    assert override_client(config, master=master) == config
    assert override_client(config, master="m:7002").client.masters == ["m:7002"]
    monkeypatch.setenv("SECTOR_MASTER", master)
    save(load_client())
    assert load_client().client == renewed(ALICE)


def test_a_password_file_of_the_environment_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECTOR_PASSWORD_FILE", "/tmp/once.pw")
    config = load_client()
    assert config.client.password_file == "/tmp/once.pw"
    save(config)
    monkeypatch.delenv("SECTOR_PASSWORD_FILE")
    assert load_client().client == renewed(ALICE)


@pytest.mark.parametrize(
    "login",
    [{"user": "bob"}, {"masters": ["other:7001"]}, {"ca_sha256": "bb" * 32}],
)
def test_a_login_made_meanwhile_is_not_undone(place: Path, login: dict[str, Any]) -> None:
    """By a program that has run for hours."""
    config = load_client()
    save_client(msgspec.structs.replace(ALICE, **login))
    before = place.read_bytes()
    with pytest.raises(errors.Conflict):
        save(config)
    assert place.read_bytes() == before


def test_a_file_that_was_removed_or_broken_meanwhile_stays_so(place: Path) -> None:
    config = load_client()
    keep = saver(config)
    assert keep is not None
    place.unlink()
    with pytest.raises(errors.Conflict):
        keep(renewed(config.client))
    assert not place.exists()
    place.write_text("[client")
    with pytest.raises(errors.BadConfig):
        keep(renewed(config.client))
    assert place.read_text() == "[client"


@pytest.mark.parametrize(
    ("port", "masters"), [(7001, ["m:7001", "n:7001"]), (7009, ["n:7009"])], ids=["known", "another"]
)
def test_a_login_keeps_the_masters_that_its_own_is_one_of(
    monkeypatch: pytest.MonkeyPatch, place: Path, port: int, masters: list[str]
) -> None:
    def granted(work: Any) -> Session:
        return Session(b"s" * 16, b"S" * 32, "alice", 9e9, "m1", Address("m", 7002), 9, [], [])

    monkeypatch.setattr(tls_once, "run_once", granted)
    place.write_text(place.read_text() + '[data]\nmax_bandwidth = "10 MB/s"\n')
    monkeypatch.setenv("SECTOR_MASTER", "elsewhere:1")
    tls_once.log_in(Address("n", port), Trust(None, "ab" * 32), "alice", "word")
    monkeypatch.undo()
    config = load_client(place)
    assert config.client.masters == masters and config.client.session == b"s".hex() * 16
    assert config.data.max_bandwidth == "10 MB/s"
