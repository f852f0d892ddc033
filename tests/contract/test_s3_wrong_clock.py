"""Lifecycle rules delete for good, by the time of day: one that was set just now, or with which the service
has just begun, is not believed at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_stores import STORES
from s3_world import SECOND, World

from cumulus.auth import lifecycle
from cumulus.ops import expiring
from cumulus.ops.jobs import Jobs

YEAR = 365 * 24 * 3600
SETTLE_S = 600.0


class Machine:
    """A service on a machine that has run for `up` seconds, with ten objects that go after a day."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.up = 100.0
        self._began_ns = world.clock()
        self._wrong_s = 0.0
        world.site.clock = self.now
        client = world.boto()
        client.create_bucket(Bucket="bkt")
        for number in range(10):
            client.put_object(Bucket="bkt", Key=str(number), Body=b"x")
        rule = {
            "ID": "r",
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "Expiration": {"Days": 1},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        }
        client.put_bucket_lifecycle_configuration(Bucket="bkt", LifecycleConfiguration={"Rules": [rule]})
        client.create_multipart_upload(Bucket="bkt", Key="up")

    def now(self) -> int:
        """The time of day, as the machine has it."""
        return self._began_ns + int((self.up - 100 + self._wrong_s) * SECOND)

    def set_clock(self, wrong_s: float) -> None:
        """So far ahead."""
        self._wrong_s = wrong_s

    def start(self) -> Jobs:
        """The service."""
        return Jobs(self.world.site, lifecycle, seconds=lambda: self.up, settle_s=SETTLE_S)

    def left(self) -> int:
        """Objects and uploads."""
        client = self.world.boto()
        return int(client.list_objects_v2(Bucket="bkt")["KeyCount"]) + len(
            client.list_multipart_uploads(Bucket="bkt").get("Uploads", [])
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    world = World(STORES["posix"](tmp_path))
    yield Machine(world)
    world.close()


def test_a_clock_that_is_put_right_after_the_start_deletes_nothing(machine: Machine) -> None:
    """It was years ahead, and the service was quicker than what sets it."""
    machine.set_clock(YEAR)
    jobs = machine.start()
    assert jobs.run().expired == 0
    machine.up += 60
    assert jobs.run().expired == 0
    machine.set_clock(0)
    machine.up += SETTLE_S - 120
    assert jobs.run().expired == 0
    machine.up += SETTLE_S + 1
    assert jobs.run().expired == 0
    assert machine.left() == 11


def test_a_clock_that_goes_wrong_deletes_nothing_until_it_has_been_so_for_some_time(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """An administrator whose clients are all refused by then has the time to see why."""
    jobs = machine.start()
    machine.up += SETTLE_S + 1
    assert jobs.run().expired == 0  # nothing is due
    machine.up += 3601
    machine.set_clock(YEAR)
    assert jobs.run().expired == 0
    assert "the clock was set by 31536000 s" in caplog.text
    machine.up += SETTLE_S - 1
    assert jobs.run().expired == 0 and machine.left() == 11
    machine.up += 2
    done = jobs.run()
    assert (done.expired, done.aborted, machine.left()) == (10, 1, 0)


def test_a_pass_ends_when_the_clock_is_set(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due by the new time waits as all else."""
    monkeypatch.setattr(expiring, "LOT", 3)
    monkeypatch.setattr(expiring, "MOST", 3)
    jobs = machine.start()
    machine.up += 2 * 86_400
    real = machine.world.store.delete_all

    def delete_all(*asked: object) -> object:
        machine.set_clock(-YEAR if machine.left() < 10 else 0)
        return real(*asked)

    monkeypatch.setattr(machine.world.store, "delete_all", delete_all)
    assert jobs.run().expired == 6
    assert machine.left() == 5


def test_a_clock_that_is_slewed_holds_nothing_up(machine: Machine) -> None:
    """A second at a time, for hours."""
    jobs = machine.start()
    for ahead in range(0, int(SETTLE_S) + 10, 30):
        machine.up += 30
        machine.set_clock(ahead)
        jobs.run()
    machine.up += 2 * 86_400
    assert jobs.run().expired == 10


def test_what_is_under_way_is_no_leftover_by_a_clock_that_was_just_set(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which it is a year old."""
    swept: list[float] = []
    monkeypatch.setattr(machine.world.store, "sweep", lambda older_than_s: swept.append(older_than_s) or 0)
    jobs = machine.start()
    machine.set_clock(YEAR)
    jobs.run()
    machine.up += 3601
    jobs.run()
    assert swept[0] > 2 * YEAR and swept[1:] == [86_400]
