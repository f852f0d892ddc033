"""The `sector` program: the table of commands, options that all share, and how errors end it.

Exit status: 0 success, 1 refused or failed, 2 wrong use, 130 on Ctrl-C. Errors are one line, never a
traceback; with --json a refusal is one JSON object on standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import click

from sector import __version__
from sector.config import Config, load_client, nearest, override_client
from sector.errors import BadConfig, SectorError, UdfError, UsageError, printable

F = TypeVar("F", bound=Callable[..., Any])

# command -> "module:attribute", and the help line, so that --help imports none of them
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("sector.cli.cluster:init", "Write certificates and settings of a new cluster."),
    "up": ("sector.cli.cluster:up", "Start a whole cluster on this machine."),
    "down": ("sector.cli.cluster:down", "Stop the cluster that `up` started."),
    "status": ("sector.cli.cluster:status", "Show the state of the cluster."),
    "login": ("sector.cli.cluster:login", "Log in and keep the session."),
    "security": ("sector.cli.cluster:security", "Run the security server."),
    "master": ("sector.cli.cluster:master", "Run a master."),
    "slave": ("sector.cli.cluster:slave", "Run a slave."),
    "ls": ("sector.cli.files:ls", "List files."),
    "stat": ("sector.cli.files:stat", "Show what is known of a file."),
    "mkdir": ("sector.cli.files:mkdir", "Make directories."),
    "put": ("sector.cli.files:put", "Store files."),
    "get": ("sector.cli.files:get", "Fetch files."),
    "cat": ("sector.cli.files:cat", "Print files."),
    "mv": ("sector.cli.files:mv", "Rename a file or directory."),
    "rm": ("sector.cli.files:rm", "Remove files."),
    "replicate": ("sector.cli.files:replicate", "Ask for copies of a file."),
    "user": ("sector.cli.admin:user", "Add, list and remove users."),
    "grant": ("sector.cli.admin:grant", "Give a user rights on a directory."),
    "revoke": ("sector.cli.admin:revoke", "Take a user's rights on a directory."),
    "node": ("sector.cli.admin:node", "Show the nodes, check a machine."),
    "acl": ("sector.cli.admin:acl", "Say which nodes may join."),
    "sphere": ("sector.cli.compute:sphere", "Run functions over files where they lie."),
    "job": ("sector.cli.compute:job", "List, show and cancel jobs."),
    "udtcat": ("sector.cli.tools:udtcat", "Netcat over UDT."),
    "trace": ("sector.cli.tools:trace", "Draw what a transfer did."),
    "bench": ("sector.cli.tools:bench", "Measure."),
}


@dataclass(slots=True)
class Shared:
    """Options that all commands share; `ctx.obj` of every command."""

    master: str | None = None
    user: str | None = None
    json: bool = False
    progress: bool = True
    progress_json: bool = False

    def client_config(self) -> Config:
        """The client's settings: file, then environment, then --master and --user. Raises `BadConfig`."""
        return override_client(load_client(), master=self.master, user=self.user)

    @property
    def bars(self) -> bool:
        """Whether progress bars are drawn: on a terminal, without --no-progress and --json."""
        return self.progress and not self.json and sys.stderr.isatty()


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        shared = ctx.ensure_object(Shared)
        if value is not None and value is not False:
            if name == "progress":
                shared.progress = False
            elif name == "progress_json":
                shared.progress_json = value == "json"
            else:
                setattr(shared, name, value)
        return value

    return callback


def shared_options(function: F) -> F:
    """Adds --master, --user, --json and --no-progress to a command; their values are in `Shared`
    (`@click.pass_obj`). They also work before the command's name."""
    for option in (
        click.option(
            "--no-progress",
            is_flag=True,
            expose_value=False,
            callback=_store("progress"),
            help="Draw no progress bars.",
        ),
        json_option,
        click.option(
            "--user",
            metavar="NAME",
            expose_value=False,
            callback=_store("user"),
            help="User name.  [env var: SECTOR_USER]",
        ),
        click.option(
            "--master",
            metavar="HOST:PORT",
            expose_value=False,
            callback=_store("master"),
            help="Master to talk to.  [env var: SECTOR_MASTER]",
        ),
    ):
        function = option(function)
    return function


def json_option(function: F) -> F:
    """Adds --json alone (for commands that talk to no master)."""
    return click.option(
        "--json", is_flag=True, expose_value=False, callback=_store("json"), help="Print one JSON document."
    )(function)


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = nearest(args[0], list(COMMANDS))
            ctx.fail(f"no such command {args[0]!r}" + (f"; did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sector")
@shared_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Sector stores files over many machines and sites; Sphere runs Python over them where they lie.

    \b
    Examples:
      sector up                            a cluster on this machine
      sector put data.bin /data/           store a file
      sector ls -l /data                   list it
      sector login host:7001 --ca ca.pem   connect to another cluster
    """
    ctx.ensure_object(Shared)


def wants_json(arguments: list[str]) -> bool:
    """Whether --json stands among the arguments (needed when parsing itself fails)."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def report(error: SectorError, as_json: bool) -> int:
    """Tell the user of a failure in one line and return the exit status."""
    if as_json:
        click.echo(json.dumps({"error": error.as_json()}, ensure_ascii=False))
    else:
        # a user function's own traceback is what its author asked for; all else is one line
        message = printable(error.message, "\n\t" if isinstance(error, UdfError) else "")
        click.echo(f"sector: {message}" + (f" ({error.hint})" if error.hint else ""), err=True)
    return 2 if isinstance(error, UsageError) and not isinstance(error, BadConfig) else 1


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status. The only place where errors become text."""
    as_json = wants_json(arguments)
    try:
        result = cli.main(args=arguments, prog_name="sector", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SectorError as error:
        return report(error, as_json)
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("", err=True)
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        if as_json:
            return report(UsageError("a command is missing", hint="see sector --help"), as_json)
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        help_line = f"see {error.ctx.command_path} --help" if error.ctx else "see sector --help"
        return report(UsageError(error.format_message(), hint=help_line), as_json)
    except click.ClickException as error:
        return report(SectorError(error.format_message()), as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return report(SectorError(f"{name}{error.strerror or error}"), as_json)
    except Exception as error:
        if os.environ.get("SECTOR_DEBUG"):
            traceback.print_exc()
        hint = "this is a fault of the program; SECTOR_DEBUG=1 shows where"
        return report(SectorError(f"{type(error).__name__}: {error}", hint=hint), as_json)


def fill_descriptors() -> None:
    """Standard descriptors that were closed by the caller are opened, so that no socket takes their numbers.
    Closed input is empty, a closed error output takes all; writing to a closed output fails, as it should."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", 1, closefd=False)


def unwritten(error: OSError, status: int) -> int:
    """The exit status when standard output does not take what was printed: a full disk behind it is a
    failure; a reader that has gone is not worth a word, nor is what follows a failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not status and not isinstance(error, BrokenPipeError):
        click.echo(f"sector: standard output: {error.strerror}", err=True)
    return status or 1


def main() -> NoReturn:
    """Entry point of the `sector` program."""
    fill_descriptors()
    status = 0
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except OSError as error:
        status = unwritten(error, status)
    sys.exit(status)


if __name__ == "__main__":
    main()
