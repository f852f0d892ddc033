"""Worker processes of Cumulus behind one listening socket, and the admin port over their counters."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor as running
from twisted.internet import task
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.threads import deferToThread
from twisted.trial import unittest

from cumulus.http import admin_port, workers
from cumulus.http.admin_port import admin_site
from cumulus.http.metrics import Sample
from cumulus.http.workers import WorkerPool
from sector.errors import SectorError

reactor: Any = running
COMMAND = [sys.executable, "-I", "-S", str(Path(__file__).parent / "http_worker.py")]


def fetch(port: int, target: str) -> tuple[int, bytes]:
    """Status and body of one request on a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: s3\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while part := sock.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


async def until(condition: Any) -> None:
    """Wait for it."""
    for _ in range(2000):
        if condition():
            return
        await task.deferLater(reactor, 0.005, lambda: None)
    raise AssertionError("not in 10 s")


class Workers(unittest.TestCase):
    """A pool of two workers, most with an admin port."""

    def start(self, settings: Any = "", count: int = 2) -> WorkerPool:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        pool = WorkerPool(reactor, COMMAND, listener, settings, count, answer_s=0.5)
        self.addCleanup(lambda: (listener.close(), ensureDeferred(pool.stop(5.0)))[1])
        pool.start()
        return pool

    def admin(self, pool: WorkerPool) -> int:
        site = admin_site(pool.samples, lambda: (pool.up, len(pool.workers)), reactor, counted=pool.counted)
        port = reactor.listenTCP(0, site, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    def get(self, target: str, port: int = 0) -> Deferred[tuple[int, bytes]]:
        return deferToThread(fetch, port or self.port, target)

    async def test_both_serve_and_their_counters_are_summed(self) -> None:
        pool = self.start()
        await pool.ready
        pids = {str(worker.pid).encode() for worker in pool.workers}
        seen = [(await self.get("/"))[1] for _ in range(5)]
        assert set(seen) <= pids
        admin = self.admin(pool)
        status, text = await self.get("/metrics", admin)
        assert status == 200
        assert b'\ncumulus_requests_total{operation="Get",status="200"} 10\n' in text
        assert b"\ncumulus_workers 2\n" in text
        status, text = await self.get("/load", admin)
        assert (status, json.loads(text)["connections"]) == (200, 2)
        status, text = await self.get("/health", admin)
        assert (status, json.loads(text)) == (200, {"status": "ok", "workers": 2, "wanted": 2})
        assert (await self.get("/", admin))[0] == 404

    async def test_a_worker_that_dies_is_replaced(self) -> None:
        pool = self.start()
        await pool.ready
        before = {worker.pid for worker in pool.workers}
        assert await self.get("/die") == (0, b"")
        await until(lambda: pool.up == 1)
        admin = self.admin(pool)
        status, text = await self.get("/health", admin)
        assert (status, json.loads(text)["status"]) in {(200, "degraded"), (200, "ok")}
        await until(lambda: pool.up == 2)
        after = {worker.pid for worker in pool.workers}
        assert len(after & before) == 1
        assert (await self.get("/"))[0] == 200

    async def figure(self, admin: int, name: str) -> float:
        """A figure of /metrics."""
        _, text = await self.get("/metrics", admin)
        return next(float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith(name))

    async def test_counters_do_not_fall_when_workers_die(self) -> None:
        """What reads them would take all that is left for new. What was open is not open any more."""
        pool = self.start()
        await pool.ready
        admin = self.admin(pool)
        assert await self.figure(admin, "cumulus_requests_total") == 10
        for died in (1, 2, 3):
            assert await self.get("/die") == (0, b"")
            await until(lambda: pool.up == 1)
            assert await self.figure(admin, "cumulus_requests_total") >= 10
            await until(lambda: pool.up == 2)
            assert await self.figure(admin, "cumulus_requests_total") == 10 + 5 * died
        assert await self.figure(admin, "cumulus_request_seconds_sum") == 2.5
        assert await self.figure(admin, "cumulus_connections") == 2

    async def test_counters_of_a_worker_that_does_not_answer_stay(self) -> None:
        """As it said them last; it counts as missing all the same."""
        pool = self.start("once", count=1)
        await pool.ready
        admin = self.admin(pool)
        assert await self.figure(admin, "cumulus_requests_total") == 5
        assert await self.figure(admin, "cumulus_requests_total") == 5
        status, _ = await self.get("/health", admin)
        assert status == 503

    async def test_a_worker_that_is_only_starting_is_told_to_read_again(self) -> None:
        """A log that is rotated then has its new file from it, too."""
        pool = self.start(count=1)
        worker = pool.workers[0]
        assert worker._control is not None and not worker.ready
        said: list[dict[str, Any]] = []
        self.patch(worker._control, "say", lambda **message: said.append(message))
        pool.reload()
        assert said == [{"do": "reload"}]
        await pool.ready

    async def test_strangers_cannot_take_all_descriptors_by_the_admin_port(self) -> None:
        """Beyond so many connections the oldest that has asked for nothing goes; who asks is answered."""
        self.patch(admin_port, "OPEN_MOST", 5)
        pool = self.start(count=1)
        await pool.ready
        admin = self.admin(pool)
        silent = [await deferToThread(socket.create_connection, ("127.0.0.1", admin), 10) for _ in range(5)]
        try:
            for one in silent:
                await deferToThread(one.sendall, b"GET /metrics HTTP/1.1\r\nX-Slow: ")
            assert (await self.get("/metrics", admin))[0] == 200
            ended = 0
            for one in silent:
                one.settimeout(1 if not ended else 0.05)
                try:
                    ended += not await deferToThread(one.recv, 1)
                except ConnectionError:
                    ended += 1
                except TimeoutError:
                    pass
            assert ended == 1
        finally:
            for one in silent:
                one.close()

    async def test_a_worker_that_cannot_start_says_why(self) -> None:
        pool = self.start("fail")
        with pytest.raises(SectorError, match="a worker cannot start: no such disk"):
            await pool.ready

    async def test_a_worker_that_does_not_answer_is_replaced(self) -> None:
        pool = self.start("mute", count=1)
        await pool.ready
        pid = pool.workers[0].pid
        assert await pool.samples() == []
        await until(lambda: pool.workers[0].ready and pool.workers[0].pid != pid)

    async def test_a_worker_that_hangs_is_replaced_though_nobody_looks_at_it(self) -> None:
        self.patch(workers, "ASK_S", 0.1)
        self.patch(workers, "HANGS_S", 0.4)
        pool = self.start("mute", count=1)
        await pool.ready
        pid = pool.workers[0].pid
        await until(lambda: pool.workers[0].ready and pool.workers[0].pid != pid)

    async def test_a_head_that_stood_still_takes_no_worker_for_dead(self) -> None:
        """It was stopped, or its machine was, between its question and the answer."""
        pool = self.start(count=1)
        await pool.ready
        pid = pool.workers[0].pid
        answer = pool.workers[0].ask()
        time.sleep(2 * pool.answer_s)  # in the reactor's thread
        assert isinstance(await answer, Sample)
        assert (pool.workers[0].pid, pool.up) == (pid, 1)

    async def test_the_end_of_a_process_that_is_heard_late_is_not_that_of_the_next(self) -> None:
        pool = self.start(count=1)
        await pool.ready
        worker = pool.workers[0]
        former, pid = worker._control, worker.pid
        assert await self.get("/die") == (0, b"")
        await until(lambda: worker.ready and worker.pid != pid)
        assert former is not None
        former.connectionLost()
        assert isinstance(await worker.ask(), Sample)

    async def test_a_question_to_a_process_that_has_ended_is_not_one_to_the_next(self) -> None:
        """The end of the process is heard first, and that of the line to it after the next has begun."""
        pool = self.start(count=1)
        await pool.ready
        worker = pool.workers[0]
        pid, former = worker.pid, worker._control
        assert pid is not None and former is not None
        self.patch(former, "_lost", lambda: None)
        os.kill(pid, signal.SIGSTOP)
        answer = worker.ask(patience_s=30)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: worker.ready and worker.pid != pid)
        assert answer.called and await answer is None
        assert isinstance(await worker.ask(), Sample)

    async def test_a_worker_that_does_not_end_is_killed(self) -> None:
        pool = self.start("deaf", count=1)
        await pool.ready
        pid = pool.workers[0].pid
        assert pid is not None
        await ensureDeferred(pool.stop(0.2))
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    async def test_workers_end_when_their_head_is_gone(self) -> None:
        pool = self.start(count=1)
        await pool.ready
        worker = pool.workers[0]
        ended = worker.ended = Deferred()
        worker._control.close()
        await ended
