"""A worker process as the head sees it, without Twisted: starts in no time. It answers requests with its
process id; `/die` ends it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys

LISTENER_FD, CONTROL_FD = 3, 4
SAMPLE = {"plain": {"connections": 1}, "requests": {"Get": {"200": 5}}, "durations": [0] * 15, "seconds": 0.5}


def serve(listener: socket.socket) -> None:
    """One request of one connection."""
    try:
        client, _peer = listener.accept()
    except BlockingIOError:
        return
    client.setblocking(True)
    with client:
        if b" /die " in client.recv(4096):
            os._exit(3)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n%d" % os.getpid())


def main() -> None:
    control = socket.socket(fileno=CONTROL_FD)
    listener = socket.socket(fileno=LISTENER_FD)
    lines = control.makefile("rb")
    manner = json.loads(lines.readline())["settings"]
    if manner == "fail":
        control.sendall(b'{"failed": "no such disk"}\n')
        sys.exit(1)
    if manner == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control.sendall(b'{"ready": true}\n')
    asked = 0
    while True:
        ready, _, _ = select.select([control, listener], [], [])
        if listener in ready:
            serve(listener)
        if control in ready:
            line = lines.readline()
            if not line:
                return
            if json.loads(line)["do"] == "sample" and manner != "mute":
                asked += 1
                if manner == "once" and asked > 1:
                    continue
                control.sendall(json.dumps({"sample": SAMPLE}).encode() + b"\n")


main()
