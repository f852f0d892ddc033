"""Secret keys of users at rest: AES-256-GCM under the keys in `secret.key`, one file for all servers.

A sealed secret is: format (1 byte), number of the key (4 bytes: start of its SHA-256), nonce (12), ciphertext
with tag. The access key is associated data, so that a sealed secret fits no other key. The file has one key
a line (64 hex digits), the newest first; the first one seals, all open.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import string
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cumulus.unix import ACCOUNT, keep_owner
from sector.errors import BadConfig, LocalIO

_FORMAT: Final = b"\x01"
_ALPHABET: Final = string.ascii_letters + string.digits
_MOST: Final = 16  # keys in a file


def new_access_key() -> str:
    """20 characters, as AWS makes them in length and alphabet, with a start of our own."""
    return "CU" + "".join(secrets.choice(string.ascii_uppercase + string.digits) for _ in range(18))


def new_secret() -> str:
    """40 letters and digits: 238 random bits, and no character that shells or URLs treat specially."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(40))


def new_user_id() -> str:
    """A canonical id: 64 hex digits."""
    return secrets.token_hex(32)


def new_group_id(name: str) -> str:
    """The name, a # and 16 hex digits: another one for each group that ever has the name."""
    return f"{name}#{secrets.token_hex(8)}"


def write_private(path: Path, text: str, *, service: bool = False) -> None:
    """Write a file that only its owner reads (0600), whole or not at all. One for the `service` is its
    account's, also where root makes it. Raises `LocalIO`."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "w") as file:
                if service:
                    keep_owner(fd, os.stat(path if path.exists() else path.parent))
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as bad:
        raise LocalIO(f"{path}: {bad.strerror}") from None


def check_private(path: Path) -> None:
    """Raises `BadConfig` unless only the owner may read and write the file, `LocalIO` when it is missing."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError as bad:
        raise LocalIO(f"{path}: {bad.strerror}") from None
    except OSError as bad:
        raise LocalIO(f"{path}: {bad.strerror}", hint=ACCOUNT) from None
    if mode & 0o077:
        raise BadConfig(f"{path}: others can read it (mode {mode:04o})", hint=f"chmod 600 {path}")


class Keyring:
    """The keys of one file; read again when a sealed secret names a key that is not known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._keys: dict[bytes, AESGCM] = {}
        self._raw: list[bytes] = []
        self._first = b""
        self.load()

    def __repr__(self) -> str:
        return f"Keyring({str(self.path)!r}, {len(self._keys)} keys)"

    @classmethod
    def create(cls, path: Path) -> Keyring:
        """A new file with one key. Raises `LocalIO`, `BadConfig` when there is a file already."""
        if path.exists():
            raise BadConfig(f"{path}: is there already", hint="secrets in the database need it; keep it")
        write_private(path, secrets.token_hex(32) + "\n", service=True)
        return cls(path)

    def load(self) -> None:
        """Read the file again. Raises `BadConfig`, `LocalIO`."""
        try:
            check_private(self.path)
        except LocalIO as bad:
            hint = "cumulus init makes it with a new Cumulus; else restore it from your backup"
            raise LocalIO(bad.message, hint=bad.hint or hint) from None
        try:
            lines = self.path.read_text(encoding="ascii").split()
            keys = [bytes.fromhex(line) for line in lines[: _MOST + 1]]
        except OSError as bad:
            raise LocalIO(f"{self.path}: {bad.strerror}", hint=ACCOUNT) from None
        except ValueError:
            keys = []
        if not 0 < len(keys) <= _MOST or any(len(key) != 32 for key in keys):
            raise BadConfig(
                f"{self.path}: is no file of keys",
                hint="it has lines of 64 hex digits; restore it from your backup",
            )
        with self._lock:
            self._keys = {_number(key): AESGCM(key) for key in keys}
            self._first = _number(keys[0])
            self._raw = keys

    def seal(self, access_key: str, secret: str) -> bytes:
        """For the database, by the key that is the newest now."""
        self.load()
        with self._lock:
            number, cipher = self._first, self._keys[self._first]
        nonce = os.urandom(12)
        return _FORMAT + number + nonce + cipher.encrypt(nonce, secret.encode(), access_key.encode())

    def open(self, access_key: str, sealed: bytes) -> str:
        """Inverse of `seal`. Raises `BadConfig` when no key of the file opens it."""
        number = sealed[1:5]
        if number not in self._keys:
            self.load()
        cipher = self._keys.get(number)
        try:
            if cipher is None or sealed[:1] != _FORMAT:
                raise InvalidTag
            return cipher.decrypt(sealed[5:17], sealed[17:], access_key.encode()).decode()
        except (InvalidTag, ValueError):
            raise BadConfig(
                f"{self.path}: does not open the secret of {access_key}",
                hint="it belongs to another database; restore the file from your backup",
            ) from None

    def unopened(self, sealed: Iterable[tuple[str, bytes]]) -> list[str]:
        """Of these (access key, sealed secret) the access keys whose secrets it does not open. Raises
        `BadConfig` when it opens none: then it is the file of another database."""
        lost, count = [], 0
        for access_key, secret in sealed:
            count += 1
            try:
                self.open(access_key, secret)
            except BadConfig:
                lost.append(access_key)
        if lost and len(lost) == count:
            raise self._foreign()
        return lost

    def check(self, sealed: Iterable[tuple[str, bytes]]) -> None:
        """Quickly, whether it belongs to these. Raises `BadConfig` if it opens none of them."""
        none = True
        for access_key, secret in sealed:
            none = False
            with contextlib.suppress(BadConfig):
                self.open(access_key, secret)
                return
        if not none:
            raise self._foreign()

    def _foreign(self) -> BadConfig:
        hint = "it belongs to another database; restore the file from your backup"
        return BadConfig(f"{self.path}: opens none of the secrets in the database", hint=hint)

    def derived(self, purpose: bytes) -> list[bytes]:
        """Keys of 32 bytes for something else than sealing, one from each key, the newest first."""
        with self._lock:
            return [hmac.new(key, purpose, hashlib.sha256).digest() for key in self._raw]

    def is_newest(self, sealed: bytes) -> bool:
        """Whether the first key of the file sealed it."""
        return sealed[1:5] == self._first

    def add_newest(self) -> None:
        """Put a new key first; the others still open. Raises `LocalIO`."""
        self.load()
        lines = self.path.read_text(encoding="ascii").split()[: _MOST - 1]
        write_private(self.path, "\n".join([secrets.token_hex(32), *lines]) + "\n", service=True)
        self.load()

    def drop_older(self) -> None:
        """Keep only the first key. Raises `LocalIO`."""
        lines = self.path.read_text(encoding="ascii").split()
        write_private(self.path, lines[0] + "\n", service=True)
        self.load()


def _number(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:4]
