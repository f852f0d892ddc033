"""The `sector` program: the table of commands and the options that all share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from sector import __version__
from sector.cli import program
from sector.cli.program import stored_option, with_options
from sector.config import Config, load_client, override_client

F = TypeVar("F", bound=Callable[..., Any])

# command -> "module:attribute", and the help line, so that --help imports none of them
COMMANDS: program.Commands = {
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
    "find": ("sector.cli.looking:find", "Find files."),
    "du": ("sector.cli.looking:du", "Show how much lies below a directory."),
    "df": ("sector.cli.looking:df", "Show the room on the slaves."),
    "mv": ("sector.cli.files:mv", "Rename a file or directory."),
    "rm": ("sector.cli.files:rm", "Remove files."),
    "replicate": ("sector.cli.files:replicate", "Ask for copies of a file."),
    "user": ("sector.cli.admin:user", "Add, list and remove users."),
    "grant": ("sector.cli.admin:grant", "Give a user rights on a directory."),
    "revoke": ("sector.cli.admin:revoke", "Take a user's rights on a directory."),
    "node": ("sector.cli.admin:node", "Show the nodes, scrub them, check a machine."),
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
    no_progress: bool = False

    def client_config(self) -> Config:
        """The client's settings: file, then environment, then --master and --user. Raises `BadConfig`."""
        return override_client(load_client(), master=self.master, user=self.user)

    @property
    def bars(self) -> bool:
        """Whether progress bars are drawn: on a terminal, without --no-progress and --json."""
        return not self.no_progress and not self.json and sys.stderr.isatty()


def shared_options(function: F) -> F:
    """Adds --master, --user, --json and --no-progress to a command; their values are in `Shared`
    (`@click.pass_obj`). They also work before the command's name."""
    return with_options(
        function,
        stored_option(
            Shared,
            "master",
            "--master",
            metavar="HOST:PORT",
            help="Master to talk to.  [env var: SECTOR_MASTER]",
        ),
        stored_option(Shared, "user", "--user", metavar="NAME", help="User name.  [env var: SECTOR_USER]"),
        json_option,
        stored_option(Shared, "no_progress", "--no-progress", is_flag=True, help="Draw no progress bars."),
    )


def json_option(function: F) -> F:
    """Adds --json alone (for commands that talk to no master)."""
    return with_options(function, program.json_option(Shared))


@click.command(cls=program.LazyGroup, table=COMMANDS, context_settings=program.HELP)
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


PROGRAM: Final = program.Program("sector", cli)
run = PROGRAM.run
main = PROGRAM.main


if __name__ == "__main__":
    main()
