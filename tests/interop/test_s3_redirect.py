"""A redirection point before two servers: which unmodified clients follow, and who is left out."""

from __future__ import annotations

import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from s3_server import LOGGED, Server, boto, make, started, wait_until

until = partial(wait_until, within_s=30)

PAGE = Path(__file__).resolve().parents[2] / "docs/guide/cumulus-redirect.md"
BIG = bytes(range(256)) * 12_000  # curl asks with Expect before it sends as much


def admin(server: Server) -> str:
    """HOST:PORT of its admin port."""
    return f"127.0.0.1:{server.admin_port}"


def line(server: Server) -> str:
    """Its line in the file of servers."""
    return f"{server.url} {admin(server)}\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[Server], Path]]:
    """A point, the servers behind it, which know the same user, and its file of servers."""
    base = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        hosts = base / "hosts"
        hosts.write_text("http://127.0.0.1:1 127.0.0.1:1\n")
        redirect = f'[redirect]\nmode = "least-loaded"\npoint = true\nhosts_file = "{hosts}"\n'
        made = [(base / name, *make(base / name, LOGGED)) for name in ("one", "two")]
        made.append((base / "point", *make(base / "point", LOGGED + redirect)))
        with ThreadPoolExecutor(3) as threads:
            *servers, point = threads.map(lambda one: stack.enter_context(started(*one)), made)
        assert status(point) == 503, "no server is up"
        hosts.write_text("".join(line(server) for server in servers))
        for server in servers:
            boto(server).create_bucket(Bucket="box")
        until(lambda: status(point) == 307, "the servers are not known to the point")
        yield point, servers, hosts
        for server in (point, *servers):
            assert server.secret not in server.log() + (server.directory / "access.log").read_text()


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def where(point: Server) -> tuple[int, str]:
    """Status and Location of an anonymous request."""
    opener = urllib.request.build_opener(_Stay)
    try:
        with opener.open(f"{point.url}/box/k", timeout=10) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as told:
        return told.code, told.headers.get("Location", "")


def status(point: Server) -> int:
    """Of an anonymous request."""
    return where(point)[0]


