"""A program of a user: writes files, moves each on at once. `quick_mover.py COUNT DIRECTORY`."""

from __future__ import annotations

import sys

import sector

MOVES = "abcd"


def main() -> None:
    """Leave COUNT files whose content is their first name."""
    count, folder = int(sys.argv[1]), sys.argv[2]
    cloud = sector.connect()
    cloud.mkdir(folder)
    for number in range(count):
        here = f"{folder}/{number}"
        cloud.write(here, str(number).encode())
        for letter in MOVES:
            there = f"{folder}/{number}.{letter}"
            cloud.mv(here, there)
            here = there
    cloud.close()


if __name__ == "__main__":
    main()
