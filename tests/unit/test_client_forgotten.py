"""Connections that nobody closes: dropped ones, those that live until Python ends, those that are pickled."""

from __future__ import annotations

import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import sector.aio
import sector.client.blocking

FAKE = """
import io
import threading
from sector.client.blocking import Cloud, ReactorThread
import sector.aio

class Client:
    def __init__(self):
        self.closed = threading.Event()
    def close(self):
        self.closed.set()
    def exists(self, path):
        return True
"""


def run(code: str) -> str:
    """What a program prints that has a reactor thread of its own."""
    done = subprocess.run([sys.executable, "-c", FAKE + code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("face", ["Cloud", "sector.aio.Cloud"])
def test_a_connection_that_was_dropped_is_closed(face: str) -> None:
    """A notebook's cell that connects each time it runs does not run out of descriptors."""
    code = f"""
client = Client()
cloud = {face}(client, ReactorThread.get())
del cloud
print(client.closed.wait(20))
"""
    assert run(code) == "True\n"


def test_an_open_file_keeps_its_connection() -> None:
    """What was made from a connection holds it."""
    code = """
from sector.client.file import CloudReader
client = Client()
reader = CloudReader.__new__(CloudReader)
reader._wait = Cloud(client, ReactorThread.get()).wait
print(client.closed.wait(0.2), reader._wait(client.exists, "/a"))
"""
    assert run(code) == "False True\n"


def test_a_call_while_python_ends_is_refused() -> None:
    """From a finalizer, say: nobody would answer, and the program would never end."""
    code = """
class Late:
    def __init__(self):
        self.cloud = Cloud(io.BytesIO(), ReactorThread.get())  # a class of __main__ would keep all this
    def __del__(self):
        try:
            self.cloud.wait(len, "/a")
        except Exception as error:
            print(error, flush=True)
        self.cloud.close()
        print(self.cloud._closed, flush=True)
late = Late()
"""
    assert run(code) == "Python is ending: no call is answered any more\nTrue\n"


@pytest.mark.parametrize("kind", [sector.client.blocking.Cloud, sector.aio.Cloud])
def test_a_connection_that_is_pickled_says_what_to_do(kind: Any) -> None:
    """As a global that a job's function uses."""
    with pytest.raises(
        TypeError, match=r"a connection to a cloud cannot be pickled: .*connect.* where it is used"
    ):
        pickle.dumps(kind(SimpleNamespace(), SimpleNamespace()))