def curl(point: Server, *words: str) -> subprocess.CompletedProcess[bytes]:
    """curl -L, signing, with what it says."""
    signing = ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{point.key}:{point.secret}"]
    signing += ["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]
    command = ["curl", "-sSvL", "--max-time", "20", *signing, *words]
    return subprocess.run(command, capture_output=True, check=True, timeout=30)


def follows(name: str) -> str:
    """What the page says of a client."""
    row = next(row for row in PAGE.read_text().splitlines() if row.startswith(f"| {name} |"))
    return row.split("|")[2].strip()


def all_go_to(point: Server, server: Server) -> None:
    """Wait until nothing is sent elsewhere: of two servers with as much to do none is chosen so often."""

    def there() -> bool:
        return all(where(point)[1].startswith(server.url) for _ in range(6))

    until(there, "not all requests go to one server")


def only(hosts: Path, point: Server, server: Server) -> None:
    """Send everything to one server, so that what was put there is got there."""
    hosts.write_text(line(server))
    all_go_to(point, server)


Site = tuple[Server, list[Server], Path]


def test_curl_follows(site: Site, tmp_path: Path) -> None:
    """PUT with Expect: the point never asks for the body."""
    point, servers, hosts = site
    only(hosts, point, servers[0])
    (tmp_path / "big").write_bytes(BIG)
    said = curl(point, "-T", str(tmp_path / "big"), f"{point.url}/box/big").stderr.decode()
    assert said.index("HTTP/1.1 307") < said.index("HTTP/1.1 100") < said.index("HTTP/1.1 200")
    assert said.count("Expect: 100-continue") == 2 and said.count("HTTP/1.1 100") == 1
    assert boto(servers[0]).get_object(Bucket="box", Key="big")["Body"].read() == BIG
    assert curl(point, f"{point.url}/box/big").stdout == BIG
    assert f"Content-Length: {len(BIG)}".encode() in curl(point, "-I", f"{point.url}/box/big").stdout
    assert follows("curl -L --aws-sigv4") == "yes"


def test_s3cmd_follows_but_loses_a_port(site: Site, tmp_path: Path) -> None:
    """It signs anew for what Endpoint names. Before a get it asks HEAD, whose answer has no document: then it
    takes the name of the host alone from Location, so that only servers on ports 80 and 443 are found."""
    point, servers, hosts = site
    only(hosts, point, servers[1])
    (tmp_path / "file").write_bytes(b"data")
    settings = tmp_path / "s3cfg"
    host = point.url.removeprefix("http://")
    settings.write_text(
        f"[default]\naccess_key = {point.key}\nsecret_key = {point.secret}\nhost_base = {host}\n"
        f"host_bucket = {host}\nuse_https = False\n"
    )
    back = tmp_path / "back"

    def s3cmd(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["s3cmd", "-c", str(settings), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert s3cmd("put", str(tmp_path / "file"), "s3://box/f").returncode == 0
    assert boto(servers[1]).get_object(Bucket="box", Key="f")["Body"].read() == b"data"
    lost = s3cmd("get", "s3://box/f", str(back))
    assert lost.returncode and "Connection refused" in lost.stderr, "port 80 of 127.0.0.1"
    usual = '[server]\nhost = "127.0.0.83"\nport = 80\n[admin]\nport = 0\n'
    directory = tmp_path / "usual"
    with started(directory, *make(directory, usual)) as server:
        hosts.write_text(f"http://127.0.0.83 {admin(server)}\n")
        until(lambda: where(point)[1].startswith("http://127.0.0.83/"), "not sent to the new server")
        for words in (["mb", "s3://box"], ["put", str(tmp_path / "file"), "s3://box/g"]):
            assert s3cmd(*words).returncode == 0
        assert s3cmd("get", "s3://box/g", str(back)).returncode == 0
    assert back.read_bytes() == b"data"
    assert follows("s3cmd") == "yes, to the usual ports"


def test_boto3_does_not_follow(site: Site) -> None:
    """It says what it was told."""
    point, servers, hosts = site
    only(hosts, point, servers[0])
    with pytest.raises(ClientError) as caught:
        boto(point).get_object(Bucket="box", Key="k")
    assert caught.value.response["Error"]["Code"] == "TemporaryRedirect"
    assert follows("boto3") == "no"


def test_the_busy_server_is_left_alone(site: Site) -> None:
    """least-loaded, while one server has uploads under way; when they have gone, it gets requests again."""
    point, servers, hosts = site
    hosts.write_text("".join(line(server) for server in servers))
    head = b"PUT /box/slow HTTP/1.1\r\nHost: s3\r\nContent-Length: 9\r\n\r\nabc"
    with ExitStack() as stack:
        for _ in range(30):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", servers[0].port), 10))
            wire.sendall(head)
        all_go_to(point, servers[1])
    until(lambda: where(point)[1].startswith(servers[0].url), "the free server gets nothing")


def test_server_that_does_not_answer_is_left_out(site: Site) -> None:
    """A version of the file with an error changes nothing."""
    point, servers, hosts = site
    hosts.write_text(line(servers[0]) + "http://127.0.0.1:1 127.0.0.1:1\n")
    all_go_to(point, servers[0])
    assert "nothing is sent to the server with the admin port 127.0.0.1:1" in point.log()
    hosts.write_text("http://127.0.0.1:x\n")
    until(lambda: "is no port" in point.log(), "the bad version is told")
    assert where(point)[1].startswith(servers[0].url), "the version before stays"


def test_a_file_of_servers_on_a_disk_that_does_not_answer(site: Site) -> None:
    """Whoever reads it waits; requests are redirected as before, until it answers."""
    point, servers, hosts = site
    only(hosts, point, servers[0])
    os.mkfifo(pipe := hosts.with_name("pipe"))
    pipe.rename(hosts)
    wires: list[int] = []
    until(lambda: wires or _has_reader(hosts, wires), "nobody reads the file")
    for _ in range(40):
        assert where(point)[1].startswith(servers[0].url)
    with open(wires[0], "w") as file:
        file.write(line(servers[1]))
    hosts.unlink()
    hosts.write_text(line(servers[1]))
    all_go_to(point, servers[1])


def _has_reader(pipe: Path, wires: list[int]) -> bool:
    """Also a writer then, among `wires`."""
    try:
        wires.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
