"""Settings: TOML files of the services and the client's own file, checked once, one clear line on error.

Each file has the sections ``[listen] [tls] [data] [peers] [log]`` and one per role. Paths are relative to
the file. An unknown key is an error that names the nearest known one (design section 9).
"""

from __future__ import annotations

import difflib
import errno
import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from sector.errors import BadConfig, LocalIO, PortInUse, SectorError, UsageError
from sector.model import Address
from sector.toml_text import to_section

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=10**7)]
Count = Annotated[int, Meta(ge=1, le=4096)]
Role = Literal["security", "master", "slave", "client"]
ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$|^$")]


_RATE = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*([kKMGT]?)(?:(b|bit)|B)?(?:/s|ps)?")
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_rate(text: str) -> int:
    """Bytes a second of "200 MB/s", "1.5 Gb/s" (b = bits), "50M" or "1000000". Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rate: write 200 MB/s, or 1.5 Gb/s for bits")
    rate = round(float(match[1]) * _DECIMAL[match[2]] / (8 if match[3] else 1))
    if not 1000 <= rate <= 10**13:
        raise ValueError(f"{text!r} is not between 1 kB/s and 10 TB/s")
    return rate


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class Listen(Section, frozen=True, kw_only=True):
    """`host` an address of this machine; ports 0 = any free one. `advertise` is the address that others
    reach this node at, when it differs (NAT, 0.0.0.0)."""

    host: str = "127.0.0.1"
    tls: Port = 0
    gmp: Port = 0
    udt: Port = 0
    advertise: str = ""


class Tls(Section, frozen=True, kw_only=True):
    """Files in PEM. `ca_sha256` pins the CA certificate by its SHA-256 (hex, over DER)."""

    ca: str = ""
    ca_sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$|^$")] = ""
    cert: str = ""
    key: str = ""


class LinkCap(Section, frozen=True, kw_only=True):
    """What all transfers of this node together may send to addresses in `to` (CIDR)."""

    to: str
    bandwidth: str


class DataSection(Section, frozen=True, kw_only=True):
    """`dir` holds the database (security, master) or the files (slave). Where UDP to a slave gets no answer
    for `udp_wait_s`, files move over `tcp_stripes` TLS connections (0 = never), and UDP is tried again after
    `udp_retry_s`. `congestion_control` rules what this node sends, at most `max_bandwidth` a transfer ("" =
    no cap) and what each `link_cap` says together."""

    congestion_control: Literal["bbr", "udt", "cubic", "fixed"] = "bbr"
    max_bandwidth: str = ""
    link_cap: Annotated[list[LinkCap], Meta(max_length=64)] = []
    dir: str = ""
    tcp_stripes: Annotated[int, Meta(ge=0, le=16)] = 4
    udp_wait_s: Annotated[float, Meta(gt=0, le=60)] = 3.0
    udp_retry_s: Annotated[float, Meta(ge=0, le=86400)] = 300.0

    @property
    def max_bytes_per_s(self) -> int:
        """`max_bandwidth` as a number, 0 = no cap."""
        return parse_rate(self.max_bandwidth) if self.max_bandwidth else 0

    @property
    def link_caps(self) -> list[tuple[str, int, int]]:
        """(address, bits, bytes per second) of each `link_cap`."""
        nets = [(ipaddress.ip_network(cap.to), parse_rate(cap.bandwidth)) for cap in self.link_cap]
        return [(str(net.network_address), net.prefixlen, rate) for net, rate in nets]


class Peers(Section, frozen=True, kw_only=True):
    """Where the others are, as "HOST:PORT" of their TLS ports."""

    security: str = ""
    masters: list[str] = []


class LogSection(Section, frozen=True, kw_only=True):
    """`format` auto = human on a terminal, else JSON lines."""

    level: Literal["debug", "info", "warn", "error"] = "info"
    format: Literal["auto", "human", "json"] = "auto"


class SecuritySection(Section, frozen=True, kw_only=True):
    """Cost of one password check, and how many may run or wait (spec/security.md, TLS channels)."""

    argon2_mib: Annotated[int, Meta(ge=8, le=1024)] = 64
    argon2_passes: Annotated[int, Meta(ge=1, le=16)] = 3
    hashers: Annotated[int, Meta(ge=1, le=2)] = 2
    hash_queue: Annotated[int, Meta(ge=1, le=1024)] = 32


class MasterSection(Section, frozen=True, kw_only=True):
    """Times in seconds. `issuer` 1-255 differs between the masters of a cluster."""

    id: Id = "master"
    issuer: Annotated[int, Meta(ge=1, le=255)] = 1
    cluster_key: str = "cluster.key"
    topology: str = "topology.toml"
    replication: str = "replication.toml"
    session_hours: Annotated[float, Meta(gt=0, le=8760)] = 12.0
    logins_per_s: Annotated[float, Meta(gt=0, le=10**6)] = 50.0
    heartbeat_s: Seconds = 1.0
    suspect_s: Seconds = 3.0
    lost_s: Seconds = 10.0
    lease_s: Seconds = 60.0
    check_s: Seconds = 10.0
    copies: Count = 4
    per_node: Count = 2
    small_copies: Count = 32
    small_per_node: Count = 12
    encrypt: bool = True


class SlaveSection(Section, frozen=True, kw_only=True):
    """`spes` worker processes for Sphere, 0 = one per core. `reserve_mib` of the disk are left free.
    A ticket waits `ticket_s` for its other end (spec/security.md: 60). All replicas are read again within
    `scrub_days` (0 = never by itself), at `scrub_rate` at most."""

    id: Id = "slave"
    spes: Annotated[int, Meta(ge=0, le=1024)] = 0
    reserve_mib: Annotated[int, Meta(ge=0)] = 64
    scan_s: Seconds = 300.0
    transfers: Count = 64
    ticket_s: Annotated[float, Meta(gt=0, le=60)] = 60.0
    scrub_days: Annotated[float, Meta(ge=0, le=3650)] = 14.0
    scrub_rate: str = "50 MB/s"

    @property
    def scrub_bytes_per_s(self) -> int:
        """`scrub_rate` as a number."""
        return parse_rate(self.scrub_rate)


class SphereSection(Section, frozen=True, kw_only=True):
    """Limits of one worker process that runs users' functions. `silence_s` without progress ends it."""

    memory_mib: Annotated[int, Meta(ge=64)] = 2048
    scratch_mib: Annotated[int, Meta(ge=1)] = 16384
    open_files: Annotated[int, Meta(ge=16, le=65536)] = 256
    silence_s: Seconds = 120.0
    network: bool = False
    user: str = "nobody"


