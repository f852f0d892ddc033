"""What `sector node preflight` looks at on this machine: software, kernel, sockets, disk. Blocking, read only
but for a temporary file in the data directory. Source: spec/health.md, node provisioning."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from sector import __version__, space
from sector.cli.render import size_text
from sector.config import Config, Role
from sector.errors import BadConfig, SectorError

OK, WARNING, FAILED = "ok", "warning", "failed"
OPEN_FILES = 4096
SLOW_FSYNC_MS = 25.0
SLOW_DISK = 50e6
DISK_BYTES = 64 << 20
LOW_DISK = 10 << 30
SLOW_NIC_MBPS = 1000
SLOW_AES = 0.5e9
_NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph")


@dataclass(frozen=True, slots=True)
class Check:
    """One line: `state` "ok", "warning" or "failed"; `remedy` what to do if it is not ok."""

    name: str
    state: str
    text: str
    remedy: str = ""


def software() -> Iterator[Check]:
    """Interpreter, libraries, core."""
    import cryptography
    import twisted
    from cryptography.hazmat.backends.openssl import backend

    from sector._udt.errors import error_text

    version = platform.python_version()
    built = bool(error_text(0))
    parts = f"Sector {__version__}, Twisted {twisted.__version__}, cryptography {cryptography.__version__}"
    text = f"Python {version}, {parts}, {backend.openssl_version_text()}"
    good = sys.version_info >= (3, 11) and built
    yield Check("software", OK if good else FAILED, text, "" if good else "install Python 3.11 or newer")


def kernel() -> Iterator[Check]:
    """Version, and what of it is used."""
    release = platform.release()
    number = tuple(int("0" + "".join(c for c in part if c.isdigit())) for part in release.split(".")[:2])
    if number >= (5, 6):
        yield Check("kernel", OK, f"Linux {release}")
    else:
        why = f"Linux {release}: paths are opened component by component (openat2 came with 5.6)"
        yield Check("kernel", WARNING, why, "a newer kernel is safer and faster")


def open_files() -> Iterator[Check]:
    """Descriptors of a process."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # which a service takes by itself
    if most == resource.RLIM_INFINITY:
        yield Check("open_files", OK, "any number of open files")
        return
    text = f"{most} open files"
    if most >= OPEN_FILES:
        yield Check("open_files", OK, text)
    else:
        cure = f"ulimit -n {OPEN_FILES * 4}, or LimitNOFILE={OPEN_FILES * 4} in the unit of systemd"
        yield Check("open_files", WARNING, text, cure)


def buffers() -> Iterator[Check]:
    """UDP socket buffers as the kernel grants them, and whether they were forced."""
    from sector._udt.capable import port_counters
    from sector._udt.context import ENOUGH_BUFFER, GOOD_BUFFER

    got = port_counters()
    limits = {"rmem_max": got["rcvbuf_bytes"], "wmem_max": got["sndbuf_bytes"]}
    small = [name for name, size in limits.items() if 0 < size < ENOUGH_BUFFER]
    text = ", ".join(
        f"{what} {size >> 10} KiB (net.core.{name} {_sysctl(name) >> 10} KiB)"
        for what, (name, size) in zip(("receive", "send"), limits.items(), strict=True)
    )
    forced = any(size > 2 * _sysctl(name) for name, size in limits.items() if _sysctl(name))
    if small:
        cure = "sysctl -w " + " ".join(f"net.core.{name}={GOOD_BUFFER}" for name in small)
        why = f"{text}: fast or distant transfers will lose packets"
        yield Check("udp_buffers", WARNING, why, f"as root: {cure}")
    else:
        yield Check("udp_buffers", OK, text + (", forced with CAP_NET_ADMIN" if forced else ""))
    missing = [name.upper() for name in ("gso", "gro") if not got[name]]
    if missing:
        why = f"no UDP {' and '.join(missing)}: a quarter of the speed, or less"
        yield Check("udp_offload", WARNING, why, "Linux 5.0 or newer has both")
    else:
        yield Check("udp_offload", OK, "UDP GSO and GRO")


def _sysctl(name: str) -> int:
    try:
        return int(Path("/proc/sys/net/core", name).read_text())
    except (OSError, ValueError):
        return 0


