"""`sector bench gmp --python`: calls from Python over GMP beside gRPC, one core a side.

Both ends are processes of their own. The Sector side is what masters and slaves use: `RpcNode`, a typed
request in, a Deferred of a typed reply out, AES-256-GCM on every datagram. The gRPC side sends the same
bytes with no serializer at all and no encryption, once with its blocking API and once with `grpc.aio`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from sector.errors import SectorError

PEERS = ("grpc",)
BYTES = 1024
IN_FLIGHT = 64
KEY_ID = 0x01000001
METHOD = "/sector.Bench/Echo"


def measure(peers: list[str], *, rounds: int, seconds: float, cpus: tuple[int, int]) -> list[dict[str, Any]]:
    """One row each for the Sector RPC and the peers: `p50_us`, `p99_us` of calls one after the other, and
    `calls_per_s` with 64 under way for `seconds`. `cpus`: the cores of caller and callee."""
    if "grpc" in peers and importlib.util.find_spec("grpc") is None:
        raise SectorError("the peer grpc needs Python's gRPC", hint="pip install 'sector-cloud[bench]'")
    kinds = ["sector", *(kind for peer in peers for kind in ("grpc", "grpc_aio") if peer == "grpc")]
    return [_pair(kind, rounds, seconds, cpus) for kind in kinds]


def _start(role: str, kind: str, cpu: int, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sector.bench.rpc", role, kind, str(cpu), *args]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str], what: str, timeout_s: float) -> str:
    stream = process.stdout
    assert stream is not None
    ready, _, _ = select.select([stream], [], [], timeout_s)
    line = stream.readline().strip() if ready else ""
    if not line:
        raise SectorError(f"the {what} of the Python bench gave no result")
    return line


def _pair(kind: str, rounds: int, seconds: float, cpus: tuple[int, int]) -> dict[str, Any]:
    callee = _start("serve", kind, cpus[1])
    caller = None
    try:
        port = _line(callee, f"{kind} callee", 30)
        caller = _start("call", kind, cpus[0], port, str(rounds), str(seconds))
        row: dict[str, Any] = json.loads(_line(caller, f"{kind} caller", 120 + seconds))
        return {"peer": f"python_{kind}", **row}
    finally:
        for process in (caller, callee):
            if process is not None:
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        stream.close()
                process.terminate()
                process.wait(10)


def _summary(times: list[float], calls: int, wall_s: float) -> dict[str, float]:
    times.sort()
    return {
        "p50_us": statistics.median(times) * 1e6,
        "p99_us": times[int(len(times) * 0.99)] * 1e6,
        "calls_per_s": calls / wall_s,
    }


# ---- Sector ----------------------------------------------------------------------------------------
def _sector_node(reactor: Any) -> tuple[Any, type[Any]]:
    from sector._udt.context import Core
    from sector.gmp.api import GmpKey
    from sector.gmp.node import open_gmp
    from sector.rpc import RpcNode
    from sector.wire.base import Message, Request, request

    class Echoed(Message, frozen=True, array_like=True):
        body: bytes

    @request(0x7FFF, reply=Echoed)
    class Echo(Request, frozen=True, array_like=True):
        body: bytes

    gmp = open_gmp(Core(reactor), "127.0.0.1", 0)
    gmp.add_key(GmpKey(KEY_ID, bytes(range(32)), "slave:bench"))
    return RpcNode(gmp), Echo


def _serve_sector(reactor: Any) -> None:
    rpc, echo = _sector_node(reactor)
    reply = echo.REPLY
    rpc.serve(echo, lambda request, caller: reply(request.body))
    print(rpc.gmp.address[1], flush=True)
    reactor.run(installSignalHandlers=False)


def _call_sector(reactor: Any, port: int, rounds: int, seconds: float) -> None:
    from twisted.internet.defer import ensureDeferred

    rpc, echo = _sector_node(reactor)
    from sector.gmp.api import Peer

    peer, body = Peer("127.0.0.1", port, KEY_ID), os.urandom(BYTES)

    def call() -> Any:
        return rpc.call(peer, echo(body))

    async def run() -> None:
        result = await _drive(call)
        print(json.dumps(result), flush=True)
        reactor.stop()

    async def _drive(call: Callable[[], Any]) -> dict[str, float]:
        from twisted.internet.defer import Deferred

        for _ in range(500):
            await call()
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            await call()
            times.append(time.perf_counter() - start)
        done: Deferred[None] = Deferred()
        end = (begin := time.perf_counter()) + seconds
        count = open_calls = 0

        def answered(_: object) -> None:
            nonlocal count, open_calls
            count += 1
            if time.perf_counter() < end:
                call().addCallback(answered)
                return
            open_calls -= 1
            if not open_calls:
                done.callback(None)

        for _ in range(IN_FLIGHT):
            open_calls += 1
            call().addCallback(answered)
        await done
        return _summary(times, count, time.perf_counter() - begin)

    reactor.callWhenRunning(lambda: ensureDeferred(run()).addErrback(_fail, reactor))
    reactor.run(installSignalHandlers=False)


def _fail(failure: Any, reactor: Any) -> None:
    failure.printTraceback(sys.stderr)
    reactor.stop()


# ---- gRPC ------------------------------------------------------------------------------------------
_GRPC_OPTIONS = [("grpc.so_reuseport", 0)]


def _grpc() -> Any:
    import grpc  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return grpc


def _handlers(grpc: Any, method: Any) -> Any:
    handler = grpc.unary_unary_rpc_method_handler(method)
    return grpc.method_handlers_generic_handler("sector.Bench", {"Echo": handler})


def _serve_grpc() -> None:
    from concurrent.futures import ThreadPoolExecutor

    grpc = _grpc()
    server = grpc.server(ThreadPoolExecutor(8), options=_GRPC_OPTIONS)
    server.add_generic_rpc_handlers((_handlers(grpc, lambda body, context: body),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


def _call_grpc(port: int, rounds: int, seconds: float) -> None:
    import threading

    grpc = _grpc()
    call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(METHOD)
    body = os.urandom(BYTES)
    for _ in range(500):
        call(body)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call(body)
        times.append(time.perf_counter() - start)
    done = threading.Event()
    lock = threading.Lock()
    end = (begin := time.perf_counter()) + seconds
    count, open_calls = 0, IN_FLIGHT

    def answered(_: object) -> None:
        nonlocal count, open_calls
        with lock:
            count += 1
            if time.perf_counter() >= end:
                open_calls -= 1
                if not open_calls:
                    done.set()
                return
        call.future(body).add_done_callback(answered)

    for _ in range(IN_FLIGHT):
        call.future(body).add_done_callback(answered)
    done.wait(seconds + 30)
    print(json.dumps(_summary(times, count, time.perf_counter() - begin)), flush=True)
    os._exit(0)  # its threads take seconds to end


def _serve_grpc_aio() -> None:
    import asyncio

    grpc = _grpc()

    async def echo(body: bytes, context: Any) -> bytes:
        return body

    async def run() -> None:
        server = grpc.aio.server(options=_GRPC_OPTIONS)
        server.add_generic_rpc_handlers((_handlers(grpc, echo),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()

    asyncio.run(run())


def _call_grpc_aio(port: int, rounds: int, seconds: float) -> None:
    import asyncio

    grpc = _grpc()

    async def run() -> dict[str, float]:
        body = os.urandom(BYTES)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(METHOD)
            for _ in range(500):
                await call(body)
            times = []
            for _ in range(rounds):
                start = time.perf_counter()
                await call(body)
                times.append(time.perf_counter() - start)
            end = (begin := time.perf_counter()) + seconds
            count = 0

            async def caller() -> None:
                nonlocal count
                while time.perf_counter() < end:
                    await call(body)
                    count += 1

            await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
            return _summary(times, count, time.perf_counter() - begin)

    print(json.dumps(asyncio.run(run())), flush=True)


def main(role: str, kind: str, cpu: str, *args: str) -> None:
    """One end, in a process of its own. Pinned before any thread exists."""
    os.sched_setaffinity(0, {int(cpu)})
    if kind == "sector":
        from twisted.internet.epollreactor import EPollReactor
        from twisted.internet.main import installReactor

        reactor = EPollReactor()
        installReactor(reactor)
        if role == "serve":
            _serve_sector(reactor)
        else:
            _call_sector(reactor, int(args[0]), int(args[1]), float(args[2]))
    elif role == "serve":
        (_serve_grpc if kind == "grpc" else _serve_grpc_aio)()
    else:
        (_call_grpc if kind == "grpc" else _call_grpc_aio)(int(args[0]), int(args[1]), float(args[2]))


if __name__ == "__main__":
    main(*sys.argv[1:])
