"""What a picture of a trace is made of, and how its absence is told."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from sector._udt.trace import Record, qlog
from sector.bench import trace_picture
from sector.cli.main import run
from sector.errors import LocalIO, UsageError

MS = 1000
# the trace of a sender: two packets, one lost and sent again, a sample of RTT, window, what limits
RECORDS = [
    Record(0, 7, 10, 1, 0, 0),
    Record(10 * MS, 7, 1, 1456, 1, 1),
    Record(11 * MS, 7, 1, 1456, 2, 2),
    Record(12 * MS, 7, 10, 2, 0, 0),
    Record(60 * MS, 7, 6, 0, 50 * MS, (50 * MS << 32) | 49 * MS),
    Record(60 * MS, 7, 5, 0, 2, 1),
    Record(61 * MS, 7, 4, 0, 2, 1),
    Record(62 * MS, 7, 2, 1456, 3, 2),
    Record(63 * MS, 7, 7, 1500, (10 << 32) | 2, 1_000_000),
    Record(100 * MS, 7, 12, 4, 0, 0),
    Record(100 * MS, 8, 1, 1, 1, 1),
]


def document() -> dict[str, Any]:
    """As `--trace` writes it."""
    found: dict[str, Any] = json.loads(json.dumps(qlog(RECORDS, len(RECORDS), "t", "client")))
    return found


def test_curves_of_a_trace() -> None:
    """Each panel has what happened, in seconds from the first event."""
    trace = document()
    assert trace_picture.busiest(trace) == 0
    found = trace_picture.curves(trace["traces"][0])
    assert found.sent == [(0.01, 1456), (0.011, 1456), (0.062, 1456)] and found.again == [(0.062, 1456)]
    assert found.arrived == [(0.06, 1456)] and found.lost == [(0.061, 1)]
    assert (found.rtt, found.least) == ([(0.06, 50.0)], [(0.06, 49.0)])
    assert found.window == [(0.063, 15000)] and found.flight == [(0.063, 3000)]
    assert found.pacing == [(0.063, 8_000_000)] and found.end == 0.1
    assert found.limits == [(0.0, "sender"), (0.012, "network")]


def test_rates_and_spans() -> None:
    """Sums over equal steps; what limited longest in a step."""
    assert trace_picture.rates([(0.1, 100), (0.2, 100), (0.9, 50)], 1.0, 2) == [(0.25, 3200), (0.75, 800)]
    limits = [(0.0, "sender"), (0.3, "network"), (0.31, "processor"), (0.32, "network")]
    assert trace_picture.spans(limits, 1.0, 2) == [(0.0, 0.5, "sender"), (0.5, 1.0, "network")]
    assert trace_picture.spans([(0.0, "cap")], 1.0, 4) == [(0.0, 1.0, "cap")]
    assert trace_picture.scale(2e6, [(1e9, "G"), (1e6, "M"), (1, "")]) == (1e6, "M")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traces": [{"events": 3}]}', '{"traces": []}'])
def test_what_is_no_trace(tmp_path: Path, text: str) -> None:
    """One line, whatever the file holds."""
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UsageError):
        trace_picture.busiest(trace_picture.load(path))
    with pytest.raises(LocalIO):
        trace_picture.load(tmp_path / "not there")
    broken = {"events": [{"time": 1, "name": "transport:packet_sent", "data": {}}]}
    with pytest.raises(UsageError):
        trace_picture.curves(broken)


def test_the_command_draws_or_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With matplotlib a picture; without it one line that names it."""
    path = tmp_path / "put.qlog"
    path.write_text(json.dumps(document()))
    have = importlib.util.find_spec("matplotlib") is not None
    for name in ("a.png", "a.svg"):
        status = run(["trace", str(path), "-o", str(tmp_path / name)])
        assert status == (0 if have else 1)
        assert (tmp_path / name).exists() == have
    told = capsys.readouterr()
    assert "connection 1 of 2" in told.out if have else "matplotlib" in told.err
    assert run(["trace", str(path), "--connection", "3"]) == 2
    assert run(["trace", str(path), "-o", str(tmp_path / "a.gif")]) == 2
