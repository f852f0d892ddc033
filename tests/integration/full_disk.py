"""Runs inside a mount namespace of its own: a cluster whose disk is a tmpfs of 16 MB.

Checks that a file of 32 MB is refused before it is sent, that what was there is still whole, and that a small
file fits afterwards. Exit status 0 when all holds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster import running, sha256, write_random


def main(folder: Path) -> None:
    """The whole check in `folder`."""
    disk = folder / "small"
    disk.mkdir()
    # inside a chroot "/" is no mount point and cannot be made private; then the mount is undone below
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], check=True)
    try:
        check(folder, disk)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def check(folder: Path, disk: Path) -> None:
    """What a user of the full cluster sees."""
    small, big, back = folder / "small.bin", folder / "big.bin", folder / "back.bin"
    write_random(small, 1_000_000, 1)
    write_random(big, 32_000_000, 2)
    with running(disk, slaves=1) as cluster:
        cluster.ok("put", str(small), "/first")
        done = cluster.refused("put", str(big), "/big")
        assert "space" in done.err, done.said
        assert cluster.run("stat", "/big").status == 1
        cluster.ok("get", "/first", str(back))
        assert sha256(back) == sha256(small)
        cluster.ok("put", str(small), "/second")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
