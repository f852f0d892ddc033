"""Scopes of IPv6 addresses, names with several addresses, and who listens on all."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Any

import pytest
from running import running, wait_listening

from sector._udt.address import canonical
from sector._udt.aio import LoopReactor
from sector.cli.tools import _literal
from sector.ports import free_ports
from sector.udt import UdtOptions, open_udt, serve_udt

UDTCAT = [sys.executable, "-m", "sector.cli.main", "udtcat"]


def test_only_link_local_addresses_have_a_scope() -> None:
    """Elsewhere it may be written, and is no part of the address that answers come from."""
    assert canonical("fe80::1%lo", 9) == ("fe80::1%1", 9)
    assert canonical("::1%lo", 9) == ("::1", 9)
    assert canonical("2001:db8::1%1", 9) == ("2001:db8::1", 9)
    for host in ("fe80::1%nosuch", "::1%nosuch"):
        with pytest.raises(OSError, match="no interface"):
            canonical(host, 9)


def test_a_host_that_is_found_keeps_its_scope() -> None:
    """By udtcat, and by names for asyncio programs: a link-local address without it leads nowhere."""
    assert _literal("fe80::1%lo") == "fe80::1%1"
    assert _literal("::1") == "::1"
    assert _literal("127.0.0.1") == "127.0.0.1"

    class Loop(asyncio.SelectorEventLoop):
        async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
            return [
                (10, 2, 17, "", ("fe80::1", 0, 0, 3)),
                (10, 2, 17, "", ("2001:db8::1", 0, 0, 0)),
                (2, 2, 17, "", ("192.0.2.1", 0)),
            ]

    class Receiver:
        found: list[str] = []

        def resolutionBegan(self, resolution: object) -> None:
            pass

        def addressResolved(self, address: Any) -> None:
            self.found.append(address.host)

        def resolutionComplete(self) -> None:
            loop.stop()

    loop = Loop()
    LoopReactor(loop).resolveHostName(Receiver(), "near.local")
    loop.run_forever()
    loop.close()
    assert Receiver.found == ["fe80::1%3", "2001:db8::1", "192.0.2.1"]


def test_a_scope_too_many_does_no_harm() -> None:
    async def run() -> None:
        async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.close()

        async with await serve_udt(hello, 0, "::1%lo") as server:
            async with open_udt("::1%lo", server.address[1]) as (reader, writer):
                assert await reader.read() == b"hello"
                assert writer.get_extra_info("peername") == ("::1", server.address[1])
        await server.wait_closed()

    asyncio.run(run())


def test_udtcat_tries_all_addresses_of_a_name() -> None:
    """localhost, where only IPv6 is listened to: IPv4 refuses first."""

    async def run() -> None:
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.set_result(await reader.read())
            writer.close()

        async with await serve_udt(take, 0, "::1") as server:
            cat = await asyncio.create_subprocess_exec(
                *UDTCAT, "localhost", str(server.address[1]), stdin=subprocess.PIPE, stderr=subprocess.PIPE
            )
            _, err = await asyncio.wait_for(cat.communicate(b"data"), 30)
            assert (cat.returncode, err) == (0, b"")
            assert await asyncio.wait_for(heard, 10) == b"data"
        await server.wait_closed()

    asyncio.run(run())


def test_of_several_addresses_the_one_that_answered_says_why() -> None:
    """As of localhost on a machine without IPv6: not the one behind which nobody is."""

    class Loop(asyncio.SelectorEventLoop):
        async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
            return [(2, 2, 17, "", ("127.0.0.1", 0)), (2, 2, 17, "", ("127.0.0.2", 0))]

    async def run(port: int) -> None:
        with pytest.raises(ConnectionRefusedError, match=f"nothing listens for UDT at 127.0.0.1:{port}"):
            async with open_udt("two.example", port, UdtOptions(connect_timeout_s=0.3)):
                pass

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.2", 0))
        loop = Loop()
        loop.run_until_complete(run(silent.getsockname()[1]))
        loop.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_udtcat_listens_on_all_addresses(host: str) -> None:
    """Who has IPv6 only is heard too."""
    port = str(free_ports(1, "::")[0])
    with running([*UDTCAT, "-l", port], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as here:
        wait_listening("listening", here, int(port))
        there = subprocess.run(
            [*UDTCAT, host, port], input=b"data", capture_output=True, timeout=30, check=False
        )
        assert there.returncode == 0, there.stderr
        assert here.communicate(timeout=30)[0] == b"data"
        assert here.returncode == 0
