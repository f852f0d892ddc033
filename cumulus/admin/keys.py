"""Commands for keys, and how a new key is told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cumulus.admin import accounts
from cumulus.admin.clients import FORMS, endpoint
from cumulus.admin.options import Shared, shared_options
from cumulus.admin.values import time_text
from cumulus.config import Config
from cumulus.index.admin_api import KeyInfo
from cumulus.index.api import IndexFailure
from cumulus.model import Credential
from cumulus.secrets import write_private
from cumulus.words import count_text
from sector.cli import render
from sector.cli.program import with_options
from sector.errors import LocalIO, UsageError


def _new_file(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """A file that can be made and is not there, looked at before anything is changed: what cannot be told
    later is lost, and so is what such a file would replace. Raises `UsageError`."""
    if value is None:
        return None
    if not value:
        raise UsageError("--secret-to is empty", hint="name a file for the secret that is not there yet")
    path = Path(value)
    if path.exists() or path.is_symlink():
        raise UsageError(
            f"{value}: is there already", hint="name a file for the secret that is not there yet"
        )
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"{value}: no file can be made there", hint="name one in a directory of yours")
    return value


secret_to_option = click.option(
    "--secret-to",
    metavar="FILE",
    callback=_new_file,
    help="Write the secret key to a new FILE (mode 0600) instead of printing it.",
)
as_option = click.option(
    "--as",
    "form",
    type=click.Choice(list(FORMS)),
    help="Give the key as the settings of a client, with the service's address.",
)
key_options = (
    click.option("--access-key", metavar="A", help="Use this access key instead of a new one."),
    click.option("--secret-key-file", metavar="FILE", help="Read the secret key from FILE."),
    click.option("--expires", metavar="WHEN", default="never", help="2027-01-31, 30d, or never."),
    secret_to_option,
    as_option,
)


def with_key_options(function: Any) -> Any:
    """Options of commands that make a key."""
    return with_options(function, *key_options)


def read_secret(file: str) -> str:
    """The first line of a file. Raises `UsageError`, `LocalIO`."""
    if not file:
        raise UsageError("--secret-key-file is empty", hint="name the file of the secret key")
    try:
        with open(file, encoding="utf-8") as source:
            secret = source.readline(4096).strip()
    except OSError as bad:
        raise LocalIO(f"{file}: {bad.strerror}", hint="name a file that you may read") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: is not UTF-8 text", hint="its first line is the secret key") from None
    if len(secret) < 8 or not secret.isprintable():
        raise UsageError(f"{file}: its first line is no secret key", hint="at least 8 printable characters")
    return secret


@dataclass(frozen=True, slots=True)
class Told:
    """How a new key is given: into the file `secret_to`, in the `form` of a client."""

    secret_to: str | None
    form: str | None

    def check(self, config: Config) -> None:
        """Before anything is changed: a client must know the port. Raises `UsageError`."""
        if self.form and not config.server.port:
            hint = "give the service a port of its own, or leave --as out"
            raise UsageError(
                f"--as {self.form} needs a port, and [server] port = 0 is any free one", hint=hint
            )

    def text(self, config: Config, made: Credential) -> str:
        """What a file or standard output gets: the secret key, or a client's settings."""
        return FORMS[self.form](config, made) if self.form else made.secret + "\n"


def tell_key(
    shared: Shared, config: Config, made: Credential, told: Told, text: str, /, **fields: object
) -> None:
    """Print a new key; the secret once, or into a file. The audit log gets the text and the access key.
    Raises `LocalIO` when the file cannot be written: nobody knows the key then, and nothing is recorded."""
    if told.secret_to:
        write_private(Path(told.secret_to), told.text(config, made))
    shared.audit(config, f"{text}, with the key {made.access_key}")
    if told.secret_to:
        key = {"access_key": made.access_key, "secret_key_file": told.secret_to}
    else:
        key = {"access_key": made.access_key, "secret_key": made.secret}
    if shared.json:
        address = endpoint(config)[0] if config.server.port else None
        render.print_json({**fields, **key, "endpoint": address})
        return
    if told.form and not told.secret_to:
        render.say(text)
        click.echo(told.text(config, made), nl=False)
    else:
        click.echo(text)
        click.echo(f"access key  {made.access_key}")
        click.echo(f"secret key  {'is in ' + told.secret_to if told.secret_to else made.secret}")
    if not told.secret_to:
        render.say("the secret key is shown this once; it cannot be read back")


