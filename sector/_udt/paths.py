"""Which way transfers go to a peer: UDP, or TLS connections where UDP is known not to get through.

Pure; what was found out counts for a while and is then tried again. Source: docs/guide/firewalls.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

REASONS = (
    "",
    "silence",
    "ICMP administratively prohibited",
    "blocked a moment ago",
    "large datagrams are lost",
    "ICMP port unreachable",
)
"""Texts of enum udt_path_why (csrc/include/udt.h)."""
ASKED = 3
QUICK_S = 0.25
"""How long UDP is waited for where another process found it blocked."""
_MOST = 4096


class DataSettings(Protocol):
    """What `paths_of` needs of a configuration."""

    @property
    def tcp_stripes(self) -> int:
        """TLS connections of one transfer."""

    @property
    def udp_wait_s(self) -> float:
        """How long UDP is waited for."""

    @property
    def udp_retry_s(self) -> float:
        """After how long UDP is tried again."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a transfer went, or goes: `tls` or UDP, and why not UDP."""

    tls: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """ "udp" or "tls"."""
        return "tls" if self.tls else "udp"


@dataclass(frozen=True, slots=True)
class Block:
    """UDP to a peer is blocked until `until`. `deep`: trying it again costs a whole attempt, for it passes in
    part. `quick`: found by an earlier process; a moment is enough to see whether it still is."""

    until: float
    why: str
    deep: bool = False
    quick: bool = False


class Paths:
    """What is known of the ways to peers. `stripes` TLS connections (0 = never), `wait_s` how long UDP is
    waited for, `retry_s` how long a blocked peer is not asked over UDP; `now` in seconds."""

    def __init__(
        self, now: Callable[[], float], *, stripes: int = 4, wait_s: float = 3.0, retry_s: float = 300.0
    ) -> None:
        self.stripes = stripes
        self.wait_s = wait_s
        self.retry_s = retry_s
        self._now = now
        self._blocked: dict[tuple[str, int], Block] = {}
        self.on_change: Callable[[], object] = lambda: None
        """Hears of each peer that is found blocked, or no longer."""

    def _block(self, peer: tuple[str, int]) -> Block | None:
        block = self._blocked.get(peer)
        if block is not None and block.until <= self._now():
            del self._blocked[peer]
            return None
        return block

    def blocked(self, peer: tuple[str, int]) -> str:
        """Why UDP to `peer` is not tried at the moment; "" = it is."""
        block = self._block(peer)
        return block.why if block is not None and not block.quick else ""

    def wait_ms(self, peer: tuple[str, int]) -> int:
        """`udp_wait_ms` of the core: how long to try UDP, -1 = not at all."""
        block = self._block(peer)
        if block is None:
            return max(1, round(self.wait_s * 1000))
        return max(1, round(min(QUICK_S, self.wait_s) * 1000)) if block.quick else -1

    def way(self, peer: tuple[str, int], tls: bool, why: int) -> Way:
        """A transfer has met its peer; remembers a way around UDP."""
        if not tls:
            self._forget(peer)
            return Way()
        known = self._block(peer)
        reason = known.why if known is not None else self._text(why)
        if why != ASKED:
            self._keep(peer, reason, self.retry_s)
        return Way(True, reason or REASONS[ASKED])

    def failed(self, peer: tuple[str, int], code: str, tls: bool, why: int) -> None:
        """A transfer failed with the core's error `code`. What a silent UDP path did to it decides where
        the next one goes first; a peer that is not there over TLS is asked over UDP again."""
        if tls:
            if code in ("UNREACHABLE", "TIMEOUT"):
                self._forget(peer)
        elif code == "REJECTED" or (code == "BROKEN" and why):
            self._keep(peer, self._text(why or 1), self.retry_s, deep=True)
        elif code == "BROKEN":
            self._keep(peer, "it stopped in the middle of a transfer", min(30.0, self.retry_s))

    def _text(self, why: int) -> str:
        return f"silence for {self.wait_s:g} s" if why == 1 else REASONS[why]

    def _keep(self, peer: tuple[str, int], reason: str, seconds: float, *, deep: bool = False) -> None:
        if not self.stripes:
            return
        self._add(peer, Block(self._now() + seconds, reason, deep))
        self.on_change()

    def _add(self, peer: tuple[str, int], block: Block) -> None:
        if len(self._blocked) >= _MOST:
            self._blocked.pop(next(iter(self._blocked)))
        self._blocked[peer] = block

    def _forget(self, peer: tuple[str, int]) -> None:
        if self._blocked.pop(peer, None) is not None:
            self.on_change()

    def known(self) -> list[tuple[str, int, float, str, bool]]:
        """For another process: (host, port, seconds left, why, deep) of blocked peers, without those whose
        blocking shows by itself at once."""
        now = self._now()
        return [
            (host, port, block.until - now, block.why, block.deep)
            for (host, port), block in self._blocked.items()
            if block.until > now and block.why not in (REASONS[2], REASONS[5])
        ]

    def learn(self, host: str, port: int, left_s: float, why: str, deep: bool) -> None:
        """What `known` said in another process."""
        left_s = min(left_s, self.retry_s)
        if left_s > 0 and why and self.stripes:
            self._add((host, port), Block(self._now() + left_s, why, deep, quick=not deep))

    def line(self, peer: tuple[str, int], way: Way) -> str:
        """What the user should read when a transfer goes around UDP."""
        host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
        return (
            f"UDP to {host}:{peer[1]} gets no answer ({way.reason}); using {self.stripes} TLS connections "
            f"instead; slower on long links: ask your network people for UDP {peer[1]}"
        )


def paths_of(data: DataSettings, now: Callable[[], float]) -> Paths:
    """`Paths` as the section [data] of a configuration says."""
    return Paths(now, stripes=data.tcp_stripes, wait_s=data.udp_wait_s, retry_s=data.udp_retry_s)
