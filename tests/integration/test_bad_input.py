"""Bad input: each one clear line, exit 1 or 2, nothing lost."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, running, wait_for

UDFS = """
import os, ctypes, time
def raises(data, ctx): raise ValueError("no brown dwarfs here")
def exits(data, ctx): os._exit(3)
def segfaults(data, ctx): ctypes.string_at(0)
def prints(data, ctx):
    print("hello from a udf")
    return data
def wrong_type(data, ctx): return 42
def forever(data, ctx):
    while True: time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def udfs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The misbehaving functions, and a small input at /in."""
    folder = tmp_path_factory.mktemp("udfs")
    (folder / "bad.py").write_text(UDFS)
    (folder / "in").write_text("a line of text\n" * 70)
    cluster.ok("put", str(folder / "in"), "/in")
    return folder / "bad.py"


@pytest.mark.parametrize("user", ["admin", "nobody-we-know"])
def test_wrong_password_and_unknown_user(cluster: Cluster, tmp_path: Path, user: str) -> None:
    """Both say the same."""
    secret = tmp_path / "password"
    secret.write_text("not the password\n")
    ca = next((cluster.dir / "up").rglob("ca.pem"))
    master = cluster.info["master"]
    environment = cluster.env | {
        "SECTOR_CONFIG": str(tmp_path / "other.toml"),
        "SECTOR_PASSWORD_FILE": str(secret),
        "SECTOR_USER": user,
    }
    done = subprocess.run(
        cluster.command("login", master, "--ca", str(ca)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "user name" in done.stderr or "password" in done.stderr


def test_port_in_use(cluster: Cluster) -> None:
    """A second slave on the same settings: the line names the port or the directory."""
    config = next((cluster.dir / "up").rglob("master*.toml"))
    done = cluster.refused("master", "--config", str(config))
    assert "in use" in done.err or "another" in done.err


def test_slave_that_is_not_on_the_allow_list(cluster: Cluster) -> None:
    """It ends with one line that says who must do what."""
    slave = cluster.info["slaves"][-1]
    cluster.ok("acl", "slave", "remove", slave["id"])
    try:
        cluster.kill(slave["pid"])
        config = next((cluster.dir / "up").rglob(f"{slave['id']}*.toml"))
        done = cluster.refused("slave", "--config", str(config))
        assert "allow" in done.err
        assert slave["id"] in done.err
    finally:
        cluster.ok("acl", "slave", "add", slave["id"])
        cluster.start_missing()


@pytest.mark.parametrize("path", ["/a/../etc/passwd", "relative", "/.sector/x", "/a//b", "/" + "n" * 256])
def test_bad_paths(cluster: Cluster, tmp_path: Path, path: str) -> None:
    """Refused before anything is sent."""
    source = tmp_path / "x"
    source.write_text("x")
    assert cluster.refused("put", str(source), path).status in (1, 2)


def test_planted_symbolic_link(cluster: Cluster, tmp_path: Path) -> None:
    """A link in a slave's tree is not followed: what it points to keeps its content."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for slave in cluster.info["slaves"]:
        link = Path(slave["data_dir"]) / "files" / "linked"
        link.symlink_to(victim)
    source = tmp_path / "x"
    source.write_text("x")
    try:
        done = cluster.refused("put", str(source), "/linked/x")
        assert not list(victim.iterdir()), done.said
    finally:
        for slave in cluster.info["slaves"]:
            (Path(slave["data_dir"]) / "files" / "linked").unlink()


@pytest.mark.parametrize(
    ("function", "word"),
    [
        ("raises", "no brown dwarfs here"),
        ("exits", "exit"),
        ("segfaults", "SIGSEGV"),
        ("wrong_type", "int"),
        ("missing", "missing"),
    ],
)
def test_bad_functions(cluster: Cluster, udfs: Path, function: str, word: str) -> None:
    """The error of the function reaches the user, and the slaves serve on."""
    done = cluster.run("sphere", "run", f"{udfs}:{function}", "/in", "--granularity", "file", "--output", "-")
    assert done.status in (1, 2), done.said
    assert word in done.err, done.said
    again = cluster.run("sphere", "run", f"{udfs}:prints", "/in", "--granularity", "file", "--output", "-")
    assert again.status == 0, again.said
    assert "hello from a udf" in again.err
    assert again.out.startswith("a line of text")