def aes() -> Iterator[Check]:
    """Speed of AES-256-GCM on records of 16 KiB, one core; what others take of that core does not count."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key, record, count = AESGCM(bytes(32)), bytes(16384), 0
    begin = time.thread_time()
    while (spent := time.thread_time() - begin) < 0.05:
        key.encrypt(count.to_bytes(12, "big"), record, None)
        count += 1
    rate = count * len(record) / spent
    text = f"AES-256-GCM {size_text(rate)}/s a core"
    if rate >= SLOW_AES:
        yield Check("aes", OK, text)
    else:
        yield Check("aes", WARNING, f"{text}: encryption will limit transfers", "use a processor with AES")


def nics(root: Path = Path("/sys/class/net")) -> Iterator[Check]:
    """Speed and duplex of network cards that are up; virtual ones tell none."""
    for card in sorted(root.iterdir()) if root.is_dir() else []:
        speed, duplex = _read(card / "speed"), _read(card / "duplex")
        if _read(card / "operstate") == "down" or not speed.isdigit():
            continue
        text = f"{card.name}: {speed} Mb/s, {duplex or 'unknown'} duplex"
        if int(speed) < SLOW_NIC_MBPS or duplex == "half":
            cure = f"check cable and switch port; ethtool -s {card.name} autoneg on"
            yield Check("nic", WARNING, text, cure)
        else:
            yield Check("nic", OK, text)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def sandbox(user: str) -> Iterator[Check]:
    """Whether users' functions can be kept apart. `user` as in [sphere] user."""
    ask = "import sys; from sector.sphere.worker_os import leave_network; sys.exit(not leave_network())"
    cut = subprocess.run([sys.executable, "-c", ask], check=False, timeout=30).returncode == 0
    rights = list(workers_as_root(user))
    yield from rights
    if os.geteuid() != 0:
        who = f"run as user id {os.geteuid()} like the slave itself"
    else:
        who = f"run as user {user}" if user and not rights else "run as root"
    if cut:
        yield Check("sandbox", OK, f"functions {who}, without network")
    else:
        cure = (
            "start the slave as root, or allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
        )
        yield Check("sandbox", WARNING, f"functions {who}, and cannot be cut off the network", cure)


def workers_as_root(user: str) -> Iterator[Check]:
    """Whether users' functions would have all rights on this machine. `user` as in [sphere] user."""
    from sector.sphere.tasks import why_root  # it loads Twisted, and --help need not wait for that

    try:
        why = why_root(user)
    except BadConfig as bad:
        yield Check("functions", FAILED, bad.message, f"useradd --system {user}, or another [sphere] user")
        return
    if why:
        cure = "install Sector where every user may read it, such as /opt/sector, and start it from there"
        yield Check("functions", WARNING, f"they would run as root, with all its rights: {why}", cure)


# disk -------------------------------------------------------------------------------------------------
def disk_before(folder: Path) -> Iterator[Check]:
    """What `disk` says before the service has made the directory; it is not left behind."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    found = list(disk(folder))
    for place in missing:
        with contextlib.suppress(OSError):
            place.rmdir()
    if missing and found[0].state != FAILED:
        found[0] = replace(found[0], text=f"{found[0].text}; the service makes it at its start")
    yield from found


def disk(folder: Path, measure: bool = True) -> Iterator[Check]:
    """Room, features and speed of the data directory, which is made if it is not there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "no right to write there")
    except (FileExistsError, NotADirectoryError):
        yield Check("disk", FAILED, f"{folder}: there is a file in its place", "name another [data] dir")
        return
    except OSError as bad:
        yield Check("disk", FAILED, f"{folder}: {bad.strerror}", f"make it: install -d -o USER {folder}")
        return
    usage, kind = shutil.disk_usage(folder), file_system(folder)
    text = f"{folder}: {size_text(usage.free)} free of {size_text(usage.total)}, {kind}"
    low = usage.free < min(LOW_DISK, usage.total / 20)
    yield Check("disk", WARNING if low else OK, text, "a slave needs room for files" if low else "")
    probe = folder / f".preflight.{os.getpid()}"
    try:
        yield from _features(probe, kind)
        if measure:
            yield from _speed(probe)
    except OSError as bad:
        yield Check("disk", FAILED, f"{folder}: {bad.strerror}", "check the disk, its quota and its mount")
    finally:
        for name in (probe, probe.with_name(probe.name.upper())):
            name.unlink(missing_ok=True)


def file_system(folder: Path) -> str:
    """Type of the file system that `folder` is on."""
    best, kind = "", "unknown file system"
    place = str(folder.resolve())
    for line in _read(Path("/proc/self/mounts")).splitlines():
        _, where, what, *_ = line.split(" ")
        where = where.replace("\\040", " ")
        if (place == where or place.startswith(where.rstrip("/") + "/")) and len(where) >= len(best):
            best, kind = where, what
    return kind


