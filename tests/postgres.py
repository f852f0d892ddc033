"""A real PostgreSQL for tests: a server in a process of its own that ends with the tests'."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from sector.ports import free_ports

PASSWORD = "pass word/of:tests"
SETTINGS = (
    "fsync=off",  # the machine does not fail, and tests of what does sync count the calls
    "synchronous_commit=on",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "max_connections=200",
    "autovacuum=off",
    "log_min_messages=fatal",
)
# Runs the server; ends it when we are gone. A line on its input starts it or is a signal that ends it.
KEEPER = """
while read -r word; do
    case $word in
    start) "$@" & pid=$! ;;
    *) kill -"$word" "$pid"; wait "$pid"; pid=; echo ended ;;
    esac
done
[ -z "$pid" ] || { kill -INT "$pid"; wait "$pid"; }
"""
_names = itertools.count(1)


def programs() -> Path:
    """Where Debian puts the newest server, else where the shell finds one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    inside = shutil.which("postgres")
    assert inside, "PostgreSQL is not installed: ./dev test installs it"
    return Path(inside).resolve().parent


class Postgres:
    """A server on a free port of 127.0.0.1. Its user `cumulus` has PASSWORD there, and none at the socket in
    its directory. root cannot run one, so it is the package's user then."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cumulus-pg-"))
        (self.port,) = free_ports(1)
        self._runs = False
        self._as: list[str] = []
        if os.getuid() == 0:
            for user in ("postgres", "nobody"):
                with contextlib.suppress(LookupError):
                    shutil.chown(self.directory, user)
                    self._as = [f"--reuid={user}", "--clear-groups"]
                    break
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run("initdb", "-D", str(self.directory / "data"), "-U", "cumulus", "-E", "UTF8", "--no-sync",
                  "--locale=C.UTF-8", "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}",
                  "--no-instructions")  # fmt: skip
        options = [f"-c{one}" for one in SETTINGS]
        options += [f"-cport={self.port}", "-clisten_addresses=127.0.0.1"]
        options += [f"-cunix_socket_directories={self.directory}"]
        with (self.directory / "log").open("ab") as log:
            self._keeper = subprocess.Popen(
                ["sh", "-c", KEEPER, "sh",
                 *self._command("postgres", "-D", str(self.directory / "data"), *options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
                text=True,
            )  # fmt: skip
        self.start()

    def _tell(self, word: str) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{word}\n")
        self._keeper.stdin.flush()

    def _command(self, program: str, *arguments: str) -> list[str]:
        inside = str(programs() / program)
        return ["setpriv", *self._as, inside, *arguments] if self._as else [inside, *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            self._command(program, *arguments), capture_output=True, text=True, cwd="/", timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Run, and wait until it answers."""
        self._tell("start")
        self._runs = True
        end = time.monotonic() + 60
        while not self.answers():
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether it does."""
        try:
            return bool(self.execute("SELECT 1"))
        except psycopg.OperationalError:
            return False

    def log(self) -> str:
        """What it has said."""
        return (self.directory / "log").read_text()

    def stop(self, how: str = "INT") -> None:
        """End it: INT cuts all connections, QUIT is a crash."""
        if self._runs:
            self._runs = False
            self._tell(how)
            assert self._keeper.stdout is not None and self._keeper.stdout.readline() == "ended\n", self.log()

    def execute(self, query: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement and give its rows."""
        with psycopg.connect(self.local(database), autocommit=True, connect_timeout=5) as connection:
            found = connection.execute(query)  # type: ignore[call-overload]
            return found.fetchall() if found.description else []

    def local(self, database: str) -> str:
        """A URL by the socket, which needs no password."""
        return f"postgresql://cumulus@/{database}?host={self.directory}&port={self.port}"

    def url(self, database: str) -> str:
        """A URL by TCP, which needs the password."""
        return f"postgresql://cumulus@127.0.0.1:{self.port}/{database}"

    def database(self, template: str = "template0") -> str:
        """Make a new database; its name."""
        name = f"test{next(_names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def remove(self) -> None:
        """Stop, and leave nothing."""
        self._keeper.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)


@functools.cache
def shared() -> Postgres:
    """The server of this process, made when the first test wants it. Fixtures call it that are wider than
    one test."""
    made = Postgres()
    atexit.register(made.remove)
    return made
