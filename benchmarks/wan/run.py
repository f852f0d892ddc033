"""The series over emulated links: `sector bench udt --grid` with the grid of the guide, resumable.

    .venv/bin/python benchmarks/wan/run.py                        the whole grid, then its picture
    .venv/bin/python benchmarks/wan/run.py --cell 1g-100ms-0.1%-sector     one cell alone
    .venv/bin/python benchmarks/wan/run.py --grid 'rate=100m;rtt=20ms;loss=0,1%' --peer tcp-bbr

Best as root, with the programs that `./dev bench` builds. All options of `sector bench udt` may follow.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sector.cli.main import main

HERE = Path(__file__).resolve().parent
GRID = "rate=500m;rtt=10ms,50ms,100ms,200ms;loss=0,0.01%,0.1%,1%"
PEERS = "libudt,tcp-cubic,tcp-cubic8,tcp-bbr,srt,zmq"
RESULTS = HERE.parent / "results"


def arguments(given: list[str]) -> list[str]:
    """What is missing for a whole series."""
    if "--cell" in given:
        return given
    if "--grid" not in given and "--link" not in given:
        given = ["--grid", GRID, *given]
    if "--peer" not in given:
        given = [*given, "--peer", PEERS]
    if "--results" not in given:
        given = [*given, "--results", str(RESULTS / "grid.jsonl")]
    if "--picture" not in given:
        given = [*given, "--picture", str(RESULTS / "grid.html")]
    return given


if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    sys.argv = ["sector", "bench", "udt", *arguments(sys.argv[1:])]
    main()
