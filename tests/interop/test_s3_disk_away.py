"""`cumulus serve` where a disk that holds a bucket, or the storage, is not mounted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from s3_server import CUMULUS, PORTS, boto, cumulus, make, started, status

from cumulus.config import load_config
from cumulus.parts import open_head, open_worker
from sector.errors import LocalIO


def test_a_bucket_whose_disk_is_not_mounted_is_unavailable_and_whole_afterwards(tmp_path: Path) -> None:
    """It is not taken for empty, and nothing is made on the bare mount point."""
    cloud, disk = tmp_path / "cloud", tmp_path / "disk"
    disk.mkdir()
    key, secret = make(cloud, f"{PORTS}[storage]\nrescan_s = 1\n")
    cumulus("--dir", str(cloud), "bucket", "add", "climate", "--owner", "admin", "--path", str(disk))
    with started(cloud, key, secret) as server:
        s3 = boto(server)
        for name in ("a", "b/c"):
            s3.put_object(Bucket="climate", Key=name, Body=b"12345")
        for mount_point in (True, False):
            disk.rename(tmp_path / "away")
            if mount_point:
                disk.mkdir()
            for call, arguments in (
                (s3.list_objects_v2, {}),
                (s3.list_object_versions, {}),
                (s3.head_bucket, {}),
                (s3.get_object, {"Key": "a"}),
                (s3.head_object, {"Key": "b/c"}),
                (s3.put_object, {"Key": "new", "Body": b"x"}),
                (s3.put_object, {"Key": "large", "Body": b"x" * 200_000}),
                (s3.delete_object, {"Key": "a"}),
            ):
                assert status(call, Bucket="climate", **arguments) == 503, (mount_point, call)
            assert status(s3.list_buckets) == 200
            if mount_point:
                assert list(disk.iterdir()) == []
                disk.rmdir()
            (tmp_path / "away").rename(disk)
            listed = s3.list_objects_v2(Bucket="climate")["Contents"]
            assert [one["Key"] for one in listed] == ["a", "b/c"]
            assert s3.get_object(Bucket="climate", Key="b/c")["Body"].read() == b"12345"
        assert cumulus("--dir", str(cloud), "bucket", "show", "climate")["bytes"] == 10
        told = [json.loads(line) for line in server.log().splitlines()]  # all of it is JSON
        away = [
            one["fields"] for one in told if one["text"].startswith("request ") and "why" in one["fields"]
        ]
        assert any(f"the directory {disk} of bucket" in one["why"] and one["id"] for one in away)
        assert all("is its disk mounted?" in one["why"] for one in away) and away


def test_a_start_names_a_bucket_without_its_directory_and_serves_the_others(tmp_path: Path) -> None:
    """So does the doctor; and the bucket is forgotten when its disk is gone for good."""
    cloud, disk = tmp_path / "cloud", tmp_path / "disk"
    disk.mkdir()
    key, secret = make(cloud, PORTS)
    at = ("--dir", str(cloud))
    cumulus(*at, "bucket", "add", "climate", "--owner", "admin", "--path", str(disk))
    cumulus(*at, "bucket", "add", "other", "--owner", "admin")
    with started(cloud, key, secret) as server:
        boto(server).put_object(Bucket="climate", Key="a", Body=b"12345")
    disk.rename(tmp_path / "away")
    with started(cloud, key, secret) as server:
        named = [json.loads(line) for line in server.log().splitlines() if "is not served" in line]
        assert [one["fields"]["bucket"] for one in named] == ["climate"]
        s3 = boto(server)
        assert status(s3.get_object, Bucket="climate", Key="a") == 503
        s3.put_object(Bucket="other", Key="k", Body=b"1")
    done = subprocess.run([CUMULUS, *at, "doctor"], capture_output=True, text=True, timeout=60)
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("failed")]
    assert done.returncode == 1 and "climate is not served" in line and str(disk) in line and "mount" in line
    disk.mkdir()
    (disk / "stays").write_text("x")
    done = subprocess.run([CUMULUS, *at, "doctor", "--rebuild"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and ".cumulus" in done.stderr
    assert cumulus(*at, "bucket", "show", "climate")["objects"] == 1
    cumulus(*at, "bucket", "remove", "climate", "--forget")
    assert [one["name"] for one in cumulus(*at, "bucket", "list")] == ["other"]
    assert [one.name for one in disk.iterdir()] == ["stays"]
    cumulus(*at, "bucket", "add", "climate", "--owner", "admin", "--path", str(tmp_path / "away"))
    assert cumulus(*at, "bucket", "show", "climate")["objects"] == 1


@pytest.mark.parametrize("mount_point", [True, False])
def test_storage_that_is_not_mounted_is_not_made_anew(tmp_path: Path, mount_point: bool) -> None:
    """By the service, a command, or the doctor."""
    cloud, disk = tmp_path / "cloud", tmp_path / "disk"
    make(cloud, f'{PORTS}[storage]\npath = "{disk}"\n')
    at = ("--dir", str(cloud))
    cumulus(*at, "bucket", "add", "one", "--owner", "admin")
    disk.rename(tmp_path / "away")
    if mount_point:
        disk.mkdir()
    for command in (["serve"], ["bucket", "rescan", "one"], ["doctor"]):
        done = subprocess.run([CUMULUS, *at, *command], capture_output=True, text=True, timeout=60)
        (line,) = [one for one in (done.stderr + done.stdout).splitlines() if "has no directory data" in one]
        assert done.returncode == 1 and "[storage] path" in line and "mounted" in line
        assert list(disk.iterdir()) == [] if mount_point else not disk.exists()


def test_a_worker_that_starts_while_storage_is_away_makes_nothing(tmp_path: Path) -> None:
    """The head goes on; the worker is tried again."""
    cloud, disk = tmp_path / "cloud", tmp_path / "disk"
    make(cloud, f'{PORTS}[storage]\npath = "{disk}"\n')
    cumulus("--dir", str(cloud), "bucket", "add", "one", "--owner", "admin")
    config = load_config(cloud / "cumulus.toml")
    head = open_head(config)
    disk.rename(tmp_path / "away")
    disk.mkdir()
    with pytest.raises(LocalIO, match="no directory data"):
        open_worker(config, head.socket)
    assert list(disk.iterdir()) == []
    disk.rmdir()
    (tmp_path / "away").rename(disk)
    open_worker(config, head.socket).close()
    head.close()
