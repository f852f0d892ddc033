"""To which account of the machine the file of an object belongs: that of the user who made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cumulus.index.api import Directory
from cumulus.index.cache import Fresh
from cumulus.model import decode_meta
from cumulus.unix import Account

FRESH_S: Final = 10.0  # asking the machine for an account may take a while


class Owners:
    """`account` asks the machine; `complain` hears once of each account that is not there (any more)."""

    def __init__(
        self,
        directory: Directory,
        account: Callable[[str], Account | None],
        complain: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._account = account
        self._complain = complain
        self._accounts: Fresh[str, Account | None] = Fresh(FRESH_S)
        self._missing: set[str] = set()

    def of(self, meta: bytes) -> tuple[int, int] | None:
        """uid and gid for an object with this record; None: those of the service."""
        try:
            owner = decode_meta(meta).acl.owner
        except msgspec.MsgspecError:
            return None
        user = self._directory.user(owner)
        if user is None or not user.unix_user:
            return None
        return self._accounts.get(user.unix_user, self._ask)

    def _ask(self, name: str) -> Account | None:
        found = self._account(name)
        if found is None and name not in self._missing:
            self._missing.add(name)
            self._complain(name)
        return found
