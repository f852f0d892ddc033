"""Which server a request is sent on to: the file of servers, and the choice among them. No Twisted; time and
chance are handed in.

A line of the hosts file is URL [ADMIN]: where clients reach a server (http://s1.example.org:8888) and its
admin port (HOST:PORT, or https://HOST:PORT), which least-loaded needs. `#` begins a comment where a word
would begin.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from cumulus.watched import Watched, read_text
from sector.errors import BadConfig, SectorError

Mode = Literal["none", "random", "round-robin", "least-loaded", "proxy"]
Item = TypeVar("Item")
LOOK_S: Final = 1.0  # how often the file is looked at
REST_S: Final = 2.0  # for which a server that could not be reached gets nothing while others can
HALF_S: Final = 1.0  # after which a refused request counts half
_MOST: Final = 2**20
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]")


class Chance(Protocol):
    """What is used of `random.Random`."""

    def choice(self, seq: Sequence[Item], /) -> Item:
        """One of them."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 up to, but not, `stop`."""


@dataclass(frozen=True, slots=True)
class Server:
    """`netloc` is host and port as clients have them in Host: lower case, no port if it is the scheme's own;
    `admin` is HOST:PORT of the admin port, with https:// before it if it speaks that, or ""."""

    secure: bool
    netloc: str
    admin: str = ""

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"{'https' if self.secure else 'http'}://{self.netloc}"


class NoServer(Exception):
    """There is no server to send the request to, and this one only redirects."""


def host_name(host: str, secure: bool) -> str:
    """A Host header in the form of `Server.netloc`."""
    return host.lower().removesuffix(":443" if secure else ":80")


def parse_hosts(text: str, path: Path, *, admin_needed: bool) -> tuple[Server, ...]:
    """The servers in the order of the file. Raises `BadConfig` naming the line."""
    found: dict[str, Server] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()
        if not words:
            continue
        try:
            server = _server(words, admin_needed)
            if server.netloc in found:
                raise ValueError(f"{server.netloc} stands on two lines")
        except ValueError as bad:
            raise BadConfig(
                f"{path}: line {number}: {bad}",
                hint="write http://HOST:PORT, and HOST:PORT of the admin port",
            ) from None
        found[server.netloc] = server
    if not found:
        raise BadConfig(f"{path}: names no server", hint="write one http://HOST:PORT a line")
    return tuple(found.values())


def _server(words: list[str], admin_needed: bool) -> Server:
    if len(words) > 2:
        raise ValueError(f"{words[2]} is one word too many")
    parts = urlsplit(words[0])
    port = _port(parts.netloc.rpartition("]")[2])
    host = parts.netloc[: len(parts.netloc) - len(port)]
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise ValueError(f"{words[0]} is no http:// or https:// URL of a server")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{words[0]} has something after host and port")
    secure = parts.scheme == "https"
    admin = _admin(words[1]) if len(words) == 2 else ""
    if admin_needed and not admin:
        raise ValueError("least-loaded needs the admin port of each server")
    return Server(secure, host_name(parts.netloc, secure), admin)


def _admin(word: str) -> str:
    bare = word.lower().removeprefix("http://").removesuffix("/")
    place = bare.removeprefix("https://")
    end = _port(place.rpartition("]")[2])
    if not end or not _HOST.fullmatch(place[: -len(end)]):
        raise ValueError(f"{word} is not HOST:PORT")
    return bare


def _port(text: str) -> str:
    """ ":PORT" at the end of it, or "". Raises ValueError."""
    _, colon, digits = text.partition(":")
    if not colon:
        return ""
    if not (digits.isascii() and digits.isdecimal()) or not 1 <= int(digits[:6]) <= 65535:
        raise ValueError(f"{digits or 'nothing'} is no port")
    return colon + digits


class HostsFile:
    """The servers as the file names them now. A changed file counts within a second; if it has an error, the
    servers stay as they were and `complain` hears of it, once for each version of the file."""

    def __init__(
        self,
        path: Path,
        complain: Callable[[SectorError], None],
        clock: Callable[[], float],
        *,
        admin_needed: bool = False,
    ) -> None:
        """`clock` gives seconds that only grow. Raises `BadConfig` (with the line), `LocalIO`."""
        self._path = path
        self._admin_needed = admin_needed
        self._file = Watched(path, self._read, complain, clock, LOOK_S)

    def _read(self) -> tuple[Server, ...]:
        return parse_hosts(read_text(self._path, _MOST), self._path, admin_needed=self._admin_needed)

    def servers(self) -> tuple[Server, ...]:
        """In the order of the file."""
        return self._file.now()


