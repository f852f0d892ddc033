"""`cumulus serve --detach` and `cumulus stop`: a service in the background without a service manager.

DIR/serve.pid is locked by the service as long as it lives, so a file that is left says nothing wrong;
DIR/serve.log has what it says. One directory may have the settings of several services: of those with another
name, FILE, they are FILE.serve.pid and FILE.serve.log.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar, Final

import click

from cumulus.admin.options import Shared, shared_options
from cumulus.config import FILE, Config
from cumulus.unix import ACCOUNT
from sector.errors import BadConfig, Exists, LocalIO, NotFound, SectorError, from_wire

TELL_S: Final = 60.0  # how often it says that the service still starts
STOP_S: Final = 60.0
_ERROR: Final = "X_CUMULUS_ERROR"  # beside READY of the protocol by which services tell that they are ready


class NotReady(SectorError):
    """The service ended before it was ready, or did not end in time."""

    code: ClassVar[str] = "not_ready"


def _files(settings: str) -> tuple[Path, Path]:
    file = Path(settings)
    stem = "serve" if file.name == FILE else f"{file.name}.serve"
    return file.with_name(f"{stem}.pid"), file.with_name(f"{stem}.log")


def _settings(shared: Shared) -> str:
    """Path of the settings, which may have become wrong since the service began. Raises `UsageError`."""
    try:
        return shared.config().path
    except BadConfig:
        folder, file = shared.where()
        where = Path(folder, FILE) if folder else Path(file or "")
        if not os.path.isfile(where):
            raise
        return str(where.absolute())


def _locked(file: Path) -> int:
    """A descriptor of the file, locked; -1 if another process holds it. Raises `LocalIO`."""
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except PermissionError as bad:
        raise LocalIO(f"{file}: {bad.strerror}", hint=ACCOUNT) from None
    except OSError as bad:
        hint = "cumulus serve --detach makes this file: look what is in its place"
        raise LocalIO(f"{file}: {bad.strerror}", hint=hint) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    return fd


def start(config: Config, options: list[str]) -> tuple[int, Path]:
    """Start `cumulus serve` with `options` and return (its process, its log) when it is ready, however long
    that takes: it may upgrade large tables. Raises `Exists` when one runs, what kept it from running,
    `NotReady`."""
    pid_file, log_file = _files(config.path)
    lock = _locked(pid_file)
    if lock < 0:
        raise Exists(f"{pid_file}: the service runs already", hint="cumulus stop ends it")
    try:
        with tempfile.TemporaryDirectory(prefix="cumulus-") as scratch:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
                told.bind(f"{scratch}/ready")
                told.settimeout(0.2)
                os.ftruncate(lock, 0)  # nobody is to end the process that the service before this one was
                process = _spawn(config, options, lock, log_file, f"{scratch}/ready")
                os.pwrite(lock, f"{process.pid}\n".encode(), 0)
                try:
                    _wait(process, told, log_file)
                except KeyboardInterrupt:  # nobody waits for it any more
                    process.terminate()
                    raise
    finally:
        os.close(lock)
    return process.pid, log_file


def _spawn(
    config: Config, options: list[str], lock: int, log_file: Path, ready: str
) -> subprocess.Popen[bytes]:
    file = Path(config.path)  # which need not be there in a directory
    where = ["--dir", str(file.parent)] if file.name == FILE else ["--config", config.path]
    command = [sys.executable, "-P", "-m", "cumulus.cli", *where, "serve", *options]
    try:
        with log_file.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock],
                start_new_session=True,
                env={**os.environ, "NOTIFY_SOCKET": ready},
            )
    except OSError as bad:
        hint = ACCOUNT if isinstance(bad, PermissionError) else "see that the file can be written"
        raise LocalIO(f"{log_file}: {bad.strerror}", hint=hint) from None


def tell(error: SectorError) -> None:
    """Why this service ends, to who waits for it to be ready."""
    from sector.daemon import notify, one_line

    notify(STATUS=one_line(error.message), **{_ERROR: json.dumps(error.as_json())})


def _wait(process: subprocess.Popen[bytes], told: socket.socket, log_file: Path) -> None:
    began = tell_at = time.monotonic()
    while True:
        if (now := time.monotonic()) - tell_at >= TELL_S:
            tell_at = now
            click.echo(f"the service still starts after {now - began:.0f} s; see {log_file}", err=True)
        ended = process.poll() is not None  # before the last look at what it told
        try:
            lines = told.recv(1 << 18).decode().splitlines()
        except TimeoutError:
            if ended:
                raise NotReady("the service ended before it was ready", hint=f"see {log_file}") from None
            continue
        if "READY=1" in lines:
            return
        for line in lines:
            if line.startswith(f"{_ERROR}="):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)
                raise from_wire(**json.loads(line.partition("=")[2]))


@click.command("stop")
@click.argument("directory", metavar="[DIR]", required=False)
@shared_options
@click.pass_obj
def stop(shared: Shared, directory: str | None) -> None:
    """Stop the service that `cumulus serve --detach` started; requests in flight are finished.

    \b
    Examples:
      cumulus stop /srv/cumulus
      cumulus stop --config /etc/cumulus/point.toml
    """
    shared.take_directory(directory)
    pid_file, log_file = _files(_settings(shared))
    pid = _running(pid_file)
    if not pid:
        hint = "one that was started otherwise is ended there: by Ctrl-C, or systemctl stop"
        raise NotFound(f"{pid_file}: no service runs that --detach started", hint=hint)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError as bad:
        hint = "run this as the account of the service"
        raise LocalIO(f"process {pid} cannot be ended: {bad.strerror}", hint=hint) from None
    end = time.monotonic() + STOP_S
    while _running(pid_file) == pid:
        if time.monotonic() > end:
            raise NotReady(f"process {pid} did not end in {STOP_S:.0f} s", hint=f"see {log_file}")
        time.sleep(0.05)
    shared.done("stopped", stopped=pid)


def _running(pid_file: Path) -> int:
    """The process that holds the file's lock, 0 if there is none. Raises `LocalIO`, `NotReady` if the file
    does not say which it is."""
    if not os.path.lexists(pid_file):
        return 0
    lock = _locked(pid_file)
    if lock >= 0:
        os.close(lock)
        return 0
    text = pid_file.read_text(errors="replace").strip()
    if re.fullmatch("[1-9][0-9]{0,9}", text):
        return int(text)
    hint = f"if it is not just starting, find its process with: fuser {pid_file}"
    raise NotReady(f"{pid_file}: a service runs, but the file does not name its process", hint=hint)
