"""Users and keys from a text file, for sites that keep them in a file of their own.

A line is NAME ACCESS_KEY SECRET and then, if wanted, `groups=a,b id=HEX email=A display=TEXT weight=N
expires=YYYY-MM-DD disabled admin unix-user=U`. More lines of one name are more keys of that user, with no
options but `expires`. A user without `id=` gets one that is made of his name. A line `group=NAME weight=N`
gives a group its weight in shares. `#` begins a comment where a word would begin.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from cumulus import unix
from cumulus.index.api import Directory
from cumulus.model import Credential, User
from cumulus.secrets import check_private
from cumulus.watched import Watched, read_text
from sector.errors import BadConfig, SectorError

LOOK_S: Final = 0.5  # how often the file is looked at
_MOST: Final = 64 * 2**20
_LAST_NS: Final = 2**63 - 1  # what travels to workers
_NAME = re.compile(r"(?!\*$|\.+$)[^\s\x00-\x1f/:,=#]{1,64}")
_ACCESS_KEY = re.compile(r"[A-Za-z0-9._-]{3,128}")
_ID = re.compile(r"[0-9a-f]{64}")
_GROUP: Final = "group="  # begins a line that is about a group
_OPTIONS: Final = ("groups", "id", "email", "display", "weight", "expires", "unix-user")
_FLAGS: Final = ("disabled", "admin")


def user_id(name: str) -> str:
    """The canonical id of a user whose line gives none: SHA-256 over "cumulus user " and the name."""
    return hashlib.sha256(f"cumulus user {name}".encode()).hexdigest()


class _Lines:
    """What one version of the file says."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.users: dict[str, User] = {}  # by name
        self.by_id: dict[str, User] = {}
        self.credentials: dict[str, Credential] = {}
        self.groups: dict[str, list[str]] = {}
        self._weights: dict[str, int] = {}  # of groups
        self._emails: dict[str, str] = {}  # -> name
        for number, line in enumerate(text.splitlines(), 1):
            words = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()
            if words and words[0].startswith(_GROUP):
                self._group(number, words)
            elif words:
                self._line(number, words)
        if self._weights:
            self._weigh()
        for user in self.users.values():
            for group in user.groups:
                self.groups.setdefault(group, []).append(user.id)

    def _bad(self, number: int, wrong: str, hint: str) -> BadConfig:
        return BadConfig(f"{self.path}: line {number}: {wrong}", hint=hint)

    def _line(self, number: int, words: list[str]) -> None:
        if len(words) < 3:
            raise self._bad(
                number, "a name, an access key and a secret are needed", "write NAME ACCESS_KEY SECRET"
            )
        name, access_key, secret = words[:3]
        if not _NAME.fullmatch(name):
            raise self._bad(
                number, f"{name!r} is no name", "1 to 64 characters without / : , = #, not * or dots alone"
            )
        if not _ACCESS_KEY.fullmatch(access_key):
            raise self._bad(number, "the access key is not valid", "3 to 128 of A-Z a-z 0-9 . _ -")
        if len(secret) < 8:
            raise self._bad(number, "the secret is shorter than 8 characters", "use a longer one")
        if access_key in self.credentials:
            raise self._bad(number, f"the access key {access_key} stands on two lines", "remove one")
        options = self._options(number, words[3:])
        expires_ns = options.pop("expires_ns", 0)
        if name not in self.users:
            self._add(number, User(name=name, **{"id": user_id(name), **options}))
        elif options:
            raise self._bad(number, f"options of {name} stand on his first line", "leave only expires= here")
        self.credentials[access_key] = Credential(
            access_key=access_key, secret=secret, user=self.users[name], expires_ns=expires_ns
        )

    def _group(self, number: int, words: list[str]) -> None:
        name = words[0].removeprefix(_GROUP)
        found = self._options(number, words[1:])
        if not _NAME.fullmatch(name) or list(found) != ["weight"]:
            raise self._bad(number, "is not understood", "write group=NAME weight=N")
        if name in self._weights:
            raise self._bad(number, f"group {name} stands on two lines", "remove one")
        self._weights[name] = found["weight"]

    def _weigh(self) -> None:
        """Users bring the weights of their groups along."""
        for name, user in self.users.items():
            weights = tuple(self._weights.get(group, 1) for group in user.groups)
            self.users[name] = self.by_id[user.id] = replace(user, group_weights=weights)
        for key, found in self.credentials.items():
            self.credentials[key] = replace(found, user=self.users[found.user.name])

    def _add(self, number: int, user: User) -> None:
        if user.id in self.by_id:
            raise self._bad(number, f"{self.by_id[user.id].name} has the same id", "give another id=")
        if user.email:
            if user.email in self._emails:
                raise self._bad(
                    number, f"{self._emails[user.email]} has the same e-mail address", "remove one"
                )
            self._emails[user.email] = user.name
        self.users[user.name] = self.by_id[user.id] = user

    def _options(self, number: int, words: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            known = _OPTIONS if equals else _FLAGS
            if name not in known or (equals and not value):
                known_text = ", ".join([f"{one}=" for one in _OPTIONS] + list(_FLAGS))
                raise self._bad(number, f"{name} is not known here", f"known are {known_text}")
            try:
                found.update(_option(name, value))
            except ValueError as bad:
                raise self._bad(number, f"{name}={value} is not valid", str(bad)) from None
        return found


def _option(name: str, value: str) -> dict[str, Any]:
    """The field of `User` (or `expires_ns`) that an option sets. Raises ValueError with what to write."""
    if name in _FLAGS:
        return {name: True}
    if name == "groups":
        groups = tuple(dict.fromkeys(one for one in value.split(",") if one))
        if not groups or not all(_NAME.fullmatch(one) for one in groups):
            raise ValueError("write names with commas between, without blanks")
        return {"groups": groups}
    if name == "weight":
        if not value.isdecimal() or not 1 <= int(value) <= 1000:
            raise ValueError("write a number from 1 to 1000")
        return {"weight": int(value)}
    if name == "id":
        if not _ID.fullmatch(value):
            raise ValueError("write 64 hex digits in lower case")
        return {"id": value}
    if name == "expires":
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("write YYYY-MM-DD, or YYYY-MM-DDTHH:MM:SS+00:00") from None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        at_ns = int(at.timestamp()) * 10**9
        if at_ns > _LAST_NS:
            raise ValueError("write a date before 2262, or leave expires= out for never")
        return {"expires_ns": at_ns}
    if name == "email":
        return {"email": value.lower()}
    if name == "unix-user" and unix.account(value) is None:
        raise ValueError("there is no such account on this machine")
    return {name.replace("-", "_"): value}


class TextFile(Directory):
    """A changed file counts within a second. If it has an error then, what was read last stays in force and
    `complain` hears of it, once for each version of the file."""

    def __init__(
        self,
        path: Path,
        complain: Callable[[SectorError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises `BadConfig` (line and what to do, or a mode other than 0600), `LocalIO`."""
        self._path = path
        self._had_users = False
        self._file = Watched(path, self._read, complain, clock, LOOK_S)

    def _read(self) -> _Lines:
        check_private(self._path)
        text = read_text(self._path, _MOST, "use a database")
        lines = _Lines(self._path, text)
        if self._had_users and not text.strip():  # a shell empties a file before it begins to write it
            hint = (
                "write a new file beside it and rename that; if nobody is to come in any more, leave a line #"
            )
            raise BadConfig(f"{self._path}: is empty", hint=hint)
        self._had_users = bool(lines.users)
        return lines

    def credential(self, access_key: str) -> Credential | None:
        return self._file.now().credentials.get(access_key)

    def user(self, id_or_name: str) -> User | None:
        lines = self._file.now()
        return lines.by_id.get(id_or_name) or lines.users.get(id_or_name)

    def users(self) -> list[User]:
        """All, in the order of their first lines."""
        return list(self._file.now().users.values())

    def credentials(self) -> list[Credential]:
        """All keys, in the order of the lines."""
        return list(self._file.now().credentials.values())

    def by_email(self, email: str) -> User | None:
        wanted = email.strip().lower()
        users = self._file.now().users.values()
        return next((user for user in users if wanted and user.email == wanted), None)

    def members(self, group: str) -> list[str] | None:
        return self._file.now().groups.get(group)

    def unix_users(self) -> dict[str, str]:
        return {user.name: user.unix_user for user in self._file.now().users.values() if user.unix_user}
