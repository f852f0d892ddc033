"""What all commands share: where the service is (--dir, --config), --json, and opening what it holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from cumulus import audit
from cumulus.config import Config, environment, find_config
from cumulus.unix import owned_by_another
from sector.cli import render
from sector.cli.program import json_option, with_options
from sector.errors import LocalIO, SectorError, UsageError

if TYPE_CHECKING:
    from cumulus.index.admin_api import Admin
    from cumulus.index.api import Directory, Index
    from cumulus.storage.api import FileStore

F = TypeVar("F", bound=Callable[..., Any])


class InUse(SectorError):
    """It cannot go while something depends on it."""

    code: ClassVar[str] = "in_use"


@dataclass(slots=True)
class Shared:
    """Options that all commands share; `ctx.obj` of every command."""

    dir: str | None = None
    config_file: str | None = None
    json: bool = False

    def take_directory(self, directory: str | None) -> None:
        """The directory that a command's argument names, if it has one. Raises `UsageError` where an option
        names another."""
        if directory is None:
            return
        if not directory:
            raise UsageError("DIR is empty", hint="name a directory")
        if self.config_file is not None:
            raise UsageError(f"{directory} and --config name the same thing", hint="give one of them")
        if self.dir is not None and os.path.realpath(self.dir) != os.path.realpath(directory):
            raise UsageError(f"{directory} and --dir {self.dir} are two directories", hint="give one of them")
        self.dir = directory

    def where(self) -> tuple[str | None, str | None]:
        """(directory, file of settings) by the options, else by the environment. Raises `UsageError` if the
        environment has both."""
        if self.dir is not None or self.config_file is not None:
            return self.dir, self.config_file
        directory, file = environment("DIR"), environment("CONFIG")
        if directory and file:
            hint = "unset one of them, or give --dir or --config, which count before both"
            raise UsageError("CUMULUS_DIR and CUMULUS_CONFIG are both set", hint=hint)
        return directory, file

    def config(self) -> Config:
        """The settings. Raises `UsageError`, `BadConfig`."""
        return find_config(*self.where())

    def check(self, config: Config | None = None) -> None:
        """Say whether the settings and the files that they name are right. Raises what is wrong."""
        from cumulus.checked import check_settings
        from cumulus.opening import check_files

        config = config or self.config()
        check_files(config)
        check_settings(config)
        self.done(f"{config.path}: ok", config=config.path, ok=True)

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        """The users, keys, groups and quotas of the database."""
        from cumulus.opening import open_admin

        made = open_admin(self.config())
        try:
            yield made
        finally:
            made.close()

    @contextmanager
    def index(self) -> Iterator[tuple[Index, Directory]]:
        """Index and users, also beside a running server."""
        from cumulus.opening import open_index

        index, directory = open_index(self.config(), lambda bad: render.say(bad.message))
        try:
            yield index, directory
        finally:
            index.close()
            directory.close()

    @contextmanager
    def store(self, index: Index) -> Iterator[FileStore]:
        """The storage of the buckets of that index."""
        from cumulus.opening import check_storage, open_store

        config = self.config()
        check_storage(config, index)
        made = open_store(config)
        try:
            yield made
        finally:
            made.close()

    def check_account(self) -> None:
        """For commands that make files or directories in storage: that they are the service's. Only its
        account may read its secrets, so whose these are says which it is. Raises `LocalIO`."""
        config = self.config()
        private = config.file(config.auth.file) if config.auth.source == "file" else config.secret_key
        account = owned_by_another(str(private)) if config.store_url.startswith("posix:") else ""
        if account:
            what = f"{private} belongs to {account}, which could not use what root makes in storage"
            raise LocalIO(what, hint=f"run this as that account: sudo -u {account} cumulus ...")

    def audit(self, config: Config, what: str) -> None:
        """A line in the audit log, if the settings name one; that it cannot be written is told, the change
        is made."""
        if config.log.audit:
            try:
                audit.note(config.file(config.log.audit), audit.account(), audit.COMMAND, what)
            except LocalIO as bad:
                render.say(f"the change is made, but not recorded: {bad.message}")

    def changed(self, text: str, /, *, how: str = "", **fields: object) -> None:
        """What a command prints that has changed something, as `done`; the audit log gets the same line, with
        `how` behind it."""
        self.audit(self.config(), f"{text}: {how}" if how else text)
        self.done(text, **fields)

    def listed(
        self,
        document: object,
        heads: Sequence[str],
        rows: Iterable[Sequence[object]],
        right: Iterable[int] = (),
    ) -> None:
        """What a listing command prints: a table, or `document` with --json. As `render.print_table`."""
        if self.json:
            render.print_json(document)
        else:
            render.print_table(heads, rows, right)

    def done(self, text: str, **fields: object) -> None:
        """What a changing command prints: a line, or an object with --json."""
        if self.json:
            render.print_json(fields)
        else:
            click.echo(text)


def _once(name: str, flag: str, metavar: str, text: str) -> Callable[[F], F]:
    """An option whose value becomes attribute `name` of `Shared`; of two nobody knows which is meant."""

    def callback(context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> None:
        shared = context.ensure_object(Shared)
        for value in given:
            if not value:
                raise UsageError(f"{flag} is empty", hint=f"give {flag} {metavar}")
            if getattr(shared, name) is not None:
                raise UsageError(f"{flag} is given twice", hint="give it once")
            setattr(shared, name, value)

    return click.option(
        flag, expose_value=False, callback=callback, multiple=True, metavar=metavar, help=text
    )


def shared_options(function: F) -> F:
    """Adds --dir, --config and --json to a command; their values are in `Shared` (`@click.pass_obj`). They
    also work before the command's name."""
    return with_options(
        function,
        _once("dir", "--dir", "DIR", "Directory made by cumulus init.  [env var: CUMULUS_DIR]"),
        _once("config_file", "--config", "FILE", "Settings file.  [env var: CUMULUS_CONFIG]"),
        json_option(Shared),
    )
