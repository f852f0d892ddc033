"""Settings: right files are read, wrong ones end in one line with file, key and the nearest known key."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sector import config as settings
from sector.cli.cluster_dir import ClusterDir, set_value
from sector.client.connect import settings as client_settings
from sector.config import (
    ClientSection,
    Config,
    load_client,
    load_config,
    nearest,
    parse_address,
    parse_config,
)
from sector.errors import BadConfig, Exists, SectorError, UsageError

TLS = '[tls]\nca = "ca.pem"\ncert = "x.pem"\nkey = "x.key"\n'
SECURITY = TLS + '[data]\ndir = "d"\n'
MASTER = SECURITY + '[peers]\nsecurity = "h:7000"\n[master]\nid = "m1"\n'
SLAVE = SECURITY + '[peers]\nmasters = ["h:7001"]\n[slave]\nid = "s1"\n'


def test_good_files_and_their_defaults() -> None:
    security = parse_config(SECURITY, "security", "/c/security.toml")
    assert security.listen.tls == 7000 and security.data_dir == Path("/c/d")
    master = parse_config(MASTER, "master", "/c/master.toml")
    assert (master.listen.tls, master.listen.gmp, master.node_id) == (7001, 7002, "m1")
    assert str(master.security_peer) == "h:7000" and master.file("topology.toml") == Path("/c/topology.toml")
    slave = parse_config(SLAVE + "[sphere]\nnetwork = true\n", "slave", "/c/slave.toml")
    assert (slave.listen.gmp, slave.listen.udt) == (7010, 7011) and slave.sphere.network
    assert [str(peer) for peer in slave.master_peers] == ["h:7001"]


# role, text, what the one line must hold
WRONG: list[tuple[str, str, list[str]]] = [
    ("slave", SLAVE + '[listen]\nhost = "localhost"\n', ["[listen] host", "'localhost' is not an IP"]),
    ("client", '[client]\nca_sha256 = "2f1c"\n', ["[client] ca_sha256", "not 64 hexadecimal digits"]),
    ("security", "x = \n", ["not valid TOML", "line 1"]),
    ("security", "[listen\n", ["not valid TOML"]),
    ("security", "port = 1\n", ["port", "outside of any section"]),
    ("security", "listen = 5\n", ["listen", "section"]),
    ("security", SECURITY + "[lisen]\nhost = 'x'\n", ["[lisen]", "did you mean listen?"]),
    ("security", SECURITY + "[master]\nid = 'x'\n", ["[master]", "for security"]),
    ("security", SECURITY + "[sphere]\n", ["[sphere]", "for security"]),
    (
        "security",
        SECURITY + "[security]\nargon2_mb = 64\n",
        ["argon2_mb", "did you mean argon2_mib?"],
    ),
    ("security", SECURITY + "[security]\nargon2_mib = 1\n", ["[security] argon2_mib", ">= 8"]),
    ("security", SECURITY + "[security]\nhashers = 3\n", ["[security] hashers", "<= 2"]),
    (
        "security",
        SECURITY + "[security]\nhash_queue = 'many'\n",
        ["[security] hash_queue", "got str"],
    ),
    ("security", SECURITY + "[listen]\ntls = 70000\n", ["[listen] tls", "<= 65535"]),
    ("security", SECURITY + "[listen]\ntls = -1\n", ["[listen] tls", ">= 0"]),
    ("security", SECURITY + "[listen]\ntls = '7000'\n", ["[listen] tls", "expected int, got str"]),
    ("security", SECURITY + "[listen]\nhost = ''\n", ["[listen] host"]),
    ("security", SECURITY + "[listen]\nhots = 'x'\n", ["hots", "did you mean host?"]),
    ("security", SECURITY + "[log]\nlevel = 'loud'\n", ["[log] level", "loud"]),
    ("security", SECURITY + "[log]\nformat = 'xml'\n", ["[log] format", "xml"]),
    ("security", TLS, ["[data] dir is missing"]),
    ("security", "[data]\ndir = 'd'\n", ["[tls] ca is missing"]),
    ("security", SECURITY.replace("cert =", "crt ="), ["crt", "did you mean cert?"]),
    ("security", SECURITY.replace("[tls]", "[tls]\nca_sha256 = 'abc'"), ["ca_sha256", "64 hex"]),
    ("master", MASTER.replace('security = "h:7000"', ""), ["[peers] security is missing"]),
    ("master", MASTER.replace("h:7000", "h"), ["[peers] security", "'h' has no port"]),
    ("master", MASTER.replace("h:7000", "h:0"), ["[peers] security", "port outside"]),
    ("master", MASTER.replace("h:7000", "a b:1"), ["[peers] security", "not an address"]),
    ("master", MASTER.replace('"m1"', '"a b"'), ["[master] id", "form"]),
    ("master", MASTER.replace('"m1"', '""'), ["[master] id is missing"]),
    ("master", MASTER + "issuer = 0\n", ["[master] issuer", ">= 1"]),
    ("master", MASTER + "issuer = 256\n", ["[master] issuer", "<= 255"]),
    ("master", MASTER + "heartbeat_s = 5\n", ["[master]", "heartbeat_s < suspect_s < lost_s"]),
    ("master", MASTER + "heartbeat = 5\n", ["heartbeat", "did you mean heartbeat_s?"]),
    ("master", MASTER + "encrypt = 1\n", ["[master] encrypt", "expected bool, got int"]),
    ("master", MASTER + "lease_s = 0\n", ["[master] lease_s", "> 0"]),
    ("master", MASTER + "[listen]\nhost = '0.0.0.0'\n", ["[listen] advertise is missing"]),
    ("slave", SLAVE.replace("masters", "master"), ["master", "did you mean masters?"]),
    ("slave", SLAVE.replace('["h:7001"]', '"h:7001"'), ["[peers] masters", "expected array, got str"]),
    ("slave", SLAVE.replace('["h:7001"]', '["h:7001", "x"]'), ["[peers] masters", "'x' has no port"]),
    ("slave", SLAVE + "spes = -1\n", ["[slave] spes", ">= 0"]),
    ("slave", SLAVE + "scrub_days = -1\n", ["[slave] scrub_days", ">= 0"]),
    ("slave", SLAVE + 'scrub_rate = "fast"\n', ["[slave] scrub_rate", "write 200 MB/s"]),
    ("slave", SLAVE + "[sphere]\nmemory = 5\n", ["memory", "did you mean memory_mib?"]),
    ("client", "[client]\nsecret = 'zz'\n", ["[client] secret", "form"]),
    ("client", "[client]\nmaster = 'x:1'\n", ["master", "did you mean masters?"]),
    ("client", "[listen]\n", ["[listen]", "for client"]),
]


@pytest.mark.parametrize(("role", "text", "parts"), WRONG, ids=[f"{r}-{p[0]}" for r, _, p in WRONG])
def test_a_wrong_file_is_one_line_with_file_and_key(role: settings.Role, text: str, parts: list[str]) -> None:
    with pytest.raises(BadConfig) as caught:
        parse_config(text, role, "/etc/sector/x.toml")
    line = f"{caught.value.message} ({caught.value.hint})"
    assert "\n" not in line and line.startswith("/etc/sector/x.toml: ")
    for part in parts:
        assert part in line


@given(st.text(max_size=200))
def test_any_text_is_settings_or_one_line(text: str) -> None:
    line = "f: "
    try:
        parse_config(text, "client", "f")
    except BadConfig as error:
        line = error.message
    assert line.startswith("f: ") and "Traceback" not in line


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot be read"):
        load_config(tmp_path / "none.toml", "master")
    with pytest.raises(BadConfig, match="cannot be read"):
        load_config(tmp_path, "master")
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    with pytest.raises(BadConfig, match="UTF-8"):
        load_config(tmp_path / "latin", "master")


def test_a_file_of_the_client_that_cannot_be_read_is_no_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint is for a user, who does not run `sector init`."""
    (tmp_path / "file").write_bytes(b"\xff")
    for place in (tmp_path, tmp_path / "file", tmp_path / "file" / "client.toml"):
        with pytest.raises(BadConfig) as caught:
            load_client(place)
        assert str(place) in caught.value.message and "sector login" in caught.value.hint
    assert load_client(tmp_path / "none").client.masters == []

    def closed(_path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", closed)
    with pytest.raises(BadConfig, match=r"client\.toml: cannot be read: Permission denied"):
        load_client(tmp_path / "client.toml")


def test_why_a_service_cannot_listen() -> None:
    """Only a port in use is somebody else's; the others are told what to change."""
    for number, code, hint in (
        (errno.EADDRINUSE, "port_in_use", "stop the other process"),
        (errno.EADDRNOTAVAIL, "local_io", "ip addr shows them"),
        (errno.EACCES, "local_io", "ports below 1024"),
        (socket.EAI_NONAME, "local_io", "check host and port"),
    ):
        error = settings.cannot_listen("h:7", OSError(number, "the reason"))
        assert error.message == "cannot listen at h:7: the reason"
        assert (error.code, hint in error.hint) == (code, True)


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("h:1", "h", 1),
            ("127.0.0.1:7001", "127.0.0.1", 7001),
            ("[::1]:9", "::1", 9),
            ("a-b.example:65535", "a-b.example", 65535),
        ],
    )
    def test_good(self, text: str, host: str, port: int) -> None:
        address = parse_address(text)
        assert (address.host, address.port) == (host, port)
        assert str(address) == text

    def test_the_default_port(self) -> None:
        assert str(parse_address("h", 7001)) == "h:7001" and str(parse_address("[::1]", 7001)) == "[::1]:7001"

    @pytest.mark.parametrize(
        "text", ["", ":1", "h:", "h:x", "h:99999", "h:0", "::1:7001", "http://h:1", "h 1", "[::1"]
    )
    def test_bad(self, text: str) -> None:
        with pytest.raises(BadConfig):
            parse_address(text, 7001 if text in ("h:0",) else None)

    def test_nearest(self) -> None:
        assert nearest("mastr", ["master", "slave"]) == "master" and nearest("zzz", ["master"]) == ""


