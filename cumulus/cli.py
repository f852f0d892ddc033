"""The `cumulus` program: the table of commands, and what errors of the floors below are called."""

from __future__ import annotations

from typing import Final

import click

from cumulus.admin.options import InUse, Shared, shared_options
from cumulus.index.api import AddressTaken, Away, Damaged, IndexFailure, NameTaken, NoSuch, StillUsed
from cumulus.storage.api import StorageError
from sector import __version__
from sector.cli import program
from sector.errors import Exists, NotFound, SectorError, Unavailable, UsageError

# command -> "module:attribute", and the help line, so that --help imports none of them
COMMANDS: program.Commands = {
    "serve": ("cumulus.service:serve_command", "Serve S3."),
    "stop": ("cumulus.detached:stop", "Stop a service in the background."),
    "init": ("cumulus.admin.setup:init", "Make a new Cumulus in a directory."),
    "user": ("cumulus.admin.people:user", "Add, change, list and remove users."),
    "key": ("cumulus.admin.keys:key", "Add, list, expire and remove keys."),
    "group": ("cumulus.admin.groups:group", "Add, list and remove groups and members."),
    "bucket": ("cumulus.admin.buckets:bucket", "Add, list, show, rescan, give away and remove buckets."),
    "quota": ("cumulus.admin.quotas:quota", "Set, show and clear quotas."),
    "usage": ("cumulus.admin.quotas:usage", "Show what users, groups and buckets hold."),
    "traffic": ("cumulus.admin.traffic:traffic", "Sum up the access log by day, user, bucket or operation."),
    "doctor": ("cumulus.admin.doctor:doctor", "Check a Cumulus, or make its index anew."),
}


@click.command(
    cls=program.LazyGroup, table=COMMANDS, context_settings=program.HELP, invoke_without_command=True
)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.option("--check-config", is_flag=True, help="Only check settings and the files that they name.")
@shared_options
@click.pass_context
def cli(ctx: click.Context, version: bool, check_config: bool) -> None:
    """Cumulus is an S3 service in front of directories and other storage, with users, quotas and ACLs.

    \b
    Examples:
      cumulus init /srv/cumulus                     make one; prints the administrator's key
      cumulus --dir /srv/cumulus user add alice     add a user
      cumulus --dir /srv/cumulus --check-config     check cumulus.toml
    """
    shared: Shared = ctx.ensure_object(Shared)
    if version:
        shared.done(f"cumulus, version {__version__}", version=__version__)
        ctx.exit()
    if check_config:
        shared.check()
    elif ctx.invoked_subcommand is None:
        raise click.exceptions.NoArgsIsHelpError(ctx)


def as_ours(error: Exception) -> SectorError | None:
    """An error of the floors below as one that has a code and a hint."""
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        hint = "names, and directories of buckets and settings, are UTF-8; see the locale of your terminal"
        return UsageError("what was given is not UTF-8 text", hint=hint)
    if not isinstance(error, IndexFailure | StorageError):
        return None
    text = str(error)
    if isinstance(error, NoSuch):
        return NotFound(text, hint="check the name; cumulus user, group, key and bucket have a list command")
    if isinstance(error, AddressTaken):
        hint = "give another address, or take it from him: cumulus user change NAME --email ''"
        return Exists(text, hint=hint)
    if isinstance(error, NameTaken):
        return Exists(text, hint="choose another one")
    if isinstance(error, StillUsed):
        return InUse(text, hint="--give-to USER or --delete-data says what becomes of it")
    if isinstance(error, Damaged):
        return Unavailable(text, hint="check its disk; cumulus doctor says what else to do")
    if isinstance(error, Away):
        return Unavailable(text, hint="check that the database answers, its disk and who holds it; try again")
    return SectorError(text)


PROGRAM: Final = program.Program("cumulus", cli, as_ours)
run = PROGRAM.run
main = PROGRAM.main


if __name__ == "__main__":
    main()
