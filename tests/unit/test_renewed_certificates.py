"""Services that run for longer than their certificates last take new ones from their files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from OpenSSL import SSL
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher

from sector.config import Config, SlaveSection, Tls
from sector.gmp.memory import MemoryHub
from sector.pki import Identity, NodeFiles, make_ca, make_node
from sector.slave.door import Link, MasterDoor
from sector.testing.cluster import SimCluster
from sector.tls_contexts import ServerTls

NOW = datetime.now(UTC)


class Node:
    """The files of slave s1, and its clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0
        self.ca, self.ca_key = make_ca("sector", NOW - timedelta(days=400))
        (root / "ca.pem").write_bytes(self.ca)
        self.config = Config(
            tls=Tls(ca="ca.pem", cert="s1.pem", key="s1.key"),
            slave=SlaveSection(id="s1"),
            path=str(root / "s1.toml"),
            role="slave",
        )

    def write(self, days_ago: float, *, only: str = "") -> x509.Certificate:
        """A certificate of 90 days that began so long ago."""
        who = Identity("sector", "slave", "s1")
        cert, key = make_node(self.ca, self.ca_key, who, NOW - timedelta(days=days_ago))
        for name, content in (("s1.pem", cert), ("s1.key", key)):
            if only in ("", name):
                (self.root / name).write_bytes(content)
        return x509.load_pem_x509_certificate(cert)

    def files(self) -> NodeFiles:
        return NodeFiles(self.config, "slave", lambda: self.now)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def warned() -> Any:
    """Lines of the log."""
    lines: list[str] = []

    def observe(event: Any) -> None:
        lines.append(event.get("log_format", "") or "")

    globalLogPublisher.addObserver(observe)
    yield lines
    globalLogPublisher.removeObserver(observe)


def shown(server: ServerTls) -> x509.Certificate:
    """The certificate that the next client is shown."""
    connection: SSL.Connection = server.serverConnectionForTLS(None)
    found = connection.get_certificate(as_cryptography=True)
    assert isinstance(found, x509.Certificate)
    return found


def test_a_server_shows_the_certificate_that_was_renewed_on_disk(node: Node) -> None:
    """Without a restart: the day the first one ends, logins and joins would fail all at once."""
    old = node.write(80)
    files = node.files()
    server = ServerTls(files.mine, files.trust, need_cert=False, renewed=files.renewed)
    assert shown(server) == old
    new = node.write(0)
    node.now = 61.0
    assert shown(server) == new == files.mine.certificate
    assert files.renewed() is None


def test_half_of_the_files_changes_nothing(node: Node, warned: list[str]) -> None:
    """The certificate was copied, its key comes later: what was good is used on, and the log says why."""
    old = node.write(80)
    files = node.files()
    new = node.write(0, only="s1.pem")
    node.now = 61.0
    assert files.renewed() is None and files.mine.certificate == old
    assert any("is not renewed" in line for line in warned)
    new = node.write(0)
    node.now = 122.0
    found = files.renewed()
    assert found is not None and found.certificate == new


def test_a_service_that_runs_on_warns_of_the_end(node: Node, warned: list[str]) -> None:
    """Not only at its start, which may be 90 days ago."""
    node.write(70)
    files = node.files()
    warned.clear()
    for hour in range(49):
        node.now = hour * 3600.0
        files.renewed()
    assert sum("ends in" in line for line in warned) == 2


def test_a_slave_that_stays_joined_for_months_warns_of_the_end(node: Node, warned: list[str]) -> None:
    """It needs its certificate at the next join only: after a restart of the master those whose end has
    come would be refused all at once, and nothing had said so."""
    node.write(70)
    clock = Clock()
    gmp = MemoryHub(clock).endpoint()
    link = Link(clock, gmp, MasterDoor(node.config, clock, gmp), None, 60.0)
    warned.clear()
    for _ in range(3 * 24):
        clock.advance(3600.0)
        link.look()
    assert sum("ends in" in line for line in warned) == 3


def test_heartbeats_look_at_the_certificate(tmp_path: Path) -> None:
    with SimCluster(tmp_path, slaves=1) as sim:
        service = sim.slaves["s1"].service
        assert service is not None
        looked: list[float] = []
        service._link.look = lambda: looked.append(sim.clock.seconds())  # type: ignore[method-assign]
        sim.advance(20)
        assert len(looked) > 15
