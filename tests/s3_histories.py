"""Histories of one key: clients that put, get and delete it at the same time, with and without conditions."""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
from collections.abc import Callable, Sequence

from linearizable import Operation
from s3_wire import Answer

Ask = Callable[..., Answer]  # (method, path, body, headers=)


def etag(value: str) -> str:
    """Of an object with these bytes."""
    return f'"{hashlib.md5(value.encode()).hexdigest()}"'


def _one(
    ask: Ask, path: str, rng: random.Random, value: str, known: list[str], tick: Callable[[], int]
) -> Operation:
    what = rng.choice(("put", "put", "get", "get", "get", "delete"))
    condition = rng.choice(("", "", "*", "is")) if what == "put" else rng.choice(("", "is"))
    condition = "" if what == "get" else rng.choice(known) if condition == "is" and known else condition
    condition = "" if condition == "is" else condition
    headers = (
        {"If-None-Match": "*"} if condition == "*" else {"If-Match": etag(condition)} if condition else {}
    )
    method = {"put": "PUT", "get": "GET", "delete": "DELETE"}[what]
    begin = tick()
    answer = ask(method, path, value.encode() if what == "put" else b"", headers=headers)
    end = tick()
    seen = answer.body.decode() if answer.status == 200 and what == "get" else None
    if answer.status == 200 and what == "put":
        known.append(value)
    return Operation(begin, end, what, value, condition, answer.status, seen)


def history(asks: Sequence[Ask], path: str, seed: int, count: int) -> list[Operation]:
    """Each client makes `count` operations."""
    ticks = itertools.count()
    found: list[Operation] = []
    known: list[str] = []
    barrier = threading.Barrier(len(asks))
    errors: list[BaseException] = []

    def run(number: int, ask: Ask) -> None:
        rng = random.Random(f"{seed} {number}")
        barrier.wait()
        try:
            for place in range(count):
                value = f"{number}-{place} " + "x" * rng.choice((0, 100))
                found.append(_one(ask, path, rng, value, known, lambda: next(ticks)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(asks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return found