class ClientSection(Section, frozen=True, kw_only=True):
    """A user's connection, as `sector login` and `sector up` write it (mode 0600): session, no password.
    `session` and `secret` are hex; `gmp` the master's "HOST:PORT" for control messages; `expires` seconds
    since 1970; `password_file` lets commands log in again when the session is over."""

    masters: list[str] = []
    user: str = ""
    ca: str = ""
    ca_sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}$|^$")] = ""
    session: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$|^$")] = ""
    secret: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$|^$")] = ""
    expires: float = 0.0
    master_id: Id = ""
    gmp: str = ""
    key_id: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] = 0
    password_file: str = ""

    def __repr__(self) -> str:
        return f"ClientSection({self.user}@{','.join(self.masters)}, session {self.session[:8] or 'none'})"


class Config(Section, frozen=True, kw_only=True):
    """One file. `path` is where it was read from; `role` which service reads it."""

    listen: Listen = Listen()
    tls: Tls = Tls()
    data: DataSection = DataSection()
    peers: Peers = Peers()
    log: LogSection = LogSection()
    security: SecuritySection = SecuritySection()
    master: MasterSection = MasterSection()
    slave: SlaveSection = SlaveSection()
    sphere: SphereSection = SphereSection()
    client: ClientSection = ClientSection()
    path: str = ""
    role: str = ""

    def file(self, name: str) -> Path:
        """`name` from the file as a path, relative to the directory of the file."""
        return (Path(self.path).parent / expanded(name)).resolve() if name else Path()

    @property
    def data_dir(self) -> Path:
        """`[data] dir` as an absolute path."""
        return self.file(self.data.dir)

    @property
    def node_id(self) -> str:
        """Name of this node in the cluster."""
        return {"master": self.master.id, "slave": self.slave.id}.get(self.role, "security")

    @property
    def security_peer(self) -> Address:
        """Where the security server is."""
        return parse_address(self.peers.security)

    @property
    def master_peers(self) -> list[Address]:
        """TLS addresses of the masters."""
        return [parse_address(text) for text in self.peers.masters]

    @property
    def advertised_host(self) -> str:
        """The address that this node tells the others."""
        return self.listen.advertise or self.listen.host


