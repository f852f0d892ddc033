"""What `./dev soak` does with its groups: which there are, slices that go on, figures, and failures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import soak  # noqa: E402


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where progress is kept; no real corpora are made."""
    monkeypatch.setattr(soak, "STATE", tmp_path)
    monkeypatch.setattr(soak, "ROOT", tmp_path)
    monkeypatch.setattr(soak, "_targets", lambda: [])
    monkeypatch.setattr(soak, "_python_targets", lambda: [])
    return tmp_path


def group(monkeypatch: pytest.MonkeyPatch, script: str, said: str = "") -> None:
    """G: two slices of 5 things that are a line of shell, which knows the seed as $SEED."""
    one = soak.Slice(
        "things", 5, lambda seed: ["sh", "-c", script], lambda seed: {"SEED": str(seed)}, said=said
    )
    monkeypatch.setattr(soak, "GROUPS", {"G": soak.Group("about", 10, (one,))})


def test_every_group_is_in_the_guide_and_in_the_list_of_commands() -> None:
    guide = (ROOT / "docs/guide/soak.md").read_text(encoding="utf-8")
    usage = subprocess.run([ROOT / "dev"], capture_output=True, text=True, check=True).stdout
    named = usage[usage.index("soak GROUP") : usage.index("sanitize ")]
    assert set(re.findall(r"^\./dev soak (\S+)  ", guide, re.MULTILINE)) == set(soak.GROUPS)
    for name in soak.GROUPS:
        assert re.search(rf"[ ,]{re.escape(name)}[,\n]", named), name


def test_a_group_that_does_not_exist_is_refused_with_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["soak", "R99"])
    with pytest.raises(SystemExit) as told:
        soak.main()
    assert told.value.code == 2


def test_slices_go_on_where_they_stopped_and_keep_their_figures(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group(monkeypatch, 'echo ". 5 things, seed $SEED"; echo noise; sleep 0.01', said=r"\d+ things.*")
    assert soak.soak("G", 0.0001, 7) == 0
    assert "time is up, left: {'things': 5}" in capsys.readouterr().out
    assert soak.soak("G", 1, 7) == 0
    out = capsys.readouterr().out
    assert "so far {'things': 5}" in out and "complete, 0 failures" in out
    assert "\n    5 things, seed 20000\n" in out and "noise" not in out
    entries = [json.loads(line) for line in (state / "G.jsonl").read_text().splitlines()]
    assert [(entry["seed"], entry["said"]) for entry in entries] == [
        (10_000, ["5 things, seed 10000"]),
        (20_000, ["5 things, seed 20000"]),
    ]


def test_a_slice_that_fails_is_not_counted_and_says_how_it_is_repeated(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group(monkeypatch, "echo broken; exit 3")
    assert soak.soak("G", 1, 50_000) == 1
    out = capsys.readouterr().out
    assert "broken" in out
    assert "soak: seed 50000 failed: SEED=50000 sh -c 'echo broken; exit 3'" in out
    assert not (state / "G.jsonl").exists()


def test_slices_side_by_side_reach_the_goal_and_no_more(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each waits for the other to have begun; of four workers only the two that are needed get work."""
    meet = f"touch {state}/$SEED; for i in $(seq 200); do [ $(ls {state} | grep -c 0000) = 2 ] && exit 0; "
    group(monkeypatch, meet + "sleep 0.05; done; exit 1")
    assert soak.soak("G", 1, 10_000, jobs=4) == 0
    assert "complete, 0 failures" in capsys.readouterr().out
    assert sorted(path.name for path in state.iterdir() if path.name != "G.jsonl") == ["10000", "20000"]


def test_when_one_fails_the_others_end_and_count(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group(monkeypatch, "[ $SEED = 10000 ] && exit 3; sleep 0.3")
    assert soak.soak("G", 1, 10_000, jobs=2) == 1
    out = capsys.readouterr().out
    assert "soak: seed 10000 failed" in out and "complete" not in out and "time is up" not in out
    (entry,) = [json.loads(line) for line in (state / "G.jsonl").read_text().splitlines()]
    assert (entry["seed"], entry["amount"]) == (20_000, 5)


@pytest.mark.parametrize("moment", ["while it is started", "before it is started"])
def test_a_slice_that_begins_when_the_soak_is_told_to_end_does_not_stay(
    state: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    started, stopped, begin = threading.Event(), threading.Event(), subprocess.Popen
    monkeypatch.setattr(soak, "_stopped", stopped)

    def slowly(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = begin(*args, **options)
        started.set()
        assert not stopped.wait(0.3)
        return process

    monkeypatch.setattr(subprocess, "Popen", slowly)
    one = soak.Slice("things", 5, lambda seed: ["sleep", "60"])
    since = time.monotonic()
    with ThreadPoolExecutor(1) as workers:
        if moment == "before it is started":
            soak.stop_slices()
        slice_ = workers.submit(soak.run_slice, one, 7)
        if moment == "while it is started":
            assert started.wait(10)
            soak.stop_slices()
        amount, _, failure = slice_.result()
    assert amount == 0 and failure and time.monotonic() - since < 20
    assert started.is_set() == (moment == "while it is started")
