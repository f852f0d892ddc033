"""The table of transport figures: verdicts, what is still to be measured, the document (benchmarks/)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sector.bench import cells
from sector.bench.peers import PEERS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import judge
import table


def test_verdicts() -> None:
    """One miss is a miss, one unknown is no verdict, all aims reached is better than ok."""
    good = judge.Figure("Gb/s", 40, 35, 50)
    best = judge.Figure("Gb/s", 60, 35, 50)
    low = judge.Figure("CPU-s/GB", 0.3, 0.22, 0.15, low=True)
    unknown = judge.Figure("x quinn", None, 1.8)
    assert judge.Line("a", [good]).verdict == "ok" and judge.Line("a", [best]).verdict == "aim"
    assert judge.Line("a", [good, best]).verdict == "ok"
    assert judge.Line("a", [best, low]).verdict == "**missed**"
    assert judge.Line("a", [best, unknown]).verdict == "-"
    assert judge.Line("a", [low, unknown]).verdict == "**missed**"
    assert low.text == "**0.3 CPU-s/GB (<= 0.22): missed**" and good.text == "40 Gb/s (>= 35)"


def rows_of(cell: table.Cell, run: int) -> dict[str, Any]:
    """A made-up result."""
    figures = ("gbps", "steady_gbps", "tx_cpu_s_per_gb", "rx_cpu_s_per_gb", "jain", "share_of_limit")
    row: dict[str, Any] = dict.fromkeys(figures, 1.0)
    row |= dict.fromkeys(("first20_gbps", "to_90_s", "utilisation", "share", "beyond_rtt_ms"), 1.0)
    row |= dict.fromkeys(("packets_per_5s", "threads", "idle_s", "sending_s", "configured_s"), 1.0)
    row |= {"mbps": [50.0, 40.0 + run], "max_rss_mb": 9.0, "lost_pkts": 9, "cases": 3, "connections": 2}
    if cell.group in ("gmp", "rpc"):
        row["results"] = [
            {"peer": peer, "p50_us": 10.0, "calls_per_s": 5.0}
            for peer in (
                *("sector", "sector_threads", "udp", "tcp", "zmq", "libudt", "gmp_new", "tcp_connect"),
                *("python_sector", "python_grpc", "python_grpc_aio"),
            )
        ]
    return {**row, "cell": cell.name, "run": run, "commit": "c"}


def all_cells() -> list[table.Cell]:
    """What the full table measures."""
    return [cell for make in table.GROUPS.values() for cell in make(table.FULL)]


def test_every_row_of_the_issue_has_its_cells() -> None:
    """Each peer is known, names are unique, and a whole run takes less than two hours."""
    found = all_cells()
    assert len({(cell.group, cell.name) for cell in found}) == len(found)
    assert all(peer in PEERS for cell in found for peer in cell.peers)
    for cell in found:
        if cell.group == "links":
            assert cells.parse_cell(cell.name)[1] in PEERS, "any cell alone: bench udt --cell"
    assert sum(cell.seconds * cell.runs for cell in found) < 7200


def test_a_series_goes_on_and_a_cell_is_measured_alone() -> None:
    """Nothing is measured twice; `--cell` measures once more."""
    found = all_cells()
    results = {name: cells.Results(None) for name in table.GROUPS}
    todo = table.plan(found, results, None)
    assert len(todo) == sum(cell.runs for cell in found)
    assert [run for run, _ in todo] == sorted(run for run, _ in todo) and todo[0][0] == 1
    assert {cell.runs for cell in found} == {1, 3, 7}, "loopback more often, what is exact once"
    for run, cell in todo[:-2]:
        results[cell.group].add(rows_of(cell, run))
    assert table.plan(found, results, None) == todo[-2:]
    again = table.plan(found, results, "1g-100ms-1%-s")
    assert [cell.name for _, cell in again] == ["1g-100ms-1%-sector", "1g-100ms-1%-srt"]
    failed = todo[-1][1]
    results[failed.group].add({"cell": failed.name, "error": "x"})
    assert todo[-1] in table.plan(found, results, None)


def test_measuring_tells_how_long_and_goes_on_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    from sector.errors import SectorError

    def fails(_: int) -> dict[str, Any]:
        raise SectorError("no link")

    results = {name: cells.Results(None) for name in table.GROUPS}
    one = table.Cell("life", "idle", 100, fails, 1)
    two = table.Cell("life", "dead", 200, lambda _: {"idle_s": 9.0}, 1)
    assert not table.measure([(1, one), (1, two)], results)
    said = capsys.readouterr().err
    assert "[1/2, about 5 min left] idle" in said and "no link" in said and "idle_s 9.0" in said
    assert [row.get("error") for row in results["life"].rows] == ["no link", None]
    assert table.measure([(1, two)], results)


def test_a_run_that_lost_bytes_is_no_good_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures count nowhere, and the document names it."""
    results = {name: cells.Results(None) for name in table.GROUPS}
    one = table.Cell("loopback", "sector", 1, lambda _: {"gbps": 99.0, "ok": False}, 1)
    assert not table.measure([(1, one)], results)
    found = judge.Found(results["loopback"].rows)
    assert found.median("sector", "gbps") is None
    text = judge.markdown(found, "made up")
    assert "**1 of 1 runs**" in text and "| sector | what was sent is not what arrived |" in text
    assert "Runs that failed" not in judge.markdown(judge.Found([{"cell": "sector"}]), "made up")
    capsys.readouterr()


def test_the_document() -> None:
    """Every row is there, with medians and bounds; a miss is counted."""
    rows = [rows_of(cell, run) for cell in all_cells() for run in range(1, cell.runs + 1)]
    text = judge.markdown(judge.Found(rows), "made up")
    lines = [line for make in judge.ALL.values() for line in make(judge.Found(rows))]
    assert all(f"| {line.what} |" in text for line in lines)
    assert "not measured" not in text
    assert "50.0 and 42.0 Mb/s" in text, "the median of three runs"
    assert "missed" in text and "miss" in text.splitlines()[4] and "limit 946.7 Mb/s" in text
    assert "not measured" in judge.markdown(judge.Found([]), "nothing")
