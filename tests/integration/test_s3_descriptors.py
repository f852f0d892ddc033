"""A service that has no descriptors left for a while."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from s3_server import PORTS, serving


def limited(process: int) -> tuple[int, int]:
    """Let it open no more files than it has open; the limit that it had."""
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    highest = max(int(one) for one in os.listdir(f"/proc/{process}/fd"))
    resource.prlimit(process, resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    return before


def test_clients_wait_until_there_are_descriptors(tmp_path: Path) -> None:
    """Neither refused nor forgotten, at both ports; meanwhile the process has next to nothing to do."""
    with serving(tmp_path / "D", PORTS) as server, ExitStack() as stack:
        process = server.process.pid
        assert '"ok"' in server.admin("health")
        before = limited(process)
        waiting = []
        for port in [server.port, server.admin_port] * 40:  # some fill gaps; fewer than wait for accept(2)
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            waiting.append(client)
        said = len(server.log())
        time.sleep(1)
        began, used = time.monotonic(), times(process)
        time.sleep(1)
        assert times(process) - used < (time.monotonic() - began) / 2
        assert len(server.log()) - said < 4000
        resource.prlimit(process, resource.RLIMIT_NOFILE, before)
        for client in waiting:
            client.settimeout(60)
            assert client.recv(8) == b"HTTP/1.1"


def times(process: int) -> float:
    """Seconds of processor time that it has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