class TestClientFile:
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in list(os.environ):
            if name.startswith("SECTOR_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("SECTOR_CONFIG", str(tmp_path / "sub" / "client.toml"))
        return tmp_path / "sub" / "client.toml"

    CLIENT = ClientSection(
        masters=["h:7001"], user="ali\"ce\\ü", ca_sha256="ab" * 32, session="00" * 16, secret="5e" * 32,
        expires=12.5, master_id="m1", gmp="h:7002", key_id=7, password_file="/x",
    )  # fmt: skip

    def test_it_comes_back_and_is_private(self, place: Path) -> None:
        assert settings.save_client(self.CLIENT) == place
        assert load_client().client == self.CLIENT
        assert (
            stat.S_IMODE(place.stat().st_mode) == 0o600 and stat.S_IMODE(place.parent.stat().st_mode) == 0o700
        )
        settings.save_client(self.CLIENT)
        assert [entry.name for entry in place.parent.iterdir()] == ["client.toml"]

    def test_the_other_sections_stay(self, place: Path) -> None:
        """What the user has set for transfers and logs is there after each login and renewal."""
        place.parent.mkdir()
        place.write_text(
            '[client]\nuser = "alice"\n[log]\nlevel = "debug"\n[data]\nmax_bandwidth = "10 MB/s"\n'
            "udp_wait_s = 20\ntcp_stripes = 0\n"
            '[[data.link_cap]]\nto = "10.0.0.0/8"\nbandwidth = "1 Gb/s"\n'
            '[[data.link_cap]]\nto = "fd00::/8"\nbandwidth = "2 Gb/s"\n'
        )
        before = load_client()
        for _ in range(2):
            settings.save_client(self.CLIENT)
            after = load_client()
            assert after.client == self.CLIENT
            assert (after.data, after.log) == (before.data, before.log)
        assert len(after.data.link_cap) == 2

    def test_a_file_that_cannot_be_used_is_written_anew(self, place: Path) -> None:
        place.parent.mkdir()
        for text in (b"[client", b"\xff", b"[data]\nno_such = 1\n"):
            place.write_bytes(text)
            settings.save_client(self.CLIENT)
            assert load_client().client == self.CLIENT

    def test_the_secret_does_not_show(self) -> None:
        assert "5e5e" not in repr(self.CLIENT) and "5e5e" not in repr(Config(client=self.CLIENT))

    def test_without_a_file_all_is_empty(self) -> None:
        assert load_client().client == ClientSection()

    def test_another_user_or_master_forgets_the_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings.save_client(self.CLIENT)
        monkeypatch.setenv("SECTOR_USER", "bob")
        client = load_client().client
        assert (client.user, client.session, client.secret, client.password_file) == ("bob", "", "", "")
        assert client.masters == ["h:7001"] and client.ca_sha256 == "ab" * 32
        monkeypatch.delenv("SECTOR_USER")
        monkeypatch.setenv("SECTOR_MASTER", "h2")
        assert load_client().client.masters == ["h2:7001"] and load_client().client.secret == ""
        monkeypatch.setenv("SECTOR_MASTER", "h:7001")
        assert load_client().client.secret == "5e" * 32

    def test_a_ca_that_a_caller_names_lies_where_he_is(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Not beside client.toml, whose own `ca` does."""
        monkeypatch.chdir(tmp_path)
        config = client_settings("sector://alice@h:7001", ca="ca.pem")
        assert config.file(config.client.ca) == tmp_path / "ca.pem"

    def test_xdg_and_home(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("SECTOR_CONFIG")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert settings.client_path() == tmp_path / "sector" / "client.toml"
        monkeypatch.delenv("XDG_CONFIG_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert settings.client_path() == tmp_path / "home" / ".config" / "sector" / "client.toml"


class TestEditing:
    TEXT = '# top\n[a]\nx = 1  # one\n\n[b]\ny = "z"\n'

    def test_a_value_is_replaced_in_its_section_only(self) -> None:
        changed = set_value(self.TEXT, "a", "x", "2")
        assert changed == '# top\n[a]\nx = 2\n\n[b]\ny = "z"\n'
        assert tomllib.loads(set_value(self.TEXT, "b", "x", "3")) == {"a": {"x": 1}, "b": {"y": "z", "x": 3}}

    def test_a_missing_section_is_added(self) -> None:
        assert tomllib.loads(set_value(self.TEXT, "c", "k", "[1]"))["c"] == {"k": [1]}

    @given(st.sampled_from("abc"), st.sampled_from(["x", "y", "key"]), st.integers(0, 99))
    def test_the_rest_stays(self, section: str, key: str, value: int) -> None:
        before, after = (
            tomllib.loads(self.TEXT),
            tomllib.loads(set_value(self.TEXT, section, key, str(value))),
        )
        before.setdefault(section, {})[key] = value
        assert after == before


class TestClusterDirectory:
    def test_init_writes_settings_that_load(self, tmp_path: Path) -> None:
        place = ClusterDir(tmp_path / "c")
        names = place.init(cluster="x", host="127.0.0.1", port_base=17000, slaves=2)
        wanted = {"ca.pem", "ca.key", "topology.toml", "replication.toml", "admin.password"}
        wanted |= {
            f"{role}.{end}" for role in ("security", "master", "slave") for end in ("toml", "pem", "key")
        }
        assert wanted <= set(names)
        for stem, role in (
            ("security", "security"),
            ("master", "master"),
            ("slave", "slave"),
            ("slave2", "slave"),
        ):
            config = load_config(place.path / f"{stem}.toml", role)  # type: ignore[arg-type]
            credentials, _ = settings_of(config, role)
            assert credentials.identity.role == role
        assert load_config(place.path / "slave2.toml", "slave").listen.udt == 17013
        assert place.cluster_name() == "x" and place.renew() == []
        assert place.renew(all_of_them=True) == ["security", "master", "slave1", "slave2"]

    def test_a_directory_with_files_is_not_touched(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("x")
        with pytest.raises(Exists):
            ClusterDir(tmp_path).init(cluster="x", host="127.0.0.1", port_base=7000, slaves=1)
        assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]

    def test_a_failed_init_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(SectorError):
            ClusterDir(tmp_path / "c").init(cluster="no good", host="127.0.0.1", port_base=7000, slaves=1)
        with pytest.raises(UsageError):
            ClusterDir(tmp_path / "c").init(cluster="x", host="127.0.0.1", port_base=65500, slaves=100)
        assert list(tmp_path.iterdir()) == []

    def test_a_certificate_of_another_node_is_refused(self, tmp_path: Path) -> None:
        place = ClusterDir(tmp_path / "c")
        place.init(cluster="x", host="127.0.0.1", port_base=7000, slaves=2)
        place.edit("slave2", "tls", "cert", '"slave1.pem"')
        with pytest.raises(BadConfig, match="does not belong"):
            settings_of(load_config(place.path / "slave2.toml", "slave"), "slave")
        place.edit("slave2", "tls", "key", '"slave1.key"')
        with pytest.raises(BadConfig, match="slave:slave1, not for slave:slave2"):
            settings_of(load_config(place.path / "slave2.toml", "slave"), "slave")
        (place.path / "slave1.pem").write_text("nonsense")
        with pytest.raises(BadConfig, match="no certificate"):
            settings_of(load_config(place.path / "slave1.toml", "slave"), "slave")


def settings_of(config: Config, role: str):  # type: ignore[no-untyped-def]
    """Certificate and trust of a node's settings."""
    from sector.tls import load_node

    return load_node(config, role)
