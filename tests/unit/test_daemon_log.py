"""Log lines: one event is one line, whatever names of files and users hold."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from twisted.logger import LogLevel, globalLogPublisher
from twisted.python.failure import Failure

from sector.daemon import Bridge, LineObserver, human_line, json_line

EVIL = "/a\n2026-01-01 00:00:00 error sector.master: forged\r\x1b[2J\x9b31m\u2028x\u202ey"


def event(**fields: Any) -> dict[str, Any]:
    """An event of ours that names a file."""
    return {
        "log_time": 1_700_000_000.0,
        "log_level": LogLevel.info,
        "log_namespace": "sector.master",
        "log_format": "{path} was removed",
        "path": EVIL,
        **fields,
    }


@pytest.mark.parametrize("form", [human_line, json_line])
def test_a_name_cannot_forge_lines(form: Any) -> None:
    stream = io.StringIO()
    LineObserver(stream, form)(event())
    text = stream.getvalue()
    assert text.endswith("\n") and len(text.splitlines()) == 1
    assert all(char >= " " and not "\x7f" <= char <= "\x9f" for char in text[:-1])


def test_json_keeps_the_name() -> None:
    line = json.loads(json_line(event()))
    assert line["fields"]["path"] == EVIL
    assert line["text"] == f"{EVIL} was removed"


def test_a_traceback_cannot_forge_lines() -> None:
    """Its lines are indented, those of the message in it too."""
    try:
        raise ValueError(EVIL)
    except ValueError:
        text = human_line(event(log_failure=Failure()))
    first, *rest = text.splitlines()
    assert first.startswith("2023-")
    assert rest and all(line.startswith("    ") for line in rest)
    assert "\x1b" not in text


def bridged(tell: Any, form: Any) -> str:
    """What comes of a line of the standard `logging`."""
    stream = io.StringIO()
    observer = LineObserver(stream, form)
    logger = logging.getLogger("cumulus.rest.test")
    handler = Bridge()
    logger.addHandler(handler)
    globalLogPublisher.addObserver(observer)
    try:
        tell(logger)
    finally:
        globalLogPublisher.removeObserver(observer)
        logger.removeHandler(handler)
    return stream.getvalue()


def test_what_the_standard_library_logs_is_an_event_with_fields() -> None:
    """Of code that knows no Twisted; braces are nothing special."""
    told = {"id": "R1", "why": "{no} " + EVIL}
    line = bridged(lambda log: log.warning("request %(id)s: %(why)s", told), json_line)
    found = json.loads(line)
    assert line.count("\n") == 1
    assert (found["level"], found["part"], found["fields"]) == ("warn", "cumulus.rest.test", told)
    assert found["text"] == f"request R1: {{no}} {EVIL}"
    try:
        raise ValueError("of its own")
    except ValueError as bad:
        error = bad
    text = bridged(lambda log: log.error("request %s failed", "R2", exc_info=error), json_line)
    found = json.loads(text)
    assert (found["level"], found["text"]) == ("error", "request R2 failed")
    assert "of its own" in found["traceback"] and "test_daemon_log" in found["traceback"]
    assert "warn  cumulus.rest.test: 50% {x}" in bridged(lambda log: log.warning("50% {x}"), human_line)
