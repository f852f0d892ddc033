"""Connections on which nothing moves, on a `cumulus serve` in a process of its own: an idle one and a reader
that takes nothing are ended after their times and leave no socket; one that is slow but reads is served."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import Server, serving
from s3_wire import Wire, signed

SIZE = 32 << 20  # more than the socket buffers of both ends hold
IDLE_S = 1.0
WRITE_S = 2.0
PATIENCE_S = 20.0
SETTINGS = f"[server]\nport = 0\nidle_timeout_s = {IDLE_S}\nwrite_timeout_s = {WRITE_S}\n[admin]\nport = 0\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a bucket and a large object."""
    with serving(tmp_path_factory.mktemp("cumulus") / "D", SETTINGS) as made:
        wire = Wire(made.port, (made.key, made.secret))
        assert wire.ask("PUT", "/slow").status == 200
        assert wire.ask("PUT", "/slow/large", bytes(SIZE)).status == 200
        wire.close()
        yield made


def sockets(server: Server) -> int:
    """How many the service has open."""
    count = 0
    for fd in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            count += os.readlink(fd).startswith("socket:")
        except FileNotFoundError:  # closed since it was listed
            continue
    return count


def until_closed(server: Server, before: int) -> float:
    """Seconds until the service has no more sockets than before."""
    begin = time.monotonic()
    while sockets(server) > before:
        assert time.monotonic() - begin < PATIENCE_S, "the connection stays"
        time.sleep(0.05)
    return time.monotonic() - begin


def quiet(server: Server) -> int:
    """The number of sockets when no connection is left."""
    seen = sockets(server)
    end = time.monotonic() + IDLE_S + 3
    while time.monotonic() < end:
        time.sleep(0.2)
        seen = min(seen, sockets(server))
    return seen


def download(server: Server) -> socket.socket:
    """A connection with a small buffer, on which the large object was asked for."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
    made.settimeout(30)
    made.connect(("127.0.0.1", server.port))
    host = f"127.0.0.1:{server.port}"
    headers = signed((server.key, server.secret), "GET", host, "/slow/large", {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name != "host")
    made.sendall(f"GET /slow/large HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode())
    return made


def rest(connection: socket.socket) -> int:
    """Bytes that still come; a reset ends them, too."""
    count = 0
    try:
        while data := connection.recv(1 << 20):
            count += len(data)
    except ConnectionResetError:
        pass
    return count


def test_an_idle_connection_is_ended(server: Server) -> None:
    """After a whole request, and its time without another one; not before."""
    before = quiet(server)
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        begin = time.monotonic()
        rest(connection)
        assert IDLE_S * 0.9 <= time.monotonic() - begin < PATIENCE_S
    until_closed(server, before)


def test_a_reader_that_takes_nothing_is_ended(server: Server) -> None:
    """Its socket is free again though it never closes; what it reads later is not the whole."""
    before = quiet(server)
    with download(server) as connection:
        got = len(connection.recv(4096))
        took = until_closed(server, before)
        assert took >= WRITE_S * 0.9
        assert got + rest(connection) < SIZE


def test_a_slow_reader_is_served(server: Server) -> None:
    """Longer than both times, a little every now and then; then the rest, whole."""
    with download(server) as connection:
        got, begin = 0, time.monotonic()
        while time.monotonic() - begin < 3 * WRITE_S:
            got += len(connection.recv(65536))
            time.sleep(WRITE_S / 8)
        while got < SIZE:
            data = connection.recv(1 << 20)
            assert data, f"cut off after {got} bytes"
            got += len(data)
        assert got > SIZE or connection.recv(1 << 20)  # the head came with the body
