"""`sector udtcat` where both ends send: who closes first ends both directions, and nobody is told that all
is well where something was lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import subprocess
import sys
import threading
import time

import pytest
from running import running, wait_listening

from sector.ports import free_ports
from sector.udt import serve_udt

COMMAND = [sys.executable, "-m", "sector.cli.main", "udtcat"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.mark.parametrize(("ours", "theirs"), [(2_000_000, 2_700_000), (2_700_000, 2_000_000)])
def test_a_part_is_no_success_of_both(ours: int, theirs: int) -> None:
    """In time, too: an end that closes while the other one is closing does not wait for it."""
    (port,) = free_ports(1, "0.0.0.0")
    head = ["head", "-c", str(theirs), "/dev/zero"]
    with running(head, stdout=subprocess.PIPE) as source:
        with running([*COMMAND, "-l", str(port)], stdin=source.stdout, **PIPES) as listener:
            assert source.stdout is not None
            source.stdout.close()
            wait_listening("listening", listener, port)
            command = [*COMMAND, "127.0.0.1", str(port)]
            client = subprocess.run(command, input=bytes(ours), timeout=30, **PIPES)
            out, err = listener.communicate(timeout=30)
    ended = client.returncode, listener.returncode
    if (len(client.stdout), len(out)) != (theirs, ours):
        assert 1 in ended and set(ended) <= {0, 1}
        told = client.stderr + err
        assert any(
            words in told for words in (b"end of input", b"not all that was sent", b"before all was sent")
        ), told
    else:
        assert ended == (0, 0)


@pytest.mark.parametrize(
    ("then", "status"), [(b"more", 1), (b"", 0), (None, 0)], ids=["goes on", "ends", "says nothing"]
)
def test_input_that_comes_just_when_the_peer_closes_was_not_sent(then: bytes | None, status: int) -> None:
    """Its end does, or a pause, means that all was said."""

    async def run() -> None:
        seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = await reader.read(100)
            writer.close()
            await writer.wait_closed()
            seen.set_result(data)

        async with await serve_udt(take, 0, "127.0.0.1") as server:
            cat = await asyncio.create_subprocess_exec(
                *COMMAND, "127.0.0.1", str(server.address[1]), stdin=subprocess.PIPE, **PIPES
            )
            assert cat.stdin is not None
            cat.stdin.write(b"some")
            assert await asyncio.wait_for(seen, 20) == b"some"
            await asyncio.sleep(0.1)  # it hears of the end
            if then is not None:
                cat.stdin.write(then)
                cat.stdin.close()
            out, err = await asyncio.wait_for(_rest(cat), 20)
            assert (cat.returncode, out) == (status, b"")
            assert (b"before the end of input" in err) == bool(status)
        with contextlib.suppress(ConnectionError):
            cat.stdin.close()

    asyncio.run(run())


async def _rest(cat: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Without closing its input, as communicate() does."""
    assert cat.stdout is not None and cat.stderr is not None
    out, err = await asyncio.gather(cat.stdout.read(), cat.stderr.read())
    await cat.wait()
    return out, err


@pytest.mark.parametrize("slow", [False, True], ids=["waits for its peer", "waits for its reader"])
def test_an_end_that_only_receives_says_who_was_slow(slow: bool) -> None:
    """It had nothing to send all the time; that is no answer to the question."""
    (port,) = free_ports(1, "0.0.0.0")
    size = 30_000_000
    with running([*COMMAND, "-l", str(port), "--stats"], stdin=subprocess.DEVNULL, **PIPES) as listener:
        wait_listening("listening", listener, port)
        assert listener.stdout is not None and listener.stderr is not None
        with running([*COMMAND, "127.0.0.1", str(port)], stdin=subprocess.PIPE, **PIPES) as client:
            assert client.stdin is not None
            sends = threading.Thread(target=lambda: (client.stdin.write(bytes(size)), client.stdin.close()))
            if slow:
                sends.start()
                assert select.select([listener.stdout], [], [], 30)[0]
                time.sleep(4)  # its pipe and its own buffer are full soon
            else:
                time.sleep(2)
                sends.start()
            got = 0
            while data := listener.stdout.read(1 << 20):
                got += len(data)
            sends.join()
            assert client.wait(30) == 0
        told = json.loads(listener.stderr.read())
        assert listener.wait(30) == 0
    assert got == told["received"] == size
    limited = told["limited"]
    assert set(limited) <= {"output", "peer"} and abs(sum(limited.values()) - 1) < 0.01
    assert (limited.get("output", 0) > 0.3) == slow, limited
