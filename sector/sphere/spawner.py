"""The small process that starts workers: itself started by exec before the C core and the reactor.

It has one thread, one socket to its slave and its children, so starting a process from it is safe. When the
slave ends, by whatever way, the socket closes (and the kernel signals it): it kills all workers and their
process groups and ends (design.md section 12).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from sector.sphere import channel

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_BOOT = "import sys; sys.path.append(sys.argv[1]); from sector.sphere.{module} import main; main({arguments})"
WORKERS_MAX = 1024


@dataclass
class Spawner:
    """The slave's handle: its end of the socket and the process."""

    sock: socket.socket
    process: subprocess.Popen[bytes]

    def workers(self, reactor: Any, slots: int, scratch: str, limits: Any) -> Any:
        """The supervisor of a slave's workers (`sector.sphere.supervisor.Supervisor`)."""
        from sector.sphere.supervisor import Supervisor

        return Supervisor(reactor, self, slots=slots, scratch=scratch, limits=limits)

    def restart(self) -> None:
        """Another process in place of one that has ended. Safe with threads: nothing of ours runs between
        vfork and exec. From the reactor's thread: the kernel signals a spawner when the thread ends that
        started it. Raises OSError."""
        self.stop()
        fresh = start()
        self.sock, self.process = fresh.sock, fresh.process

    def stop(self) -> None:
        """End the spawner and with it all workers; returns when it is gone (it needs milliseconds)."""
        self.sock.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment(scratch: str = "/") -> dict[str, str]:
    """All that a worker sees of the environment."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": scratch,
        "TMPDIR": scratch,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def command(module: str, arguments: str, *values: str) -> list[str]:
    """An isolated interpreter that runs main() of one of our modules, wherever we are installed."""
    code = _BOOT.format(module=module, arguments=arguments)
    return [sys.executable, "-I", "-c", code, _ROOT, *values]


def start() -> Spawner:
    """Start the spawner. Called first before the C core and the reactor exist: it inherits nothing."""
    ours, theirs = channel.pair()
    with theirs:
        line = command(
            "spawner", "int(sys.argv[2]), int(sys.argv[3])", str(os.getpid()), str(theirs.fileno())
        )
        process = subprocess.Popen(
            line, pass_fds=(theirs.fileno(),), env=environment(), stdin=subprocess.DEVNULL, cwd="/"
        )
    ours.setblocking(False)
    return Spawner(ours, process)


class _Server:
    """The spawner process itself."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.ids: dict[int, int] = {}

    def spawn(self, message: dict[str, Any], fds: list[int]) -> None:
        """Exec a worker; its channel and its output pipe came as descriptors."""
        number = message["id"]
        try:
            if len(self.children) >= WORKERS_MAX:
                raise OSError(f"{WORKERS_MAX} workers run already")
            chan, out = fds
            values = (str(os.getpid()), str(chan))
            child = subprocess.Popen(
                command("worker", "int(sys.argv[2]), int(sys.argv[3])", *values),
                pass_fds=(chan,),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=message["scratch"],
                env=environment(message["scratch"]),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            channel.send(self.sock, {"op": "exited", "id": number, "status": 255, "why": str(error)})
            return
        finally:
            channel.close_all(fds)
        self.children[number] = child
        self.ids[child.pid] = number
        channel.send(self.sock, {"op": "started", "id": number, "pid": child.pid})

    def kill(self, number: int) -> None:
        """Kill a worker and all of its process group; it is reaped later."""
        child = self.children.get(number)
        if child is not None:
            _kill_group(child.pid)

    def reap(self) -> None:
        """Report the ended workers; what they left running is killed, in sessions of its own too: we adopt it
        when its worker ends (a worker adopts what its own children leave)."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            number = self.ids.pop(pid, None)
            if number is None:
                continue  # left behind by a worker, adopted by us
            child = self.children.pop(number)
            child.returncode = os.waitstatus_to_exitcode(status)
            _kill_group(pid)
            channel.send(self.sock, {"op": "exited", "id": number, "status": child.returncode, "why": ""})
        for stray in _children():
            if stray not in self.ids:
                _kill_group(stray)

    def end(self) -> None:
        """Kill and wait for everything."""
        for child in self.children.values():
            _kill_group(child.pid)
        for _ in range(1000):
            strays = _children()
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            try:
                pid, _ = os.waitpid(-1, 0 if strays else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0 and not strays:
                return

    def serve(self, wake: int) -> None:
        """Until the slave's end closes."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake:
                    os.read(wake, 4096)
                    self.reap()
                    continue
                message, fds = channel.receive(self.sock)
                if message["op"] == "spawn":
                    self.spawn(message, fds)
                else:
                    self.kill(message["id"])


def _kill_group(pid: int) -> None:
    for call in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            call(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Pids of all children, those left by workers included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def main(parent: int, fd: int) -> None:
    """Entry after exec: `parent` = pid of the slave, `fd` = the socket to it."""
    from sector.sphere.worker_os import become_subreaper, die_with_parent

    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _Server(sock)

    def stop(number: int, frame: object) -> None:
        raise channel.Closed("signal")

    signal.signal(signal.SIGTERM, stop)
    become_subreaper()
    try:
        die_with_parent(parent, signal.SIGTERM)
        server.serve(read)
    except (channel.Closed, OSError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.end()
