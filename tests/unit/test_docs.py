"""The documentation says what the program does: generated pages, command lines, code, settings, links."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from twisted.internet import endpoints
from twisted.internet.task import Clock

import cumulus.admin.options
import cumulus.cli
import sector.cli.main
from sector.config import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN = [page for page in PAGES if page.name not in ("cli.md", "cumulus-cli.md", "messages.md")]
# program -> (its command, what all its commands share)
PROGRAMS: dict[str, tuple[click.Command, Callable[[], object]]] = {
    "sector": (sector.cli.main.cli, sector.cli.main.Shared),
    "cumulus": (cumulus.cli.cli, cumulus.admin.options.Shared),
}
STARTS = tuple(f"{name} " for name in PROGRAMS)
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def generator() -> Any:
    """tools/gen_docs.py as a module."""
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "tools" / "gen_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, *kinds: str) -> Iterator[tuple[str, str]]:
    """(name for a test, text) of the fenced blocks of a kind."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match[1].strip() in kinds:
            line = text.count("\n", 0, match.start()) + 2
            yield f"{page.relative_to(ROOT)}:{line}", match[2]


def shown_commands() -> Iterator[tuple[str, str]]:
    """(where, command line) of every line of a program in a sh block of README and docs."""
    for page in WRITTEN:
        for where, text in blocks(page, "sh"):
            for line in text.splitlines():
                command = line.removeprefix("./dev ")
                if command.startswith(STARTS):
                    yield where, command


def all_commands() -> list[tuple[str, click.Command]]:
    """Every command with its full name."""
    walk = generator().commands
    return [found for name, (command, _) in PROGRAMS.items() for found in walk(command, name)]


def examples() -> Iterator[tuple[str, str]]:
    """(command, example line) of all help texts."""
    for path, command in all_commands():
        text = f"{command.help or ''}\n{command.epilog or ''}"
        for line in text.splitlines():
            example = re.split(r"\s{2,}", line.strip())[0]
            if example.startswith(STARTS):
                yield path, example


def parse(line: str) -> None:
    """Parse a command line as the program would, without running it. Raises click.UsageError."""
    words = shlex.split(line, comments=True)
    words = words[
        : min([i for i, word in enumerate(words) if word in (">", ">>", "<", "|", "<<")] + [len(words)])
    ]
    program, *arguments = words
    command, shared = PROGRAMS[program]
    ctx = click.Context(command, info_name=program, obj=shared())
    while isinstance(command, click.Group):
        if command.params and arguments and arguments[0].startswith("-"):
            ctx = command.make_context(program, list(arguments), obj=shared())
            arguments = [*ctx._protected_args, *ctx.args]
        if not arguments:
            return
        name, found, arguments = command.resolve_command(ctx, arguments)
        assert found is not None and name is not None, line
        command = found
        if isinstance(command, click.Group):
            ctx = click.Context(command, info_name=name, parent=ctx)
    command.make_context(command.name or "", list(arguments), parent=ctx)


def test_generated_pages_are_up_to_date() -> None:
    """docs/cli.md and docs/protocol/messages.md are what tools/gen_docs.py writes."""
    for name, make in generator().PAGES.items():
        assert (ROOT / name).read_text(encoding="utf-8") == make(), f"{name}: run tools/gen_docs.py"


@pytest.mark.parametrize(("where", "line"), list(shown_commands()))
def test_command_lines_in_the_docs_parse(where: str, line: str) -> None:
    """Command and options exist, and their values are of the right kind."""
    try:
        parse(line)
    except click.UsageError as error:
        pytest.fail(f"{where}: {line}: {error.format_message()}")


@pytest.mark.parametrize(("command", "line"), list(examples()))
def test_examples_in_help_texts_parse(command: str, line: str) -> None:
    """So do the examples that --help shows."""
    try:
        parse(line)
    except click.UsageError as error:
        pytest.fail(f"{command} --help: {line}: {error.format_message()}")