def test_function_that_loops_for_ever(cluster: Cluster, udfs: Path) -> None:
    """--timeout ends it."""
    done = cluster.refused(
        "sphere", "run", f"{udfs}:forever", "/in", "--granularity", "file", "--output", "-", "--timeout", "2"
    )
    assert "2" in done.err


def test_user_without_the_execute_right(cluster: Cluster, udfs: Path, tmp_path: Path) -> None:
    """May read, may not run code."""
    secret = tmp_path / "password"
    secret.write_text("correct horse battery\n")
    cluster.ok("user", "add", "reader", "--password-file", str(secret))
    cluster.ok("grant", "reader", "/", "r")
    ca = next((cluster.dir / "up").rglob("ca.pem"))
    other = Cluster(tmp_path, info=cluster.info)
    login = subprocess.run(
        other.command("login", cluster.info["master"], "--ca", str(ca)),
        env=other.env | {"SECTOR_USER": "reader", "SECTOR_PASSWORD_FILE": str(secret)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert login.returncode == 0, login.stdout + login.stderr
    other.ok("ls", "/")
    done = other.refused("sphere", "run", f"{udfs}:prints", "/in", "--granularity", "file", "--output", "-")
    assert "execute" in done.err
    assert other.refused("put", str(udfs), "/x.py").status == 1


def test_full_disk(tmp_path: Path) -> None:
    """A slave on a 16 MB tmpfs refuses a file of 32 MB at open; a small one still fits."""
    script = Path(__file__).with_name("full_disk.py")
    apart = ["unshare", "--mount", "--propagation", "unchanged"]
    if os.geteuid():
        apart += ["--map-root-user", "--user"]
    done = subprocess.run(
        [*apart, sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_file_gone_between_listing_and_reading(cluster: Cluster, tmp_path: Path) -> None:
    """A recursive get names the file that vanished and fetches the rest."""
    source = tmp_path / "x"
    source.write_text("x")
    cluster.ok("put", str(source), "/gone/a")
    cluster.ok("put", str(source), "/gone/b")
    for slave in cluster.info["slaves"]:
        native = Path(slave["data_dir"]) / "files" / "gone" / "a"
        native.unlink(missing_ok=True)
    done = cluster.refused("get", "/gone/a", str(tmp_path / "a"))
    assert "/gone/a" in done.err
    assert not (tmp_path / "a").exists()
    cluster.ok("get", "/gone/b", str(tmp_path / "b"))


def bound(sock: socket.socket, host: str, port: int) -> bool:
    """Whether the port could be taken; who was killed may still have it for a moment."""
    try:
        sock.bind((host, port))
    except OSError as bad:
        if bad.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def test_taken_udp_port(tmp_path: Path) -> None:
    """Another program has the slave's UDP port: `up` says which and leaves nothing running."""
    with running(tmp_path / "c", slaves=1) as cluster:
        slave = cluster.info["slaves"][0]
        cluster.kill(slave["pid"])
        host, port = slave["gmp"].rsplit(":", 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            wait_for("the port of who was killed", lambda: bound(taken, host, int(port)))
            config = next((cluster.dir / "up").rglob(f"{slave['id']}*.toml"))
            done = cluster.refused("slave", "--config", str(config))
            assert port in done.err


@pytest.mark.parametrize("text", ["fast", "0", "-3MB/s", "10 parsec/s", "1e9"])
def test_what_is_no_rate_is_refused(cluster: Cluster, text: str) -> None:
    """With how to write one."""
    done = cluster.run("put", "--limit", text, "x", "/x")
    assert done.status == 2 and ("rate" in done.err or "between" in done.err), done.said
