"""Certificates that are renewed while a service runs count by themselves, and the log says when one ends."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from OpenSSL import SSL
from s3_tls import write_certificate
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher

from cumulus.http.renewal import LOOK_S, TELL_S, Renewal
from cumulus.http.tls import TlsFiles

DAY = 86400.0


@pytest.fixture
def told() -> Iterator[list[str]]:
    """Lines of the log."""
    lines: list[str] = []

    def take(event: dict[str, object]) -> None:
        if str(event.get("log_namespace", "")).startswith("cumulus.http.renewal"):
            lines.append(str(event["log_format"]).format(**event))

    globalLogPublisher.addObserver(take)
    yield lines
    globalLogPublisher.removeObserver(take)


class Port:
    """Files as `certbot` has them: symbolic links that it turns to new ones, and a service that looks."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.time, **dates: float) -> None:
        self._directory = directory
        self.cert, self.key = directory / "cert.pem", directory / "key.pem"
        self.write("one", **dates)
        for part in (self.cert, self.key):
            self.turn(part, "one")
        self.tls = TlsFiles(self.cert, self.key)
        self.clock = Clock()
        self.renewal = Renewal(self.tls, "S3", self.clock, maybeDeferred, now)
        self.renewal.start()

    def write(self, name: str, **dates: float) -> None:
        """Another certificate with its key."""
        write_certificate(self._directory, name, **dates)

    def turn(self, part: Path, name: str) -> None:
        """Have a link name the file of that certificate."""
        draft = part.with_suffix(".new")
        draft.symlink_to(f"{name}.{'pem' if part is self.cert else 'key'}")
        os.replace(draft, part)

    def looks(self, count: int) -> None:
        """So many."""
        for _ in range(count):
            self.clock.advance(LOOK_S)

    def shown(self) -> str:
        """Whose certificate a client would see."""
        ours = self.tls.serverConnectionForTLS(None)
        client = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
        client.set_connect_state()
        ours.set_accept_state()
        for _ in range(4):
            for one, other in ((client, ours), (ours, client)):
                with suppress(SSL.WantReadError):
                    one.do_handshake()
                with suppress(SSL.WantReadError):
                    other.bio_write(one.bio_read(1 << 16))
        certificate = client.get_peer_certificate()
        assert certificate is not None
        return certificate.to_cryptography().subject.rfc4514_string().removeprefix("CN=")


def test_a_renewed_certificate_counts_by_itself(tmp_path: Path, told: list[str]) -> None:
    """Nobody sends a signal, and the key is replaced some time after the certificate: that is no error."""
    port = Port(tmp_path)
    assert port.shown() == "one"
    port.write("two")
    port.turn(port.cert, "two")
    port.looks(1)
    port.turn(port.key, "two")
    port.looks(1)
    assert port.shown() == "one" and told == []
    port.looks(1)
    assert port.shown() == "two"
    assert told == ["the certificate of S3 was read again"]
    port.looks(5)
    assert len(told) == 1
    port.renewal.stop()


def test_files_that_are_written_over_count_too(tmp_path: Path) -> None:
    port = Port(tmp_path)
    port.write("two")
    for part, name in ((port.cert, "two.pem"), (port.key, "two.key")):
        shutil.copy(tmp_path / name, part)
    port.looks(2)
    assert port.shown() == "two"


def test_one_that_cannot_be_used_is_told_once_and_the_old_one_stays(tmp_path: Path, told: list[str]) -> None:
    """Until there is a good one."""
    port = Port(tmp_path)
    port.cert.unlink()
    port.looks(6)
    assert port.shown() == "one"
    assert len(told) == 1 and "stays as it was: cannot read" in told[0]
    port.turn(port.cert, "one")
    port.looks(2)
    assert told[1:] == ["the certificate of S3 was read again"]


@pytest.mark.parametrize(
    ("dates", "line"),
    [
        ({"ends": 6.0}, "ends on"),
        ({"begins": -9.0, "ends": -1.0}, "has ended on"),
        ({"begins": 1.0}, "is not valid before"),
    ],
)
def test_dates_are_told_each_day(tmp_path: Path, told: list[str], dates: dict[str, float], line: str) -> None:
    port = Port(tmp_path, **dates)
    port.looks(20)
    assert len(told) == 1 and line in told[0]
    port.clock.advance(TELL_S)
    assert len(told) == 2 and line in told[1]


def test_a_certificate_that_is_good_for_long_is_not_told_of(tmp_path: Path, told: list[str]) -> None:
    """But when it is about to end, while the service runs."""
    now = [time.time()]
    port = Port(tmp_path, lambda: now[0], ends=60.0)
    port.looks(5)
    assert told == []
    now[0] += 54 * DAY
    port.looks(1)
    assert len(told) == 1 and "renew it" in told[0]
