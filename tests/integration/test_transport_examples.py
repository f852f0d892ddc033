"""The examples of docs/guide/transport.md run as written: Twisted's protocols over UDT, and asyncio."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "transport"


def command(name: str, *args: str) -> list[str]:
    """How an example is called."""
    return [sys.executable, str(EXAMPLES / name), *args]


@contextmanager
def served(name: str, *args: str) -> Iterator[int]:
    """A serving example; its port."""
    process = subprocess.Popen(command(name, *args), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 20)
        line = process.stdout.readline() if ready else ""
        assert line.startswith("listening at "), line
        yield int(line.split()[-1])
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def run(name: str, *args: str, data: str | None = None) -> subprocess.CompletedProcess[str]:
    """An example that ends by itself."""
    return subprocess.run(
        command(name, *args), input=data, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("kind", ["udt", "tcp"])
def test_twisted_web_over_an_endpoint_string(kind: str, tmp_path: Path) -> None:
    """A folder over HTTP: the same programs over UDT and TCP."""
    (tmp_path / "page").write_bytes(os.urandom(3_000_000).hex().encode())
    with served("web.py", "serve", f"{kind}:0:interface=127.0.0.1", str(tmp_path)) as port:
        got = run("web.py", "get", f"{kind}:127.0.0.1:{port}", "/page")
        assert got.stdout == (tmp_path / "page").read_text()
        assert got.returncode == 0
        missing = run("web.py", "get", f"{kind}:127.0.0.1:{port}", "/nothing")
        assert missing.returncode == 1
        assert "404" in missing.stderr


def test_chat_with_line_receivers() -> None:
    """Two guests hear each other."""
    with served("chat.py", "serve", "udt:0:interface=127.0.0.1") as port:
        where = f"udt:127.0.0.1:{port}"
        with running(
            command("chat.py", "join", where, "ann"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as ann:
            assert ann.stdin is not None
            assert ann.stdout is not None
            assert ann.stdout.readline() == "ann is here\n"
            with running(
                command("chat.py", "join", where, "bob"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as bob:
                assert bob.stdin is not None
                assert bob.stdout is not None
                assert bob.stdout.readline() == "bob is here\n"
                for guest, line in ((bob, "hello"), (ann, "hello bob")):
                    assert guest.stdin is not None
                    guest.stdin.write(line + "\n")
                    guest.stdin.flush()
                    name = "bob" if guest is bob else "ann"
                    assert bob.stdout.readline() == f"{name}: {line}\n"
                bob.stdin.close()
                assert bob.wait(20) == 0
            assert [ann.stdout.readline() for _ in range(4)] == [
                "bob is here\n",
                "bob: hello\n",
                "ann: hello bob\n",
                "bob has left\n",
            ]
            ann.stdin.close()
            assert ann.wait(20) == 0


def test_asyncio_streams(tmp_path: Path) -> None:
    """No reactor; the digest of what was sent comes back."""
    (tmp_path / "file").write_bytes(os.urandom(5_000_000))
    with served("sum_asyncio.py", "serve", "0") as port:
        done = run("sum_asyncio.py", "send", "127.0.0.1", str(port), str(tmp_path / "file"))
        assert done.stdout.endswith(" ok\n"), done.stderr
    gone = run("sum_asyncio.py", "send", "127.0.0.1", str(port), str(tmp_path / "file"))
    assert gone.returncode == 1
    assert "nothing listens for UDT" in gone.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("chat.py", "serve", "udt:xx"),
        ("chat.py", "join", "udt:xx"),
        ("chat.py", "join", "bogus:1"),
        ("web.py", "serve", "udt:xx", "."),
        ("web.py", "get", "udt:xx", "/"),
        ("sum_asyncio.py", "serve", "xx"),
    ],
)
def test_an_address_that_is_none_is_one_line(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
