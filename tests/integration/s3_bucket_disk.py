"""Runs inside a mount namespace of its own: a bucket of `data/` that is a disk, or a directory of the same
disk that is bound there, which goes and comes back. Fails where anything is lost, or made on the bare mount
point.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from s3_server import PORTS, boto, cumulus, make, started, status


@contextmanager
def mounted(disk: Path, place: Path) -> Iterator[None]:
    """The disk is there, too."""
    subprocess.run(["mount", "--bind", str(disk), str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def away(s3: Any, place: Path, before: list[str]) -> None:
    """It is said to be away; on the mount point nothing is made."""
    for call, arguments in (
        (s3.list_objects_v2, {}),
        (s3.head_bucket, {}),
        (s3.get_object, {"Key": "a"}),
        (s3.put_object, {"Key": "new", "Body": b"x"}),
        (s3.put_object, {"Key": "large", "Body": b"x" * 200_000}),
        (s3.delete_object, {"Key": "a"}),
    ):
        assert status(call, Bucket="climate", **arguments) == 503, call.__name__
    assert status(s3.delete_bucket, Bucket="climate") == 409  # the index knows of objects
    assert status(s3.list_objects_v2, Bucket="other") == 200
    assert sorted(one.name for one in place.rglob("*")) == before


def run(base: Path, disk: Path) -> None:
    """The disk is mounted on a bucket that was made before, and has its `.cumulus` below."""
    base.mkdir()
    cloud = base / "cloud"
    key, secret = make(cloud, f"{PORTS}[storage]\nrescan_s = 1\n")
    at = ("--dir", str(cloud))
    for name in ("climate", "other"):
        cumulus(*at, "bucket", "add", name, "--owner", "admin")
    place = cloud / "data/climate"
    before = sorted(one.name for one in place.rglob("*"))
    with started(cloud, key, secret) as server:
        s3 = boto(server)
        with mounted(disk, place):
            s3.put_object(Bucket="climate", Key="a", Body=b"12345")
        away(s3, place, before)
        with mounted(disk, place):
            assert s3.get_object(Bucket="climate", Key="a")["Body"].read() == b"12345"
            assert [one["Key"] for one in s3.list_objects_v2(Bucket="climate")["Contents"]] == ["a"]
    with started(cloud, key, secret) as server:
        assert "is not served" in server.log()
        s3 = boto(server)
        away(s3, place, before)
        assert cumulus(*at, "bucket", "show", "climate")["objects"] == 1
        with mounted(disk, place):
            assert s3.get_object(Bucket="climate", Key="a")["Body"].read() == b"12345"
            s3.delete_object(Bucket="climate", Key="a")
            s3.delete_bucket(Bucket="climate")
            s3.create_bucket(Bucket="climate")
            s3.put_object(Bucket="climate", Key="b", Body=b"again")
        away(s3, place, before)
        (cloud / "mounted/climate").unlink()  # it is gone for good
        assert status(s3.list_objects_v2, Bucket="climate") == 200


def main() -> int:
    """Exit status 0 when all held."""
    # inside a chroot "/" is no mount point and cannot be made private; then the mounts are undone below
    subprocess.run(["mount", "--make-rprivate", "/"], check=False, stderr=subprocess.DEVNULL)
    base = Path(tempfile.mkdtemp(prefix="cumulus-disk-"))
    disk = base / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    try:
        run(base / "of a disk", disk)
        other = base / "directory"
        other.mkdir()
        run(base / "of a directory", other)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
        shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
