"""The directory of a cluster on one machine: what `sector init` writes and `sector up` extends.

DIR/ca.pem ca.key cluster.key admin.password topology.toml replication.toml client.toml
DIR/security.toml .pem .key   DIR/master.toml …   DIR/slave1.toml …   (slave.* = slave1.*)
DIR/data/NAME     databases and files        DIR/log/NAME.log
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sector import pki
from sector.config import Role, SecuritySection, check_literal, expanded, load_config, write_private
from sector.errors import BadConfig, Exists, LocalIO, UsageError
from sector.model import Right
from sector.pki import Identity
from sector.security.core import NodeRecord, UserRecord, check_cluster_name
from sector.toml_text import to_toml

if TYPE_CHECKING:
    from sector.security.store import Database

ADMIN = "admin"
BY = "sector init"
DEFAULT_PORT_BASE = 7000

TOPOLOGY = """\
# Where nodes are: network = "/site/rack". The longest prefix wins; distance drives placement and reading.
[networks]
"127.0.0.0/8" = "/local/rack1"
"""

REPLICATION = """\
# How many replicas a file gets (never more than there are slaves). Read again when changed.
min = 3

# Other numbers for some paths; the last rule that fits counts:
# [[rule]]
# path = "/scratch"
# min = 1
"""


def ports_of(base: int, slaves: int) -> dict[str, dict[str, int]]:
    """Ports of each node (design section 2 and 9): base, base+1, base+2, and base+10+2i for slave i."""
    ports = {"security": {"tls": base}, "master": {"tls": base + 1, "gmp": base + 2}}
    for i in range(slaves):
        ports[slave_name(i)] = {"gmp": base + 10 + 2 * i, "udt": base + 11 + 2 * i}
    return ports


def slave_name(index: int) -> str:
    """Name of slave `index`, counted from 0."""
    return f"slave{index + 1}"


def role_of(name: str) -> Role:
    """What the node NAME is."""
    return "slave" if name.startswith("slave") else "master" if name == "master" else "security"


def _section(name: str, values: dict[str, object]) -> str:
    return f"[{name}]\n{to_toml(values)}\n"


def _node_files(name: str) -> dict[str, object]:
    return {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}


def security_toml(host: str, port: int) -> str:
    """Settings of the security server."""
    return (
        "# Security server: users, rights, allow-lists, audit log.\n"
        + _section("listen", {"host": host, "tls": port})
        + _section("tls", _node_files("security"))
        + _section("data", {"dir": "data/security"})
        + _section("log", {"level": "info", "format": "auto"})
    )


def master_toml(host: str, tls: int, gmp: int, security: str) -> str:
    """Settings of the master."""
    return (
        "# Master: names, replicas, sessions.\n"
        + _section("listen", {"host": host, "tls": tls, "gmp": gmp})
        + _section("tls", _node_files("master"))
        + _section("data", {"dir": "data/master"})
        + _section("peers", {"security": security})
        + _section(
            "master",
            {
                "id": "master",
                "issuer": 1,
                "cluster_key": "cluster.key",
                "topology": "topology.toml",
                "replication": "replication.toml",
            },
        )
        + _section("log", {"level": "info", "format": "auto"})
    )


def slave_toml(name: str, host: str, gmp: int, udt: int, master: str) -> str:
    """Settings of a slave."""
    return (
        "# Slave: files in [data] dir, as ordinary files below files/.\n"
        + _section("listen", {"host": host, "gmp": gmp, "udt": udt})
        + _section("tls", _node_files(name))
        + _section("data", {"dir": f"data/{name}"})
        + _section("peers", {"masters": [master]})
        + _section("slave", {"id": name, "spes": 0})
        + _section("log", {"level": "info", "format": "auto"})
    )


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ClusterDir:
    """One such directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = expanded(path).absolute()

    @property
    def exists(self) -> bool:
        """Whether `init` has been here."""
        return (self.path / "ca.pem").exists() and (self.path / "master.toml").exists()

    @property
    def password_file(self) -> Path:
        """Password of the first administrator."""
        return self.path / "admin.password"

    def slaves(self) -> list[str]:
        """Names of the slaves that have settings here, in order of number."""
        found = [
            re.fullmatch(r"slave([1-9]\d*)\.toml", entry.name) for entry in self.path.glob("slave*.toml")
        ]
        return [f"slave{n}" for n in sorted(int(match.group(1)) for match in found if match)]

    # init ---------------------------------------------------------------------------------------------
    def init(self, *, cluster: str, host: str, port_base: int, slaves: int) -> list[str]:
        """Write everything for a new cluster; nothing is left behind when it fails. Returns the names of
        the files. Raises `Exists`, `LocalIO`."""
        check_cluster_name(cluster)
        check_literal(host)
        if port_base + 11 + 2 * slaves > 65535 or port_base < 1:
            raise UsageError(
                f"port base {port_base} leaves no room for {slaves} slaves", hint="choose a lower one"
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise Exists(f"{self.path} exists and is not empty", hint="choose another directory")
        fresh = self.path.with_name(f".{self.path.name}.init-{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh.mkdir(mode=0o700)
            ClusterDir(fresh)._fill(cluster, host, port_base, slaves)
            os.rename(fresh, self.path)
        except OSError as bad:
            raise LocalIO(f"{self.path} cannot be written: {bad.strerror}") from None
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return sorted(entry.name for entry in self.path.iterdir() if not entry.is_dir())

    def _fill(self, cluster: str, host: str, base: int, slaves: int) -> None:
        ca, ca_key = pki.make_ca(cluster, pki.utc(time.time()))
        write_private(self.path / "ca.pem", ca, 0o644)
        write_private(self.path / "ca.key", ca_key)
        write_private(self.path / "cluster.key", (secrets.token_hex(32) + "\n").encode())
        write_private(self.path / "topology.toml", TOPOLOGY.encode(), 0o644)
        write_private(self.path / "replication.toml", REPLICATION.encode(), 0o644)
        ports = ports_of(base, slaves)
        security = _host_port(host, ports["security"]["tls"])
        master = _host_port(host, ports["master"]["tls"])
        self._write("security.toml", security_toml(host, ports["security"]["tls"]))
        self._write(
            "master.toml", master_toml(host, ports["master"]["tls"], ports["master"]["gmp"], security)
        )
        for role in ("security", "master"):
            self._certify(Identity(cluster, role, role), role)
        password = secrets.token_urlsafe(18)
        write_private(self.password_file, (password + "\n").encode())
        database = self.database()
        try:
            self._first_user(database, password)
            database.node_set(NodeRecord("master", "master", ()), BY, time.time())
            for i in range(slaves):
                self._add_slave(database, cluster, i, host, ports[slave_name(i)], master)
        finally:
            database.close()

    def _write(self, name: str, text: str) -> None:
        write_private(self.path / name, text.encode(), 0o644)

    def _first_user(self, database: Database, password: str) -> None:
        from argon2 import PasswordHasher

        cost = SecuritySection()
        hasher = PasswordHasher(
            time_cost=cost.argon2_passes, memory_cost=cost.argon2_mib * 1024, parallelism=1
        )
        user = UserRecord(
            ADMIN, hasher.hash(password), ("user", "admin"), (Right(ADMIN, "/", "rwx"),), (), 0, time.time()
        )
        database.user_add(user, BY, time.time())

    def _certify(self, identity: Identity, stem: str) -> None:
        ca, key = (self.path / "ca.pem").read_bytes(), (self.path / "ca.key").read_bytes()
        cert, private = pki.make_node(ca, key, identity, pki.utc(time.time()))
        write_private(self.path / f"{stem}.key", private)
        write_private(self.path / f"{stem}.pem", cert, 0o644)

    def _add_slave(
        self, database: Database, cluster: str, index: int, host: str, ports: dict[str, int], master: str
    ) -> None:
        name = slave_name(index)
        self._certify(Identity(cluster, "slave", name), name)
        self._write(f"{name}.toml", slave_toml(name, host, ports["gmp"], ports["udt"], master))
        database.node_set(NodeRecord("slave", name, ()), BY, time.time())
        if index == 0:
            for ending in ("toml", "pem", "key"):
                (self.path / f"slave.{ending}").symlink_to(f"{name}.{ending}")

    # later ----------------------------------------------------------------------------------------------
    def cluster_name(self) -> str:
        """Name of the cluster, from the master's certificate. Raises `BadConfig`."""
        where = self.path / "master.pem"
        try:
            return pki.identity_of(pki.load_certificate(where.read_bytes(), str(where))).cluster
        except OSError as bad:
            raise BadConfig(f"{where}: cannot be read: {bad.strerror}") from None

    def database(self) -> Database:
        """The security server's database (SQLite lets two processes write in turn). Loading what talks to it
        takes as long as all else that a slave or a `status` loads, and neither uses it."""
        from sector.security.store import Database

        database = Database(self.path / "data" / "security" / "security.db")
        database.open()
        return database

    def extend(self, slaves: int, host: str, ports: dict[str, dict[str, int]], master: str) -> list[str]:
        """Add the slaves that are missing up to `slaves`; returns their names."""
        have = set(self.slaves())
        missing = [i for i in range(slaves) if slave_name(i) not in have]
        if not missing:
            return []
        cluster, database = self.cluster_name(), self.database()
        try:
            for i in missing:
                self._add_slave(database, cluster, i, host, ports[slave_name(i)], master)
        finally:
            database.close()
        return [slave_name(i) for i in missing]

    def renew(self, *, all_of_them: bool = False) -> list[str]:
        """New certificates for the nodes whose own ends within 30 days; returns their names. Needs ca.key."""
        renewed = []
        for stem in ("security", "master", *self.slaves()):
            where = self.path / f"{stem}.pem"
            try:
                certificate = pki.load_certificate(where.read_bytes(), str(where))
            except OSError as bad:
                raise BadConfig(f"{where}: cannot be read: {bad.strerror}") from None
            if all_of_them or pki.days_left(certificate, pki.utc(time.time())) < pki.RENEW_DAYS:
                self._certify(pki.identity_of(certificate), stem)
                renewed.append(stem)
        return renewed

    def moved(self, ports: dict[str, dict[str, int]]) -> list[str]:
        """The ports of nodes that are here which `set_ports` would change."""
        told = []
        for name, numbers in ports.items():
            if (self.path / f"{name}.toml").exists():
                listen = load_config(self.path / f"{name}.toml", role_of(name)).listen
                for key, number in numbers.items():
                    if (now := getattr(listen, key)) != number:
                        told.append(f"{name} {key} {now}")
        return told

    def set_ports(self, ports: dict[str, dict[str, int]], host: str) -> None:
        """Write other ports into the settings of all nodes and into those who talk to them."""
        for name, numbers in ports.items():
            for key, number in numbers.items():
                self.edit(name, "listen", key, str(number))
        self.edit("master", "peers", "security", f'"{_host_port(host, ports["security"]["tls"])}"')
        for name in ports:
            if name.startswith("slave"):
                self.edit(name, "peers", "masters", f'["{_host_port(host, ports["master"]["tls"])}"]')

    def edit(self, name: str, section: str, key: str, value: str) -> None:
        """Set one value in NAME.toml and leave the rest, comments included, as it is."""
        path = self.path / f"{name}.toml"
        text = path.read_text(encoding="utf-8")
        changed = set_value(text, section, key, value)
        if changed != text:
            write_private(path, changed.encode(), 0o644)


def set_value(text: str, section: str, key: str, value: str) -> str:
    """TOML `text` with `key = value` in `[section]`, replaced in place or added; all else as it is."""
    lines = text.splitlines()
    inside, last = False, None
    for i, line in enumerate(lines):
        header = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line)
        if header:
            inside = header.group(1).strip() == section
            last = i if inside else last
        elif inside and re.match(rf"\s*{re.escape(key)}\s*=", line):
            lines[i] = f"{key} = {value}"
            return "\n".join(lines) + "\n"
        elif inside and line.strip():
            last = i
    if last is None:
        return text.rstrip("\n") + f"\n\n[{section}]\n{key} = {value}\n"
    lines.insert(last + 1, f"{key} = {value}")
    return "\n".join(lines) + "\n"
