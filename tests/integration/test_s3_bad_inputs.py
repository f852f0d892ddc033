"""A hundred and more wrong inputs to a running Cumulus: each gets S3's error with its status and document, or
one line and an exit status; no traceback, nothing lost, and the service goes on."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
from s3_bad_rows import ROWS
from s3_raw import Answer, Ask, Raw

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit"))

from cumulus_commands import Commands
from s3_server import Server, make, serving

SETTINGS = (
    '[server]\nport = 0\nheader_timeout_s = 2\nmin_body_rate = "1 kB/s"\n[admin]\nport = 0\n'
    '[log]\naccess = "access.log"\n'
)
GUARD = b"this stays whatever comes\n" * 100


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all, whose log is looked at in the end."""
    with serving(tmp_path_factory.mktemp("bad") / "D", SETTINGS) as running:
        raw = Raw(running.port, running.key, running.secret)
        assert raw.send(Ask("PUT", "/box")).status == 200
        assert raw.send(Ask("PUT", "/box/guard", GUARD)).status == 200
        yield running
        assert raw.get("/box/guard").body == GUARD
        listed = raw.get("/box?list-type=2").body
        assert re.findall(rb"<Key>(.*?)</Key>", listed) == [b"guard"], "something was left behind"
        said = running.log()
        assert "Traceback" not in said and running.secret not in said
        assert not [line for line in said.splitlines() if '"level":"error"' in line or '"critical"' in line]


@pytest.fixture(scope="module")
def raw(server: Server) -> Raw:
    """A hand-written client."""
    return Raw(server.port, server.key, server.secret)


@pytest.fixture(scope="module")
def upload(raw: Raw) -> Iterator[str]:
    """A multipart upload under way."""
    found = re.search(rb"<UploadId>(.*?)</UploadId>", raw.send(Ask("POST", "/box/parts?uploads")).body)
    assert found
    yield found[1].decode()
    raw.send(Ask("DELETE", f"/box/parts?uploadId={found[1].decode()}"))


@pytest.mark.parametrize(("name", "ask", "status", "code"), ROWS, ids=[row[0] for row in ROWS])
def test_wrong_requests(raw: Raw, name: str, ask: Ask, status: int, code: str) -> None:
    """S3's code with its status in an XML document, with the id of the header; what was there stays."""
    answer = raw.send(ask)
    assert (answer.status, answer.code) == (status, code), answer.body[:400]
    if status and code:
        told = ElementTree.fromstring(answer.body)
        assert told.tag == "Error" and told.findtext("RequestId") == answer.headers["x-amz-request-id"]
        assert told.findtext("Message") and answer.headers["content-type"] == "application/xml"
    assert raw.get("/box/guard").body == GUARD


