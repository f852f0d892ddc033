"""`[sector] map_users` as people use it: a Sector cluster and `cumulus serve` as processes, two users with
their own S3 keys and logins in the cloud; the account loses its role, and the master is killed, meanwhile."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.client import ClientError
from cluster import PROGRAM, Cluster, Done, running, wait_for
from s3_server import Server, boto, cumulus, serving

from cumulus.backends.sector_users import REFUSED_S
from sector.security.store import Database

PORTS = '[server]\nport = 0\nworkers = 2\n[admin]\nport = 0\n[log]\nlevel = "info"\n'


class Place:
    """Both services; Cumulus users alice, bob and carol, who is unknown to Sector; keys by name."""

    def __init__(self, cloud: Cluster, server: Server) -> None:
        self.cloud = cloud
        self.server = server
        self.keys = {
            name: cumulus("--dir", str(server.directory), "user", "add", name)
            for name in ("alice", "bob", "carol")
        }

    def s3(self, name: str) -> Any:
        """A client of that user's, which does not try again by itself."""
        key = self.keys[name]
        return boto(self.server, key["access_key"], key["secret_key"])

    def sector(self, name: str, *arguments: str) -> Done:
        """`sector` as that user of the cloud, logged in with his own password."""
        env = self.cloud.env | {"SECTOR_CONFIG": str(self.cloud.dir / f"{name}-own.toml")}
        done = subprocess.run(
            [*PROGRAM, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def audited(self) -> list[tuple[str, str, str]]:
        """The audit log of the cloud."""
        database = Database(self.cloud.dir / "up/data/security/security.db")
        try:
            found, after = [], 0
            while page := database.audit(after):
                found += [(line.who, line.what, line.detail) for line in page]
                after = page[-1].seq
            return found
        finally:
            database.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The cloud has cumulus (service, rw on /s3), alice (rw on /s3/alices), bob (rw on /s3/bobs)."""
    with running(tmp_path_factory.mktemp("cloud"), slaves=1) as cloud:
        password = cloud.dir / "password"
        password.write_text("a long password")
        mine = (cloud.dir / "client.toml").read_text().splitlines()
        known = [line for line in mine if line.startswith(("[client]", "masters", "ca"))]
        for name, options, path in (
            ("cumulus", ["--service"], "/s3"),
            ("alice", [], "/s3/alices"),
            ("bob", [], "/s3/bobs"),
        ):
            cloud.ok("user", "add", name, "--password-file", str(password), *options)
            cloud.ok("grant", name, path, "rw")
            settings = "\n".join([*known, f'user = "{name}"', 'password_file = "password"\n'])
            (cloud.dir / f"{name}-own.toml").write_text(settings)
        backend = f'[storage]\nbackend = "sector:{cloud.dir}/cumulus-own.toml"\n[sector]\nmap_users = true\n'
        with serving(tmp_path_factory.mktemp("cumulus") / "D", PORTS + backend) as server:
            yield Place(cloud, server)


def code(work: Callable[[], Any]) -> str:
    """The S3 error of a request, "" when there is none."""
    try:
        work()
    except ClientError as error:
        return f"{error.response['ResponseMetadata']['HTTPStatusCode']} {error.response['Error']['Code']}"
    return ""


def bucket(place: Place, name: str) -> None:
    """That the user has his."""
    there = code(lambda: place.s3(name).create_bucket(Bucket=f"{name}s"))
    assert there in ("", "409 BucketAlreadyOwnedByYou")


def test_each_has_his_own_in_both_worlds(place: Place, tmp_path: Path) -> None:
    """Buckets and objects are their makers'; in the cloud neither reaches what is the other's."""
    for name in ("alice", "bob"):
        s3 = place.s3(name)
        s3.create_bucket(Bucket=f"{name}s")
        for key, size in (("small.txt", 100), ("dir/large.bin", 3 << 20)):
            s3.put_object(Bucket=f"{name}s", Key=key, Body=name.encode() * (size // len(name)))
        body = s3.get_object(Bucket=f"{name}s", Key="small.txt")["Body"].read()
        assert body == name.encode() * (100 // len(name))
    assert code(lambda: place.s3("bob").get_object(Bucket="alices", Key="small.txt")) == "403 AccessDenied"
    shown = place.cloud.ok("ls", "-l", "-r", "/s3").out
    for line in shown.splitlines():
        name = line.split()[-1]
        assert ("alice" in line.split()) == ("alices" in name) and ("bob" in line.split()) == ("bobs" in name)
    for name, other in (("alice", "bob"), ("bob", "alice")):
        assert place.sector(name, "get", f"/s3/{name}s/small.txt", str(tmp_path / name)).status == 0
        assert (tmp_path / name).read_bytes().startswith(name.encode())
        assert "may not read" in place.sector(name, "ls", f"/s3/{other}s").err
        assert "may not read" in place.sector(name, "get", f"/s3/{other}s/small.txt", str(tmp_path)).err
    told = place.audited()
    assert all(("user:cumulus", "act for", f"{name} from 127.0.0.1") in told for name in ("alice", "bob"))


def test_what_the_cloud_refuses_is_access_denied(place: Place) -> None:
    """Though Cumulus itself would let it pass: a bucket of no right, another's object that is public."""
    assert code(lambda: place.s3("alice").create_bucket(Bucket="elsewhere")) == "403 AccessDenied"
    buckets = [one["Name"] for one in place.s3("alice").list_buckets()["Buckets"]]
    assert "elsewhere" not in buckets
    bucket(place, "alice")
    place.s3("alice").put_object(Bucket="alices", Key="shared", Body=b"for all", ACL="public-read")
    assert code(lambda: place.s3("bob").get_object(Bucket="alices", Key="shared")) == "403 AccessDenied"
    place.cloud.ok("grant", "bob", "/s3/alices", "r")
    wait_for("the grant", lambda: not code(lambda: place.s3("bob").get_object(Bucket="alices", Key="shared")))
    # somebody anonymous acts as the owner of the bucket
    anonymous = subprocess.run(
        ["curl", "-sS", f"{place.server.url}/alices/shared"], capture_output=True, timeout=30, check=True
    )
    assert anonymous.stdout == b"for all"


def test_a_user_unknown_to_the_cloud_is_refused_in_one_line(place: Place) -> None:
    assert code(lambda: place.s3("carol").create_bucket(Bucket="carols")) == "403 AccessDenied"
    lines = [line for line in place.server.log().splitlines() if "carol cannot act in Sector" in line]
    assert len(lines) == 1 and "there is no user carol" in lines[0]
    place.cloud.ok("user", "add", "carol", "--password-file", str(place.cloud.dir / "password"))
    place.cloud.ok("grant", "carol", "/s3/carols", "rw")
    wait_for("carol", lambda: not code(lambda: place.s3("carol").create_bucket(Bucket="carols")), 40, 0.5)


def put(place: Place, name: str) -> str:
    """The error of an upload."""
    return code(lambda: place.s3(name).put_object(Bucket=f"{name}s", Key="again", Body=b"x" * 100_000))


def test_without_its_role_the_account_serves_nobody(place: Place) -> None:
    """Within seconds, connections that are open included; with the role all goes on by itself."""
    bucket(place, "alice")
    assert put(place, "alice") == ""
    place.cloud.ok("user", "roles", "cumulus", "user")
    wait_for("the refusal", lambda: put(place, "alice") == "403 AccessDenied", 20, 0.5)
    assert "user cumulus has not the role service" in place.server.log()
    assert ("user:cumulus", "act for refused") in [line[:2] for line in place.audited()]
    place.cloud.ok("user", "roles", "cumulus", "service")
    time.sleep(REFUSED_S)  # each worker remembers its own refusals
    wait_for("the role", lambda: put(place, "alice") == "", 60, 0.5)


def test_a_master_that_was_killed_costs_no_session(place: Place) -> None:
    """What is asked meanwhile is a 503; afterwards both go on, under the sessions they had."""
    for name in ("alice", "bob"):
        bucket(place, name)
        assert put(place, name) == ""
    before = len([line for line in place.audited() if line[1] == "act for"])
    place.cloud.kill(place.cloud.info["pids"]["master"])
    assert put(place, "alice").startswith("503")
    place.cloud.start_missing()
    for name in ("alice", "bob"):
        wait_for(name, lambda name=name: put(place, name) == "", 60, 0.5)
    assert len([line for line in place.audited() if line[1] == "act for"]) <= before + 2
