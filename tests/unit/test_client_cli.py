"""Commands on files with a fake cloud: text, JSON and exit status for success and failure."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from sector import errors
from sector._udt.trace import check_place
from sector.bench import udt as bench_udt
from sector.cli import compute, files, udtcat
from sector.cli.main import Shared, cli, run
from sector.cli.tls_once import read_password
from sector.cli.transfer_live import Live
from sector.client.progress import Moved, Progress, Summary
from sector.master import namespace
from sector.model import FileInfo, Version
from sector.sphere.blocking import Job, _draw
from sector.wire.files import Removed, Replicas
from sector.wire.sphere import JobCounts, JobInfo, UdfFault

A = FileInfo("/d/a", "file", 5, Version(1, 7), "alice", 0o640, 1.7e9, "crc32c-1m:00", ["s1", "s2"])
B = FileInfo("/d/b\n\x1b[2J", "file", 0, Version(1, 8), "bob", 0o644, 1.7e9, "crc32c-1m:01", [])
D = FileInfo("/d", "dir", 0, Version(0, 0), "alice", 0o755, 1.7e9, "", [])


class FakeCloud:
    """Answers from a table and records the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("progress", None)
            self.calls.append((name, *args, kwargs))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    """The cloud that commands get."""
    fake = FakeCloud()

    @contextmanager
    def connection(shared: Any) -> Any:
        yield fake

    monkeypatch.setattr(files, "connection", connection)
    return fake


def out(*arguments: str) -> str:
    """Standard output of a command that succeeds."""
    done = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_ls_text(cloud: FakeCloud) -> None:
    """Names are escaped for a terminal, directories end with a slash."""
    cloud.answers["ls"] = [D, A, B]
    assert out("ls", "/") == "d/\na\nb\\n\\x1b[2J\n"
    assert out("ls", "-r", "/").splitlines()[1] == "/d/a"
    long = out("ls", "-l", "/").splitlines()
    assert long[2].split()[:5] == ["-", "640", "2", "alice", "5"]


def test_ls_json_is_an_array_with_the_fields_of_the_design(cloud: FakeCloud) -> None:
    cloud.answers["ls"] = [A, B]
    rows = json.loads(out("ls", "/d", "--json"))
    assert [row["path"] for row in rows] == ["/d/a", "/d/b\n\x1b[2J"]
    assert set(rows[0]) >= {"path", "size", "version", "owner", "mtime", "digest", "replicas"}
    assert rows[0]["version"] == "1.7"
    assert rows[0]["replicas"] == ["s1", "s2"]


def test_stat(cloud: FakeCloud) -> None:
    cloud.answers["stat"] = A
    assert json.loads(out("stat", "/d/a", "--json"))["size"] == 5
    assert "5 bytes" in out("stat", "/d/a")


def test_the_root_has_neither_version_nor_time(cloud: FakeCloud) -> None:
    """It was always there: no "0.0", no 1970. Other directories have both."""
    cloud.answers["stat"] = namespace.info_of(namespace.ROOT)
    told = json.loads(out("stat", "/", "--json"))
    assert (told["path"], told["kind"], told["version"], told["mtime"]) == ("/", "dir", None, None)
    lines = dict(line.split(":", 1) for line in out("stat", "/").splitlines())
    assert {lines[name].strip() for name in ("version", "mtime", "size", "digest", "replicas")} == {"-"}
    cloud.answers["ls"] = [namespace.info_of(namespace.ROOT)]
    assert out("ls", "-l", "/").splitlines()[1].split() == ["d", "755", "-", "system", "-", "-", "/"]
    cloud.answers["stat"] = FileInfo("/d", "dir", 0, Version(1, 3), "alice", 0o755, 1.7e9, "", [])
    told = json.loads(out("stat", "/d", "--json"))
    assert (told["version"], told["mtime"]) == ("1.3", 1.7e9)
    assert "1.3" in out("stat", "/d")


