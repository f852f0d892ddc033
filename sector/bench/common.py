"""What every bench shares: its programs, the machine, the shape of the result (design section 9)."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from sector import __version__
from sector.errors import SectorError, UsageError


def program(name: str) -> str:
    """Path of a benchmark program of the C core. They are built in a source checkout (`./dev bench`);
    SECTOR_BENCH_DIR names another folder. Raises SectorError."""
    folder = os.environ.get("SECTOR_BENCH_DIR") or str(Path(__file__).resolve().parents[2] / "csrc" / "build")
    path = Path(folder) / name
    if not path.exists():
        raise SectorError(
            f"the benchmark program {name} is not in {folder}",
            hint="run ./dev bench in a source checkout, or set SECTOR_BENCH_DIR",
        )
    return str(path)


def machine() -> dict[str, Any]:
    """What a figure depends on: CPU, cores, kernel, Python."""
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": os.cpu_count() or 1,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _commit(),
    }


@contextmanager
def alone() -> Iterator[None]:
    """Holds the lock file SECTOR_BENCH_LOCK, if that is set: benches of one machine wait for one another."""
    path = os.environ.get("SECTOR_BENCH_LOCK")
    if not path:
        yield
        return
    with open(path, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _commit() -> str:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    found = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def peers_of(text: str, known: Iterable[str]) -> list[str]:
    """The names of --peer, checked."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown peer {name!r}", hint="known peers: " + ", ".join(sorted(known)))
    return names


def medians(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median of each number per peer over the runs."""
    out: dict[str, dict[str, float]] = {}
    for peer in dict.fromkeys(row["peer"] for row in results):
        rows = [row for row in results if row["peer"] == peer]
        keys = [k for k, v in rows[0].items() if isinstance(v, (int, float)) and k not in ("run", "ok")]
        out[peer] = {key: statistics.median(row[key] for row in rows if key in row) for key in keys}
    return out


def document(bench: str, settings: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """The JSON document of a bench."""
    return {
        "bench": bench,
        "version": __version__,
        "machine": machine(),
        "settings": settings,
        "results": results,
        "median": medians(results),
    }


def show(doc: dict[str, Any], as_json: bool) -> None:
    """Print the document, or a table of the medians."""
    if as_json:
        click.echo(json.dumps(doc))
        return
    rows = doc["median"]
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    click.echo(f"{'peer':<22}" + "".join(f"{name:>18}" for name in columns))
    for peer, row in rows.items():
        cells = "".join(f"{row[c]:>18.4g}" if c in row else f"{'-':>18}" for c in columns)
        click.echo(f"{peer:<22}" + cells)
