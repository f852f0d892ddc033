"""Free ports: outside the kernel's own range, each free for UDP and TCP, all different."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sector import errors, ports


def test_the_kernel_never_hands_out_these_ports_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECTOR_PORTS", raising=False)
    first, last = ports.ephemeral_range()
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    assert all(not first <= port <= last for port in found)
    for port in found:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            with socket.socket(socket.AF_INET, kind) as channel:
                channel.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("own", "choice"),
    [
        ((32_768, 60_999), range(10_000, 32_768)),
        ((10_000, 40_000), range(40_001, 65_536)),
        ((1_024, 65_535), range(10_000, 65_536)),
    ],
)
def test_the_wider_side_is_taken(own: tuple[int, int], choice: range) -> None:
    assert ports.candidates(*own) == choice


def test_a_range_that_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = ports.free_ports(1)
    monkeypatch.setenv("SECTOR_PORTS", f"{port}-{port}")
    assert ports.free_ports(1) == [port]
    with pytest.raises(errors.SectorError, match=f"no 2 free ports .* within {port} and {port}"):
        ports.free_ports(2)


@pytest.mark.parametrize("text", ["x", "7000", "7000-", "0-10", "20-10", "1-65536", "1-2-3", " 1-2"])
def test_what_is_no_range_is_one_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SECTOR_PORTS", text)
    with pytest.raises(errors.UsageError, match="SECTOR_PORTS is"):
        ports.free_ports(1)


def test_taken_ports_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        (port,) = ports.free_ports(1)
        taken.bind(("127.0.0.1", port))
        monkeypatch.delenv("SECTOR_PORTS", raising=False)
        monkeypatch.setattr(ports, "candidates", lambda first, last: range(port, port + 2))
        assert ports.free_ports(1) == [port + 1]
        with pytest.raises(errors.SectorError, match="no 2 free ports"):
            ports.free_ports(2)


def test_an_unreadable_setting_means_the_default(tmp_path: Path) -> None:
    assert ports.ephemeral_range(tmp_path / "none") == (32_768, 60_999)
    (tmp_path / "odd").write_text("many\n")
    assert ports.ephemeral_range(tmp_path / "odd") == (32_768, 60_999)
