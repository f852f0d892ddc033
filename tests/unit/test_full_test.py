"""What `./dev test` does with its parts: side by side or not, what failed and where it is told, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import running

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import full_test  # noqa: E402

PROGRAM = """
import sys, full_test
from pathlib import Path
full_test.LOGS, full_test.ROOT = Path(sys.argv[1]), Path(sys.argv[1])
full_test.lanes = lambda: [[full_test.Part("waits", ["sleep", "60"])], [full_test.Part("ready", ["true"])]]
full_test.alone = lambda: []
sys.exit(full_test.main())
"""


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(full_test, "LOGS", tmp_path)
    monkeypatch.setattr(full_test, "ROOT", tmp_path)
    monkeypatch.setattr(full_test, "POLL_S", 0.01)
    return tmp_path


def part(name: str, script: str) -> full_test.Part:
    """A part that is a line of shell."""
    return full_test.Part(name, ["sh", "-c", script])


def test_lanes_run_side_by_side_and_parts_of_a_lane_in_order(tmp_path: Path) -> None:
    """Each of two waits for what the other does; a third comes after the first."""
    first = part("first", "echo x >a; until [ -e b ]; do sleep 0.02; done; touch first")
    second = part("second", "echo x >b; until [ -e a ]; do sleep 0.02; done; echo 7 passed")
    third = part("third", "test -e first")
    full_test.run([[first, third], [second]])
    assert [one.status for one in (first, second, third)] == [0, 0, 0]
    assert second.report().split() == ["second", "ok", *second.report().split()[2:4], "7", "passed"]


def test_each_part_has_its_ports_and_every_file_of_a_live_test_is_in_one_lane() -> None:
    full_test.ROOT = ROOT
    work = full_test.lanes()
    ports = [
        range(*(int(end) for end in one.environment["SECTOR_PORTS"].split("-")))
        for lane in work
        for one in lane
        if one.environment
    ]
    assert len(ports) == 5 and not any(set(a) & set(b) for a in ports for b in ports if a is not b)
    given = [word for lane in work[:3] for word in lane[0].command if word.endswith(".py")]
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("int*/test_*.py")]
    assert sorted(given) == sorted(files)


def test_what_wants_the_machine_for_itself_is_looked_for_where_it_is() -> None:
    """Each file of Python tests with the mark, and few others: all take half a minute to import."""
    full_test.ROOT = ROOT
    given = full_test.marked()
    marked = [path for path in (ROOT / "tests").rglob("*.py") if "pytest.mark.alone" in path.read_text()]
    assert {str(path.relative_to(ROOT)) for path in marked} <= set(given) and len(marked) > 3
    assert len(given) < 20
    after = [word for lane in full_test.alone() for part in lane for word in part.command]
    assert sorted(word for word in after if word.endswith(".py")) == given


def test_cases_in_virtual_time_keep_their_memory() -> None:
    """The library that does it is one that is built."""
    (cases,) = [one for lane in full_test.lanes() for one in lane if one.name == "c-tests"]
    assert cases.command[0] == "env" and cases.command[-2:] == ["csrc/build/test", "--together"]
    (library,) = [word for word in cases.command if word.startswith("LD_PRELOAD=")]
    made = "$(BUILD)/" + Path(library.partition("=")[2]).name
    assert made in (ROOT / "csrc" / "Makefile").read_text().partition("\nall:")[2].partition("\n")[0]


def test_all_that_failed_is_told_with_the_log_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    """And the parts after a failed one run all the same."""
    text = "noise;= FAILURES =;why it failed;FAILED tests/x.py::test_y - no"
    broken = part("broken", f"echo '{text}' | tr ';' '\\n'; exit 1")
    later, cases = part("later", "echo fine"), part("cases", "echo 'FAIL udt_x: a.c:3: 1 = 2' >&2; exit 134")
    full_test.run([[broken, later], [cases]])
    assert full_test.summary([broken, later, cases], 61.0) == 1
    shown = capsys.readouterr().out.split("== all parts, 1.0 minutes\n")[1]
    assert "broken: FAILED tests/x.py::test_y - no\ncases: FAIL udt_x: a.c:3: 1 = 2\n" in shown
    assert "why it failed" in shown and "noise" not in shown.split("broken failed")[1]
    assert shown.endswith("== failed: broken (broken.log), cases (cases.log)\n")


def test_a_part_without_failures_of_pytest_shows_its_last_lines(tmp_path: Path) -> None:
    one = part("many", "seq 1000; exit 1")
    full_test.run([[one]])
    assert full_test.tail(one)[-1] == "1000" and len(full_test.tail(one)) == full_test.SHOWN_LINES


def test_all_passed_is_status_zero(capsys: pytest.CaptureFixture[str]) -> None:
    one = part("one", "echo 3 passed")
    full_test.run([[one]])
    assert full_test.summary([one], 1.0) == 0
    assert capsys.readouterr().out.endswith("== all passed\n")


def test_what_is_under_way_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(full_test, "STILL_RUNNING_S", 0.05)
    (tmp_path / "tests.log").touch()
    full_test.run([[part("tests", "echo '.... [ 35%]'; sleep 0.4")], [part("other", "sleep 0.4")]])
    assert "== running: tests (35%), other (0 s)\n" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_part(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with running(command, stdout=subprocess.PIPE, text=True, cwd=ROOT / "tools") as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline().startswith("== ready")
        runner.send_signal(number)
        assert runner.stdout.readline() == "== stopping: waits\n"
        assert runner.wait(20) == full_test.INTERRUPTED


def test_what_does_not_heed_an_interrupt_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(full_test, "END_S", 0.1)
    deaf = part("deaf", "trap '' INT; touch deaf; sleep 60 & wait; sleep 60")
    deaf.start()
    while not (tmp_path / "deaf").exists():
        assert deaf.process is not None and deaf.process.poll() is None
    full_test.stop([deaf])
    assert deaf.process is not None and deaf.process.wait(10) == -signal.SIGKILL


def test_a_part_that_writes_nothing_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(full_test, "SILENT_S", 0.6)
    stuck = part("stuck", "echo '.... [ 80%]'; sleep 60 & echo $! >child; wait")
    busy = part("busy", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done")
    full_test.run([[stuck, part("next", "echo fine")], [busy]])
    assert full_test.summary([stuck, busy], 1.0) == 1
    assert "stuck: dev: stuck wrote nothing for 0.0 minutes: ended\n" in capsys.readouterr().out
    assert stuck.status == -signal.SIGKILL and busy.status == 0
    gone((tmp_path / "child").read_text())


def test_what_a_part_leaves_behind_is_ended(tmp_path: Path) -> None:
    full_test.run([[part("leaves", "sleep 60 & echo $! >child")]])
    gone((tmp_path / "child").read_text())


def gone(number: str) -> None:
    """Until a process has ended."""
    for _ in range(500):
        state = Path(f"/proc/{number.strip()}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {number.strip()} still runs")


HANGS = """
import time