class Balancer:
    """Chooses a server for each request. `point`: this server only redirects, else it also serves. For
    least-loaded somebody asks the admin ports in `admins` and tells `heard` and `lost`."""

    def __init__(
        self, mode: Mode, servers: Callable[[], tuple[Server, ...]], chance: Chance, *, point: bool = False
    ) -> None:
        self.mode: Final = mode
        self.point: Final = point
        self._servers = servers
        self._chance = chance
        self._lock = threading.Lock()
        self._turn = chance.randrange(2**16)
        self._loads: dict[str, int] = {}

    def choose(self, host: str, *, secure: bool) -> Server | None:
        """Where to send a request that was addressed to `host`; None = serve it here: it was addressed to a
        server of the list, or none is known to be up. Raises `NoServer` when this server only redirects and
        knows no other."""
        servers, own = self._servers(), host_name(host, secure)
        if not self.point and any(server.netloc == own for server in servers):
            return None
        found = self._pick([server for server in servers if server.netloc != own])
        if found is None and self.point:
            raise NoServer
        return found

    def _pick(self, servers: list[Server]) -> Server | None:
        with self._lock:
            if self.mode == "least-loaded":
                servers = [server for server in servers if server.admin in self._loads]
                least = min((self._loads[server.admin] for server in servers), default=0)
                servers = [server for server in servers if self._loads[server.admin] == least]
            if not servers:
                return None
            if self.mode == "round-robin":
                self._turn += 1
                return servers[self._turn % len(servers)]
            found = self._chance.choice(servers)
            if self.mode == "least-loaded":
                self._loads[found.admin] += 1  # until it says itself what it has to do
            return found

    def admins(self) -> list[str]:
        """Admin ports to ask. What those that are no longer in the file said is forgotten."""
        admins = list(dict.fromkeys(server.admin for server in self._servers() if server.admin))
        with self._lock:
            self._loads = {admin: load for admin, load in self._loads.items() if admin in admins}
        return admins

    def heard(self, admin: str, load: int) -> bool:
        """A server has `load` requests under way. Whether it was unknown until now."""
        with self._lock:
            new = admin not in self._loads
            self._loads[admin] = load
            return new

    def lost(self, admin: str) -> bool:
        """It does not answer: nothing is sent to it. Whether it was known until now."""
        with self._lock:
            return self._loads.pop(admin, None) is not None


class Spread:
    """Among which servers a proxy spreads requests: the one with the fewest of its own under way gets the
    next, in turn among equals. What a server refuses counts as under way for a while: one that refuses at
    once, since its database is away, would be the least busy of all. One owner; no locks. `servers` may be
    replaced at any time."""

    def __init__(self, servers: tuple[Server, ...], chance: Chance, *, point: bool = False) -> None:
        self.servers = servers
        self.point: Final = point
        self._turn = chance.randrange(2**16)
        self._under_way: dict[str, int] = {}
        self._refused: dict[str, tuple[float, float]] = {}  # how many, at that time
        self._rests: dict[str, float] = {}

    def choose(self, host: str, *, secure: bool, tried: Collection[str], now_s: float) -> Server | None:
        """A server for a request that was addressed to `host`, not one of `tried` (their `netloc`); None =
        serve it here: it was addressed to a server of the list. Raises `NoServer`."""
        own = host_name(host, secure)
        if not self.point and any(server.netloc == own for server in self.servers):
            return None
        left = [one for one in self.servers if one.netloc != own and one.netloc not in tried]
        up = [one for one in left if self._rests.get(one.netloc, now_s) <= now_s] or left
        if not up:
            raise NoServer
        busy = {one.netloc: self._busy(one.netloc, now_s) for one in up}
        least = min(busy.values())
        up = [one for one in up if busy[one.netloc] == least]
        self._turn += 1
        return up[self._turn % len(up)]

    def _busy(self, netloc: str, now_s: float) -> int:
        refused = self._refusals(netloc, now_s)
        if refused < 0.1:
            self._refused.pop(netloc, None)
            refused = 0.0
        return self._under_way.get(netloc, 0) + math.ceil(refused)

    def _refusals(self, netloc: str, now_s: float) -> float:
        count, at_s = self._refused.get(netloc, (0.0, now_s))
        return float(count * 0.5 ** (max(0.0, now_s - at_s) / HALF_S))

    def refused(self, server: Server, now_s: float) -> None:
        """It was too busy for a request, or could not serve it."""
        self._refused[server.netloc] = self._refusals(server.netloc, now_s) + 1, now_s

    def begun(self, server: Server) -> None:
        """A request was given to it."""
        self._under_way[server.netloc] = self._under_way.get(server.netloc, 0) + 1

    def ended(self, server: Server) -> None:
        """And is over."""
        left = self._under_way.get(server.netloc, 0) - 1
        if left > 0:
            self._under_way[server.netloc] = left
        else:
            self._under_way.pop(server.netloc, None)

    def failed(self, server: Server, now_s: float) -> bool:
        """It could not be reached. Whether that is news."""
        news = server.netloc not in self._rests
        self._rests[server.netloc] = now_s + REST_S
        return news

    def reached(self, server: Server) -> bool:
        """It could. Whether that is news."""
        return self._rests.pop(server.netloc, None) is not None
