"""Programs that print one JSON document."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from sector.bench.common import alone
from sector.errors import SectorError


def json_of(command: list[str], limit_s: float = 600) -> dict[str, Any]:
    """Run it and read its standard output. Raises SectorError."""
    try:
        with alone():
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise SectorError(f"{command[0]} did not end in {limit_s:.0f} s") from None
    if done.returncode:
        raise SectorError(f"{command[0]} failed: {done.stderr.strip()[-300:]}")
    value: dict[str, Any] = json.loads(done.stdout)
    return value
