"""What the benchmark of fair shares measures, against a server that is made up."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "cumulus"))

import fairness

SYNC_S = 0.2


def _serve(conn: socket.socket, disk: threading.Lock) -> None:
    with conn:
        while True:
            data = b""
            while b"\r\n\r\n" not in data:
                part = conn.recv(65536)
                if not part:
                    return
                data += part
            head, _, rest = data.partition(b"\r\n\r\n")
            left = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(rest)
            while left > 0:
                left -= len(conn.recv(1 << 20))
            with disk:
                time.sleep(SYNC_S)
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@contextlib.contextmanager
def one_disk() -> Iterator[fairness.Server]:
    """A server whose disk syncs one upload after the other."""
    disk = threading.Lock()
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = listener.accept()
                threading.Thread(target=_serve, args=(conn, disk), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield fairness.Server("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def test_uploads_are_over_when_they_are_answered() -> None:
    """All syncs count on both sides; many together seemed five times as fast as one alone."""
    with one_disk() as server:
        found = fairness.equal(server, fairness.Key("a", "b"), 8, 40_000_000, "up")
    assert found["total_of_alone"] < 1.5
    assert found["total"] < 8 * 40 / (8 * SYNC_S)


def test_memory_that_cannot_be_read_is_no_figure() -> None:
    with pytest.raises(SystemExit, match="cannot be read"), fairness.watched(2**22 + 1):
        time.sleep(0.3)
