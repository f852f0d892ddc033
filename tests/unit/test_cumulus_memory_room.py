"""The room of the store in memory."""

from __future__ import annotations

import pytest

from cumulus.backends.memory import MemoryStore
from cumulus.storage.api import NoSpace


def test_a_completion_needs_no_room_beside_its_parts() -> None:
    """Which go when it is known: of 100 bytes more than half were never to be had in parts."""
    store = MemoryStore(limit=100)
    store.create_bucket("b", "")
    for name in ("p1", "p2"):
        store.publish("b", name, bytes(30), b"", None)
    assert store.concat("b", ["p1", "p2"], "k", b"").size == 60
    for name in ("p1", "p2"):
        store.delete("b", name)
    store.publish("b", "other", bytes(40), b"", None)
    with pytest.raises(NoSpace):
        store.publish("b", "more", bytes(1), b"", None)
