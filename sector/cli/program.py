"""What the programs `sector` and `cumulus` share: commands that are imported when used, options that store a
value for all commands, and how errors end a command line.

Exit status: 0 success, 1 refused or failed, 2 wrong use, after a signal 128 + its number (130: Ctrl-C).
Errors are one line, never a traceback; with --json a refusal is one JSON object on standard output.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO, TypeVar

import click

from sector.cli import ends
from sector.cli.render import json_text
from sector.config import nearest
from sector.errors import BadConfig, SectorError, UdfError, UsageError, printable

F = TypeVar("F", bound=Callable[..., Any])
Commands = dict[str, tuple[str, str]]
OUTPUT = "standard output"
HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used. `table`: command -> ("module:name of
    the command in it", help line)."""

    def __init__(self, *args: Any, table: Commands, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.table:
            near = nearest(args[0], list(self.table))
            ctx.fail(f"no such command {args[0]!r}" + (f"; did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


def stored_option(kind: type[Any], name: str, *flags: str, value: object = None, **settings: Any) -> Any:
    """An option whose value becomes attribute `name` of the `kind` that all commands share (`@pass_obj`); a
    flag that is given stores `value`, if there is one. It also works before the command's name."""

    def callback(ctx: click.Context, _param: click.Parameter, given: Any) -> Any:
        shared = ctx.ensure_object(kind)
        if given is not None and given is not False:
            setattr(shared, name, given if value is None else value)
        return given

    return click.option(*flags, expose_value=False, callback=callback, **settings)


def json_option(kind: type[Any]) -> Any:
    """--json, as attribute `json` of what all commands share."""
    return stored_option(kind, "json", "--json", is_flag=True, help="Print one JSON document.")


def with_options(function: F, *options: Any) -> F:
    """`function` with the options, which --help shows in this order."""
    for option in reversed(options):
        function = option(function)
    return function


def wants_json(arguments: list[str]) -> bool:
    """Whether --json stands among the arguments (needed when parsing itself fails)."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def _as_it_is(_error: Exception) -> SectorError | None:
    return None


@dataclass(frozen=True, slots=True)
class Program:
    """A command line program: its `name`, its command, and how errors of floors below that are no SectorError
    become one (None: `translate` does not know it)."""

    name: str
    command: click.Command
    translate: Callable[[Exception], SectorError | None] = _as_it_is

    def report(self, error: SectorError, as_json: bool) -> int:
        """Tell the user of a failure in one line and return the exit status."""
        if as_json:
            click.echo(json_text({"error": error.as_json()}))
        else:
            # a user function's own traceback is what its author asked for; all else is one line
            message = printable(error.message, "\n\t" if isinstance(error, UdfError) else "")
            hint = f" ({printable(error.hint)})" if error.hint else ""
            click.echo(f"{self.name}: {message}{hint}", err=True)
        return 2 if isinstance(error, UsageError) and not isinstance(error, BadConfig) else 1

    def run(self, arguments: list[str]) -> int:
        """Run one command line and return its exit status. The only place where errors become text."""
        as_json = wants_json(arguments)
        try:
            result = self.command.main(args=arguments, prog_name=self.name, standalone_mode=False)
            return result if isinstance(result, int) else 0
        except SectorError as error:
            return self.report(error, as_json)
        except click.exceptions.Exit as leaving:
            return leaving.exit_code
        except (click.Abort, KeyboardInterrupt):
            end = ends.by()  # click has ended the line of a bar
            if end is not None:
                click.echo(f"{self.name}: ended by {end.name}", err=True)
            return ends.status()
        except click.exceptions.NoArgsIsHelpError as error:
            if as_json:
                return self.report(
                    UsageError("a command is missing", hint=f"see {self.name} --help"), as_json
                )
            click.echo(error.format_message(), err=True)
            return 2
        except click.ClickException as error:
            return self.report(self._click(error), as_json)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            if error.filename == OUTPUT:
                return self.unwritten(error, 0)
            return self.report(_system(error), as_json)
        except Exception as error:
            return self.report(_scarce(error) or self.translate(error) or self._fault(error), as_json)

    def _click(self, error: click.ClickException) -> SectorError:
        if not isinstance(error, click.UsageError):
            return SectorError(error.format_message())
        where = error.ctx.command_path if error.ctx else self.name
        return UsageError(error.format_message(), hint=f"see {where} --help")

    def _fault(self, error: Exception) -> SectorError:
        variable = f"{self.name.upper()}_DEBUG"
        if os.environ.get(variable):
            traceback.print_exception(error)
        hint = f"this is a fault of the program; {variable}=1 shows where"
        return SectorError(f"{type(error).__name__}: {error}", hint=hint)

    def unwritten(self, error: OSError, status: int) -> int:
        """The exit status when standard output does not take what was printed: a full disk behind it is a
        failure; a reader that has gone is not worth a word, nor is what follows a failure."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if ends.by() is not None:  # a terminal that has closed takes no last words either
            return ends.status()
        if not status and not isinstance(error, BrokenPipeError):
            click.echo(f"{self.name}: {OUTPUT}: {error.strerror}", err=True)
        return status or 1

    def main(self) -> NoReturn:
        """Run the process's command line and end the process."""
        fill_descriptors()
        if (told := names_in_utf8()) is not None:
            sys.exit(self.report(told, wants_json(sys.argv[1:])))
        ends.install()
        status = 0
        try:
            status = self.run(sys.argv[1:])
            sys.stdout.flush()
        except OSError as error:
            status = self.unwritten(error, status)
        except KeyboardInterrupt:
            status = ends.status()
        ends.release()
        sys.exit(status)


def _scarce(error: Exception) -> SectorError | None:
    """What Python raises where a process gets no more memory or threads."""
    if isinstance(error, MemoryError):
        return SectorError("this process gets no more memory", hint="free some, or see ulimit -v")
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return SectorError("this process gets no more threads", hint="see ulimit -u and ulimit -v")
    return None


def _system(error: OSError) -> SectorError:
    name = f"{error.filename}: " if error.filename else ""
    return SectorError(f"{name}{error.strerror or error}")


class Output(io.FileIO):
    """Standard output, which says in its errors that it is this."""

    def write(self, data: Any, /) -> int:
        """As that of a file."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = OUTPUT
            raise


def named_output(told: TextIO) -> TextIO:
    """Standard output as it is, but for the name in its errors."""
    raw = Output(1, "wb", closefd=False)
    at_once = bool(getattr(told, "write_through", False))  # python -u
    return io.TextIOWrapper(
        raw if at_once else io.BufferedWriter(raw),
        told.encoding,
        told.errors,
        line_buffering=told.isatty(),
        write_through=at_once,
    )


def names_in_utf8() -> SectorError | None:
    """Begin the program again in Python's UTF-8 mode where the locale would name files in another encoding:
    names in a store are UTF-8, whoever starts the service (decision 0253). What hinders it is returned."""
    encoding = sys.getfilesystemencoding()
    if encoding == "utf-8":
        return None
    again = os.environ.get("PYTHONUTF8") != "1" and not sys.flags.ignore_environment
    if sys.executable and again:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})
    return BadConfig(
        f"names of files are {encoding} here, and have to be UTF-8",
        hint="set LC_ALL=C.UTF-8, or start Python with -X utf8",
    )


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
    sys.stdout = named_output(sys.stdout or os.fdopen(1, "w", closefd=False))
    sys.stderr = sys.stderr or os.fdopen(2, "w", 1, closefd=False)