def test_refusal_is_one_line_or_one_object(cloud: FakeCloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 with code, message and hint; 2 for wrong use."""
    cloud.answers["stat"] = errors.NotFound("/d/x does not exist")
    assert run(["stat", "/d/x"]) == 1
    hint = errors.NotFound.default_hint
    assert capsys.readouterr().err == f"sector: /d/x does not exist ({hint})\n"
    assert run(["stat", "/d/x", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "not_found"
    assert run(["put", "/only-one"]) == 2
    assert run(["cat", "/a", "--json"]) == 2
    assert run(["replicate", "-n", "99", "/a"]) == 2


def test_put_and_get(cloud: FakeCloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments reach the client; the summary is JSON or one line of talk."""
    moved = Moved("/d/a", "a", 5, Version(1, 7), "crc32c-1m:00", "s1", 0.5, {"us": 10, "lim_disk_us": 5})
    cloud.answers["put"] = cloud.answers["get"] = Summary([moved], 5, 0.5, ["slave s1 stopped"])
    told = json.loads(out("put", "-r", "a", "b", "/d/", "--json", "--no-replace"))
    assert cloud.calls[-1] == (
        "put",
        ["a", "b"],
        "/d/",
        {"recursive": True, "create": "new", "follow": False, "parallel": None, "limit": 0},
    )
    assert told["bytes"] == 5
    assert told["notes"] == ["slave s1 stopped"]
    assert told["files"][0]["path"] == "/d/a"
    assert run(["get", "/d/a", "--stats"]) == 0
    assert cloud.calls[-1][1:3] == ("/d/a", ".")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0].startswith("got 1 file, 5 B in 0.5 s")
    assert "50 % by the receiver's disk" in captured.err


TRACING = [("put", "a", "/d/"), ("get", "/d/a"), ("udtcat", "127.0.0.1", "9"), ("bench", "udt")]


