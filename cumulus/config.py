"""Settings of Cumulus: one TOML file, checked once, one clear line on error.

Each option is declared once, here: name, type, default, what it is for. `commented()` makes the file that
`cumulus init` writes. Paths are relative to the file.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Meta

from cumulus.fair.limits import Limits
from cumulus.fair.weights import By, Sharing, parse_weights
from cumulus.proxies import Networks, parse_networks
from cumulus.redirect import Mode
from cumulus.unix import ACCOUNT
from sector.config import Port, Section, expanded, parse_rate, parse_toml, unknown_name, wrong_value
from sector.errors import BadConfig, UsageError
from sector.toml_text import to_toml

FILE: Final = "cumulus.toml"
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")
_LABEL: Final = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_REGION: Final = re.compile(r"[A-Za-z0-9._-]+")


class Server(Section, frozen=True, kw_only=True):
    """The S3 service."""

    host: Annotated[str, Meta(description="Address to listen on; 0.0.0.0 is all of IPv4, :: all.")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, Meta(description="0 = any free one.")] = 8888
    workers: Annotated[int, Meta(ge=1, le=256, description="Processes that serve.")] = 1
    domain: Annotated[
        str, Meta(description="Buckets are also found as BUCKET.DOMAIN; empty = only as /BUCKET.")
    ] = ""
    region: Annotated[
        str, Meta(min_length=1, max_length=64, description="The region that clients sign for.")
    ] = "us-east-1"
    trusted_proxies: Annotated[
        str,
        Meta(
            description='Addresses and networks, as "127.0.0.1, 10.0.0.0/24", of nginx or HAProxy in front: '
            "their X-Forwarded-For and X-Forwarded-Proto count."
        ),
    ] = ""
    max_connections: Annotated[int, Meta(ge=1, le=1_000_000, description="In each worker.")] = 10_000
    header_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description="A request's head must be complete by then.")
    ] = 30.0
    idle_timeout_s: Annotated[
        float, Meta(gt=0, le=3600, description="A connection without a request is ended after this.")
    ] = 60.0
    write_timeout_s: Annotated[
        float,
        Meta(gt=0, le=3600, description="A client that takes nothing of a reply is ended after this."),
    ] = 60.0
    min_body_rate: Annotated[str, Meta(description="A slower upload is ended; empty = none.")] = "1 kB/s"
    total_rate: Annotated[
        str,
        Meta(description='What all workers send and take at most, as "200 MB/s"; empty = no limit.'),
    ] = ""


class Tls(Section, frozen=True, kw_only=True):
    """HTTPS; without both files the service speaks HTTP."""

    cert: Annotated[str, Meta(description="Certificate with its chain, PEM.")] = ""
    key: Annotated[str, Meta(description="Its key, PEM.")] = ""


class AdminSection(Section, frozen=True, kw_only=True):
    """Metrics, health, load, and the admin page. The S3 port serves only S3."""

    host: Annotated[str, Meta(description="Keep it private: metrics have no login.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="0 = any free one.")] = 8889
    page: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="The admin page; auto: only if the address is this machine's or a private one."),
    ] = "auto"
    cert: Annotated[
        str, Meta(description="Certificate with its chain, PEM, of this port; empty = no TLS here.")
    ] = ""
    key: Annotated[str, Meta(description="Its key, PEM; both may be those of [tls].")] = ""
    metrics_users: Annotated[
        int,
        Meta(ge=0, le=10_000, description="So many users, those that come first, have metrics of their own."),
    ] = 100


class Storage(Section, frozen=True, kw_only=True):
    """Where objects lie."""

    backend: Annotated[
        str,
        Meta(pattern=r"^[a-z0-9_-]+(:.*)?$", description="posix, memory, or NAME:ARGUMENT of another one."),
    ] = "posix"
    path: Annotated[str, Meta(description="posix: objects are PATH/data/BUCKET/KEY.")] = "."
    rescan_s: Annotated[
        float,
        Meta(
            ge=1,
            le=10**7,
            description="Listings show what others changed in the directories after this, or after three "
            "times as long as a scan takes if that is more.",
        ),
    ] = 60.0
    fsync: Annotated[
        bool, Meta(description="false: an upload that was acknowledged may be lost in a power cut.")
    ] = True
    etag: Annotated[
        Literal["md5", "opaque"], Meta(description='"opaque" saves hashing; some clients compare MD5 sums.')
    ] = "md5"
    known_hosts: Annotated[
        str,
        Meta(description="SFTP: keys of servers, as ssh-keyscan writes them; empty = the account's."),
    ] = ""


class SectorSection(Section, frozen=True, kw_only=True):
    """A Sector cloud as storage (backend = "sector:CLIENT.TOML")."""

    map_users: Annotated[
        bool,
        Meta(
            description="Act in the cloud as the Sector user of the same name as who asks; the account of "
            "CLIENT.TOML needs the role service."
        ),
    ] = False
    max_users: Annotated[
        int, Meta(ge=1, le=1000, description="So many users of each process are connected at once.")
    ] = 64


class Database(Section, frozen=True, kw_only=True):
    """Users, bucket settings, quotas and the index of objects."""

    url: Annotated[
        str,
        Meta(description="sqlite:///PATH, or postgresql://USER@HOST:PORT/NAME, which several servers share."),
    ] = "sqlite:///cumulus.db"
    password_file: Annotated[
        str, Meta(description="PostgreSQL: the password, mode 0600; empty = PGPASSFILE or none.")
    ] = ""
    connections: Annotated[
        int, Meta(ge=2, le=1000, description="PostgreSQL: at most so many for the requests of each process.")
    ] = 8


class Auth(Section, frozen=True, kw_only=True):
    """Who may log in."""

    source: Annotated[
        Literal["sqlite", "postgresql", "file"],
        Meta(description="sqlite, postgresql: users are in the database, which is one; file: in `file`."),
    ] = "sqlite"
    file: Annotated[str, Meta(description="NAME ACCESS_KEY SECRET a line, mode 0600.")] = ""
    secret_key_file: Annotated[str, Meta(description="Opens the secrets in the database; keep a copy.")] = (
        "secret.key"
    )
    allow_sigv2: Annotated[bool, Meta(description="Also take the old signatures, version 2.")] = False


class Redirect(Section, frozen=True, kw_only=True):
    """Sending requests on to other servers."""

    mode: Annotated[
        Mode,
        Meta(
            description="How a server is chosen; least-loaded asks the admin ports of all, proxy passes "
            "requests and bodies on for clients that do not follow."
        ),
    ] = "none"
    hosts_file: Annotated[
        str, Meta(description="URL [ADMIN-HOST:PORT] of one server a line; read again when it changes.")
    ] = ""
    ca_file: Annotated[
        str,
        Meta(description="Certificates (PEM) that https:// servers must lead to; empty = the system's."),
    ] = ""
    point: Annotated[
        bool, Meta(description="true: this server only sends requests on and serves nothing itself.")
    ] = False


class Fair(Section, frozen=True, kw_only=True):
    """Sharing the bandwidth when several want it."""

    by: Annotated[
        By, Meta(description="Equal shares among these; anonymous requests are their address's.")
    ] = "user"
    weights: Annotated[
        bool, Meta(description="Shares go by the weights of users and groups; false: all weigh the same.")
    ] = True
    group_weights: Annotated[
        str,
        Meta(description='Weights of groups, as "lab=4, ops=2"; they count instead of those of the groups.'),
    ] = ""


class LimitsSection(Section, frozen=True, kw_only=True):
    """What one user, or one address (of IPv6 64 bits), may have of all workers; beyond it: 503 SlowDown."""

    user_requests_per_s: Annotated[float, Meta(ge=0, description="Requests of a user; 0 = no limit.")] = 0.0
    user_rate: Annotated[
        str, Meta(description='What a user\'s bodies move both ways, as "50 MB/s"; empty = no limit.')
    ] = ""
    user_connections: Annotated[int, Meta(ge=0, description="Connections of a user; 0 = no limit.")] = 0
    address_requests_per_s: Annotated[
        float, Meta(ge=0, description="Requests from an address; 0 = no limit.")
    ] = 0.0
    address_rate: Annotated[str, Meta(description="What an address moves; empty = no limit.")] = ""
    address_connections: Annotated[
        int, Meta(ge=0, description="Connections from an address; 0 = no limit.")
    ] = 0
    burst_s: Annotated[
        float, Meta(gt=0, le=3600, description="What was not used for so long may come at once.")
    ] = 5.0


class Log(Section, frozen=True, kw_only=True):
    """What is told."""

    level: Annotated[
        Literal["debug", "info", "warn", "error"], Meta(description="The least that is written.")
    ] = "info"
    format: Annotated[
        Literal["auto", "human", "json"], Meta(description="auto: human on a terminal, else JSON lines.")
    ] = "auto"
    access: Annotated[
        str, Meta(description="File of one JSON line a request, opened anew on SIGHUP; empty = none.")
    ] = ""
    audit: Annotated[
        str,
        Meta(description="File of one JSON line a change by commands and the admin page; empty = none."),
    ] = "audit.log"


class Config(Section, frozen=True, kw_only=True):
    """One file. `path` is where it was read from, or would be."""

    server: Server = Server()
    tls: Tls = Tls()
    admin: AdminSection = AdminSection()
    storage: Storage = Storage()
    sector: SectorSection = SectorSection()
    database: Database = Database()
    auth: Auth = Auth()
    redirect: Redirect = Redirect()
    fair: Fair = Fair()
    limits: LimitsSection = LimitsSection()
    log: Log = Log()
    path: str = ""

    def file(self, name: str) -> Path:
        """A path of the file as an absolute one."""
        return (Path(self.path).parent / expanded(name)).absolute()

    def on_port(self, port: int) -> Config:
        """The same with the S3 port that was found where the file says any free one."""
        return msgspec.structs.replace(self, server=msgspec.structs.replace(self.server, port=port))

    @property
    def store_url(self) -> str:
        """What `cumulus.backends.registry.make_store` takes, with an absolute path."""
        storage = self.storage
        if ":" in storage.backend:
            return storage.backend
        return f"posix:{self.file(storage.path).resolve()}" if storage.backend == "posix" else storage.backend

    @property
    def database_url(self) -> str:
        """`[database] url` with an absolute path."""
        url = self.database.url
        return f"{_SQLITE}{self.file(url[len(_SQLITE) :])}" if url.startswith(_SQLITE) else url

    @property
    def several_servers(self) -> bool:
        """Whether other processes may use the database directly."""
        return self.database.url.startswith(_POSTGRES)

    @property
    def one_process(self) -> bool:
        """Whether the storage is memory of one process."""
        return self.storage.backend.startswith(("memory", "fsspec:memory"))

    @property
    def secret_key(self) -> Path:
        """The file of keys."""
        return self.file(self.auth.secret_key_file)

    @property
    def min_body_bytes_per_s(self) -> int:
        """`[server] min_body_rate`, 0 = none."""
        return parse_rate(self.server.min_body_rate) if self.server.min_body_rate else 0

    @property
    def proxies(self) -> Networks:
        """`[server] trusted_proxies`."""
        return parse_networks(self.server.trusted_proxies)

    @property
    def sharing(self) -> Sharing:
        """`[fair]`."""
        return Sharing(self.fair.by, self.fair.weights, parse_weights(self.fair.group_weights))

    @property
    def user_limits(self) -> Limits:
        """`[limits]` of a user."""
        limits = self.limits
        return Limits(
            requests=limits.user_requests_per_s,
            rate=parse_rate(limits.user_rate) if limits.user_rate else 0,
            connections=limits.user_connections,
            burst_s=limits.burst_s,
        )

    @property
    def address_limits(self) -> Limits:
        """`[limits]` of an address."""
        limits = self.limits
        return Limits(
            requests=limits.address_requests_per_s,
            rate=parse_rate(limits.address_rate) if limits.address_rate else 0,
            connections=limits.address_connections,
            burst_s=limits.burst_s,
        )

    @property
    def total_bytes_per_s(self) -> int:
        """`[server] total_rate`, 0 = no limit."""
        return parse_rate(self.server.total_rate) if self.server.total_rate else 0


SECTIONS: Final[dict[str, type[Section]]] = {
    name: kind for name, kind in get_type_hints(Config).items() if isinstance(kind, type) and name != "path"
}


def parse_config(text: str, path: str) -> Config:
    """The settings in `text`; `path` names the file in errors and anchors relative paths. Raises
    `BadConfig`: one line with file, key and what is expected."""
    raw = parse_toml(text, path)
    for name, body in raw.items():
        if name not in SECTIONS:
            if not isinstance(body, dict):
                raise BadConfig(
                    f"{path}: key {name} stands outside of any section", hint="put it below [section]"
                )
            raise unknown_name(path, f"section [{name}]", name, set(SECTIONS))
        if not isinstance(body, dict):
            raise BadConfig(
                f"{path}: {name} is a section, not a value", hint=f"write [{name}] on a line of its own"
            )
        fields = set(SECTIONS[name].__struct_fields__)
        for key in body:
            if key not in fields:
                raise unknown_name(path, f"key {key} in [{name}]", key, fields)
    try:
        config = msgspec.convert({**raw, "path": path}, Config)
    except msgspec.ValidationError as error:
        key, wrong = wrong_value(error, Config)
        raise BadConfig(f"{path}: {key}: {wrong}") from None
    _check(config)
    return config


def _check(config: Config) -> None:
    def bad(key: str, wrong: str, hint: str = "") -> BadConfig:
        return BadConfig(f"{config.path}: {key}: {wrong}", hint=hint)

    rates = [("server", "min_body_rate"), ("server", "total_rate")]
    rates += [("limits", "user_rate"), ("limits", "address_rate")]
    for name, key in rates:
        try:
            parse_rate(getattr(getattr(config, name), key) or "1 kB/s")
        except ValueError as wrong:
            raise bad(f"[{name}] {key}", str(wrong)) from None
    try:
        parse_weights(config.fair.group_weights)
    except ValueError as wrong:
        raise bad("[fair] group_weights", str(wrong)) from None
    try:
        parse_networks(config.server.trusted_proxies)
    except ValueError as wrong:
        raise bad("[server] trusted_proxies", str(wrong), 'write "127.0.0.1, 10.0.0.0/24"') from None
    for section, host in (("server", config.server.host), ("admin", config.admin.host)):
        if not host:
            raise bad(f"[{section}] host", "is empty", 'write an address, or "0.0.0.0" for all')
    # a request for a bucket below a name that no Host header has would mean a bucket named as its key
    if config.server.domain and not _DOMAIN.fullmatch(config.server.domain):
        hint = "write s3.example.org, without port and without BUCKET"
        raise bad("[server] domain", f"{config.server.domain!r} is no host name", hint)
    if not _REGION.fullmatch(config.server.region):
        hint = "use letters, digits and - . _"
        raise bad("[server] region", f"{config.server.region!r} cannot stand in a signature", hint)
    if _same_address(config):
        raise bad("[admin] port", f"is [server] port, {config.server.port}", "give each a port of its own")
    for section, pair in (("tls", config.tls), ("admin", config.admin)):
        if bool(pair.cert) != bool(pair.key):
            raise bad(f"[{section}]", "cert and key go together", "give both files, or none for HTTP")
    if config.sector.map_users and not config.storage.backend.startswith("sector:"):
        hint = 'write [storage] backend = "sector:CLIENT.TOML"'
        raise bad("[sector] map_users", "needs a Sector cloud", hint)
    _check_database(config, bad)
    _check_logs(config, bad)
    if config.auth.source == "file" and not config.auth.file:
        raise bad("[auth] file", "is missing", 'source = "file" needs the file of users')
    redirect = config.redirect
    if redirect.mode != "none" and not redirect.hosts_file:
        raise bad(
            "[redirect] hosts_file", "is missing", f"mode = {redirect.mode!r} needs the file of servers"
        )
    if redirect.mode == "none" and redirect.point:
        raise bad("[redirect] point", "needs a mode", 'write mode = "round-robin", or another one')


def _check_logs(config: Config, bad: Callable[[str, str, str], BadConfig]) -> None:
    """Lines are added to a log: what else the settings name would be damaged by them."""
    database = config.database_url.removeprefix(_SQLITE)
    named = [
        ("[database] url", database),
        ("[database] url", f"{database}-wal"),
        ("[database] url", f"{database}-shm"),
        ("[auth] secret_key_file", config.auth.secret_key_file),
        ("[auth] file", config.auth.file),
        ("[database] password_file", config.database.password_file),
        ("[redirect] hosts_file", config.redirect.hosts_file),
        ("[redirect] ca_file", config.redirect.ca_file),
        *((f"[{section}] {key}", getattr(getattr(config, section), key))
          for section in ("tls", "admin") for key in ("cert", "key")),
    ]  # fmt: skip
    taken = {config.file(file): setting for setting, file in named if file}
    taken[Path(config.path).absolute()] = "this file"
    for key in ("access", "audit"):
        file = getattr(config.log, key)
        if file and (of := taken.get(Path(os.path.normpath(config.file(file))))):
            raise bad(f"[log] {key}", f"{file!r} is {of}", "name a file of its own, as access.log")


def _same_address(config: Config) -> bool:
    """Whether both ports cannot be listened on at the same time."""
    one, other = config.server, config.admin
    everywhere = {"0.0.0.0", "::"} & {one.host, other.host}
    return one.port == other.port != 0 and bool(one.host == other.host or everywhere)


def _check_database(config: Config, bad: Callable[[str, str, str], BadConfig]) -> None:
    url, source = config.database.url, config.auth.source
    postgres = url.startswith(_POSTGRES)
    hint = "write sqlite:///PATH or postgresql://USER@HOST:PORT/NAME"
    try:
        parts = urlsplit(url)
        secret = postgres and bool(parts.password or "password" in parse_qs(parts.query))
        named = bool(parts.path.strip("/")) if postgres else url.startswith(_SQLITE) and url != _SQLITE
    except ValueError:
        raise bad("[database] url", "is no URL", hint) from None
    if secret:
        raise bad("[database] url", "has a password in it", "write it to a file and give password_file")
    if not named:
        raise bad("[database] url", f"{url!r} names no database", hint)
    if source not in ("file", wanted := "postgresql" if postgres else "sqlite"):
        raise bad("[auth] source", f"{source!r} is not where the database is", f'write source = "{wanted}"')


def load_config(path: Path) -> Config:
    """Read and check a file. Raises `BadConfig`."""
    where = path.absolute()
    try:
        text = where.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadConfig(f"{where}: is not UTF-8 text") from None
    except OSError as error:
        raise _unread(where, error) from None
    return parse_config(text, str(where))


def _unread(path: Path, why: OSError) -> BadConfig:
    hint = "check the path, and that its disk is well"
    if isinstance(why, FileNotFoundError):
        hint = "cumulus init DIR writes new files"
    elif isinstance(why, PermissionError):
        hint = ACCOUNT
    elif isinstance(why, IsADirectoryError):
        hint = f"give a file with --config, or --dir {shlex.quote(str(path))}"
    return BadConfig(f"{path}: {why.strerror}", hint=hint)


def find_config(directory: str | None, file: str | None) -> Config:
    """The settings of `--config FILE`, or of `--dir DIR`: its cumulus.toml, else the defaults there. Raises
    `UsageError` when neither is given, `BadConfig`."""
    if file and directory:
        raise UsageError("--dir and --config name the same thing", hint="give one of them")
    if file:
        return load_config(Path(file))
    if not directory:
        raise UsageError(
            "which Cumulus is not said", hint="give --dir DIR or --config FILE, or set CUMULUS_DIR"
        )
    where = Path(directory).absolute() / FILE
    try:
        if where.exists():
            return load_config(where)
        if where.parent.is_dir():
            return Config(path=str(where))
        if where.parent.exists():
            hint = f"give its directory, or --config {shlex.quote(directory)} if it has the settings"
            raise BadConfig(f"{where.parent}: is a file, not a directory", hint=hint)
    except OSError as error:
        raise _unread(where, error) from None
    raise BadConfig(
        f"{where.parent}: there is no such directory", hint=f"cumulus init {shlex.quote(directory)}"
    )


def commented(changes: dict[str, dict[str, Any]] | None = None) -> str:
    """The text of a settings file with all options, each with its default as a comment; those in `changes`
    (section -> key -> value) are set."""
    lines = ["# Settings of Cumulus. An option behind # has its default; take the # away to change it."]
    for section, kind in SECTIONS.items():
        lines += ["", f"# {(kind.__doc__ or '').splitlines()[0]}", f"[{section}]"]
        hints = get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            notes = [one for one in get_args(hints[field.name]) if isinstance(one, Meta)]
            told = next((one.description for one in notes if one.description), "")
            lines += [f"# {line}" for line in textwrap.wrap(told, 100)]
            changed = (changes or {}).get(section, {})
            value = to_toml({field.name: changed.get(field.name, field.default)}).rstrip("\n")
            lines.append(value if field.name in changed else f"# {value}")
    return "\n".join(lines) + "\n"


def environment(name: str) -> str | None:
    """CUMULUS_DIR and CUMULUS_CONFIG; None when not set."""
    return os.environ.get(f"CUMULUS_{name}") or None
