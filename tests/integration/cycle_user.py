"""A user who puts, gets and removes a file again and again: cycle_user.py FILE BACK CYCLES.

A program of its own, since it uses the blocking API. After a fifth of the cycles and at the end it prints a
line and waits for one, so that the daemons can be looked at.
"""

from __future__ import annotations

import sys

import sector


def main(source: str, back: str, cycles: int) -> None:
    """All cycles over one connection."""
    with sector.connect() as cloud:
        for cycle in range(1, cycles + 1):
            cloud.put(source, "/cycle/x", progress=False)
            cloud.get("/cycle/x", back, progress=False)
            cloud.rm("/cycle/x")
            if cycle in (cycles // 5, cycles):
                print(cycle, flush=True)
                sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
