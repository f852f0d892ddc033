"""What users moved, by the access log and what logrotate has made of it."""

from __future__ import annotations

import gzip
import os

import pytest
from cumulus_commands import Commands
from twisted.internet.task import Clock

from cumulus.http.access_log import AccessLog, Record
from cumulus.http.metrics import Metrics


class AtOnce:
    """A pool of threads without threads."""

    def must(self, work: object, done: object) -> None:
        """Do it."""
        done(work())  # type: ignore[operator]


def record(time: str, user: str, bucket: str, operation: str, status: int, came: int, went: int) -> Record:
    """A request."""
    return Record(
        time=f"{time}:00.000Z", id="1", peer="192.0.2.1", method="GET", status=status, bytes_in=came,
        bytes_out=went, total_ms=1.0, turn_ms=1.0, user=user, bucket=bucket, operation=operation,
    )  # fmt: skip


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A service with the logs of three days: the first packed, the last with a line that a full disk cut."""
    (cloud.dir / "cumulus.toml").write_text('[log]\naccess = "access.log"\n')
    clock, path = Clock(), cloud.dir / "access.log"
    log = AccessLog(str(path), AtOnce(), clock, Metrics())  # type: ignore[arg-type]
    days = [
        [
            record("2026-02-28T23:59", "alice", "lab", "PutObject", 200, 1000, 0),
            record("2026-02-28T08:00", "", "lab", "GetObject", 403, 0, 300),
        ],
        [
            record("2026-03-01T00:00", "alice", "lab", "GetObject", 200, 0, 5000),
            record("2026-03-01T10:00", "bob", "other", "GetObject", 499, 0, 70),
        ],
        [record("2026-03-02T10:00", "alice", "other", "PutObject", 200, 20, 0)],
    ]
    for number, records in enumerate(days):
        for one in records:
            log.add(one)
        clock.advance(1)
        if number < 2:
            path.rename(f"{path}-{number}")
            log.reopen()
    log.close()
    with gzip.open(f"{path}-0.gz", "wb") as packed:
        packed.write((cloud.dir / "access.log-0").read_bytes())
    os.unlink(f"{path}-0")
    with path.open("ab") as file:
        file.write(b'{"time":"2026-03-02T10:01:00.000Z","id":"2","pe\n\n')
    return cloud


def test_days_and_users_are_summed_over_all_logs(run: Commands) -> None:
    found = run.json("traffic")
    assert run.err.endswith("access.log: 1 line of it cannot be read\n") and run.err.count("\n") == 1
    assert [tuple(one.values()) for one in found] == [
        ("2026-02-28", "", 1, 1, 0, 300),
        ("2026-02-28", "alice", 1, 0, 1000, 0),
        ("2026-03-01", "alice", 1, 0, 0, 5000),
        ("2026-03-01", "bob", 1, 1, 0, 70),
        ("2026-03-02", "alice", 1, 0, 20, 0),
    ]
    assert list(found[0]) == ["day", "user", "requests", "failed", "bytes_in", "bytes_out"]


def test_what_is_asked_for_is_shown(run: Commands) -> None:
    march = ("traffic", "--since", "2026-03-01", "--until", "2026-03-01")
    assert [one["user"] for one in run.json(*march)] == ["alice", "bob"]
    assert [tuple(one.values()) for one in run.json("traffic", "--by", "month", "--by", "bucket")] == [
        ("2026-02", "lab", 2, 1, 1000, 300),
        ("2026-03", "lab", 1, 0, 0, 5000),
        ("2026-03", "other", 2, 1, 20, 70),
    ]
    found = run.json("traffic", "--user", "alice", "--bucket", "lab", "--by", "operation")
    assert [one["operation"] for one in found] == ["GetObject", "PutObject"]
    table = run("traffic", "--by", "user").splitlines()
    assert table[0].split() == ["USER", "REQUESTS", "FAILED", "IN", "OUT"] and table[1].split()[0] == "-"
    assert "1.0 kB" in table[2] and len(table) == 4
    one = str(run.dir / "access.log-0.gz")
    assert sum(line["requests"] for line in run.json("traffic", one)) == 2


def test_what_cannot_be_summed_is_told(run: Commands) -> None:
    assert "is no day" in run.refused("traffic", "--since", "today", status=2)["message"]
    assert "No such file" in run.refused("traffic", "none.log")["message"]
    (run.dir / "broken.gz").write_bytes(b"\x1f\x8b broken")
    assert "broken.gz" in run.refused("traffic", str(run.dir / "broken.gz"))["message"]
    (run.dir / "cumulus.toml").write_text('[log]\naccess = "later.log"\n')
    assert "no log yet" in run.refused("traffic")["message"]
    (run.dir / "cumulus.toml").write_text("")
    assert "[log] access" in run.refused("traffic", status=2)["hint"]