@pytest.mark.parametrize("arguments", TRACING)
def test_a_trace_that_cannot_be_written_is_refused_before_anything_moves(
    cloud: FakeCloud,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    for module, name in ((udtcat, "udtcat_main"), (bench_udt, "run_one")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("it began"))
    place = tmp_path / "none" / "x.qlog"
    assert run([*arguments, "--trace", str(place)]) == 1
    assert f"the trace cannot be written to {place}: No such file" in capsys.readouterr().err
    assert cloud.calls == [] and list(tmp_path.iterdir()) == []


def test_a_look_at_the_place_of_a_trace_changes_nothing(tmp_path: Path) -> None:
    old = tmp_path / "old.qlog"
    old.write_text("of yesterday")
    check_place(old)
    check_place(tmp_path / "new.qlog")
    check_place("/dev/full")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.qlog", "of yesterday")]


def test_a_put_of_a_changing_file_ends_with_status_1(
    cloud: FakeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script must not take it for a good copy; the document is whole all the same."""
    moved = Moved("/d/a", "a", 5, Version(1, 7), "crc32c-1m:00", "s1", 0.5, changed=True)
    cloud.answers["put"] = Summary([moved], 5, 0.5, ["a changed while it was read"])
    assert run(["put", "a", "/d/", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["files"][0]["changed"] is True
    assert run(["put", "a", "/d/"]) == 1


def test_names_that_are_no_text_are_escaped_in_json(
    cloud: FakeCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was stored is no failure because of the name of the local file; a reader gets the same name."""
    name = "caf\udce9 ü.txt"
    moved = Moved("/d/a", name, 5, Version(1, 7), "crc32c-1m:00", "s1", 0.5)
    cloud.answers["put"] = Summary([moved], 5, 0.5, [])
    assert run(["put", name, "/d/a", "--json"]) == 0
    told = capsys.readouterr().out
    assert r"caf\udce9 ü.txt" in told
    assert json.loads(told)["files"][0]["local"] == name
    cloud.answers["put"] = errors.LocalIO(f"{name}: no such file or directory")
    assert run(["put", name, "/d/a", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["message"] == f"{name}: no such file or directory"


def test_names_cannot_steer_the_terminal(cloud: FakeCloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and messages of others come escaped, wherever they are printed."""
    name = "/d/x\x1b]0;title\x07\n\udcff"
    cloud.answers["stat"] = errors.NotFound(f"{name} does not exist")
    assert run(["stat", name]) == 1
    moved = Moved(name, "a", 5, Version(1, 7), "crc32c-1m:00", "s1", 0.5)
    cloud.answers["get"] = Summary([moved], 5, 0.5, [f"{name} arrived damaged"])
    assert run(["get", name, "--stats"]) == 0
    told = capsys.readouterr().err
    assert "/d/x\\x1b]0;title\\x07\\n\\udcff does not exist" in told
    assert all(line.isprintable() for line in told.splitlines())


def test_get_to_standard_output(cloud: FakeCloud, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A local name of - prints the files as cat does; what - cannot mean is wrong use."""
    cloud.answers["open"] = io.BytesIO(b"a\x00b")
    assert run(["get", "/d/a", "-"]) == 0
    assert capfdbinary.readouterr().out == b"a\x00b"
    assert [call[0] for call in cloud.calls] == ["open"]
    assert run(["get", "-r", "/d", "-"]) == 2
    assert run(["get", "/d/a", "-", "--json"]) == 2
    for words in (["--stats"], ["-j", "2"]):  # what could not be done is not ignored
        assert run(["get", "/d/a", "-", *words]) == 2
        assert "leave" in capfdbinary.readouterr().err.decode()


def test_get_to_standard_output_takes_limit_progress_and_trace(
    cloud: FakeCloud, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cloud.answers["open"] = io.BytesIO(b"")
    cloud.answers["trace"] = SimpleNamespace(write=lambda place, *_: Path(place).write_text("written"))
    place = tmp_path / "x.qlog"
    words = ["--limit", "2MB/s", "--trace", str(place), "--progress", "json"]
    assert run(["get", "/d/a", "-", *words]) == 0
    assert cloud.calls[-1] == ("open", "/d/a", "rb", {"limit": 2_000_000})
    assert place.read_text() == "written"


def sector(shell: str) -> subprocess.CompletedProcess[str]:
    """`sector` in a shell command, as "$@"."""
    program = [sys.executable, "-m", "sector.cli.main"]
    return subprocess.run(["sh", "-c", shell, "sh", *program], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "arguments", ["stat relative", "stat relative --json", "--help", "stat relative 2>&-", "put x"]
)
def test_closed_descriptors(arguments: str) -> None:
    """Started with standard descriptors closed, as from a daemon: no traceback, no socket in their place."""
    done = sector(f'"$@" {arguments} <&- >&-')
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (0 if "2>&-" in arguments else 1)


@pytest.mark.parametrize("arguments", ["stat relative --json", "--help"])
def test_standard_output_that_takes_nothing(arguments: str) -> None:
    """A full disk behind standard output is one line and a failure."""
    done = sector(f'"$@" {arguments} >/dev/full')
    assert done.returncode in (1, 2)
    assert done.stderr == "sector: standard output: No space left on device\n"


def test_mkdir_mv_rm_replicate(cloud: FakeCloud) -> None:
    cloud.answers["rm"] = Removed(3, 30)
    cloud.answers["replicate"] = Replicas(3, 2, ["s1", "s2"])
    out("mkdir", "-p", "/a", "/b")
    assert cloud.calls == [("mkdir", "/a", {"parents": True}), ("mkdir", "/b", {"parents": True})]
    out("mv", "-f", "/a", "/b")
    assert cloud.calls[-1] == ("mv", "/a", "/b", {"overwrite": True})
    assert json.loads(out("rm", "-r", "/a", "/b", "--json")) == {"files": 6, "bytes": 60}
    assert json.loads(out("replicate", "--wait", "/a", "--json")) == {
        "path": "/a",
        "wanted": 3,
        "have": 2,
        "replicas": ["s1", "s2"],
    }
    assert cloud.calls[-1][2]["wait"] is True
    assert out("replicate", "--wait", "/a") == "/a: 2 of 3 replicas (s1, s2)\n"
    cloud.answers["replicate"] = Replicas(1, 2, ["s1", "s2"])
    assert out("replicate", "--wait", "/a") == "/a: 2 replicas, 1 wanted (s1, s2)\n"


class Written(io.BytesIO):
    """A cloud file that is being written."""

    published: Any = None
    progress: Any = None

    def close(self) -> None:
        if not self.closed:
            if self.progress is not None:
                self.progress.note("slave s1 stopped")
            content = self.getvalue()
            self.published = Moved("/d/a", "", len(content), Version(1, 9), "crc32c-1m:02", "s1", 0.5)
            self.content = content
        super().close()


def test_put_stores_standard_input(cloud: FakeCloud) -> None:
    """All of it as one file, also only if there is none; more than one source makes no sense with it."""
    for flags, mode in (([], "wb"), (["--no-replace"], "xb")):
        cloud.answers["open"] = place = Written()
        done = CliRunner().invoke(cli, ["put", *flags, "-", "/d/a", "--json"], input=b"from a pipe")
        assert done.exit_code == 0, done.output
        assert place.content == b"from a pipe"
        assert cloud.calls[-1][:3] == ("open", "/d/a", mode)
        assert json.loads(done.stdout)["files"][0]["size"] == 11
    for wrong in (["-", "x", "/d"], ["-r", "-", "/d"], ["-j", "2", "-", "/d"], ["-L", "-", "/d"]):
        assert run(["put", *wrong]) == 2


def test_put_of_standard_input_takes_limit_and_progress(cloud: FakeCloud) -> None:
    """A pipe into the cloud is not to fill the line either; what went wrong meanwhile is told."""
    cloud.answers["open"] = place = Written()
    words = ["put", "-", "/d/a", "--limit", "2MB/s", "--progress", "json", "--json"]
    done = CliRunner().invoke(cli, words, input=b"from a pipe")
    assert cloud.calls[-1] == ("open", "/d/a", "wb", {"limit": 2_000_000})
    assert json.loads(done.stdout)["notes"] == ["slave s1 stopped"]
    assert json.loads(done.stderr) == {"note": "slave s1 stopped"}
    assert place.content == b"from a pipe"


class Terminal(Shared):
    """Options of a command whose error output is a terminal."""

    bars = True  # type: ignore[assignment]


@pytest.mark.parametrize("live", [False, True])
def test_notes_are_told_when_a_transfer_fails(capsys: pytest.CaptureFixture[str], live: bool) -> None:
    """On a terminal too, once the bar has gone: that of a damaged replica, say, is told nowhere else."""
    line = Live(dict, sending=False) if live else None

    def fail(progress: Progress) -> None:
        progress.note("the replica of /d/a on slave s1 is damaged")
        raise errors.NoSpace("full")

    with pytest.raises(errors.NoSpace), files.told(Terminal(), "get", None, line) as progress:
        fail(progress)
    told = capsys.readouterr().err
    assert told.endswith("the replica of /d/a on slave s1 is damaged\n")


@pytest.mark.parametrize("name", ["ls", "stat", "mkdir", "put", "get", "cat", "mv", "rm", "replicate"])
def test_help_has_examples(name: str) -> None:
    text = out(name, "--help")
    assert "Examples:" in text
    assert f"sector {name}" in text
    assert "--json" in text


def test_a_new_password_is_never_the_callers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SECTOR_PASSWORD_FILE holds the password of who calls: `user add` must not give it to somebody else."""
    (tmp_path / "own").write_text("own\n")
    (tmp_path / "new").write_text("new\n")
    monkeypatch.setenv("SECTOR_PASSWORD_FILE", str(tmp_path / "own"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert read_password(None, "Password") == "own"
    assert read_password(str(tmp_path / "new"), "Password", known=False) == "new"
    with pytest.raises(errors.UsageError):
        read_password(None, "Password of bob", known=False)
    assert run(["user", "add", "bob"]) == 2
    assert run(["user", "passwd", "bob"]) == 2


class FakeJob:
    """What a progress bar needs of a job; it ends after some looks at it."""

    def __init__(self, looks: int) -> None:
        self.id = "0123456789abcdef"
        self.looks = looks

    def status(self) -> Any:
        """Ever nearer to the end, then the connection is closed."""
        self.looks -= 1
        if not self.looks:
            raise errors.UsageError("this connection is closed")
        return SimpleNamespace(state="running", counts=SimpleNamespace(total=2, done=1))


def test_the_bar_of_a_job_ends_with_the_connection(capsys: pytest.CaptureFixture[str]) -> None:
    """A script that closes its connection while a job runs sees no traceback of the bar's thread."""
    _draw(FakeJob(2), threading.Event())  # type: ignore[arg-type]
    assert "Traceback" not in capsys.readouterr().err


def test_the_bar_of_a_job_goes_before_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """`results` returns when the bar is gone: what is printed next stands on a line of its own."""
    monkeypatch.setattr("sector.sphere.blocking._draw", lambda job, ends: ends.wait(30))
    driver = SimpleNamespace(part=lambda number: None, ended=True, id="x")
    job = Job(SimpleNamespace(wait=lambda function, *args: function(*args)), driver)  # type: ignore[arg-type]
    job.draw()
    assert job._bar is not None and job._bar.is_alive()
    assert list(job.results()) == []
    assert not job._bar.is_alive()


@pytest.mark.parametrize(
    "words",
    [("user", "add"), ("user", "remove"), ("user", "passwd"), ("grant",), ("acl", "slave", "add")],
    ids=" ".join,
)
def test_a_name_that_no_message_can_carry_is_one_clear_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any password is asked for and without a master."""
    rest = ["/d", "r"] if words == ("grant",) else []
    for name, told in (("", "the name is empty"), ("x" * 129, "a name of 129 characters is too long")):
        assert run([*words, name, *rest]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"sector: {told}")
        assert said.count("\n") == 1


def test_the_record_of_a_job_that_never_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No segment is to blame: null in JSON, "job" in text."""
    why = UdfFault(-1, -1, "NotFound", "/a has no record index", "", "not_found")
    info = JobInfo("4f" * 8, "alice", "failed", 1, "f", 1.0, 2.0, JobCounts(), [], [why])
    monkeypatch.setattr(compute, "call", lambda shared, *requests: info)
    assert run(["job", "show", "4f", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["errors"]
    assert (told["segment"], told["record"], told["message"]) == (None, None, "/a has no record index")
    assert run(["job", "show", "4f"]) == 0
    assert "\njob: NotFound: /a has no record index" in capsys.readouterr().out


def test_job_show_names_slaves_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, also of a job that is done without them."""
    left_out = {"s2": "slave s2: its disk is full", "s4": "Input/output error\x1b[2J"}
    info = JobInfo("4f" * 8, "alice", "done", 1, "f", 1.0, 2.0, JobCounts(), [], [], left_out)
    monkeypatch.setattr(compute, "call", lambda shared, *requests: info)
    assert out("job", "show", "4f").splitlines()[-2:] == [
        "left out: slave s2: its disk is full",
        "left out: s4: Input/output error\\x1b[2J",
    ]
    assert json.loads(out("job", "show", "4f", "--json"))["left_out"] == left_out


def test_a_bench_of_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["bench", "udt", "--only"]) == 2
    assert capsys.readouterr().err == (
        "sector: --only measures what --peer names, and it names nothing (add --peer NAME)\n"
    )
    monkeypatch.setattr(bench_udt, "why_missing", lambda name: "it is not here")
    assert run(["bench", "udt", "--only", "--peer", "srt"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.splitlines() == [
        "sector bench udt: without srt: it is not here",
        "sector: nothing can be measured here (the reasons are above)",
    ]
