"""The blocking and the awaiting face have the same names; both run their reactor well."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from typing import Any

from sector import aio
from sector.client import blocking

SKIPPED = {"open"}  # a file object here, a reader with await there


def methods(cls: type) -> dict[str, Any]:
    """Public methods by name."""
    return {name: value for name, value in vars(cls).items() if not name.startswith("_") and callable(value)}


def test_both_faces_have_the_same_methods_and_arguments() -> None:
    plain, waiting = methods(blocking.Cloud), methods(aio.Cloud)
    assert set(plain) == set(waiting)
    for name in set(plain) - SKIPPED:
        one, other = inspect.signature(plain[name]), inspect.signature(waiting[name])
        assert one.parameters == other.parameters, name
        assert one.return_annotation == other.return_annotation, name
        assert inspect.iscoroutinefunction(waiting[name]), name
        assert plain[name].__doc__ and waiting[name].__doc__, name
    one, other = inspect.signature(blocking.connect), inspect.signature(aio.connect)
    assert one.parameters == other.parameters


def run(script: str, *, status: int = 0) -> str:
    """Run a script in a process of its own (the reactor belongs to the process) and return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_results_and_errors_come_back() -> None:
    out = run("""
        from twisted.internet.defer import Deferred, fail, succeed
        from sector.client.blocking import ReactorThread
        from sector.errors import NotFound
        thread = ReactorThread.get()
        assert ReactorThread.get() is thread
        print(thread.wait(succeed, 5), thread.wait(lambda: 6))
        async def seven():
            return 7
        print(thread.wait(lambda: Deferred.fromCoroutine(seven())))
        try:
            thread.wait(fail, NotFound("no such thing"))
        except NotFound as error:
            print(error)
        try:
            thread.wait(lambda: thread.wait(lambda: 1))
        except RuntimeError as error:
            print("refused")
    """)
    assert out.split("\n")[:4] == ["5 6", "7", "no such thing", "refused"]


def test_ctrl_c_cancels_what_runs() -> None:
    """KeyboardInterrupt reaches the caller after the Deferred was cancelled; the reactor goes on."""
    out = run("""
        import os, signal, threading, time
        from twisted.internet.defer import Deferred, succeed
        from sector.client.blocking import ReactorThread
        thread = ReactorThread.get()
        cancelled = []
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            thread.wait(lambda: Deferred(lambda d: cancelled.append(True)))
        except KeyboardInterrupt:
            print("interrupted", cancelled)
        print(thread.wait(succeed, 1))
    """)
    assert out == "interrupted [True]\n1\n"


def test_signals_go_to_the_main_thread() -> None:
    """One that the kernel hands to another thread would not end the wait of the main thread."""
    out = run("""
        import signal
        from twisted.internet.threads import deferToThread
        from sector.client.blocking import ReactorThread
        ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        thread = ReactorThread.get()
        closed = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [])
        print(ENDS <= thread.wait(closed), ENDS <= thread.wait(deferToThread, closed), ENDS & closed())
    """)
    assert out == "True True set()\n"


def test_ctrl_c_at_the_moment_of_a_call_cancels_it_too() -> None:
    """Before it was handed to the reactor and just after."""
    out = run("""
        import time
        from twisted.internet.defer import Deferred, succeed
        from sector.client.blocking import ReactorThread
        thread = ReactorThread.get()
        real = thread.reactor.callFromThread
        cancelled = []
        def interrupted(early, call):
            if call.__name__ != "begin":
                return real(call)
            if not early:
                real(call)
            raise KeyboardInterrupt
        began = time.monotonic()
        for early in True, False:
            thread.reactor.callFromThread = lambda call: interrupted(early, call)
            try:
                thread.wait(lambda: Deferred(lambda d: cancelled.append(1)))
            except KeyboardInterrupt:
                print("interrupted", cancelled)
        del thread.reactor.callFromThread
        print(thread.wait(succeed, 1), time.monotonic() - began < 4)
    """)
    assert out == "interrupted []\ninterrupted [1]\n1 True\n"


def test_after_a_fork_the_child_starts_anew() -> None:
    """The parent's connection raises in the child; a new reactor works there; the parent goes on."""
    out = run("""
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from twisted.internet.defer import succeed
        from sector.client.blocking import Cloud, ReactorThread
        from sector.errors import UsageError
        thread = ReactorThread.get()
        cloud = Cloud(None, thread)
        pid = os.fork()
        if pid == 0:
            try:
                cloud.wait(succeed, 1)
                os._exit(1)
            except UsageError:
                pass
            fresh = ReactorThread.get()
            from twisted.internet import reactor
            ok = fresh is not thread and fresh.wait(succeed, 2) == 2 and fresh.reactor is reactor
            os._exit(0 if ok else 2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), thread.wait(succeed, 3))
    """)
    assert out == "0 3\n"


def test_asyncio_waits_and_cancels() -> None:
    out = run("""
        import asyncio
        from twisted.internet.defer import Deferred, fail, succeed
        from sector import aio, errors
        from sector.client.blocking import ReactorThread
        thread = ReactorThread.get()
        cloud = aio.Cloud(None, thread)
        cancelled = []
        async def main():
            print(await cloud.wait(succeed, 5))
            try:
                await cloud.wait(fail, errors.Denied("no"))
            except errors.Denied as error:
                print(error)
            task = asyncio.ensure_future(cloud.wait(lambda: Deferred(lambda d: cancelled.append(1))))
            await asyncio.sleep(0.1)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)
                print("cancelled", cancelled)
        asyncio.run(main())
    """)
    assert out == "5\nno\ncancelled [1]\n"


def test_importing_sector_loads_no_twisted() -> None:
    """A Sphere worker stays light."""
    out = run("""
        import sys, sector
        print("twisted" in sys.modules, "sector._udt" in sys.modules)
    """)
    assert out == "False False\n"
