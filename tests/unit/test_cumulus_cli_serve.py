"""`cumulus serve` that cannot start, in the foreground and in the background, and `cumulus stop`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cumulus_commands import Commands
from running import running

from cumulus import cli, detached
from cumulus.config import load_config


@pytest.fixture
def run(cloud: Commands) -> Commands:
    """A Cumulus that nobody serves."""
    return cloud


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def settings(run: Commands, port: int = 0, admin_port: int = 0) -> None:
    """The ports."""
    (run.dir / "cumulus.toml").write_text(f"[server]\nport = {port}\n[admin]\nport = {admin_port}\n")


def foreground(run: Commands, *words: str) -> subprocess.CompletedProcess[str]:
    """`cumulus serve` as a process that ends."""
    command = [sys.executable, "-P", "-m", "cumulus.cli", "serve", str(run.dir), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("section", ["server", "admin"])
def test_what_keeps_a_service_from_serving_comes_alone(run: Commands, taken: int, section: str) -> None:
    """One line with what to do, and no line of a log beside it; an object with --json."""
    settings(run, **{"port" if section == "server" else "admin_port": taken})
    told = f"cannot listen on 127.0.0.1 port {taken}: Address already in use"
    hint = "stop the other process or choose another port"
    done = foreground(run)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"cumulus: {told} ({hint})\n"
    done = foreground(run, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["error"] == {"code": "port_in_use", "message": told, "hint": hint}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_workers_cannot_open_is_told_once(run: Commands, workers: str) -> None:
    """By the head, as one process tells it."""
    settings(run)
    ports = (run.dir / "cumulus.toml").read_text()
    for text, code, says in (
        ('[tls]\ncert = "no.pem"\nkey = "no.pem"\n', "bad_config", "no.pem: No such file or directory"),
        ('[log]\naccess = "."\n', "local_io", f"cannot open the access log {run.dir}: Is a directory"),
    ):
        (run.dir / "cumulus.toml").write_text(ports + text)
        done = foreground(run, "--workers", workers, "--json")
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, done.stderr, error["code"]) == (1, "", code)
        assert says in error["message"] and error["hint"]


def test_the_background_tells_the_same_as_the_foreground(run: Commands, taken: int) -> None:
    """With code and hint; the log has the line as well."""
    settings(run, port=taken)
    error = run.refused("serve", str(run.dir), "--detach")
    assert error == {
        "code": "port_in_use",
        "message": f"cannot listen on 127.0.0.1 port {taken}: Address already in use",
        "hint": "stop the other process or choose another port",
    }
    assert f"cumulus: {error['message']} ({error['hint']})\n" in (run.dir / "serve.log").read_text()
    (run.dir / "secret.key").unlink()
    settings(run)
    error = run.refused("serve", str(run.dir), "--detach")
    assert error["code"] == "local_io" and "restore it from your backup" in error["hint"]


def test_a_service_that_dies_at_its_start_names_the_log(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it said there."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = run.refused("serve", str(run.dir), "--detach")
    assert (error["code"], error["message"]) == ("not_ready", "the service ended before it was ready")
    assert error["hint"] == f"see {run.dir / 'serve.log'}"


def slow(monkeypatch: pytest.MonkeyPatch, where: Path, seconds: float) -> None:
    """The next service needs so long to be ready."""
    (where / "sitecustomize.py").write_text(
        "import os, socket, time\n"
        f"time.sleep({seconds})\n"
        "with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:\n"
        "    told.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(where))


def test_a_service_that_starts_slowly_is_waited_for(
    run: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As long as it lives, with a word now and then; who does not want to wait ends it."""
    settings(run)
    config = load_config(run.dir / "cumulus.toml")
    monkeypatch.setattr(detached, "TELL_S", 0.4)
    slow(monkeypatch, tmp_path, 1.5)
    pid, log = detached.start(config, [])
    said = capsys.readouterr().err.splitlines()
    assert len(said) > 1 and all(line.endswith(f"see {log}") for line in said)
    assert "the service still starts" in said[0]
    assert run.json("stop", str(run.dir)) == {"stopped": pid}

    def interrupted(*_words: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    slow(monkeypatch, tmp_path, 60)
    monkeypatch.setattr(detached.click, "echo", interrupted)
    with pytest.raises(KeyboardInterrupt):
        detached.start(config, [])
    pid = int((run.dir / "serve.pid").read_text())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_a_file_of_a_service_that_is_gone_ends_nobody(run: Commands) -> None:
    """Whatever number stands in it: without the lock of a service it is no service's."""
    with running(["sleep", "60"]) as stranger:
        (run.dir / "serve.pid").write_text(f"{stranger.pid}\n")
        error = run.refused("stop", str(run.dir))
        assert error["code"] == "not_found" and "systemctl stop" in error["hint"]
        settings(run)
        made = run.json("serve", str(run.dir), "--detach")
        written = (run.dir / "serve.pid").read_text()
        assert run.json("stop", str(run.dir)) == {"stopped": made["pid"]}
        assert written == f"{made['pid']}\n" and stranger.poll() is None
        stranger.kill()


def test_settings_of_another_name_are_another_service(
    run: Commands, taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one directory. Neither is the other's to end, or keeps it from running."""
    other = run.dir / "point.toml"
    other.write_text(f"[server]\nport = {taken}\n[admin]\nport = 0\n")

    def refused(*words: str) -> dict[str, str]:
        assert cli.run(["--config", str(other), *words, "--json"]) == 1
        error: dict[str, str] = json.loads(capsys.readouterr().out)["error"]
        return error

    with running(["sleep", "60"]) as service, (run.dir / "serve.pid").open("w") as held:
        held.write(f"{service.pid}\n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        error = refused("stop")
        assert error["code"] == "not_found" and "point.toml.serve.pid" in error["message"]
        assert refused("serve", "--detach")["code"] == "port_in_use"
        assert "already in use" in (run.dir / "point.toml.serve.log").read_text()
        assert service.poll() is None and not (run.dir / "serve.log").exists()
        assert cli.run(["--config", str(run.dir / "cumulus.toml"), "serve", "--detach"]) == 1
        assert "serve.pid: the service runs already" in capsys.readouterr().err
        service.kill()


@pytest.mark.parametrize("content", [b"", b"0\n", b"-1", b"\xff\xfe", b"12 13"])
def test_a_lock_without_a_process_is_not_called_free(run: Commands, content: bytes) -> None:
    """A service holds it that does not say which it is."""
    (run.dir / "serve.pid").write_bytes(content)
    with (run.dir / "serve.pid").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        error = run.refused("stop", str(run.dir))
        assert error["code"] == "not_ready" and f"fuser {run.dir / 'serve.pid'}" in error["hint"]
        assert run.refused("serve", str(run.dir), "--detach")["code"] == "exists"


def test_a_file_of_the_process_that_cannot_be_read_is_told_why(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what starts a service and by what ends one."""
    (run.dir / "serve.pid").mkdir()
    for words in (["stop"], ["serve", "--detach"]):
        error = run.refused(*words)
        assert error["message"] == f"{run.dir / 'serve.pid'}: Is a directory"
        assert "look what is in its place" in error["hint"]
    real = os.open

    def refused(path: Any, *words: Any, **named: Any) -> int:
        if str(path).endswith("serve.pid"):
            raise PermissionError(13, "Permission denied")
        return real(path, *words, **named)

    monkeypatch.setattr(os, "open", refused)
    error = run.refused("stop")
    assert error["code"] == "local_io" and "account of the service" in error["hint"]


def test_a_directory_needs_no_settings_to_serve_in_the_background(run: Commands) -> None:
    """As in the foreground: the defaults count, here with ports that are in use."""
    (run.dir / "cumulus.toml").unlink()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # else somebody else's is there, which does as well
            stack.enter_context(socket.create_server(("127.0.0.1", 8888)))
        assert run.refused("serve", str(run.dir), "--detach")["code"] == "port_in_use"


def test_who_may_not_look_into_the_directory_is_told_so(
    run: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By stop, which else does without the settings."""

    def refused(path: Any, *_words: Any, **_named: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(os, "stat", refused)
    monkeypatch.setattr(os, "lstat", refused)
    error = run.refused("stop")
    assert error["message"] == f"{run.dir}/cumulus.toml: Permission denied"
    assert "account of the service" in error["hint"]
