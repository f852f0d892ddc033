"""The table of figures of Cumulus: what there is to measure, verdicts, the document (benchmarks/cumulus/)."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks/cumulus"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package cumulus stays that of the root

import s3judge
import s3pictures
import s3servers
import s3table
import table
from judge import Found
from running import running

from sector.bench import cells
from sector.errors import SectorError


def all_cells(tmp_path: Path, effort: s3table.Effort = s3table.FULL) -> list[table.Cell]:
    """What is measured, with nothing started."""
    bench = s3table.s3cells.Bench(tmp_path)
    bench.close()
    return [cell for make in s3table.GROUPS.values() for cell in make(effort, bench)]


def rows_of(cell: table.Cell, run: int, rate: float = 100.0) -> dict[str, Any]:
    """A made-up result."""
    names = ["up_mb_per_s", "down_mb_per_s", "p99_ms", "syncs_per_put", "complete_s", "put_per_s", "mb_per_s"]
    names += ["machine_busy"]
    small = [f"{op}_{what}" for op in ("get", "put", "list") for what in ("per_s", "p99_ms", "cpu_ms")]
    opened = [f"{op}_offered_per_s" for op in ("get", "put")]
    row: dict[str, Any] = dict.fromkeys([*names, *small, *opened, "bytes"], rate)
    if cell.name.endswith("-nginx"):
        del row["up_mb_per_s"]
    for mode in ("down-same", "down-own", "up"):
        row |= {f"{mode}_{name}": rate for name in ("cv", "farthest", "total_of_alone")}
        row[f"{mode}_rates"] = [rate, rate / 2]
    row |= dict.fromkeys(
        [f"{mode}_{what}" for mode in ("up", "down-own") for what in ("server_pss_mb", "total")], rate
    )
    row |= {"weights-down_ratio": rate, "weights-up_ratio": rate}
    row |= {"get_mbps": [rate] * 4, "put_mbps": [rate] * 4, "clients": [1, 4, 16, 64]}
    return {**row, "cell": cell.name, "run": run, "commit": "c"}


def test_every_row_has_its_cells(tmp_path: Path) -> None:
    """Names are unique, every server can be started, and no row of the document stays empty."""
    found = all_cells(tmp_path)
    assert len({cell.name for cell in found}) == len(found)
    assert {peer for cell in found for peer in cell.peers} <= set(s3servers.SERVERS)
    rows = [rows_of(cell, run) for cell in found for run in range(1, cell.runs + 1)]
    text = s3judge.markdown(Found(rows), "made up", s3table.FULL.sizes)
    assert "not measured" not in text
    lines = [line for make in s3judge.ALL.values() for line in make(Found(rows), s3table.FULL.sizes)]
    assert all(f"| {line.what} |" in text for line in lines)
    assert not any("-/-" in line.beside or " - " in line.beside for line in lines)
    assert "not measured" in s3judge.markdown(Found([]), "nothing", ("64M",))
    failed = [*rows, {"cell": "fairness-cumulus", "error": "the server has cut a download"}]
    text = s3judge.markdown(Found(failed), "made up", s3table.FULL.sizes)
    assert f"**1 of {len(failed)} runs**" in text and "| the server has cut a download |" in text


class Axes:
    """What a picture is drawn on: the labels of what was drawn, and how often."""

    def __init__(self) -> None:
        self.labels: list[str] = []

    def plot(self, xs: Any, ys: Any, *_: Any, label: str, color: str) -> None:
        assert len(list(xs)) == len(list(ys)) > 0
        self.labels.append(label)

    def bar(self, xs: Any, heights: Any, *_: Any, label: str, color: str) -> None:
        assert len(xs) == len(heights)
        self.labels.append(label)

    def set(self, **_: Any) -> None: ...

    def set_xticks(self, *_: Any) -> None: ...

    def set_ylabel(self, _: str) -> None: ...


def test_pictures_show_what_was_measured(tmp_path: Path) -> None:
    """One each for what the document tells; none of what was not measured."""
    rows = Found([rows_of(cell, run) for cell in all_cells(tmp_path) for run in range(1, cell.runs + 1)])
    drawn = {}
    for name, drawer in s3pictures.drawers(s3table.FULL.sizes, s3table.SIZES):
        axes = Axes()
        assert drawer(axes, rows), name
        assert not drawer(Axes(), Found([])), name
        drawn[name] = axes.labels
    assert len(drawn) == 12 and drawn["s3-throughput-up"] == [*s3pictures.SERVERS, "scp", "gridftp"]
    assert drawn["s3-throughput-down"][-1] == "nginx" and len(drawn["s3-load-get"]) == 6


def test_what_cumulus_must_reach_with_a_client() -> None:
    """1.5 x the better peer, but no more than 0.9 x what the client can do at all; unknown without a peer."""

    def found(**rates: float) -> Found:
        return Found([{"cell": f"512M-s3cmd-{name}", "up_mb_per_s": rate} for name, rate in rates.items()])

    def must(**rates: float) -> float | None:
        return s3judge.least(found(**rates), "512M", "s3cmd", "up")

    assert must(versitygw=100, minio=80, sink=1000) == 150
    assert must(versitygw=100, minio=120, sink=1000) == 180
    assert must(versitygw=100, minio=80, sink=110) == pytest.approx(99)
    assert must(versitygw=100, sink=110) is None
    lines = {
        line.what: line
        for line in s3judge.throughput_lines(found(versitygw=100, minio=1, sink=1e3, cumulus=140), ["512M"])
    }
    assert lines["512M, s3cmd"].verdict == "**missed**"
    assert "140 MB/s up (>= 150): missed" in lines["512M, s3cmd"].figures[0].text


def test_servers_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cells are left out, the others measured."""
    monkeypatch.setenv("SECTOR_S3_PEERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(s3servers, "ROOT", tmp_path)
    assert "there is no program minio" in str(s3servers.why_missing("minio"))
    assert s3servers.why_missing("cumulus") is None
    left = s3table.able(all_cells(tmp_path))
    assert left and not any("minio" in cell.name or "versitygw" in cell.name for cell in left)
    with pytest.raises(SectorError, match="there is no program versitygw"), s3servers.versitygw(tmp_path):
        pass


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no disk')"]
    with pytest.raises(SectorError, match="it did not start: no disk"):
        with s3servers.running("it", command, tmp_path, 1):
            pass
    with pytest.raises(SectorError, match="No such file"), s3servers.running("it", ["/no/it"], tmp_path, 1):
        pass


@pytest.mark.parametrize(("code", "asked"), [("XMinioServerNotInitialized", 3), ("AccessDenied", 1)])
def test_a_server_that_still_begins_is_asked_for_its_bucket_again(
    tmp_path: Path, code: str, asked: int
) -> None:
    """Any other refusal ends the cell."""
    codes = [code, code, ""]

    class Refusing(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = codes.pop(0).encode()
            self.send_response(503 if body else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            served = s3servers.Served("it", server.server_port, tmp_path, None)  # type: ignore[arg-type]
            with nullcontext() if asked == 3 else pytest.raises(SectorError, match=r"it: .*AccessDenied"):
                s3servers.make_bucket(served)
        finally:
            server.shutdown()
            thread.join()
    assert len(codes) == 3 - asked


def test_a_series_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has its runs is not measured again; --list tells how many; unknown groups are refused."""
    argv = ["s3table", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*argv, "--list", "--quick", "--only", "syncs"])
    assert s3table.main() == 0
    assert capsys.readouterr().out.split() == ["syncs", "slow-syncs", "0", "of", "1"]
    cells.Results(tmp_path / "s3-syncs-quick.jsonl").add(
        {"cell": "slow-syncs", "put_per_s": 800, "syncs_per_put": 0.4}
    )
    monkeypatch.setattr(sys, "argv", [*argv, "--quick", "--only", "syncs"])
    assert s3table.main() == 0
    out = capsys.readouterr()
    assert "800 PUT/s (>= 700)<br>0.4 syncs a PUT (<= 0.5)" in out.out and "[1/" not in out.err
    assert (tmp_path / "s3-quick.md").read_text() == out.out
    for wrong in (["--only", "nothing"], ["--runs", "0"]):
        with pytest.raises(SystemExit):
            s3table.options_of(wrong)
    monkeypatch.setattr(sys, "argv", [*argv, "--list", "--only", "small", "--runs", "2"])
    assert s3table.main() == 0 and capsys.readouterr().out.count("0 of 2") == 3


def test_processor_time_and_memory_of_a_server_hold_its_children(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(3*10**7)); input()'])"
    with running([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        served = s3servers.Served("it", 0, tmp_path, process)
        while served.cpu_s() < 0.05 or len(s3servers.family(process.pid)) < 2:
            assert process.poll() is None
        assert served.rss_mb() > 10
        process.communicate(b"\n")
    assert s3servers.cpu_of(process.pid) == 0 and s3servers.rss_of(process.pid) == 0