SECTIONS: dict[str, type[Section]] = {
    "listen": Listen,
    "tls": Tls,
    "data": DataSection,
    "peers": Peers,
    "log": LogSection,
    "security": SecuritySection,
    "master": MasterSection,
    "slave": SlaveSection,
    "sphere": SphereSection,
    "client": ClientSection,
}
_COMMON = {"listen", "tls", "data", "peers", "log"}
_ROLE_SECTIONS: dict[str, set[str]] = {
    "security": _COMMON | {"security"},
    "master": _COMMON | {"master"},
    "slave": _COMMON | {"slave", "sphere"},
    "client": {"client", "data", "log"},
}
_DEFAULT_PORTS: dict[str, dict[str, int]] = {
    "security": {"tls": 7000},
    "master": {"tls": 7001, "gmp": 7002},
    "slave": {"gmp": 7010, "udt": 7011},
}
_NEEDED: dict[str, tuple[str, ...]] = {
    "security": ("tls.ca", "tls.cert", "tls.key", "data.dir"),
    "master": ("tls.ca", "tls.cert", "tls.key", "data.dir", "peers.security", "master.id"),
    "slave": ("tls.ca", "tls.cert", "tls.key", "data.dir", "peers.masters", "slave.id"),
    "client": (),
}


def nearest(word: str, known: list[str] | set[str]) -> str:
    """The known word that is most like `word`, "" when none is near."""
    found = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return found[0] if found else ""


def parse_address(text: str, default_port: int | None = None) -> Address:
    """An `Address` from "HOST:PORT" or "[IPV6]:PORT"; without a port `default_port` counts.

    Raises `BadConfig` with the text in its message."""
    match = re.fullmatch(
        r"\[([0-9A-Fa-f:.%\w]+)\](?::(\d{1,5}))?|([^:\s\[\]/]+)(?::(\d{1,5}))?", text.strip()
    )
    hint = "write HOST:PORT, for IPv6 [ADDRESS]:PORT"
    if match is None:
        raise BadConfig(f"{text!r} is not an address", hint=hint)
    host = match.group(1) or match.group(3)
    digits = match.group(2) or match.group(4)
    if digits is None and default_port is None:
        raise BadConfig(f"{text!r} has no port", hint=hint)
    port = int(digits) if digits is not None else int(default_port or 0)
    if not 0 < port <= 65535:
        raise BadConfig(f"{text!r} has a port outside of 1 to 65535", hint=hint)
    return Address(host, port)


