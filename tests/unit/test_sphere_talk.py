"""What functions print reaches a slow listener without holding up the one who tells it."""

from __future__ import annotations

import threading
import time

import pytest

from sector.sphere import talk
from sector.sphere.talk import Talk


def test_a_listener_that_waits_holds_up_nobody() -> None:
    go, heard = threading.Event(), []

    def listen(segment: int, text: str) -> None:
        go.wait(30)
        heard.append((segment, text))

    teller = Talk(listen)
    for number in range(100):
        teller.put(number, "x")
    assert heard == []
    threading.Timer(0.2, go.set).start()
    teller.finish()
    assert heard == [(number, "x") for number in range(100)]


def test_errors_of_a_listener_are_printed_and_the_rest_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    heard = []

    def listen(segment: int, text: str) -> None:
        if segment == 1:
            raise ValueError("no")
        heard.append(segment)

    teller = Talk(listen)
    for number in range(3):
        teller.put(number, "x")
    teller.finish()
    assert heard == [0, 2]
    assert "ValueError: no" in capfd.readouterr().err


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "WAITING_MAX", 10)
    go, heard = threading.Event(), []

    def listen(segment: int, text: str) -> None:
        go.wait(30)
        heard.append(segment)

    teller = Talk(listen)
    teller.put(-1, "x")
    while teller._waiting:  # the listener has it
        time.sleep(0.01)
    for number in range(100):
        teller.put(number, "x")
    go.set()
    teller.finish()
    assert heard == [-1, *range(90, 100)]
