"""A user whose machine stands still at the worst moment: it has a ticket and has not begun to use it.

Reads one JSON list a line and answers each with one line of JSON: ["get", PATH, FILE] or ["put", FILE, PATH]
-> bytes and what the user was told. Between the first ticket of a command and its use the program
stops itself (SIGSTOP); whoever drives it lets it go on. A program of its own, since it uses the blocking API.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import sector


def late(start: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """`start`, but the first time in each command the process stops before it."""

    def begin(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread goes no further
        return start(*args, **options)

    return begin


def main() -> None:
    """Until standard input ends."""
    with sector.connect() as cloud:
        client: Any = cloud.client
        data, left = client.link.data, []
        data.receive_file, data.send_file = late(data.receive_file, left), late(data.send_file, left)
        for line in sys.stdin:
            command, *names = json.loads(line)
            left[:] = [1]
            done = getattr(cloud, command)(*names, progress=False)
            print(json.dumps({"bytes": done.bytes, "told": done.notes}), flush=True)


if __name__ == "__main__":
    main()