def check_literal(host: str) -> str:
    """An IP address to listen at. Raises `UsageError` for anything else: a name may mean several."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(
            f"{host!r} is not an IP address of this machine",
            hint="write one such as 10.0.0.7 (ip addr shows them), or 0.0.0.0 for all",
        ) from None
    return host


def cannot_listen(where: str, bad: OSError) -> SectorError:
    """Why a service cannot listen at `where` ("HOST:PORT")."""
    text = f"cannot listen at {where}: {bad.strerror or bad}"
    if bad.errno == errno.EADDRINUSE:
        return PortInUse(text)
    hints = {
        errno.EADDRNOTAVAIL: "[listen] host must be an address of this machine: ip addr shows them",
        errno.EACCES: "ports below 1024 are for root: choose a higher one in [listen]",
    }
    return LocalIO(text, hint=hints.get(bad.errno or 0, "check host and port in [listen]"))


def unknown_name(path: str, where: str, word: str, known: set[str], elsewhere: str = "") -> BadConfig:
    """The error for a section or key that there is not, with the nearest known one as hint."""
    near = nearest(word, known)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(sorted(known))}"
    return BadConfig(f"{path}: unknown {where}{elsewhere}", hint=hint)


def _check_names(path: str, role: str, raw: dict[str, Any]) -> None:
    known = _ROLE_SECTIONS[role]
    for name, body in raw.items():
        if name not in known:
            if not isinstance(body, dict):
                raise BadConfig(
                    f"{path}: key {name} stands outside of any section", hint="put it below [section]"
                )
            raise unknown_name(path, f"section [{name}]", name, known, f" for {role}")
        if not isinstance(body, dict):
            raise BadConfig(
                f"{path}: {name} is a section, not a value", hint=f"write [{name}] on a line of its own"
            )
        fields = set(SECTIONS[name].__struct_fields__)
        for key in body:
            if key not in fields:
                raise unknown_name(path, f"key {key} in [{name}]", key, fields)
        _check_tables(path, name, body)


def _check_tables(path: str, name: str, body: dict[str, Any]) -> None:
    tables = body.get("link_cap", []) if name == "data" else []
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadConfig(f"{path}: link_cap in [data] is a list of tables", hint="write [[data.link_cap]]")
    fields = set(LinkCap.__struct_fields__)
    for key in (key for table in tables for key in table if key not in fields):
        raise unknown_name(path, f"key {key} in [[data.link_cap]]", key, fields)


def _choices(kind: Any, names: list[str]) -> str:
    """What the field at `names` below a Struct may be, if that is one of some words."""
    for name in names:
        kind = get_type_hints(kind).get(name) if isinstance(kind, type) else None
    return ", ".join(str(one) for one in get_args(kind)) if get_origin(kind) is Literal else ""


def wrong_value(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> tuple[str, str]:
    """(key, what is wrong) of a validation error of a `kind`."""
    text, _, place = str(error).rpartition(" - at ")
    parts = re.findall(r"\.([A-Za-z_0-9]+)", place)
    key = f"[{parts[0]}] {'.'.join(parts[1:])}" if len(parts) > 1 else ".".join(parts)
    wrong = text.replace("`", "")
    if "matching regex" in wrong:
        pin = parts[-1:] == ["ca_sha256"]
        wrong = "the text is not 64 hexadecimal digits" if pin else "the text has a form that is not allowed"
    if choices := _choices(kind, parts) if wrong.startswith("Invalid enum value") else "":
        wrong = f"{wrong.removeprefix('Invalid enum value ')} is not one of: {choices}"
    return key, wrong[:1].lower() + wrong[1:]


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The tables in `text`. Raises `BadConfig` with `name`, the file."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadConfig(f"{name}: not valid TOML: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and numbers that int() refuses
        raise BadConfig(f"{name}: not valid TOML: {error}") from None


def parse_config(text: str, role: Role, path: str) -> Config:
    """The settings in `text` for a service of `role`. `path` names the file in errors and anchors relative
    paths. Raises `BadConfig`: one line with file, key, and what is expected."""
    raw = parse_toml(text, path)
    _check_names(path, role, raw)
    listen = dict(_DEFAULT_PORTS.get(role, {}))
    listen.update(raw.get("listen", {}))
    raw = {**raw, "listen": listen}
    try:
        config = msgspec.convert({**raw, "path": path, "role": role}, Config)
    except msgspec.ValidationError as error:
        key, wrong = wrong_value(error, Config)
        raise BadConfig(f"{path}: {key}: {wrong}") from None
    _check_values(config, role)
    return config


def _check_values(config: Config, role: str) -> None:
    for needed in _NEEDED[role]:
        section, _, key = needed.partition(".")
        if not getattr(getattr(config, section), key):
            raise BadConfig(
                f"{config.path}: [{section}] {key} is missing", hint=f"add {key} = … below [{section}]"
            )
    addresses = [("[peers] security", config.peers.security)] if config.peers.security else []
    addresses += [("[peers] masters", text) for text in config.peers.masters]
    addresses += [("[client] masters", text) for text in config.client.masters]
    addresses += [("[client] gmp", config.client.gmp)] if config.client.gmp else []
    for key, text in addresses:
        try:
            parse_address(text)
        except BadConfig as error:
            raise BadConfig(f"{config.path}: {key}: {error.message}", hint=error.hint) from None
    _check_rates(config)
    if not config.listen.host:
        raise BadConfig(
            f"{config.path}: [listen] host is empty", hint='write an address, or "0.0.0.0" for all'
        )
    if role in ("master", "slave"):
        try:
            check_literal(config.listen.host)
        except UsageError as error:
            raise BadConfig(f"{config.path}: [listen] host: {error.message}", hint=error.hint) from None
    if (
        config.listen.host in ("0.0.0.0", "::")
        and role in ("master", "slave")
        and not config.listen.advertise
    ):
        raise BadConfig(
            f"{config.path}: [listen] advertise is missing while host is {config.listen.host}",
            hint="say at which address the other nodes reach this one",
        )
    master = config.master
    if not master.heartbeat_s < master.suspect_s < master.lost_s:
        raise BadConfig(f"{config.path}: [master] needs heartbeat_s < suspect_s < lost_s")


def _check_rates(config: Config) -> None:
    data = config.data
    try:
        rate = data.max_bytes_per_s
    except ValueError as bad:
        raise BadConfig(f"{config.path}: [data] max_bandwidth: {bad}") from None
    try:
        _ = data.link_caps
    except ValueError as bad:
        raise BadConfig(f"{config.path}: [[data.link_cap]]: {bad}") from None
    try:
        _ = config.slave.scrub_bytes_per_s
    except ValueError as bad:
        raise BadConfig(f"{config.path}: [slave] scrub_rate: {bad}") from None
    if data.congestion_control == "fixed" and not rate:
        raise BadConfig(
            f'{config.path}: [data] congestion_control = "fixed" needs a rate',
            hint='add max_bandwidth = "100 MB/s", or what the circuit carries',
        )


def _read(path: Path, hint: str = "sector init DIR writes new files") -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadConfig(f"{path}: is not UTF-8 text", hint=hint) from None
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read: {error.strerror}", hint=hint) from None


def load_config(path: str | os.PathLike[str], role: Role) -> Config:
    """Read and check a service's file. Raises `BadConfig` (one line)."""
    where = Path(path).absolute()
    return parse_config(_read(where), role, str(where))


