"""The `sector` program: one line per error, exit status, --json, the table of commands, readiness, logs."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogLevel
from twisted.python.failure import Failure

from sector import daemon, errors
from sector.cli import admin as admin_commands
from sector.cli import cluster, cluster_run, main, render
from sector.cli.cluster_run import Child, Process, Readiness
from sector.config import ClientSection, save_client
from sector.model import Address, Right
from sector.wire import admin


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SECTOR_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SECTOR_CONFIG", str(tmp_path / "client.toml"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of one command line."""
    status = main.run(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


class FakeMaster:
    """Answers requests of commands and keeps them."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.replies: dict[type, Any] = {}

    def __call__(self, shared: main.Shared, *requests: Any) -> Any:
        self.seen.extend(requests)
        reply = self.replies.get(type(requests[-1]))
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> FakeMaster:
    fake = FakeMaster()
    monkeypatch.setattr(admin_commands, "call", fake)
    return fake


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "status", "part"),
        [
            (("lss",), 2, "did you mean ls?"),
            (("--nope",), 2, "No such option"),
            (("master",), 2, "--config"),
            (("master", "--config", "/none.toml"), 1, "/none.toml: cannot be read"),
            (("status",), 1, "no master is known"),
            (("login",), 2, "no master is given"),
            (("login", "h:1"), 1, "no CA is given"),
            (("login", "h:x", "--ca", "f"), 1, "not an address"),
            (("login", "h:1", "--ca-sha256", "2f1c09ab", "--user", "u"), 2, "has 64 hexadecimal digits"),
            (("init", "/none/c", "--host", "no host"), 2, "'no host' is not an IP address of this machine"),
            (("init", "/none/c", "--host", "300.1.2.3"), 2, "not an IP address"),
            (("login", "h:1", "--ca", "/none", "--user", "u"), 1, "/none: cannot be read"),
            (("down", "--dir", "/none"), 1, "no cluster in /none"),
            (("up", "--slaves", "0"), 2, "--slaves"),
            (("grant", "u", "/a", "q"), 2, "not letters of rwx"),
            (("grant", "u", "a", "r"), 2, "not absolute"),
            (("acl", "king", "list"), 2, "No such command"),
            (("user", "add", "u", "--password-file", "/none"), 1, "password file /none"),
        ],
    )
    def test_one_line_and_the_right_status(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, part: str
    ) -> None:
        got, out, err = run(capsys, *arguments)
        assert (got, out) == (status, "")
        assert err.startswith("sector: ") and err.count("\n") == 1 and part in err
        got, out, err = run(capsys, *arguments, "--json") if arguments[0] != "master" else (status, "", "")
        if out:
            body = json.loads(out)
            assert got == status and set(body["error"]) == {"code", "message", "hint"}

    def test_a_host_that_nobody_knows_and_a_session_that_is_not_there_are_named(self, tmp_path: Path) -> None:
        pin = ["--ca-sha256", "00" * 32, "--user", "u", "--password-file", "/dev/null"]
        (tmp_path / "c.toml").write_text(f'[client]\nmasters = ["127.0.0.1:9"]\nca_sha256 = "{"00" * 32}"\n')
        for arguments, told in (
            (["login", "no.such.host.invalid:1", *pin], "no address is known for the host 'no.such.host.inv"),
            (["status"], "no session with 127.0.0.1:9 (log in first: sector login 127.0.0.1:9)"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "sector.cli.main", *arguments],
                env=os.environ | {"SECTOR_CONFIG": str(tmp_path / "c.toml")},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr.count("\n")) == (1, 1) and told in done.stderr

    def test_no_master_is_one_status_for_every_command(self) -> None:
        """Those that ask the master by a call and those that open a cloud."""
        lines = ["status", "node list", "job list", "user list", "ls /", "cat /a", "put a /a"]
        lines.append("bench terasort")
        code = "from sector.cli.main import run\n"
        code += f"print([run(line.split()) for line in {lines}], flush=True)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.stdout == f"{[1] * len(lines)}\n"
        assert done.stderr.count("no master is known (run sector login") == len(lines)

    def test_a_fault_of_the_program_is_one_line_too(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("boom")

        monkeypatch.setattr(admin_commands, "call", broken)
        status, _, err = run(capsys, "node", "list")
        assert status == 1 and "RuntimeError: boom" in err and "Traceback" not in err
        monkeypatch.setattr(admin_commands, "call", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert run(capsys, "node", "list")[0] == 130

    def test_a_users_function_shows_its_whole_traceback(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main.PROGRAM.report(errors.UdfError("line 1\nline 2"), False) == 1
        assert capsys.readouterr().err == "sector: line 1\nline 2\n"

    def test_every_command_of_the_table_has_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = run(capsys, "--help")
        assert status == 0 and all(name in out for name in main.COMMANDS)
        for name in ("init", "up", "down", "status", "login", "security", "master", "slave", "user", "acl"):
            status, out, _ = run(capsys, name, "--help")
            assert status == 0 and "Usage: sector " + name in out

    def test_help_loads_neither_the_core_nor_twisted(self) -> None:
        code = "import sys; from sector.cli.main import run; run(['--help']); "
        code += "bad = [m for m in sys.modules if m.split('.')[0] in ('twisted', 'sqlalchemy', 'numpy')]; "
        code += "sys.exit(bool(bad))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert done.returncode == 0


class TestAdmin:
    def test_roles_without_a_role_are_shown_and_stay(
        self, capsys: pytest.CaptureFixture[str], master: FakeMaster
    ) -> None:
        bob = admin.UserInfo("bob", ["user", "service"], [], [], 0.0)
        master.replies[admin.UserList] = admin.Users([bob])
        assert run(capsys, "user", "roles", "bob")[:2] == (0, "user bob has the roles user, service\n")
        status, out, _ = run(capsys, "user", "roles", "bob", "--json")
        assert status == 0 and json.loads(out) == {"name": "bob", "roles": ["user", "service"]}
        status, _, err = run(capsys, "user", "roles", "bo")
        assert status == 1 and "there is no user bo (" in err
        assert {type(request) for request in master.seen} == {admin.UserList}
        assert run(capsys, "user", "roles", "bob", "user")[0] == 0
        assert master.seen[-1] == admin.UserRoles("bob", ["user"])

    def test_address_rules_of_a_user(self, capsys: pytest.CaptureFixture[str], master: FakeMaster) -> None:
        assert run(capsys, "user", "allow", "bob", "10.0.0.0/8", "::1")[:2] == (
            0,
            "user bob may come from: 10.0.0.0/8 ::1\n",
        )
        assert master.seen[-1] == admin.UserAddresses("bob", ["10.0.0.0/8", "::1"], [])
        status, out, _ = run(capsys, "user", "deny", "bob", "10.1.0.0/16", "--json")
        assert status == 0 and json.loads(out) == {"name": "bob", "added": ["!10.1.0.0/16"]}
        assert master.seen[-1] == admin.UserAddresses("bob", ["!10.1.0.0/16"], [])
        assert run(capsys, "user", "deny", "bob", "10.1.0.0/16", "--remove")[0] == 0
        assert master.seen[-1] == admin.UserAddresses("bob", [], ["!10.1.0.0/16"])
        master.replies[admin.UserList] = admin.Users([admin.UserInfo("bob", [], [], ["10.0.0.0/8"], 0.0)])
        assert run(capsys, "user", "allow", "bob")[:2] == (0, "user bob comes from: 10.0.0.0/8\n")
        for words in (("allow", "bob", "--remove"), ("allow", "bob", "!10.0.0.0/8")):
            status, _, err = run(capsys, "user", *words)
            assert status == 2 and err.count("\n") == 1

    def test_users(self, capsys: pytest.CaptureFixture[str], master: FakeMaster, tmp_path: Path) -> None:
        (tmp_path / "pw").write_text("wonderland\n")
        status, out, _ = run(
            capsys, "user", "add", "alice", "--password-file", str(tmp_path / "pw"), "--json"
        )
        assert status == 0 and json.loads(out) == {"name": "alice", "roles": ["user"]}
        assert master.seen == [admin.UserAdd("alice", "wonderland", ["user"])]
        assert "wonderland" not in out
        info = admin.UserInfo("alice", ["user"], [Right("alice", "/a", "rw")], [], 0.0)
        master.replies[admin.UserList] = admin.Users([info])
        status, out, _ = run(capsys, "user", "list", "--json")
        assert json.loads(out) == [
            {
                "name": "alice",
                "roles": ["user"],
                "rights": [{"path": "/a", "rights": "rw"}],
                "addresses": [],
                "created": 0.0,
            }
        ]
        assert "/a:rw" in run(capsys, "user", "list")[1]

    def test_all_pages_of_users_are_fetched(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"u{n}" for n in range(5)]

        def pages(_: object, request: admin.UserList) -> admin.Users:
            rest = [name for name in names if name > request.after]
            return admin.Users([admin.UserInfo(n, [], [], [], 0.0) for n in rest[:2]], len(rest) > 2)

        monkeypatch.setattr(admin_commands, "call", pages)
        assert [u["name"] for u in json.loads(run(capsys, "user", "list", "--json")[1])] == names

    def test_rights_and_lists(self, capsys: pytest.CaptureFixture[str], master: FakeMaster) -> None:
        assert run(capsys, "grant", "alice", "/a/", "wr")[0] == 0
        assert run(capsys, "grant", "alice", "/b", "none")[0] == 0
        assert run(capsys, "revoke", "alice", "/a")[0] == 0
        assert run(capsys, "acl", "slave", "add", "s9", "--address", "10.0.0.0/8")[0] == 0
        assert run(capsys, "acl", "master", "remove", "m2")[0] == 0
        assert master.seen == [
            admin.Grant(Right("alice", "/a", "rw")),
            admin.Grant(Right("alice", "/b", "")),
            admin.Revoke("alice", "/a"),
            admin.AclChange("slave", "s9", True, ["10.0.0.0/8"]),
            admin.AclChange("master", "m2", False),
        ]

    def test_a_refusal_keeps_its_code(self, capsys: pytest.CaptureFixture[str], master: FakeMaster) -> None:
        master.replies[admin.UserRemove] = errors.Denied("no")
        status, out, _ = run(capsys, "--json", "user", "remove", "alice")
        assert status == 1 and json.loads(out)["error"]["code"] == "denied"

    def test_nodes_have_the_fields_of_the_design(
        self, capsys: pytest.CaptureFixture[str], master: FakeMaster
    ) -> None:
        node = admin.NodeInfo("s1", "h", "/a/b", "up", 7, "/d", 1, 2, 3, Address("h", 1), Address("h", 2), 4)
        master.replies[admin.NodeList] = admin.Nodes([node])
        (shown,) = json.loads(run(capsys, "node", "list", "--json")[1])
        assert {
            "id",
            "host",
            "topology",
            "state",
            "pid",
            "data_dir",
            "used_bytes",
            "free_bytes",
            "files",
        } <= set(shown)
        assert shown["gmp"] == "h:1"


class TestProcesses:
    """Processes of `sector up`, here small sleeping ones."""

    @pytest.fixture
    def children(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        found: list[subprocess.Popen[bytes]] = []
        yield found
        for popen in found:
            if popen.poll() is None:
                popen.kill()
            popen.wait()

    def spawn(
        self, children: list[subprocess.Popen[bytes]], directory: Path, name: str, code: str = ""
    ) -> subprocess.Popen[bytes]:
        marks = {cluster_run.DIR_MARK: str(directory), cluster_run.NAME_MARK: name}
        text = code + "\nprint('on', flush=True)\nimport time\ntime.sleep(60)"
        popen = subprocess.Popen(
            [sys.executable, "-c", text], env={**os.environ, **marks}, stdout=subprocess.PIPE
        )
        children.append(popen)
        assert popen.stdout is not None and popen.stdout.readline() == b"on\n"
        popen.stdout.close()
        return popen

    def test_they_are_found_by_their_directory_and_stopped(
        self, children: list[subprocess.Popen[bytes]], tmp_path: Path
    ) -> None:
        mine = [self.spawn(children, tmp_path, name) for name in ("master", "slave1")]
        other = self.spawn(children, tmp_path / "other", "slave1")
        found = cluster_run.running(tmp_path)
        assert {(p.name, p.pid) for p in found} == {("master", mine[0].pid), ("slave1", mine[1].pid)}
        report = cluster_run.stop(found)
        assert [(line["name"], line["killed"]) for line in report] == [("slave1", False), ("master", False)]
        assert [popen.wait() for popen in mine] == [-signal.SIGTERM] * 2 and other.poll() is None
        assert cluster_run.running(tmp_path) == []

    def test_one_that_does_not_obey_is_killed(
        self, children: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster_run, "STOP_S", 0.2)
        deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
        popen = self.spawn(children, tmp_path, "slave1", deaf)
        (line,) = cluster_run.stop(cluster_run.running(tmp_path))
        assert line["killed"] and popen.wait() == -signal.SIGKILL

    def test_a_later_process_with_the_same_number_is_not_touched(
        self, children: list[subprocess.Popen[bytes]], tmp_path: Path
    ) -> None:
        popen = self.spawn(children, tmp_path, "slave1")
        began = cluster_run.start_time(popen.pid)
        assert began is not None
        assert cluster_run.stop([Process("slave1", popen.pid, began - 1)]) == []
        assert popen.poll() is None

    def test_one_whose_first_thread_has_ended_is_waited_for(
        self, children: list[subprocess.Popen[bytes]], tmp_path: Path
    ) -> None:
        """So a killed process looks while its other threads are on their way out; its port is taken."""
        code = (
            "import ctypes, socket, threading, time\n"
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.bind(('127.0.0.1', 0))\n"
            "print('on', s.getsockname()[1], flush=True)\n"
            "def rest():\n    time.sleep(1)\n    import os\n    os._exit(0)\n"
            "threading.Thread(target=rest).start()\n"
            "ctypes.CDLL(None).syscall(60 if __import__('os').uname().machine == 'x86_64' else 93, 0)\n"
        )
        popen = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        children.append(popen)
        began = cluster_run.start_time(popen.pid)
        assert began is not None and popen.stdout is not None
        port = int(popen.stdout.readline().split()[1])
        deadline = time.monotonic() + 10
        while cluster_run.start_time(popen.pid) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        later = Process("master", os.getpid(), 1)  # its number has been given to another one
        gone = Process("slave2", 2**22 - 1, 1)
        cluster_run.remember(tmp_path, [Process("slave1", popen.pid, began), later, gone])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as successor:
            with pytest.raises(OSError, match="in use"):
                successor.bind(("127.0.0.1", port))
            cluster_run.let_go(tmp_path)
            successor.bind(("127.0.0.1", port))
        popen.stdout.close()

    @pytest.mark.parametrize("text", ["", "[", "{}", '[{"name": "a"}]', '[{"name": "a", "pid": "x"}]', "[1]"])
    def test_without_a_record_nothing_is_waited_for(self, tmp_path: Path, text: str) -> None:
        assert cluster_run.recalled(tmp_path / "none") == []
        (tmp_path / "up.json").write_text(text)
        assert cluster_run.recalled(tmp_path) == []
        cluster_run.let_go(tmp_path)

    def test_a_record_with_impossible_numbers_is_no_process(self, tmp_path: Path) -> None:
        cluster_run.remember(tmp_path, [Process("slave1", pid, 1) for pid in (-1, 0, 2**70)])
        cluster_run.let_go(tmp_path)

    def test_readiness_is_heard_and_an_early_end_is_told_with_its_own_words(
        self, children: list[subprocess.Popen[bytes]], tmp_path: Path
    ) -> None:
        log = tmp_path / "x.log"
        log.write_text("sector: an old line\n")
        size = log.stat().st_size
        with Readiness() as ready:
            text = "import socket, os; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            text += f"s.sendto(b'READY=1\\nMAINPID=%d' % os.getpid(), {ready.path!r})"
            good = self.spawn(children, tmp_path, "good", text)
            ready.wait(Child("good", good, log, size), 10)
            bad = subprocess.Popen(["/bin/sh", "-c", f"echo 'sector: port in use' >> {log}; exit 1"])
            children.append(bad)
            with pytest.raises(errors.SectorError, match="bad did not start: port in use"):
                ready.wait(Child("bad", bad, log, size), 10)
            with pytest.raises(errors.TimedOut):
                ready.wait(Child("late", self.spawn(children, tmp_path, "late"), log, size), 0.1)
        assert not Path(ready.path).exists()

    def test_a_server_that_starts_slowly_is_waited_for_with_a_word_now_and_then(
        self,
        children: list[subprocess.Popen[bytes]],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(cluster_run, "START_S", 0.2)
        log = tmp_path / "x.log"
        log.touch()
        with Readiness() as ready:
            text = "import socket, os, time; time.sleep(0.7)\n"
            text += "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            text += f"s.sendto(b'READY=1\\nMAINPID=%d' % os.getpid(), {ready.path!r})\n"
            slow = subprocess.Popen([sys.executable, "-c", f"{text}time.sleep(60)"])
            children.append(slow)
            ready.wait_long(Child("master", slow, log, 0))
            said = capsys.readouterr().err.splitlines()
            assert len(said) > 1 and set(said) == {f"master still starts; see {log}"}
            bad = subprocess.Popen(
                ["/bin/sh", "-c", f"sleep 0.5; echo 'sector: port in use' >> {log}; exit 1"]
            )
            children.append(bad)
            with pytest.raises(errors.SectorError, match="bad did not start: port in use"):
                ready.wait_long(Child("bad", bad, log, 0))

    def test_only_one_up_or_down_at_a_time(self, tmp_path: Path) -> None:
        with cluster_run.locked(tmp_path), pytest.raises(errors.Busy), cluster_run.locked(tmp_path):
            pass
        with cluster_run.locked(tmp_path):
            pass

    def test_free_ports_are_all_different(self) -> None:
        ports = cluster_run.free_ports("127.0.0.1", 8)
        numbers = [number for node in ports.values() for number in node.values()]
        assert len(set(numbers)) == 19 and all(1024 < number < 65536 for number in numbers)


class TestDaemon:
    def event(self, **fields: Any) -> dict[str, Any]:
        base = {"log_time": 0.25, "log_level": LogLevel.warn, "log_namespace": "sector.x"}
        return {
            **base,
            "log_format": "slave {slave_id} lost after {idle_s}s",
            "slave_id": "s1",
            "idle_s": 3,
            **fields,
        }

    def test_json_lines_have_text_and_fields(self) -> None:
        line = json.loads(daemon.json_line(self.event(obj=object())))
        assert line == {
            "time": "1970-01-01T00:00:00.250Z",
            "level": "warn",
            "part": "sector.x",
            "text": "slave s1 lost after 3s",
            "fields": {"slave_id": "s1", "idle_s": 3},
        }

    def test_human_lines_and_tracebacks(self) -> None:
        try:
            raise ValueError("x")
        except ValueError:
            event = self.event(log_failure=Failure())
        assert "warn  sector.x: slave s1 lost after 3s\n" in daemon.human_line(event)
        assert "ValueError" in daemon.human_line(event)
        assert "ValueError" in json.loads(daemon.json_line(event))["traceback"]

    def test_a_log_that_cannot_be_written_does_not_matter(self) -> None:
        stream = io.StringIO()
        stream.close()
        daemon.LineObserver(stream, daemon.human_line)(self.event())

    def test_readiness_goes_to_the_service_manager(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.bind(str(tmp_path / "n"))
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
            daemon.notify(READY=1, MAINPID=5)
            assert channel.recv(100) == b"READY=1\nMAINPID=5"
        daemon.notify(READY=1)
        monkeypatch.delenv("NOTIFY_SOCKET")
        daemon.notify(READY=1)


class TestRender:
    def test_sizes_and_durations(self) -> None:
        sizes = [render.size_text(n) for n in (0, 999, 1000, 1234567, 5 * 10**15)]
        assert sizes == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5000.0 TB"]
        assert [render.duration_text(s) for s in (5, 120, 3700, 10**6)] == [
            "5 s",
            "2 min",
            "1 h 1 min",
            "11 days",
        ]

    def test_structs_and_bytes_become_plain(self) -> None:
        assert render.plain({"a": Address("::1", 2), "b": b"\xff", "r": [Right("u", "/", "r")]}) == {
            "a": "[::1]:2",
            "b": "ff",
            "r": [{"user": "u", "path": "/", "what": "r"}],
        }


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """What `sector login` sends to a master: (user, password, the password file that it keeps)."""
    (tmp_path / "pw").write_text("from the settings\n")
    (tmp_path / "env").write_text("from the environment\n")
    (tmp_path / "option").write_text("from the option\n")
    config = tmp_path / "client.toml"
    monkeypatch.setenv("SECTOR_CONFIG", str(config))
    fingerprint = "0" * 64
    save_client(
        ClientSection(masters=["127.0.0.1:7001"], user="alice", ca_sha256=fingerprint, password_file="pw")
    )
    sent: list[tuple[str, str, str]] = []

    def log_in(
        master: object, trust: object, user: str, password: str, password_file: str = ""
    ) -> ClientSection:
        sent.append((user, password, password_file))
        return ClientSection(user=user)

    monkeypatch.setattr(cluster, "log_in", log_in)
    return sent


def test_login_takes_the_password_file_of_the_settings(
    logins: list[tuple[str, str, str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An option wins over SECTOR_PASSWORD_FILE, that over the settings; what these name is kept."""
    kept = str(tmp_path / "pw")
    assert run(capsys, "login")[0] == 0
    assert run(capsys, "login", "--password-file", str(tmp_path / "option"))[0] == 0
    monkeypatch.setenv("SECTOR_PASSWORD_FILE", str(tmp_path / "env"))
    assert run(capsys, "login")[0] == 0
    assert logins == [
        ("alice", "from the settings", kept),
        ("alice", "from the option", kept),
        ("alice", "from the environment", kept),
    ]


@pytest.mark.parametrize("other", [("127.0.0.2:7001",), ("--user", "bob"), ("127.0.0.1:7002",)])
def test_login_sends_a_stored_password_to_nobody_else(
    logins: list[tuple[str, str, str]], capsys: pytest.CaptureFixture[str], other: tuple[str, ...]
) -> None:
    """Another master or user: the file of the settings is not for them."""
    status, _, err = run(capsys, "login", *other)
    assert status == 2 and "is not given" in err
    assert logins == []


def test_login_says_when_the_stored_password_file_is_gone(
    logins: list[tuple[str, str, str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pw").unlink()
    status, _, err = run(capsys, "login")
    assert status == 1 and f"password file {tmp_path / 'pw'}: No such file" in err
    assert logins == []


def test_commands_that_use_no_database_load_none() -> None:
    """Or every slave and every `sector status` would spend half of its start on it, and its memory."""
    program = "import sys, sector.cli.cluster, sector.slave.service; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "alembic"} & set(loaded.stdout.split())
