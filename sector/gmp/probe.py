"""Whether a peer answers over UDP, asked from a port of its own, so that what another port knows or
diverts does not matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sector.gmp.api import GmpError, GmpKey, Peer
from sector.gmp.node import open_gmp

if TYPE_CHECKING:
    from sector._udt.context import Core


async def answers(core: Core, host: str, key: GmpKey, peer: Peer, wait_s: float) -> bool:
    """Whether `peer` (under `key`) acknowledges a message within `wait_s` seconds; `host` is the address to
    ask from. Three small datagrams each way if it does."""
    gmp = open_gmp(core, host, 0, require_auth=True)
    try:
        gmp.add_key(key)
        await gmp.send(peer, b"?", deadline_s=wait_s)
        return True
    except GmpError:
        return False
    finally:
        await gmp.stop()
