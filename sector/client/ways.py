"""What commands found out about blocked UDP, for the commands after them: a small file beside the session.

It holds hints only. Whatever it says, or whoever wrote it, a transfer proves its peer by the ticket's key and
messages are sealed; what is too old, or cannot be read, counts as nothing. Source: docs/guide/firewalls.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from twisted.logger import Logger

from sector._udt.paths import Paths
from sector.config import write_private

log = Logger()
_MOST_BYTES = 1 << 20

_Text = Annotated[str, Meta(max_length=256)]


class _Peer(msgspec.Struct, frozen=True):
    host: _Text
    port: Annotated[int, Meta(ge=1, le=65535)]
    until: float
    why: _Text
    deep: bool


class _File(msgspec.Struct, frozen=True):
    messages_until: float = 0.0
    messages_why: _Text = ""
    data: Annotated[list[_Peer], Meta(max_length=4096)] = []


class Ways:
    """The file beside the session file `session` ("" or a missing one: nothing is kept)."""

    def __init__(self, session: str, paths: Paths, now: Callable[[], float]) -> None:
        """`now` in seconds since 1970. What is stored goes into `paths`; what it finds is stored."""
        known = bool(session) and Path(session).exists()
        self._path = Path(f"{session}.ways") if known and paths.retry_s > 0 else None
        self._paths = paths
        self._now = now
        self._messages_until = 0.0
        self._messages_why = ""
        self._load()
        paths.on_change = self._save

    @property
    def messages(self) -> str:
        """Why messages did not go over UDP a moment ago; "" = they did, or it is not known."""
        left = self._messages_until - self._now()
        return self._messages_why if 0 < left <= self._paths.retry_s else ""

    def set_messages(self, why: str) -> None:
        """UDP to the master is blocked, or ("") answers."""
        self._messages_why = why
        self._messages_until = self._now() + self._paths.retry_s if why else 0.0
        self._save()

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                stored = msgspec.json.decode(file.read(_MOST_BYTES), type=_File)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            log.debug("{path} is not used: {why}", path=str(self._path), why=str(error))
            return
        now = self._now()
        self._messages_until, self._messages_why = stored.messages_until, stored.messages_why
        for peer in stored.data:
            if peer.until - now <= self._paths.retry_s:  # else the clock was set
                self._paths.learn(peer.host, peer.port, peer.until - now, peer.why, peer.deep)

    def _save(self, *_: Any) -> None:
        if self._path is None:
            return
        now = self._now()
        data = [
            _Peer(host, port, now + left, why, deep) for host, port, left, why, deep in self._paths.known()
        ]
        try:
            if data or self.messages:
                kept = _File(self._messages_until, self._messages_why, data)
                write_private(self._path, msgspec.json.encode(kept))
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            log.debug("{path} cannot be written: {why}", path=str(self._path), why=error.strerror)
