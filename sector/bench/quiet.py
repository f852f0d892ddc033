"""What connections do when nothing goes on, and when the other end is gone: real sockets, real time.

    python -m sector.bench.quiet idle CONNECTIONS SECONDS     one JSON line
    python -m sector.bench.quiet dead                         one JSON line
    python -m sector.bench.quiet serve                        the end that is stopped, for `dead`

`idle` wants a network namespace of its own: it counts the datagrams of the kernel.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from sector.bench import wan
from sector.bench.common import alone
from sector.errors import SectorError
from sector.udt import UdtOptions, open_udt, serve_udt

HOST = "127.0.0.1"
SETTLE_S = 2.0
CONFIGURED_S = 3.0


def measure(kind: str, connections: int = 100, seconds: float = 10.0) -> dict[str, Any]:
    """`idle`: `packets_per_5s` of a connection, both ends together, and `threads` that connections brought to
    the process that listens. `dead`: seconds until a stopped peer was noticed: `idle_s`, `sending_s`, and
    `configured_s` where 3 was asked for. Raises SectorError."""
    words = [sys.executable, "-m", "sector.bench.quiet", kind]
    if kind == "idle":
        words += [str(connections), f"{seconds:g}"]
    with alone(), wan.local(["--mtu", "1500"]) as path:
        command = [*path.sender, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 90, check=False)
        except subprocess.TimeoutExpired:
            raise SectorError(f"the bench of {kind} connections did not end") from None
    if done.returncode:
        raise SectorError(f"the bench of {kind} connections failed: {done.stderr.strip()[-300:]}")
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def datagrams() -> int:
    """What this namespace has sent over UDP."""
    lines = [line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines()]
    heads, values = (line for line in lines if line[0] == "Udp:")
    return int(values[heads.index("OutDatagrams")])


def threads(pid: int) -> int:
    """Threads of a process."""
    return len(os.listdir(f"/proc/{pid}/task"))


async def idle(connections: int, seconds: float) -> dict[str, Any]:
    """Clients here, their listener in another process; the datagrams of both are counted."""
    peer, port = await _start_peer()
    try:
        async with AsyncExitStack() as stack:
            await _echo(*await stack.enter_async_context(open_udt(HOST, port)))
            before = threads(peer.pid)
            for _ in range(connections - 1):
                await _echo(*await stack.enter_async_context(open_udt(HOST, port)))
            await asyncio.sleep(SETTLE_S)
            sent, more = datagrams(), threads(peer.pid) - before
            await asyncio.sleep(seconds)
            sent = datagrams() - sent
    finally:
        peer.kill()
        peer.wait()
    return {
        "connections": connections,
        "seconds": seconds,
        "packets": sent,
        "packets_per_5s": round(sent / connections / seconds * 5, 4),
        "threads": more,
    }


async def _start_peer() -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "sector.bench.quiet", "serve"]
    loop = asyncio.get_running_loop()

    def start_thd() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    peer = await loop.run_in_executor(None, start_thd)
    assert peer.stdout is not None
    line = await loop.run_in_executor(None, peer.stdout.readline)
    return peer, int(line)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"x")
    await reader.readexactly(1)


async def dead() -> dict[str, Any]:
    """A peer in another process is stopped: its socket stays, it says nothing more."""
    peer, port = await _start_peer()
    try:
        async with AsyncExitStack() as stack:
            pairs = []
            for options in (UdtOptions(), UdtOptions(), UdtOptions(idle_timeout_s=CONFIGURED_S)):
                context = open_udt(HOST, port, options)
                pairs.append(await context.__aenter__())
                stack.push_async_callback(_leave, context)
                await _echo(*pairs[-1])
            await asyncio.sleep(1.0)
            peer.send_signal(signal.SIGSTOP)
            begin = time.monotonic()
            pairs[1][1].write(bytes(1 << 20))
            found = await asyncio.gather(*(_until_lost(reader, begin) for reader, _ in pairs))
    finally:
        peer.kill()
        peer.wait()
    return dict(zip(("idle_s", "sending_s", "configured_s"), found, strict=True))


async def _leave(context: Any) -> None:
    with suppress(OSError):
        await context.__aexit__(ConnectionResetError, ConnectionResetError(), None)


async def _until_lost(reader: asyncio.StreamReader, begin: float) -> float:
    with suppress(OSError):
        await asyncio.wait_for(reader.read(1), 60)
    return round(time.monotonic() - begin, 3)


async def serve() -> None:
    """Say the port, echo single bytes, take the rest."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        while await reader.read(1 << 16):
            pass

    server = await serve_udt(connected, 0, HOST)
    print(server.address[1], flush=True)
    await asyncio.sleep(120)


def main(kind: str, *args: str) -> None:
    """One of the three."""
    if kind == "serve":
        asyncio.run(serve())
        return
    work: Awaitable[dict[str, Any]] = idle(int(args[0]), float(args[1])) if kind == "idle" else dead()

    async def run() -> dict[str, Any]:
        return await work

    print(json.dumps(asyncio.run(run())), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