def test_a_wrong_command_line_would_be_found() -> None:
    """The check above is not empty."""
    for line in (
        "sector put --no-such a /b",
        "sector frob",
        "sector ls a b c",
        "sector job show",
        "sector up --slaves 0",
        "cumulus frob",
        "cumulus --dir",
        "cumulus --dir D user add",
        "cumulus user add a --weight 0",
    ):
        with pytest.raises(click.UsageError):
            parse(line)


def test_every_command_has_help_and_an_example() -> None:
    """`--help` everywhere, with examples (design section 9)."""
    for path, command in all_commands():
        assert command.help, f"{path} has no help"
        shown = f"  {path.split()[0]} " in f"{command.help}{command.epilog or ''}"
        assert shown, f"{path} --help shows no example"


@pytest.mark.parametrize("name", ["wordcount", "find_dwarfs", "inverted_index", "terasort"])
def test_examples_have_help_and_fail_in_one_line(name: str, tmp_path: Path) -> None:
    """--help is help, and an error of the cluster (here: none is known) is no traceback."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SECTOR_")}
    env |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    def example(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
        return subprocess.run(program, env=env, capture_output=True, text=True, timeout=60, check=False)

    shown = example("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("usage:")
    told = example(*(["/no/such"] if name in ("wordcount", "find_dwarfs") else []))
    assert told.returncode == 1
    assert told.stderr.startswith(f"{name}: ") and told.stderr.count("\n") == 1


CODE = [case for page in WRITTEN for case in blocks(page, "python", "python runnable")]
RUNNABLE = [case for page in WRITTEN for case in blocks(page, "python runnable")]


@pytest.mark.parametrize(("where", "code"), CODE, ids=[where for where, _ in CODE])
def test_python_in_the_docs_compiles(where: str, code: str) -> None:
    """No typos."""
    compile(code, where, "exec")


@pytest.mark.parametrize(("where", "code"), RUNNABLE, ids=[where for where, _ in RUNNABLE])
def test_runnable_python_in_the_docs_runs(where: str, code: str) -> None:
    """Blocks that need no cluster; they check themselves with assert."""
    exec(compile(code, where, "exec"), {"__name__": "docs"})


def test_settings_in_the_guide_are_those_of_the_program() -> None:
    """Every key of every section stands in the table."""
    text = (ROOT / "docs" / "guide" / "several-machines.md").read_text(encoding="utf-8")
    for section, kind in SECTIONS.items():
        assert f"`[{section}]`" in text
        for key in kind.__struct_fields__:
            assert f"`{key}`" in text, f"[{section}] {key} is not in the guide"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and headings in generated pages."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, heading = target.partition("#")
        if name.startswith("http"):
            continue
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name}: {target}"
        assert not heading or heading in anchors(there), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    return {
        re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")
        for head in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    }


def test_endpoint_strings_in_the_guide_are_known_to_twisted() -> None:
    """Each makes an endpoint of ours; nothing is opened."""
    text = (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
    found = re.findall(r'(clientFromString|serverFromString)\(reactor, ("udt:[^"]*")\)', text)
    made = [getattr(endpoints, name)(Clock(), literal_eval(string)) for name, string in found]
    assert [type(end).__name__ for end in made] == [
        "UdtServerEndpoint",
        "UdtClientEndpoint",
        "UdtRendezvousEndpoint",
    ]


def test_a_wheel_registers_the_endpoint_strings(tmp_path: Path) -> None:
    """What a wheel holds, in a place of its own, is where Twisted looks for plugins."""
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path / "wheel")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    look = """
import sys
import twisted.plugins
from twisted.internet.interfaces import IStreamClientEndpointStringParserWithReactor as Parser
from twisted.plugin import getPlugins

sys.path.insert(0, sys.argv[1])
twisted.plugins.__path__[:] = [sys.argv[1] + "/twisted/plugins"]
print(*(type(plugin).__name__ for plugin in getPlugins(Parser) if plugin.prefix == "udt"))
"""
    found = subprocess.run(
        [sys.executable, "-c", look, str(tmp_path / "wheel")],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.stdout.split() == ["UdtClientParser"]
