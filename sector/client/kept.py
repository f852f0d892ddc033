"""What a session has in the client's settings: itself, and the password that begins another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from sector import errors
from sector.config import ClientSection, Config, save_client, stored_client
from sector.wire.login import Session as Granted


def section_of(granted: Granted, secret: bytes, old: ClientSection) -> ClientSection:
    """The client's settings with this session in them."""
    return msgspec.structs.replace(
        old,
        user=granted.user,
        session=granted.session_id.hex(),
        secret=secret.hex(),
        expires=granted.expires,
        master_id=granted.master_id,
        gmp=str(granted.gmp),
        key_id=granted.key_id,
    )


def read_password(config: Config) -> str:
    """The password from the settings' password file, "" without one. Raises LocalIO."""
    name = config.client.password_file
    if not name:
        return ""
    try:
        return config.file(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise errors.LocalIO(f"password file {name}: {why}") from None


def saver(config: Config) -> Callable[[ClientSection], object] | None:
    """Keeps a session in the file it came from, as long as that names the same user, masters and CA: of
    what the environment or an option names nothing gets into it, and no login made meanwhile is undone. The
    function raises Conflict when it does not, LocalIO, BadConfig (0286). None when it came from none."""
    if not config.path or not Path(config.path).exists():
        return None
    where = Path(config.path)

    def save(section: ClientSection) -> None:
        stored = stored_client(where).client
        if _whose(stored) != _whose(section):
            raise errors.Conflict(f"{where} is of another user or cluster")
        save_client(msgspec.structs.replace(section, password_file=stored.password_file), where)

    return save


def _whose(section: ClientSection) -> tuple[object, ...]:
    return section.user, section.masters, section.ca, section.ca_sha256