def test_it_heeds_no_exception():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""


def test_pytest_ends_with_a_test_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    monkeypatch.setattr(full_test, "HANGS_S", 1)
    monkeypatch.setattr(full_test, "STUCK_S", 2)
    hangs = full_test.python_tests("hangs", "not alone", range(2), str(tmp_path))
    full_test.run([[hangs]])
    assert hangs.status == 1 and 2 <= hangs.seconds < 30
    assert "in test_it_heeds_no_exception" in hangs.log.read_text()
    told = [line for line in hangs.lines() if full_test.FAILED_LINE.match(line)]
    assert told == ["test_hangs.py Timeout (0:00:02)!"]


TWO_TESTS = """
import os, signal, threading
from pathlib import Path
from twisted.internet import reactor, task
from twisted.trial.unittest import TestCase

class First(TestCase):
    async def test_a_reactor_runs(self):
        await task.deferLater(reactor, 0.01)
        if not {early}:
            return
        threading.Thread(target=threading.Event().wait).start()
        os.kill(os.getpid(), signal.SIGINT)
        await task.deferLater(reactor, 60)

def test_and_then_an_interrupt_comes():
    assert not {early}
    os.kill(os.getpid(), signal.SIGINT)

def test_nothing_runs_after_it():
    Path(__file__).with_name("went-on").touch()
"""


@pytest.mark.parametrize("early", [True, False], ids=["in a test with a reactor", "after one"])
def test_an_interrupt_ends_pytest(tmp_path: Path, early: bool) -> None:
    """Twisted leaves its own handler, which would only stop the reactor; services leave their threads."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_two.py").write_text(TWO_TESTS.format(early=early))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 2 and "KeyboardInterrupt" in done.stdout, done.stdout
    assert not (tmp_path / "went-on").exists()


TWO_FILES = """
import pytest

@pytest.mark.reactor_thread
def test_a():
    pass

def test_b():
    pass
"""


def test_what_runs_the_reactor_in_a_thread_comes_last(tmp_path: Path) -> None:
    """In whatever file it is: afterwards no test of Twisted's could run it."""
    settings = '[tool.pytest.ini_options]\nmarkers = ["reactor_thread"]\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TWO_FILES)
    command = [sys.executable, "-m", "pytest", "-q", "--co", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    order = [line for line in done.stdout.splitlines() if "::" in line]
    assert order == [f"test_{name}.py::test_{test}" for test in "ba" for name in ("one", "two")]
