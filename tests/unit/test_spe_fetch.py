"""What a segment reads from another slave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock

from sector._udt.data_api import TransferError
from sector.model import Address, Version
from sector.slave import spe_data
from sector.slave.spe_data import SpeData
from sector.wire.sphere import Pickup, RangeFetch


class FakeReceiving:
    """One transfer; notes how it was ended."""

    def __init__(self) -> None:
        self.fin: Deferred[Any] = Deferred()
        self.done: Deferred[Any] = Deferred()
        self.ended: list[str] = []

    def cancel(self, code: int = 0) -> None:
        self.ended.append("cancel")

    def finish(self, *, error: int = 0) -> None:
        self.ended.append("error" if error else "finish")


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(the transfer, a fetch of 100 bytes that is under way)."""
    receiving = FakeReceiving()
    context = SimpleNamespace(
        clock=Clock(), data=SimpleNamespace(receive_file=lambda *_, **__: receiving), slave_id="s1"
    )
    monkeypatch.setattr(spe_data, "Neighbours", lambda _: None)
    data = SpeData(cast(Any, context), lambda _: Deferred())
    ticket = spe_data.new_ticket("read", "/a", Version(1, 1), 0, 100)
    monkeypatch.setattr(data, "_ask", lambda *_: succeed(Pickup(ticket, 100)))
    peer = SimpleNamespace(node="s2", data=Address("127.0.0.1", 9))
    wanted = RangeFetch("job", "/a", Version(1, 1), 0, 100)
    return receiving, Deferred.fromCoroutine(data._fetch(cast(Any, None), cast(Any, peer), 0, wanted))


def test_a_cancelled_fetch_ends_its_transfer(fetch: Any) -> None:
    """It went on to its end, and both slaves kept descriptors and the connection."""
    receiving, running = fetch
    running.cancel()
    assert running.result.check(CancelledError) and receiving.ended == ["cancel"]
    running.addErrback(lambda _: None)


def test_what_arrived_is_taken(fetch: Any) -> None:
    receiving, running = fetch
    receiving.fin.callback(SimpleNamespace(moved=100))
    assert running.called and receiving.ended == ["finish"]


def test_a_transfer_that_failed_is_over(fetch: Any) -> None:
    receiving, running = fetch
    receiving.done.errback(TransferError("BROKEN", "the connection broke"))
    assert running.result.check(TransferError) and receiving.ended == []
    running.addErrback(lambda _: None)
