"""TLS on every port: a server that speaks nothing else, its admin port and page, a point that polls it and a
proxy before it, and those that do not believe its certificate."""

from __future__ import annotations

import http.client
import signal
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from s3_server import Server, boto, make, started, wait_until
from s3_tls import write_certificate

until = partial(wait_until, within_s=30)

PORTS = "[server]\nport = 0\n"
PLAIN = "[admin]\nport = 0\n"
BODY = bytes(range(256)) * 20_000

Site = tuple[Server, dict[str, Server], Path]


def point(mode: str, hosts: Path, ca: Path | None) -> str:
    """Settings of one that only sends on."""
    trusted = f'ca_file = "{ca}"\n' if ca else ""
    return f'{PORTS}{PLAIN}[redirect]\nmode = "{mode}"\npoint = true\nhosts_file = "{hosts}"\n{trusted}'


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The server, those in front of it by name, and its certificate."""
    base = tmp_path_factory.mktemp("tls")
    cert, key = write_certificate(base)
    files = f'cert = "{cert}"\nkey = "{key}"\n'
    hosts = base / "hosts"
    hosts.write_text("https://127.0.0.1:1 https://127.0.0.1:1\n")
    settings = {
        "server": f"{PORTS}[tls]\n{files}{PLAIN}{files}",
        "polling": point("least-loaded", hosts, cert),
        "proxy": point("proxy", hosts, cert),
        "distrusting": point("proxy", hosts, None),
    }
    with ExitStack() as stack:
        made = [(base / name, *make(base / name, text)) for name, text in settings.items()]
        with ThreadPoolExecutor(4) as threads:
            server, *fronts = threads.map(lambda it: stack.enter_context(started(*it)), made)
        hosts.write_text(f"https://127.0.0.1:{server.port} https://127.0.0.1:{server.admin_port}\n")
        yield server, dict(zip(list(settings)[1:], fronts, strict=True)), cert


def get(server: Server, path: str, cert: Path) -> tuple[int, str, http.client.HTTPMessage]:
    """A page of the admin port, over TLS."""
    context = ssl.create_default_context(cafile=str(cert))
    connection = http.client.HTTPSConnection("127.0.0.1", server.admin_port, timeout=20, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def test_the_admin_port_speaks_tls_only(site: Site) -> None:
    """Metrics, health, load and the page; clear HTTP gets nothing."""
    server, _, cert = site
    assert "cumulus_connections" in get(server, "/metrics", cert)[1]
    assert get(server, "/health", cert)[0] == 200
    assert "requests_in_flight" in get(server, "/load", cert)[1]
    status, text, _ = get(server, "/ui/login", cert)
    assert status == 200 and "Access key" in text and "not encrypted" not in text
    clear = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=20)
    clear.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        clear.getresponse()
    clear.close()


def test_a_new_certificate_counts_after_sighup(site: Site, tmp_path: Path) -> None:
    """For the admin port as for S3; one that cannot be read is told and changes nothing."""
    server, _, cert = site
    old = cert.read_bytes(), cert.with_suffix(".key").read_bytes()

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", server.admin_port))

    before = shown()
    try:
        cert.write_text("nothing")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "are not a certificate chain" in server.log(), "nothing is told")
        assert shown() == before
        write_certificate(cert.parent)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: shown() != before, "the old certificate is still used")
    finally:
        cert.write_bytes(old[0])
        cert.with_suffix(".key").write_bytes(old[1])
        server.process.send_signal(signal.SIGHUP)
        until(lambda: shown() == before, "the first certificate does not come back")


def test_a_new_certificate_counts_without_a_signal(site: Site) -> None:
    """As programs leave it that renew certificates."""
    server, _, cert = site
    old = cert.read_bytes(), cert.with_suffix(".key").read_bytes()

    def shown() -> set[str]:
        return {ssl.get_server_certificate(("127.0.0.1", port)) for port in (server.port, server.admin_port)}

    before = shown()
    try:
        write_certificate(cert.parent)
        until(lambda: not shown() & before, "the old certificate is still used")
    finally:
        cert.write_bytes(old[0])
        cert.with_suffix(".key").write_bytes(old[1])
        server.process.send_signal(signal.SIGHUP)
        until(lambda: shown() == before, "the first certificate does not come back")


def test_a_proxy_passes_on_over_tls(site: Site) -> None:
    """Bodies both ways; the server's certificate is checked by the file that the settings name."""
    server, fronts, cert = site
    front = fronts["proxy"]
    through = boto(server, url=front.url, verify=str(cert))

    def reached() -> bool:
        try:
            through.list_buckets()
        except ClientError:
            return False
        return True

    until(reached, "the server is not reached")
    through.create_bucket(Bucket="box")
    through.put_object(Bucket="box", Key="k", Body=BODY)
    assert through.get_object(Bucket="box", Key="k")["Body"].read() == BODY
    direct = boto(server, url=f"https://127.0.0.1:{server.port}", verify=str(cert))
    assert direct.head_object(Bucket="box", Key="k")["ContentLength"] == len(BODY)


def test_a_certificate_that_is_not_trusted_ends_it(site: Site) -> None:
    """The client gets 503, the log the reason."""
    server, fronts, cert = site
    front = fronts["distrusting"]

    def told() -> bool:  # the first requests may come before the list of hosts was read again
        with pytest.raises(ClientError, match="ServiceUnavailable"):
            boto(server, url=front.url, verify=str(cert)).list_buckets()
        return "certificate verify failed" in front.log()

    until(told, "the log does not say why")


def test_least_loaded_polls_over_tls(site: Site) -> None:
    """It knows the server's load, so it sends requests there, by https."""
    server, fronts, _ = site
    front = fronts["polling"]

    def sent() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=20)
        connection.request("GET", "/box/k")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.headers.get("location", "")

    until(sent, "nothing is sent on")
    assert sent().startswith(f"https://127.0.0.1:{server.port}/box/k")
