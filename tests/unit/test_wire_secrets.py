"""Secrets never reach `repr`, and so neither logs nor tracebacks (spec/security.md, "Files")."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec
import pytest

import sector.wire
from sector.model import Address, Key, Ticket, Version
from sector.wire import admin, login
from sector.wire.base import REGISTRY, Message
from sector.wire.slave import PrepareRead

WORD = "correct-horse"
RAW = b"\xa7secretbytes\xa8" + bytes(range(64, 83))


def shows(value: object) -> bool:
    """Whether the text of a value has one of the secrets in any usual form."""
    text = repr(value) + str(value)
    return any(form in text for form in (WORD, "secretbytes", RAW.hex()))


@pytest.mark.parametrize(
    "message",
    [
        login.Login("alice", WORD),
        login.Verify("alice", WORD, "10.0.0.1"),
        login.Resume(bytes(16), RAW),
        login.Session(bytes(16), RAW, "alice", 1.0, "m1", Address("h", 1), 7, [], []),
        login.Joined("m1", Address("h", 1), Key(1, RAW, "master:m1"), 1, 1.0, True),
        admin.UserAdd("bob", WORD),
        admin.UserPasswd("bob", WORD, WORD),
        PrepareRead(1, Ticket(bytes(16), RAW, 1, "read", "/f", Version(1, 1), 0, 1), "user:a#b"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_hide_their_secrets(message: Message) -> None:
    assert not shows(message)
    assert type(message).__name__ in repr(message)


def test_every_field_with_a_secret_name_is_hidden() -> None:
    """A message that is added later cannot forget it."""
    for module in pkgutil.iter_modules(sector.wire.__path__):
        importlib.import_module(f"sector.wire.{module.name}")
    classes = {cls for request in REGISTRY.values() for cls in (request, request.REPLY)}
    for cls in classes:
        secret = {f for f in cls.__struct_fields__ if f in ("password", "old", "secret", "proof", "key")}
        kinds = {f.name: f.type for f in msgspec.structs.fields(cls)}
        assert {f for f in secret if kinds[f] is not Key} <= set(cls.SECRET), cls.__name__
        assert set(cls.SECRET) <= set(cls.__struct_fields__), cls.__name__
