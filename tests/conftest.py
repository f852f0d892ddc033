"""What all tests share: the seed, Ctrl-C, and the check that a test leaves no process behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parents[1]
interrupted = pytest.StashKey[bool]()


# New examples in every run; a failure prints what repeats it. `./dev soak` (profile "deep") tries 20 times as
# many, also of tests that ask for their own number (effort.py).
settings.register_profile("sector", deadline=None, print_blob=True)
settings.register_profile("deep", settings.get_profile("sector"), max_examples=2000)
settings.load_profile("sector")


def pytest_configure() -> None:
    """Behave as at a terminal: a shell that starts us in the background makes us ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_teardown() -> None:
    """Ctrl-C ends the run: the reactor leaves a handler that would only stop it again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def _only_own_garbage(request: pytest.FixtureRequest) -> None:
    """Twisted's tests fail for a socket that is collected while they run; those of modules before go now."""
    kinds = [kind for kind in vars(request.module).values() if isinstance(kind, type)]
    if any(issubclass(kind, SynchronousTestCase) for kind in kinds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember whether Ctrl-C ended the run."""
    session.config.stash[interrupted] = exitstatus == pytest.ExitCode.INTERRUPTED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """After Ctrl-C leave at once: Python would wait for threads of services that were not stopped."""
    if config.stash.get(interrupted, False):
        sys.stdout.flush()
        os._exit(pytest.ExitCode.INTERRUPTED)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=20260101, help="seed of all randomness in tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that let a thread run the reactor come last: after them no test of Twisted's can run it."""
    items.sort(key=lambda item: item.get_closest_marker("reactor_thread") is not None)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run; printed by pytest when a test fails since it is a fixture value."""
    return int(request.config.getoption("--seed"))


@pytest.fixture
def rng(seed: int) -> random.Random:
    """A seeded generator."""
    return random.Random(seed)


def child_pids() -> set[int]:
    """Live children of this process (zombies not counted)."""
    found = set()
    me = os.getpid()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == me and fields[0] != "Z":
            found.add(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def no_leaked_children(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test ends every process it starts."""
    before = child_pids()
    yield
    left = child_pids() - before
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"{request.node.name} left processes behind: {sorted(left)}"