@contextmanager
def taken_back(undo: Callable[[], None]) -> Iterator[None]:
    """What was added goes again when its key cannot be told."""
    try:
        yield
    except LocalIO:
        with suppress(IndexFailure):
            undo()
        raise


@click.group()
def key() -> None:
    """Add, list, expire and remove keys; change the key that protects them.

    \b
    Examples:
      cumulus --dir D key add alice --expires 90d
      cumulus --dir D key remove CU7KQ2PZX0V4M1LD8A3C
    """


def key_fields(one: KeyInfo) -> dict[str, object]:
    """A key as --json prints it: times in seconds since 1970, null = never, or not known."""
    expires = one.expires_ns / 10**9 if one.expires_ns else None
    return {
        "access_key": one.access_key,
        "user": one.user,
        "created": one.created_ns / 10**9 if one.created_ns else None,
        "expires": expires,
    }


@key.command("add")
@click.argument("name")
@with_key_options
@shared_options
@click.pass_obj
def key_add(
    shared: Shared,
    name: str,
    access_key: str | None,
    secret_key_file: str | None,
    expires: str,
    secret_to: str | None,
    form: str | None,
) -> None:
    """Add a key for the user NAME. The secret key is printed once.

    \b
    Examples:
      cumulus --dir D key add alice --expires 90d
      cumulus --dir D key add alice --as rclone >> ~/.config/rclone/rclone.conf
    """
    config, told = shared.config(), Told(secret_to, form)
    told.check(config)
    with shared.admin() as admin:
        secret = read_secret(secret_key_file) if secret_key_file is not None else None
        made = accounts.add_key(admin, name, access_key=access_key, secret=secret, expires=expires)
        text = f"key for {made.user.name} added; it expires: {time_text(made.expires_ns)}"
        with taken_back(lambda: admin.remove_key(made.access_key)):
            tell_key(shared, config, made, told, text, user=made.user.name)


@key.command("list")
@click.argument("name", default="")
@shared_options
@click.pass_obj
def key_list(shared: Shared, name: str) -> None:
    """List keys, of all users or of NAME. Secrets are not shown.

    \b
    Example:
      cumulus --dir D key list alice
    """
    with shared.admin() as admin:
        found = admin.keys(name)
    now_ns = time.time_ns()
    rows = [
        (
            one.access_key,
            one.user,
            time_text(one.created_ns) if one.created_ns else "-",
            time_text(one.expires_ns) + (" (over)" if 0 < one.expires_ns <= now_ns else ""),
        )
        for one in found
    ]
    heads = ["ACCESS KEY", "USER", "CREATED", "EXPIRES"]
    shared.listed([key_fields(one) for one in found], heads, rows)


@key.command("remove")
@click.argument("access_key")
@shared_options
@click.pass_obj
def key_remove(shared: Shared, access_key: str) -> None:
    """Remove ACCESS_KEY; servers refuse it within a second.

    \b
    Example:
      cumulus --dir D key remove CU7KQ2PZX0V4M1LD8A3C
    """
    with shared.admin() as admin:
        admin.remove_key(access_key)
    shared.changed(f"key {access_key} removed", access_key=access_key)


@key.command("expire", short_help="Let ACCESS_KEY expire now, or when you say.")
@click.argument("access_key")
@click.argument("when", default="now")
@shared_options
@click.pass_obj
def key_expire(shared: Shared, access_key: str, when: str) -> None:
    """Let ACCESS_KEY expire WHEN: now (if not given), 2027-01-31, 30d from now, or never.

    \b
    Example:
      cumulus --dir D key expire CU7KQ2PZX0V4M1LD8A3C 30d
    """
    with shared.admin() as admin:
        at_ns = accounts.expire_key(admin, access_key, when)
    expires = at_ns / 10**9 if at_ns else None
    shared.changed(f"key {access_key} expires: {time_text(at_ns)}", access_key=access_key, expires=expires)


@key.command("rotate")
@shared_options
@click.pass_obj
def key_rotate(shared: Shared) -> None:
    """Seal all secrets in the database with a new key in secret.key. Users' keys stay as they are; servers
    that share the file go on. Copy the file again to your backup.

    \b
    Example:
      cumulus --dir D key rotate
    """
    path = shared.config().secret_key
    with shared.admin() as admin:
        count = admin.rotate()
    secrets = count_text(count, "secret")
    shared.changed(f"{secrets} sealed with a new key in {path}", sealed=count, file=str(path))
