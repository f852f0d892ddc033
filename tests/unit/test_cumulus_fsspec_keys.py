"""SFTP: a server whose key is not known is no storage; nothing is told it."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cumulus.backends.fsspec_link import open_link
from cumulus.backends.registry import make_store
from cumulus.config import load_config
from cumulus.opening import open_store
from cumulus.storage.api import Unavailable

SFTP = "fsspec.implementations.sftp"


class Key:
    """As paramiko has it; the server's is `AAAA`."""

    def __init__(self, blob: str) -> None:
        self.blob = blob

    def get_name(self) -> str:
        return "ssh-ed25519"


class HostKeys:
    """Of a file of OpenSSH's."""

    def __init__(self, filename: str) -> None:
        self.lines = [line.split() for line in Path(filename).read_text().splitlines()]

    def check(self, hostname: str, key: Key) -> bool:
        return [hostname, key.get_name(), key.blob] in self.lines


class Client:
    """Connects to a server, and logs in if its key is taken."""

    logins: list[dict[str, Any]] = []

    def set_missing_host_key_policy(self, policy: Any) -> None:
        self.policy = policy

    def connect(self, host: str, port: int = 22, **options: Any) -> None:
        name = host if port == 22 else f"[{host}]:{port}"
        self.policy.missing_host_key(self, name, Key("AAAA"))
        Client.logins.append(options)

    def open_sftp(self) -> Any:
        return types.SimpleNamespace(close=lambda: None)


@pytest.fixture(autouse=True)
def paramiko(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In its place one that connects to nothing."""
    stub: Any = types.ModuleType("paramiko")
    stub.MissingHostKeyPolicy = type("MissingHostKeyPolicy", (), {})
    for name in ("AutoAddPolicy", "RejectPolicy", "WarningPolicy"):
        accepts = {"missing_host_key": lambda *_: None}
        setattr(stub, name, type(name, (stub.MissingHostKeyPolicy,), accepts))
    stub.HostKeys, stub.SSHClient = HostKeys, Client
    loaded: Any = sys.modules["fsspec.registry"]
    monkeypatch.delitem(loaded._registry, "sftp", raising=False)
    monkeypatch.setitem(sys.modules, "paramiko", stub)
    monkeypatch.delitem(sys.modules, SFTP, raising=False)
    monkeypatch.setattr(Client, "logins", [])
    yield
    sys.modules.pop(SFTP, None)
    loaded._registry.pop("sftp", None)


@pytest.mark.parametrize("port", ["", ":2222"])
def test_a_server_of_sftp_is_asked_for_only_if_its_key_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    """By the account's file, or the one that the settings name; the message says how to get there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    url, name = f"sftp://me:secret@nas{port}/dir", "[nas]:2222" if port else "nas"
    with pytest.raises(Unavailable, match=r"ssh-ed25519 key .*known_hosts.*ssh-keyscan"):
        open_link(url)
    (tmp_path / ".ssh").mkdir()
    known = tmp_path / ".ssh/known_hosts"
    for wrong in (f"{name} ssh-ed25519 BBBB", "other ssh-ed25519 AAAA"):
        known.write_text(wrong + "\n")
        with pytest.raises(Unavailable, match="ssh-keyscan"):
            open_link(url)
    known.unlink()
    known.mkdir()
    with pytest.raises(Unavailable, match="cannot be read"):
        open_link(url)
    known.rmdir()
    assert Client.logins == []
    known.write_text(f"{name} ssh-ed25519 AAAA\n")
    open_link(url)
    assert [login["password"] for login in Client.logins] == ["secret"]
    known.rename(tmp_path / "named")
    with pytest.raises(Unavailable):
        open_link(url)
    open_link(url, known_hosts=str(tmp_path / "named"))
    assert len(Client.logins) == 2
    with pytest.raises(Unavailable):
        open_link(f"simplecache::{url}")
    open_link(f"simplecache::{url}", known_hosts=str(tmp_path / "named"))


def test_a_driver_that_would_take_any_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an older fsspec hands the option on to SSH, which does not know it."""
    fsspec.get_filesystem_class("sftp")
    monkeypatch.delattr(f"{SFTP}.HOST_KEY_POLICIES")
    with pytest.raises(ValueError, match="pip install -U fsspec"):
        make_store("fsspec:sftp://nas/dir")
    assert Client.logins == []


def test_the_settings_name_the_file_of_known_servers(tmp_path: Path) -> None:
    """Beside them."""
    settings = tmp_path / "cumulus.toml"
    settings.write_text('[storage]\nbackend = "fsspec:sftp://nas/dir"\nknown_hosts = "named"\n')
    with pytest.raises(Unavailable, match=f"not in {tmp_path}/named: "):
        open_store(load_config(settings))
