"""The S3 benchmarks' own servers, clients and cells, in small (benchmarks/cumulus/)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks/cumulus"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package cumulus stays that of the root

import s3cells
import s3nets
import s3servers
from s3clients import CLIENTS, Client

from sector.errors import SectorError


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3cells.Bench]:
    """With the servers that the tests share."""
    with contextlib.closing(s3cells.Bench(tmp_path_factory.mktemp("bench"))) as found:
        for server in ("cumulus", "sink"):
            found.site.get(server)
        yield found


@pytest.mark.parametrize("client", ["curl", "s3cmd", "boto3", "rclone"])
@pytest.mark.parametrize("server", ["cumulus", "sink"])
def test_a_file_goes_up_and_comes_back(bench: s3cells.Bench, server: str, client: str) -> None:
    """Nothing of it is left."""
    row = s3cells.transfer(bench, 300_000, CLIENTS[client], server, check=True)
    assert row["up_mb_per_s"] > 0 and row["down_mb_per_s"] > 0 and row["up_cpu_s_per_gb"] >= 0
    assert not (bench.files / "back").exists()
    left = [path for path in (bench.folder / server).rglob("file-300000") if path.is_file()]
    assert not left


def test_what_comes_back_wrong_is_no_figure(bench: s3cells.Bench) -> None:
    def wrong(copy: s3cells.Copy) -> float:
        copy.file.write_bytes(bytes(300_000))
        return 1.0

    with pytest.raises(SectorError, match="not what was put"):
        s3cells.transfer(bench, 300_000, Client(CLIENTS["curl"].up, wrong), "cumulus", check=True)


def test_a_client_that_fails_says_why(bench: s3cells.Bench) -> None:
    served = bench.site.get("cumulus")
    with pytest.raises(SectorError, match=r"curl failed: .*404"):
        CLIENTS["curl"].down(s3cells.Copy(served, bench.files / "x", "never-put"))
    with pytest.raises(SectorError, match="boto3 failed"):
        CLIENTS["boto3"].down(s3cells.Copy(served, bench.files / "x", "never-put"))


def test_small_objects_and_slow_syncs(bench: s3cells.Bench) -> None:
    """Errors are no figures."""
    served = bench.site.get("cumulus")
    s3cells.fill(served, 30)
    assert s3cells.closed(served, "get", 30, 0.3, 1)["done"] > 0
    with pytest.raises(SectorError, match=r"cumulus get: .* errors"):
        s3cells.closed(served, "get", 60, 0.5, 1)
    row = s3cells.slow_syncs(bench, 0.5, 1)
    assert row["put_per_s"] > 0 and row["syncs_per_put"] > 0


def test_a_point_answers_from_its_first_request_on(bench: s3cells.Bench, tmp_path: Path) -> None:
    """A server counts as started when all its workers serve, so that no figure has their start in it."""
    with s3cells.reached(tmp_path, "memory", redirected=True) as point:
        words = ["--size", str(s3cells.LOADED), "--keys", "16", "--requests", "3", "--connections", "1"]
        found = s3cells.whole(s3servers.load(point, "get", *words, "--follow"), "point")
        assert found["done"] == found["followed"] == 3
        assert len(s3servers.family(point.process.pid)) >= 3  # the head and both workers
    assert not s3servers.serves(1)


def test_parts_become_an_object(bench: s3cells.Bench) -> None:
    row = s3cells.complete(bench, "cumulus", 2, 5 * 2**20)
    assert row["bytes"] == 2 * 5 * 2**20 and row["complete_s"] > 0


def test_a_server_behind_a_thin_link(tmp_path: Path) -> None:
    """Clients that are redirected to it get what the link carries at most: 40 Mb/s and a bucket of 128 KB."""
    row = s3nets.replication(tmp_path, 1, 4, 2.0, mbps=40, warm_s=0.0)
    assert 0.5 < row["mb_per_s"] <= 5.07
    assert 0 < row["machine_busy"] <= 1


def test_namespaces_end_with_their_process() -> None:
    with s3nets.namespace() as holder:
        assert s3servers.family(holder) == [holder]
    assert not Path(f"/proc/{holder}").exists()
    with pytest.raises(SectorError, match="there is no program"):
        s3servers.peer_program("no-such-peer")
