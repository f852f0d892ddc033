"""The `cumulus` program: the table of commands and how errors end it.

Exit status: 0 success, 1 refused or failed, 2 wrong use, 130 on Ctrl-C. Errors are one line, never a
traceback; with --json a refusal is one JSON object on standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import NoReturn

import click

from cumulus.admin.options import InUse, Shared, shared_options
from cumulus.index.api import Away, IndexFailure, NameTaken, NoSuch, StillUsed
from cumulus.storage.api import StorageError
from sector import __version__
from sector.cli.main import fill_descriptors, wants_json
from sector.config import nearest
from sector.errors import (
    BadConfig,
    Exists,
    NotFound,
    SectorError,
    Unavailable,
    UsageError,
    printable,
)

# command -> "module:attribute", and the help line, so that --help imports none of them
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("cumulus.service:serve_command", "Serve S3."),
    "stop": ("cumulus.detached:stop", "Stop a service in the background."),
    "init": ("cumulus.admin.setup:init", "Make a new Cumulus in a directory."),
    "user": ("cumulus.admin.people:user", "Add, change, list and remove users."),
    "key": ("cumulus.admin.people:key", "Add, list, expire and remove keys."),
    "group": ("cumulus.admin.people:group", "Add, list and remove groups and members."),
    "bucket": ("cumulus.admin.buckets:bucket", "Add, list, show, rescan, give away and remove buckets."),
    "quota": ("cumulus.admin.quotas:quota", "Set, show and clear quotas."),
    "usage": ("cumulus.admin.quotas:usage", "Show what users, groups and buckets hold."),
    "doctor": ("cumulus.admin.doctor:doctor", "Check a Cumulus, or make its index anew."),
}


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


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True
)
@click.version_option(__version__, prog_name="cumulus")
@click.option("--check-config", is_flag=True, help="Check the settings file, and do nothing else.")
@shared_options
@click.pass_context
def cli(ctx: click.Context, check_config: bool) -> None:
    """Cumulus is an S3 service in front of directories and other storage, with users, quotas and ACLs.

    \b
    Examples:
      cumulus init /srv/cumulus                     make one; prints the administrator's key
      cumulus --dir /srv/cumulus user add alice     add a user
      cumulus --dir /srv/cumulus --check-config     check cumulus.toml
    """
    shared: Shared = ctx.ensure_object(Shared)
    if check_config:
        path = shared.config().path
        shared.done(f"{path}: ok", config=path, ok=True)
    elif ctx.invoked_subcommand is None:
        raise click.exceptions.NoArgsIsHelpError(ctx)


def as_ours(error: IndexFailure | StorageError) -> SectorError:
    """An error of the floors below as one that has a code and a hint."""
    text = str(error)
    if isinstance(error, NoSuch):
        return NotFound(text, hint="check the name; cumulus user, group, key and bucket have a list command")
    if isinstance(error, NameTaken):
        return Exists(text, hint="choose another name")
    if isinstance(error, StillUsed):
        return InUse(text, hint="--give-to USER or --delete-data says what becomes of it")
    if isinstance(error, Away):
        return Unavailable(text, hint="check the database's file, its disk and who holds it; try again")
    return SectorError(text)


def report(error: SectorError, as_json: bool) -> int:
    """Tell the user of a failure in one line and return the exit status."""
    if as_json:
        click.echo(json.dumps({"error": error.as_json()}, ensure_ascii=False))
    else:
        hint = f" ({printable(error.hint)})" if error.hint else ""
        click.echo(f"cumulus: {printable(error.message)}{hint}", err=True)
    return 2 if isinstance(error, UsageError) and not isinstance(error, BadConfig) else 1


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit status. The only place where errors become text."""
    as_json = wants_json(arguments)
    try:
        result = cli.main(args=arguments, prog_name="cumulus", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SectorError as error:
        return report(error, as_json)
    except (IndexFailure, StorageError) as error:
        return report(as_ours(error), as_json)
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("", err=True)
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        if as_json:
            return report(UsageError("a command is missing", hint="see cumulus --help"), as_json)
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        help_line = f"see {error.ctx.command_path} --help" if error.ctx else "see cumulus --help"
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
        if os.environ.get("CUMULUS_DEBUG"):
            traceback.print_exc()
        hint = "this is a fault of the program; CUMULUS_DEBUG=1 shows where"
        return report(SectorError(f"{type(error).__name__}: {error}", hint=hint), as_json)


def main() -> NoReturn:
    """Entry point of the `cumulus` program."""
    fill_descriptors()
    status = 0
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not status and not isinstance(error, BrokenPipeError):
            click.echo(f"cumulus: standard output: {error.strerror}", err=True)
        status = status or 1
    sys.exit(status)


if __name__ == "__main__":
    main()
