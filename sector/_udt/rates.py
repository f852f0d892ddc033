"""How fast a data port may send: congestion control, a cap for each transfer, caps that transfers share.

Rates are bytes of IP packets a second. Source: `udt_port_link_cap` and `udt_xfer_opts` of csrc/include/udt.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class RateSettings(Protocol):
    """What `rates_of` needs of a configuration."""

    @property
    def congestion_control(self) -> str:
        """Name of the law."""

    @property
    def max_bytes_per_s(self) -> int:
        """Of each transfer, 0 = no cap."""

    @property
    def link_caps(self) -> list[tuple[str, int, int]]:
        """(address, bits, bytes per second): of all transfers to a prefix together."""


@dataclass(frozen=True, slots=True)
class Rates:
    """`cc` the congestion control by name ("" = the core's default), `each` bytes per second of a transfer
    (0 = no cap), `links` (address, bits, bytes per second) of all transfers to a prefix together."""

    cc: str = ""
    each: int = 0
    links: tuple[tuple[str, int, int], ...] = ()

    def of(self, limit: int) -> int:
        """The cap of a transfer that may itself have one."""
        return min(self.each, limit) if self.each and limit else self.each or limit


def rates_of(data: RateSettings) -> Rates:
    """`Rates` as the section [data] of a configuration says."""
    return Rates(data.congestion_control, data.max_bytes_per_s, tuple(data.link_caps))
