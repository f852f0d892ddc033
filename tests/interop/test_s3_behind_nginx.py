"""A service behind a proxy that ends TLS and says who the client is."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
from s3_server import LOGGED, Server, boto, serving, status, wait_until

CLIENT = {"X-Forwarded-For": "6.6.6.6, 192.0.2.7", "X-Forwarded-Proto": "https"}
POLICY = {
    "Statement": [
        {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/*"},
        {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:GetObject",
            "Resource": "arn:aws:s3:::bkt/*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
        {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:GetObject",
            "Resource": "arn:aws:s3:::bkt/home",
            "Condition": {"NotIpAddress": {"aws:SourceIp": "192.0.2.0/24"}},
        },
    ]
}


def ask(server: Server, path: str, headers: dict[str, str]) -> int:
    """The status of an unsigned GET, as a proxy passes it on."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def peers_of(log: Path) -> dict[str, str]:
    """Of each operation the address that the log has for the last request, once it has all."""

    def whole() -> bool:
        text = log.read_text()
        return '"HeadBucket"' in text and text.count('"GetObject"') == 4

    wait_until(whole, "not all is logged", 20)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines.sort(key=lambda line: line["time"])  # each worker writes its own
    return {line["operation"]: line["peer"] for line in lines}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_named_proxy_is_believed_and_others_are_not(tmp_path: Path, workers: int) -> None:
    """By policies and by the log; with a policy for TLS alone all were refused behind it."""
    believed = LOGGED.replace("[server]\n", f'[server]\nworkers = {workers}\ntrusted_proxies = "127.0.0.1"\n')
    for settings, statuses, peer in (
        (believed, (200, 200, 403, 403), "192.0.2.7"),
        (LOGGED, (403, 403, 403, 403), "127.0.0.1"),
    ):
        with serving(tmp_path / f"D{len(settings)}", settings) as server:
            client = boto(server)
            client.create_bucket(Bucket="bkt")
            for key in ("a", "home"):
                client.put_object(Bucket="bkt", Key=key, Body=b"x" * 300_000)
            client.put_bucket_policy(Bucket="bkt", Policy=json.dumps(POLICY))
            elsewhere = CLIENT | {"X-Forwarded-For": "192.0.2.7, 6.6.6.6"}
            found = (
                ask(server, "/bkt/a", CLIENT),
                ask(server, "/bkt/home", CLIENT),
                ask(server, "/bkt/home", elsewhere),
                ask(server, "/bkt/a", {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "http"}),
            )
            assert found == statuses
            assert status(client.head_bucket, Bucket="bkt") == 200  # without such headers
            peers = peers_of(server.directory / "access.log")
            assert peers["GetObject"] == peer and peers["HeadBucket"] == "127.0.0.1"
