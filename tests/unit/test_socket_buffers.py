"""A port whose socket buffers the system keeps small says so, once, with the cure."""

from __future__ import annotations

import pytest
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogEvent, globalLogPublisher

from sector._udt import context


def test_small_buffers_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for any number of ports; none when there is enough."""
    seen: list[LogEvent] = []
    globalLogPublisher.addObserver(seen.append)
    try:
        for enough, lines in ((1, 0), (1 << 40, 1)):
            seen.clear()
            monkeypatch.setattr(context, "ENOUGH_BUFFER", enough)
            core = context.Core(MemoryReactorClock())
            try:
                ports = [core.open_port("127.0.0.1", 0) for _ in range(2)]
                counters = core.port_counters(ports[0])
                assert counters["rcvbuf_bytes"] > 0 and counters["sndbuf_bytes"] > 0
            finally:
                core.stop()
            told = [event for event in seen if "cure" in event]
            assert len(told) == lines
            assert all("net.core.rmem_max=" in event["cure"] for event in told)
    finally:
        globalLogPublisher.removeObserver(seen.append)
