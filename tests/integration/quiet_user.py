"""A user with one connection for all it does, so that it adds nothing to the state it looks at.

Reads one JSON list a line (command, arguments) and answers each with one line of JSON: ["status"] -> the
counters of the master and of each slave; ["put", FILE, PATH]; ["rm", PATH]. A program of its
own, since it uses the blocking API.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import sector


def answer(cloud: sector.Cloud, command: str, *arguments: str) -> Any:
    """Do one command."""
    if command == "put":
        return cloud.put(*arguments, progress=False).bytes
    if command == "rm":
        cloud.rm(*arguments)
        return True
    state = cloud.status()
    return {"master": state.counters, **state.nodes}


def main() -> None:
    """Until standard input ends."""
    with sector.connect() as cloud:
        for line in sys.stdin:
            print(json.dumps(answer(cloud, *json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
