"""Settings of Cumulus: the file that is written can be read, and errors are one line with what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cumulus import config
from cumulus.config import Config, commented, find_config, load_config, parse_config
from sector.errors import BadConfig, UsageError


def test_written_file_has_every_option_with_its_default() -> None:
    """Taking all the # away gives the defaults."""
    text = commented()
    assert parse_config(text, "/d/cumulus.toml") == Config(path="/d/cumulus.toml")
    bare = re.sub(r"(?m)^# (?=[a-z][a-z_0-9]* = )", "", text)
    assert bare.count(" = ") >= sum(len(kind.__struct_fields__) for kind in config.SECTIONS.values())
    assert parse_config(bare, "/d/cumulus.toml") == Config(path="/d/cumulus.toml")


def test_written_changes_are_set() -> None:
    """And nothing else."""
    text = commented({"server": {"port": 9, "host": "::"}, "auth": {"allow_sigv2": True}})
    found = parse_config(text, "/d/cumulus.toml")
    assert (found.server.port, found.server.host, found.auth.allow_sigv2) == (9, "::", True)
    assert found.storage == Config().storage


def test_paths_are_relative_to_the_file() -> None:
    """Wherever the program was started."""
    found = parse_config("", "/srv/cloud/cumulus.toml")
    assert found.store_url == "posix:/srv/cloud"
    assert found.database_url == "sqlite:////srv/cloud/cumulus.db"
    assert found.secret_key == Path("/srv/cloud/secret.key")
    moved = parse_config('[storage]\npath = "/big"\n[database]\nurl = "sqlite:////v/x.db"', "/etc/c.toml")
    assert (moved.store_url, moved.database_url) == ("posix:/big", "sqlite:////v/x.db")
    other = parse_config('[storage]\nbackend = "fsspec:memory://x"', "/etc/c.toml")
    assert other.store_url == "fsspec:memory://x"


def test_rates_are_numbers() -> None:
    """Bytes a second; empty = none."""
    found = parse_config('[server]\ntotal_rate = "200 MB/s"\nmin_body_rate = ""', "f")
    assert (found.total_bytes_per_s, found.min_body_bytes_per_s) == (200_000_000, 0)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("[servr]", "unknown section [servr]", "server"),
        ('[redirect]\nmode = "random"', "[redirect] hosts_file: is missing", ""),
        ("[redirect]\npoint = true", "[redirect] point: needs a mode", "round-robin"),
        (
            '[redirect]\nmode = "sideways"',
            "[redirect] mode: 'sideways' is not one of: none, random, round-robin, least-loaded, proxy",
            "",
        ),
        ('[redirect]\nmode = "proxy"', "[redirect] hosts_file: is missing", "proxy"),
        ("[server]\nprt = 1", "unknown key prt in [server]", "port"),
        ("x = 1", "key x stands outside of any section", "[section]"),
        ("server = 1", "server is a section, not a value", "[server]"),
        ('[server]\nport = "x"', "[server] port: expected int, got str", ""),
        ("[server]\nport = 70000", "[server] port: expected int <= 65535", ""),
        ("[server]\nworkers = 0", "[server] workers: expected int >= 1", ""),
        ('[server]\nhost = ""', "[server] host: is empty", "0.0.0.0"),
        ('[admin]\nhost = ""', "[admin] host: is empty", "0.0.0.0"),
        ('[server]\ndomain = ".s3.test"', "[server] domain: '.s3.test' is no host name", "without port"),
        ('[server]\ndomain = "s3.test:88"', "[server] domain: 's3.test:88' is no host name", "without"),
        ('[server]\ndomain = "http://s3.test"', "[server] domain: 'http://s3.test' is no", "s3.example"),
        ('[server]\ndomain = "*.s3.test"', "[server] domain: '*.s3.test' is no host name", "BUCKET"),
        ('[server]\nregion = "eu/1"', "[server] region: 'eu/1' cannot stand in a signature", "letters"),
        ('[server]\nregion = "eu 1"', "[server] region: 'eu 1' cannot stand in a signature", "letters"),
        ('[server]\ntrusted_proxies = "lb1"', "trusted_proxies: 'lb1' is no address or network", "10.0.0.0"),
        ('[server]\ntotal_rate = "fast"', "[server] total_rate: 'fast' is not a rate", ""),
        ('[tls]\ncert = "x"', "[tls]: cert and key go together", "both"),
        ('[admin]\nkey = "x"', "[admin]: cert and key go together", "both"),
        ('[auth]\nsource = "file"', "[auth] file: is missing", "file of users"),
        ('[auth]\nsource = "ldap"', "[auth] source: 'ldap' is not one of: sqlite, postgresql, file", ""),
        ('[database]\nurl = "mysql://x"', "names no database", "sqlite:///PATH"),
        ('[storage]\nbackend = "A B"', "[storage] backend: the text has a form", ""),
        ("[storage]\nrescan_s = 0", "[storage] rescan_s: expected float >= 1", ""),
        ('[admin]\npage = "yes"', "[admin] page: 'yes' is not one of: auto, on, off", ""),
        ("[sector]\nmap_users = true", "[sector] map_users: needs a Sector cloud", "sector:CLIENT.TOML"),
        ("[sector]\nmax_users = 0", "[sector] max_users: expected int >= 1", ""),
        ('[log]\naccess = "cumulus.db"', "[log] access: 'cumulus.db' is [database] url", "of its own"),
        ('[log]\naudit = "./x/../secret.key"', "is [auth] secret_key_file", "of its own"),
        ('[log]\naccess = "c.toml"', "[log] access: 'c.toml' is this file", "of its own"),
        ('[log]\naccess = "k"\n[tls]\ncert = "c"\nkey = "k"', "[log] access: 'k' is [tls] key", "own"),
        ("[server", "not valid TOML", ""),
    ],
)
def test_errors_name_file_and_key(text: str, says: str, hint: str) -> None:
    """In one line."""
    with pytest.raises(BadConfig) as bad:
        parse_config(text, "/d/c.toml")
    assert bad.value.message.startswith("/d/c.toml: ") and says in bad.value.message
    assert hint in bad.value.hint and "\n" not in bad.value.message + bad.value.hint


def test_file_is_found_by_directory_or_name(tmp_path: Path) -> None:
    """A directory without a file has the defaults; without a directory there is an error."""
    assert find_config(str(tmp_path), None).path == str(tmp_path / "cumulus.toml")
    (tmp_path / "cumulus.toml").write_text("[server]\nport = 1\n")
    assert find_config(str(tmp_path), None).server.port == 1
    assert find_config(None, str(tmp_path / "cumulus.toml")).server.port == 1
    with pytest.raises(UsageError, match="name the same thing"):
        find_config("a", "b")
    with pytest.raises(UsageError, match="which Cumulus is not said"):
        find_config(None, None)
    with pytest.raises(BadConfig, match="no such directory"):
        find_config(str(tmp_path / "none"), None)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, or no text."""
    with pytest.raises(BadConfig, match="No such file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(BadConfig, match="not UTF-8"):
        load_config(tmp_path / "x")


@pytest.mark.parametrize("domain", ["", "s3.example.org", "localhost", "s3-1.Lab_2.test", "10.0.0.1"])
def test_names_below_which_buckets_are_found(domain: str) -> None:
    assert parse_config(f'[server]\ndomain = "{domain}"', "/d/c.toml").server.domain == domain
