"""A worker that is killed: what it has begun is finished while the others go on."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from s3_server import boto, serving, wait_until

SETTINGS = "[server]\nport = 0\nworkers = 2\n[admin]\nport = 0\n[storage]\nrescan_s = 3600\n"
WRITERS = 4


def journals(directory: Path, pid: int) -> list[str]:
    """Those of a process."""
    return [name for name in os.listdir(directory / "journal") if name.startswith(f"{pid:x}-")]


def written(client: Any, writer: int, over: threading.Event) -> None:
    """Objects whose keys no file system can name, until `over`: only the database leads to them."""
    for number in itertools.count():
        if over.is_set():
            return
        with contextlib.suppress(ClientError, BotoCoreError):
            client.put_object(Bucket="bkt", Key=f"{writer}//{number}", Body=b"x" * 100)


def test_what_a_killed_worker_has_begun_is_taken_in_while_the_others_serve(tmp_path: Path) -> None:
    """What it has published is listed, no journal of it stays (as long as one does, removals by all others
    stay on record in every one of theirs), and the server goes on."""
    directory = tmp_path / "D"
    with serving(directory, SETTINGS) as server:
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        client = boto(server)
        client.create_bucket(Bucket="bkt")
        over = threading.Event()
        threads = [
            threading.Thread(target=written, args=(boto(server), writer, over)) for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        killed = []
        for _ in range(3):
            before = set(children.read_text().split())
            wait_until(
                lambda before=before: [one for one in before if journals(directory, int(one))],
                "no journal",
                20,
            )
            killed.append(next(int(one) for one in before if journals(directory, int(one))))
            os.kill(killed[-1], signal.SIGKILL)
            wait_until(
                lambda before=before: len(set(children.read_text().split()) - before) == 1, "no other", 20
            )
            time.sleep(0.5)
        over.set()
        for thread in threads:
            thread.join(30)
        wait_until(
            lambda: not any(journals(directory, one) for one in killed), "a journal stays", 20, every_s=0.2
        )
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="bkt")
        listed = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        bodies = os.listdir(directory / "data/bkt/.cumulus/odd")
        assert len(listed) == len(bodies) > 0