def _features(probe: Path, kind: str) -> Iterator[Check]:
    wrong = []
    with open(probe, "wb") as file:
        if not space.fallocate(file.fileno(), 1 << 20):
            wrong.append("space cannot be reserved (fallocate)")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            wrong.append("no locks (flock)")
    if probe.with_name(probe.name.upper()).exists():
        wrong.append("capital and small letters are the same")
    try:
        os.close(os.open(probe.parent, os.O_TMPFILE | os.O_RDWR, 0o600))
    except OSError:
        wrong.append("no files without a name (O_TMPFILE)")
    if kind in _NETWORK_DISKS:
        wrong.append(f"{kind} is over the network")
    if wrong:
        yield Check("file_system", WARNING, "; ".join(wrong), "use a local disk with ext4 or xfs")
    else:
        yield Check("file_system", OK, "reserves space, locks, files without a name")


def _speed(probe: Path) -> Iterator[Check]:
    times, block = [], os.urandom(1 << 20)
    with open(probe, "wb", buffering=0) as file:
        for _ in range(16):
            file.write(block[:4096])
            begin = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(min(DISK_BYTES, space.free_bytes(file.fileno()) // 4) >> 20):
            file.write(block)
        os.fsync(file.fileno())
        rate = file.tell() / (time.perf_counter() - begin)
    ms = statistics.median(times) * 1e3
    text = f"fsync {ms:.2g} ms (worst {max(times) * 1e3:.2g}), writing {size_text(rate)}/s"
    slow = ms > SLOW_FSYNC_MS or rate < SLOW_DISK
    cure = (
        "every file that is stored waits for fsync: a disk with a write cache that survives" if slow else ""
    )
    yield Check("disk_speed", WARNING if slow else OK, text, cure)


# settings -----------------------------------------------------------------------------------------------
def certificate(config: Config) -> Iterator[Check]:
    """The node's own certificate."""
    from sector.pki import RENEW_DAYS, days_left, load_node

    try:
        mine, _ = load_node(config, config.role)
    except SectorError as bad:
        yield Check(
            "certificate", FAILED, bad.message, bad.hint or "copy it again from where sector init ran"
        )
        return
    left = days_left(mine.certificate, datetime.now(UTC))
    text = f"{mine.identity.principal}, {left:.0f} days left"
    if left < RENEW_DAYS:
        yield Check("certificate", WARNING, text, "sector init DIR --renew, then copy it here")
    else:
        yield Check("certificate", OK, text)


def wanted_ports(config: Config) -> list[tuple[str, int]]:
    """(kind, number) of the ports that a service with these settings listens at; not those of chance."""
    listen, role = config.listen, cast(Role, config.role)
    wanted = {
        "security": [("tcp", listen.tls)],
        "master": [("tcp", listen.tls), ("udp", listen.gmp)],
        "slave": [("udp", listen.gmp), ("udp", listen.udt), ("tcp", listen.udt)],
    }.get(role, [])
    return [(kind, number) for kind, number in wanted if number]


def bind(host: str, kind: str, number: int) -> socket.socket:
    """A socket bound as the service would. Raises OSError."""
    family, *_, where = socket.getaddrinfo(host, number, type=_KIND[kind])[0]
    sock = socket.socket(family, _KIND[kind])
    try:
        if kind == "tcp":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
    except OSError:
        sock.close()
        raise
    return sock


_KIND = {"udp": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM}


def runs_already(config: Config) -> bool:
    """Whether a slave holds this data directory now."""
    try:
        fd = os.open(config.data_dir / ".sector" / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def ports(config: Config) -> Iterator[Check]:
    """Whether the ports of the settings are free."""
    taken, free = [], []
    for kind, number in wanted_ports(config):
        try:
            bind(config.listen.host, kind, number).close()
        except OSError as bad:
            taken.append(f"{config.listen.host}:{number}/{kind}: {bad.strerror}")
        else:
            free.append(f"{number}/{kind}")
    if taken and runs_already(config):
        yield Check(
            "ports", WARNING, f"this node runs already: {'; '.join(taken)}", "stop it to test its ports"
        )
    elif taken:
        cure = (
            f"ss -lnp | grep {taken[0].split(':')[-2].split('/')[0]} shows who; or choose others in [listen]"
        )
        yield Check("ports", FAILED, "; ".join(taken), cure)
    elif free:
        yield Check("ports", OK, f"free: {', '.join(free)}")


def machine_checks(user: str) -> Iterator[Check]:
    """All that needs no settings but whose functions run as `user`."""
    for look in (software, kernel, open_files, buffers, aes, nics):
        yield from look()
    yield from sandbox(user)


def start_checks(config: Config) -> list[Check]:
    """The quick ones, which a slave repeats at each start: only what is not ok."""
    found = [check for look in (kernel, open_files, nics) for check in look()]
    found += disk(config.data_dir, measure=False)
    return [check for check in found if check.state != OK]
