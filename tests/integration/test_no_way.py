"""Connecting where this machine knows no way: IPv6 switched off, no network at all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CONNECT = """
import asyncio, sys, time
from sector.udt import open_udt

async def main():
    began = time.monotonic()
    try:
        async with open_udt(sys.argv[1], 9):
            print("connected")
    except OSError as error:
        print(type(error).__name__, time.monotonic() - began)

asyncio.run(main())
"""
ALONE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]


@pytest.mark.parametrize("host", ["::1", "127.0.0.1", "192.0.2.1"])
def test_a_client_hears_at_once_that_there_is_no_way(host: str) -> None:
    """As TCP says it; a name with such an address first goes on with the next one. It was 3 s of silence."""
    command = [*ALONE, sys.executable, "-c", CONNECT, host]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    error, seconds = done.stdout.split()
    assert error == "ConnectionRefusedError"
    assert float(seconds) < 2