COMPLETE = "<CompleteMultipartUpload>{}</CompleteMultipartUpload>"
PART = "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>"
COMPLETIONS = {
    "cut off": ("<CompleteMultipartUpload>", "MalformedXML"),
    "without parts": (COMPLETE.format(""), "MalformedXML"),
    "no number": (COMPLETE.format(PART.format("one", "x")), "MalformedXML"),
    "unknown part": (COMPLETE.format(PART.format(7, "x")), "InvalidPart"),
    "in no order": (COMPLETE.format(PART.format(2, "x") + PART.format(1, "x")), "InvalidPartOrder"),
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_wrong_completions(raw: Raw, upload: str, name: str) -> None:
    """The upload is still there afterwards."""
    body, code = COMPLETIONS[name]
    answer = raw.send(Ask("POST", f"/box/parts?uploadId={upload}", body.encode()))
    assert (answer.status, answer.code) == (400, code)
    assert raw.get(f"/box/parts?uploadId={upload}").status == 200


def test_clients_that_drip(raw: Raw) -> None:
    """A head and bodies of which a byte comes now and then: told so and ended, all at once; others are served
    meanwhile."""

    def drip(start: bytes) -> Answer:
        import s3_raw

        with socket.create_connection(("127.0.0.1", raw.port), 60) as wire:
            wire.sendall(start)
            wire.settimeout(0.3)
            for _ in range(60):
                try:
                    wire.sendall(b"x")
                    wire.settimeout(0.3)
                    if wire.recv(1, socket.MSG_PEEK):
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            wire.settimeout(20)
            return s3_raw._read(wire, "GET")

    head = b"PUT /box/guard HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n"
    signed, _body = raw.head(Ask("PUT", "/box/guard", bytes(900_000), payload="UNSIGNED-PAYLOAD"))
    with ThreadPoolExecutor(3) as threads:
        slow = [threads.submit(drip, start) for start in (b"GET / HTTP/1.1\r\nA: ", head, signed)]
        assert raw.get("/box/guard").body == GUARD
        found = [one.result() for one in slow]
    assert [(one.status, one.code) for one in found] == [(400, "RequestTimeout")] * 3
    assert raw.get("/box/guard").body == GUARD


CONFIGS = {
    "no TOML": "[server",
    "no section": "port = 1",
    "unknown section": "[sevrer]\n",
    "unknown key": "[server]\nprot = 1\n",
    "port no number": '[server]\nport = "x"\n',
    "port too large": "[server]\nport = 99999\n",
    "no workers": "[server]\nworkers = 0\n",
    "rate": '[server]\ntotal_rate = "fast"\n',
    "half a certificate": '[tls]\ncert = "c.pem"\n',
    "redirection without hosts": '[redirect]\nmode = "random"\n',
    "unknown mode": '[redirect]\nmode = "sideways"\nhosts_file = "h"\n',
    "unknown source": '[auth]\nsource = "paper"\n',
    "no UTF-8": "\udcff",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_wrong_settings(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the file and what is wrong, exit status 1 or 2."""
    where = tmp_path / "D"
    make(where, "")
    (where / "cumulus.toml").write_bytes(CONFIGS[name].encode(errors="surrogateescape"))
    told = Commands(capsys, where).refused("serve", "--check-config")
    assert str(where / "cumulus.toml") in told["message"]


STARTS = {
    "unknown backend": ('[storage]\nbackend = "tape"\n', "tape"),
    "no hosts": ('[redirect]\nmode = "random"\nhosts_file = "none"\n', "none"),
    "no certificate": ('[tls]\ncert = "none"\nkey = "none"\n', "none"),
    "no directory": ('[storage]\npath = "/proc/none"\n', "/proc/none"),
    "no secret.key": ('[auth]\nsecret_key_file = "none"\n', "none"),
    "no database": ('[database]\nurl = "sqlite:////proc/none.db"\n', "/proc/none.db"),
}


def test_what_cannot_be_used_at_the_start(tmp_path: Path) -> None:
    """One line on standard error and status 1, in a process of its own, as it would be for a person."""
    from s3_server import CUMULUS

    def start(item: tuple[str, tuple[str, str]]) -> str:
        name, (settings, says) = item
        where = tmp_path / name.replace(" ", "-")
        make(where, "[server]\nport = 0\n[admin]\nport = 0\n" + settings)
        done = subprocess.run(
            [CUMULUS, "serve", str(where), "--log-format", "json"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        told = [line for line in done.stderr.splitlines() if not line.startswith("{")]
        right = (
            done.returncode == 1
            and len(told) in (1, 2)
            and says in told[0]
            and "Traceback" not in done.stderr
        )
        return "" if right else f"{name}: {done.returncode} {done.stderr}"

    make(tmp_path / "first", "")  # the template is not made by two threads at once
    with ThreadPoolExecutor(2) as threads:
        assert [wrong for wrong in threads.map(start, STARTS.items()) if wrong] == []


def with_disks(script: str) -> str:
    """What a script of this directory says in a mount namespace of its own."""
    unshare = ["unshare", "--mount", "--propagation", "unchanged"]  # the script makes it private
    command = [*unshare, "--", sys.executable, str(Path(__file__).with_name(script))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_full_and_a_read_only_disk() -> None:
    """tests/integration/s3_full_disk.py says what has to hold."""
    assert json.loads(with_disks("s3_full_disk.py")) == {"cases": DISK_CASES}


def test_a_bucket_that_is_a_mount_point_is_away_while_its_disk_is() -> None:
    """tests/integration/s3_bucket_disk.py says what has to hold."""
    with_disks("s3_bucket_disk.py")


DISK_CASES = 12


def test_a_hundred_cases() -> None:
    """The issue asks for so many."""
    count = len(ROWS) + len(COMPLETIONS) + 3 + len(CONFIGS) + len(STARTS) + DISK_CASES
    assert count >= 100, count
