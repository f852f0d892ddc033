"""Keys derived from a session secret, wrapping at rest, proofs, and the numbers of GMP keys.

Both ends use these functions: masters to install, clients to derive (spec/security.md, Sessions).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sector.errors import Busy, Damaged

SECRET_BYTES = 32
NONCE_BYTES = 12
EXPORTER_LABEL = b"EXPORTER-sector-resume"

Rng = Callable[[int], bytes]


def hkdf(secret: bytes, info: bytes, length: int = 32) -> bytes:
    """HKDF-SHA-256 (RFC 5869) without salt: `length` bytes from `secret`, bound to `info`."""
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)


def client_master_key(secret: bytes, master_id: str, key_id: int) -> bytes:
    """GMP key (32 bytes) between a client with session secret `secret` (32 bytes) and a master."""
    return hkdf(secret, b"cm" + master_id.encode() + key_id.to_bytes(4, "big"))


def client_slave_key(secret: bytes, slave_id: str, instance: int, n: int) -> bytes:
    """GMP key (32 bytes) between a client and one instance of a slave; `n` counts keys of that pair."""
    info = b"cs" + slave_id.encode() + instance.to_bytes(8, "big") + n.to_bytes(4, "big")
    return hkdf(secret, info)


def resume_proof(secret: bytes, exporter: bytes) -> bytes:
    """HMAC-SHA-256 over the TLS exporter (32 bytes): shows that the client knows S on this connection."""
    return hmac.digest(secret, exporter, "sha256")


def same(a: bytes, b: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(a, b)


def wrap(cluster_key: bytes, secret: bytes, bound_to: bytes, rng: Rng) -> bytes:
    """`secret` sealed by AES-256-GCM under the cluster key: nonce (12 bytes), ciphertext, tag.
    `bound_to` (the session id) is authenticated, so that rows cannot be swapped."""
    nonce = rng(NONCE_BYTES)
    return nonce + AESGCM(cluster_key).encrypt(nonce, secret, bound_to)


def unwrap(cluster_key: bytes, wrapped: bytes, bound_to: bytes) -> bytes:
    """The secret that `wrap` sealed. Raises `Damaged` when key, row or binding differ."""
    try:
        return AESGCM(cluster_key).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], bound_to)
    except (InvalidTag, ValueError):
        raise Damaged(
            "a stored session secret does not open with this cluster key",
            hint="all masters of a cluster need the same cluster.key",
        ) from None


class KeyIds:
    """Numbers of GMP keys: issuer in the top 8 bits, 24 random bits below; never one that is in use
    (spec/security.md, Control messages)."""

    def __init__(self, issuer: int, rng: Rng) -> None:
        if not 1 <= issuer <= 255:
            raise ValueError("issuer is 1 to 255")
        self._issuer = issuer
        self._rng = rng
        self._used: set[int] = set()

    def new(self) -> int:
        """A number that is not in use; it is in use from now on. Raises `Busy` at 2^23 numbers."""
        if len(self._used) >= 1 << 23:
            raise Busy("too many keys are in use")
        while True:
            number = self._issuer << 24 | int.from_bytes(self._rng(3), "big")
            if number not in self._used:
                self._used.add(number)
                return number

    def reserve(self, number: int) -> None:
        """Mark a number that is already in use (loaded from the database)."""
        self._used.add(number)

    def free(self, number: int) -> None:
        """The key is gone; its number may be drawn again."""
        self._used.discard(number)
