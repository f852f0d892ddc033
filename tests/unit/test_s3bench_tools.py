"""What the S3 benchmarks measure with: slow syncs, and a server that keeps nothing."""

from __future__ import annotations

import http.client
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from running import running

from sector.bench.common import program

SYNCS = """
import ctypes, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, b"x")
libc = ctypes.CDLL(None, use_errno=True)
began = time.monotonic()
for call in (os.fsync, os.fdatasync, os.fdatasync, libc.syncfs):
    call(fd)
assert libc.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(1), 0) == 0
print(time.monotonic() - began)
os.close(fd)
try:
    os.fsync(fd)
except OSError as error:
    print(error.errno)
"""


def test_syncs_are_slowed_and_counted(tmp_path: Path) -> None:
    """Their outcome is the real one."""
    count = tmp_path / "count"
    more = {"LD_PRELOAD": program("slowsync.so"), "SLOWSYNC_US": "20000", "SLOWSYNC_COUNT": str(count)}
    done = subprocess.run(
        [sys.executable, "-c", SYNCS, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        env={**os.environ, **more},
        timeout=60,
        check=True,
    )
    took, errno = done.stdout.split()
    assert float(took) >= 5 * 0.02 and int(errno) == 9
    assert struct.unpack("4Q", count.read_bytes()) == (2, 2, 1, 1)


@contextmanager
def sink() -> Iterator[int]:
    """Its port."""
    with running([program("s3sink")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.terminate()


def test_the_sink_keeps_nothing_and_sends_as_much_as_the_key_says() -> None:
    with sink() as port:
        server = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

        def ask(
            method: str, target: str, body: bytes = b"", **headers: str
        ) -> tuple[int, http.client.HTTPMessage, bytes]:
            server.request(method, target, body, headers)
            answer = server.getresponse()
            return answer.status, answer.headers, answer.read()

        status, _, body = ask("GET", "/b/file-5000000.bin")
        assert (status, body) == (200, bytes(5000000))
        status, headers, body = ask("GET", "/b/file-5000000.bin", Range="bytes=10-19")
        assert status == 206 and headers["Content-Range"] == "bytes 10-19/5000000" and len(body) == 10
        assert ask("GET", "/b/f-100", Range="bytes=90-")[1]["Content-Range"] == "bytes 90-99/100"
        assert ask("HEAD", "/b/f-100")[1]["Content-Length"] == "100"
        assert ask("HEAD", "/b/unknown")[0] == 404
        assert ask("PUT", "/b/x", bytes(3000000))[1]["ETag"].endswith('-1"')
        assert b"UploadId" in ask("POST", "/b/x?uploads")[2]
        assert ask("DELETE", "/b/x")[0] == 204
        assert ask("POST", "/b/f-7?uploads", **{"X-Amz-Meta-Md5chksum": "sum"})[0] == 200
        assert [ask(m, "/b/f-7")[1]["x-amz-meta-md5chksum"] for m in ("HEAD", "GET")] == ["sum", "sum"]
        assert ask("GET", "/b/f-8")[1]["x-amz-meta-md5chksum"] is None
        server.close()


def test_the_sink_takes_chunks_and_says_when_to_go_on() -> None:
    with sink() as port, socket.create_connection(("127.0.0.1", port), timeout=20) as conn:
        conn.sendall(
            b"PUT /b/k HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        assert conn.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        conn.sendall(b"3\r\nabc\r\n0\r\nx-amz-checksum-crc32: AAAA\r\n\r\nGET /b?location HTTP/1.1\r\n\r\n")
        said = b""
        while b"Location" not in said:
            said += conn.recv(4096)
        assert said.count(b"200 OK") == 2
