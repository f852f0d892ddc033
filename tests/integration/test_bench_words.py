"""What `sector bench udt` does not take, and what it leaves out, in one line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_bench_wan import bench

from sector.bench import wan
from sector.bench.link import Link
from sector.bench.peers import why_missing
from sector.errors import SectorError, UsageError


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--link", "rate=1x"], "rate like"),
        (["--link", "rate=1g,speed=2"], "did not start"),
        (["--cell", "1g-1ms-0-sector", "--peer", "tcp-cubic"], "names its peer"),
        (["--link", "rate=1g", "--cell", "1g-1ms-0-sector"], "exclude"),
        (["--cell", "1g-1ms-sector"], "no cell"),
        (["--peer", "carrier-pigeon"], "unknown peer"),
        (["--grid", "rate"], "grid"),
        (["--to", "nowhere"], "HOST:PORT"),
        (["--to", "127.0.0.1:99999"], "port: 99999 is not within 1 and 65535"),
        (["--to", "no..name:9"], "--to: no..name"),
        (["--picture", "x.png"], "belong"),
        (["--link", "rate=1g,rtt=1ms", "--peer", "udp"], "loopback only"),
        (["--link", "rate=1g,rtt=1ms", "--picture", "x.txt"], "a picture is a"),
        (["--seconds", "nan"], "nan is no number"),
        (["--listen", "9", "--peer", "libudt,sector"], "one peer"),
        (["--listen", "9", "--runs", "3"], "--runs, --only and --engine are not for --listen and --to"),
        (["--to", "127.0.0.1:9", "--results", "r.jsonl"], "are not for --listen and --to"),
        (["--engine", "user"], "--engine belongs to"),
        (["--link", "rate=1g,rtt=1ms", "--no-wait"], "--no-wait is for loopback"),
    ],
)
def test_bad_requests_are_one_line(arguments: list[str], word: str) -> None:
    said = bench(*arguments, status=2 if word != "did not start" else 1)
    assert word in said and "Traceback" not in said


def test_a_link_that_is_none_is_named_without_the_emulators_help() -> None:
    """One line for the cell, one for the end."""
    said = bench("--link", "rate=1g,rtt=1ms,jitter=much", status=1)
    assert "did not start: not a property of a link: jitter=much" in said
    assert said.count("\n") == 2 and "usage: wan" not in said


def test_turns_are_not_for_calls_from_python() -> None:
    command = [sys.executable, "-m", "sector.cli.main", "bench", "gmp", "--python", "--turn", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "--turn is not for --python" in done.stderr


def test_what_our_sender_waited_for_is_named_with_nothing_left_out() -> None:
    """Its reasons add up to its life: pacing, rate caps and the processors are among them."""
    said = bench("--only", "--peer", "sector", "--no-wait", "--seconds", "1", "--runs", "1", "--json")
    (run,) = said["results"]
    limits = {name: us for name, us in run["sender"].items() if name.startswith("lim_")}
    assert {"lim_app_us", "lim_cwnd_us", "lim_flow_us", "lim_pace_us", "lim_cap_us"} < limits.keys()
    assert sum(limits.values()) >= 900_000


def test_a_picture_without_a_place_is_told_before_the_series() -> None:
    said = bench("--link", "rate=1g,rtt=1ms", "--picture", "/dev/null/x.svg", status=1)
    assert said.startswith("sector: the picture cannot be written to /dev/null/x.svg")


@pytest.mark.parametrize("line", [b"{}", b"[1]", b'{"cell": 1}'])
def test_a_file_of_something_else_is_not_added_to(line: bytes, tmp_path: Path) -> None:
    """Nor taken for a fault of the program."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(line + b"\n\xff\xfe\n")
    said = bench("--link", "rate=1g,rtt=1ms", "--results", str(path), status=1)
    assert "has lines of something else" in said and path.read_bytes().startswith(line)


def test_a_link_without_a_rate_has_no_limit() -> None:
    (row,) = bench("--link", "rate=0,rtt=1ms", "--seconds", "0.5", "--json")["results"]
    assert row["gbps"] > 0 and "share_of_limit" not in row


def test_what_is_not_built_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECTOR_BENCH_DIR", str(tmp_path))
    assert "peer_srt" in str(why_missing("srt"))
    with pytest.raises(SectorError):
        why_missing("sector")


def test_netem_is_used_or_refused_as_the_kernel_can() -> None:
    link = Link.parse("rate=1g,rtt=1ms")
    if wan.kernel_has_netem():
        assert wan.choose("auto", link, flows=False) == wan.choose("netem", link, flows=False) == "netem"
        return
    assert wan.choose("auto", link, flows=False) == "user"
    with pytest.raises(UsageError, match="no netem"):
        wan.choose("netem", link, flows=False)