def expanded(name: str | os.PathLike[str]) -> Path:
    """A path that may begin with ~ or ~USER. Raises `BadConfig`: an account without an entry in the password
    database, as containers have it, has a home directory only by HOME."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        hint = "set HOME, or give the place in full: --dir DIR, SECTOR_CONFIG=FILE"
        raise BadConfig(f"{name}: no such home directory is known", hint=hint) from None


# the client's own file ------------------------------------------------------------------------------
def client_path() -> Path:
    """Where the client's settings are: SECTOR_CONFIG, else XDG_CONFIG_HOME/sector/client.toml, else
    ~/.config/sector/client.toml."""
    explicit = os.environ.get("SECTOR_CONFIG")
    if explicit:
        return expanded(explicit).absolute()
    base = os.environ.get("XDG_CONFIG_HOME")
    root = Path(base) if base else expanded("~/.config")
    return (root / "sector" / "client.toml").absolute()


def stored_client(path: Path | None = None) -> Config:
    """The client's settings as the file has them; empty ones when it is not there. Raises `BadConfig`."""
    where = path or client_path()
    try:
        os.stat(where)
        text = _read(where, "make it a file that you can read, or remove it and log in again: sector login")
        return parse_config(text, "client", str(where))
    except FileNotFoundError:
        return Config(path=str(where), role="client")
    except OSError as error:
        raise BadConfig(
            f"{where}: cannot be read: {error.strerror}",
            hint="SECTOR_CONFIG names another file; sector login writes it",
        ) from None


def load_client(path: Path | None = None) -> Config:
    """The client's settings: what `stored_client` gives, where SECTOR_MASTER, SECTOR_USER and
    SECTOR_PASSWORD_FILE win; with another master or user the stored session does not count. Raises
    `BadConfig`."""
    return override_client(
        stored_client(path),
        master=os.environ.get("SECTOR_MASTER"),
        user=os.environ.get("SECTOR_USER"),
        password_file=os.environ.get("SECTOR_PASSWORD_FILE"),
    )


def override_client(
    config: Config, *, master: str | None = None, user: str | None = None, password_file: str | None = None
) -> Config:
    """`config` with master ("HOST:PORT"), user or password file replaced where given."""
    client = config.client
    changes: dict[str, Any] = {}
    where = parse_address(master, 7001) if master else None
    if where is not None and where not in [parse_address(text, 7001) for text in client.masters]:
        changes["masters"] = [str(where)]
    if user and user != client.user:
        changes["user"] = user
    if changes:
        changes.update(session="", secret="", expires=0.0, master_id="", gmp="", key_id=0, password_file="")
    if password_file:
        changes["password_file"] = str(expanded(password_file).absolute())
    if not changes:
        return config
    return msgspec.structs.replace(config, client=msgspec.structs.replace(client, **changes))


def save_client(client: ClientSection, path: Path | None = None) -> Path:
    """Write the section [client] of the client's settings (mode 0600, atomically); the others stay, without
    their comments. Raises `LocalIO`."""
    where = path or client_path()
    text = "# Written by sector login and sector up. Keep it private: it holds a session.\n"
    text += to_section("client", msgspec.structs.asdict(client)) + _other_sections(where)
    try:
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(where, text.encode())
    except OSError as error:
        raise LocalIO(f"{where} cannot be written: {error.strerror}") from None
    return where


def _other_sections(where: Path) -> str:
    """What a client's file has beside [client], "" of one that cannot be used."""
    try:
        text = _read(where)
        parse_config(text, "client", str(where))
    except BadConfig:
        return ""
    others = {name: body for name, body in parse_toml(text, str(where)).items() if name != "client"}
    return "".join("\n" + to_section(name, body) for name, body in others.items())


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that only its owner may read, replacing an older one atomically; fsynced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
