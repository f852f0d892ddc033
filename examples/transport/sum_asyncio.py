"""An asyncio program over UDT: streams as from asyncio.open_connection, and no Twisted reactor.

    python examples/transport/sum_asyncio.py serve 9000
    python examples/transport/sum_asyncio.py send 127.0.0.1 9000 FILE

The server answers each connection with the SHA-256 of the bytes that came; the client announces the length
first, since UDT has no half-close that could mark the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from typing import BinaryIO

from sector.udt import open_udt, serve_udt

CHUNK = 1 << 18


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One client."""
    try:
        left = int(await reader.readline())
        digest = hashlib.sha256()
        while left:
            data = await reader.read(min(left, CHUNK))
            if not data:
                return
            left -= len(data)
            digest.update(data)
        writer.write(digest.hexdigest().encode() + b"\n")
        await writer.drain()
        await reader.read()  # until the client closes
    except (ValueError, ConnectionError) as error:
        print(f"sum: {error}", file=sys.stderr)
    finally:
        writer.close()


async def serve(port: int) -> None:
    """Until interrupted."""
    async with await serve_udt(answer, port) as server:
        print(f"listening at {server.address[1]}", flush=True)
        await asyncio.Event().wait()


async def send(host: str, port: int, file: BinaryIO) -> None:
    """Send a file, check what the server says."""
    digest = hashlib.sha256()
    length = file.seek(0, 2)
    file.seek(0)
    async with open_udt(host, port) as (reader, writer):
        writer.write(f"{length}\n".encode())
        while data := file.read(CHUNK):
            digest.update(data)
            writer.write(data)
            await writer.drain()
        said = (await reader.readline()).decode().strip()
    print(said, "ok" if said == digest.hexdigest() else "DIFFERS")


def main(what: str, *args: str) -> None:
    """Serve or send."""
    try:
        if what == "serve":
            asyncio.run(serve(int(args[0])))
        else:
            with open(args[2], "rb") as file:
                asyncio.run(send(args[0], int(args[1]), file))
    except (OSError, ValueError) as error:
        sys.exit(f"sum: {error}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 5) or sys.argv[1] not in ("serve", "send"):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
