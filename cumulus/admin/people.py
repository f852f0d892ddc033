"""Commands for users, their keys, and groups."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from cumulus.admin import data
from cumulus.admin.clients import FORMS, endpoint
from cumulus.admin.options import Shared, shared_options
from cumulus.admin.values import check_name, parse_expiry, time_text
from cumulus.config import Config
from cumulus.index.admin_api import Admin, KeyInfo
from cumulus.model import Credential, User
from cumulus.secrets import new_access_key, new_secret, new_user_id, write_private
from sector.cli import render
from sector.errors import LocalIO, UsageError, printable

secret_to_option = click.option(
    "--secret-to", metavar="FILE", help="Write the secret key to FILE (mode 0600) instead of printing it."
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
    for option in reversed(key_options):
        function = option(function)
    return function


def make_key(
    admin: Admin, user: str, access_key: str | None, secret_file: str | None, expires: str
) -> Credential:
    """A new key as the options say. Raises `UsageError`, `LocalIO`, what `Admin.add_key` raises."""
    secret = read_secret(secret_file) if secret_file else new_secret()
    if access_key is not None and not (3 <= len(access_key) <= 128 and _plain(access_key)):
        raise UsageError("the access key is not valid", hint="3 to 128 of A-Z a-z 0-9 . _ -")
    at_ns = parse_expiry(expires, time.time_ns())
    return admin.add_key(user, access_key or new_access_key(), secret, at_ns)


def _plain(text: str) -> bool:
    return all(one.isascii() and (one.isalnum() or one in "._-") for one in text)


def read_secret(file: str) -> str:
    """The first line of a file. Raises `UsageError`, `LocalIO`."""
    try:
        with open(file, encoding="utf-8") as source:
            secret = source.readline(4096).strip()
    except OSError as bad:
        raise LocalIO(f"{file}: {bad.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: is not UTF-8 text") from None
    if len(secret) < 8 or not secret.isprintable():
        raise UsageError(f"{file}: its first line is no secret key", hint="at least 8 printable characters")
    return secret


@dataclass(frozen=True, slots=True)
class Told:
    """How a new key is given: into the file `secret_to`, in the `form` of a client."""

    secret_to: str | None
    form: str | None

    def text(self, config: Config, made: Credential) -> str:
        """What a file or standard output gets: the secret key, or a client's settings."""
        return FORMS[self.form](config, made) if self.form else made.secret + "\n"


def tell_key(
    shared: Shared, config: Config, made: Credential, told: Told, text: str, /, **fields: object
) -> None:
    """Print a new key; the secret once, or into a file. Raises `LocalIO`."""
    if told.secret_to:
        write_private(Path(told.secret_to), told.text(config, made))
        key = {"access_key": made.access_key, "secret_key_file": told.secret_to}
    else:
        key = {"access_key": made.access_key, "secret_key": made.secret}
    if shared.json:
        render.print_json({**fields, **key, "endpoint": endpoint(config)[0]})
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


def user_fields(user: User) -> dict[str, object]:
    """A user as --json prints him."""
    return {name: getattr(user, name) for name in user.__struct_fields__}


# users ------------------------------------------------------------------------------------------------
@click.group()
def user() -> None:
    """Add, change, list and remove users.

    \b
    Examples:
      cumulus --dir D user add alice --email alice@example.org
      cumulus --dir D user list
    """


@user.command("add")
@click.argument("name")
@click.option("--email", default="", help="Address by which ACLs may name the user.")
@click.option("--display", default="", help="Full name.")
@click.option("--admin", "is_admin", is_flag=True, help="May do everything.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Also put into GROUP (repeatable).")
@click.option("--weight", type=click.IntRange(1, 1000), default=1, help="Share of the bandwidth.")
@click.option("--unix-user", default="", metavar="U", help="Owner of the files that the user makes.")
@click.option("--id", "user_id", metavar="HEX", help="Canonical id the user had elsewhere, 64 hex digits.")
@with_key_options
@shared_options
@click.pass_obj
def user_add(
    shared: Shared,
    name: str,
    email: str,
    display: str,
    is_admin: bool,
    groups: tuple[str, ...],
    weight: int,
    unix_user: str,
    user_id: str | None,
    access_key: str | None,
    secret_key_file: str | None,
    expires: str,
    secret_to: str | None,
    form: str | None,
) -> None:
    """Add the user NAME with a key. The secret key is printed once.

    \b
    Examples:
      cumulus --dir D user add alice
      cumulus --dir D user add bob --access-key BOB --secret-key-file bob.secret
    """
    if user_id is not None and not re.fullmatch("[0-9a-f]{64}", user_id):
        raise UsageError("the id is not valid", hint="64 hex digits, as cumulus user show prints it")
    made = User(
        id=user_id or new_user_id(),
        name=check_name(name),
        display=display,
        email=email.strip().lower(),
        groups=tuple(dict.fromkeys(groups)),
        weight=weight,
        admin=is_admin,
        unix_user=unix_user,
    )
    with shared.admin() as admin:
        admin.add_user(made)
        try:
            key = make_key(admin, made.id, access_key, secret_key_file, expires)
        except BaseException:
            admin.remove_user(made.id)
            raise
    told = Told(secret_to, form)
    text = f"user {name} added"
    fields = {"name": name, "id": made.id, "email": made.email, "display": display}
    tell_key(shared, shared.config(), key, told, text, **fields)


@user.command("list")
@shared_options
@click.pass_obj
def user_list(shared: Shared) -> None:
    """List the users."""
    with shared.admin() as admin:
        found = admin.users()
    if shared.json:
        render.print_json([user_fields(one) for one in found])
        return
    rows = [
        (one.name, one.email, ",".join(one.groups), one.weight, _states(one), one.id[:12]) for one in found
    ]
    render.print_table(["NAME", "E-MAIL", "GROUPS", "WEIGHT", "STATE", "ID"], rows, right=[3])


def _states(one: User) -> str:
    return ",".join(["admin"] * one.admin + ["disabled"] * one.disabled) or "-"


@user.command("show")
@click.argument("name")
@shared_options
@click.pass_obj
def user_show(shared: Shared, name: str) -> None:
    """Show the user NAME with keys and usage."""
    with shared.admin() as admin:
        found, keys = admin.user(name), admin.keys(name)
    with shared.index() as (index, _):
        usage = index.usage("user", found.id)
        owned = [one.name for one in index.buckets(found.id)]
    fields = user_fields(found) | {
        "keys": [key_fields(one) for one in keys],
        "buckets": owned,
        "bytes": usage.bytes,
        "objects": usage.objects,
    }
    if shared.json:
        render.print_json(fields)
        return
    for label, value in (
        ("name", found.name),
        ("id", found.id),
        ("display", found.display or "-"),
        ("e-mail", found.email or "-"),
        ("groups", ", ".join(found.groups) or "-"),
        ("weight", found.weight),
        ("state", _states(found)),
        ("unix user", found.unix_user or "-"),
        ("keys", ", ".join(one.access_key for one in keys) or "-"),
        ("buckets", ", ".join(owned) or "-"),
        ("holds", f"{render.size_text(usage.bytes)} in {usage.objects} objects"),
    ):
        click.echo(printable(f"{label:<10}  {value}"))


@user.command("rename")
@click.argument("name")
@click.argument("new_name")
@shared_options
@click.pass_obj
def user_rename(shared: Shared, name: str, new_name: str) -> None:
    """Give the user NAME another one. Keys, buckets and rights stay."""
    with shared.admin() as admin:
        found = admin.user(name)
        admin.set_user(msgspec.structs.replace(found, name=check_name(new_name)))
    shared.done(f"user {found.name} is {new_name} now", name=new_name, id=found.id)


@user.command("change")
@click.argument("name")
@click.option("--email", default=None, help="Address by which ACLs may name the user.")
@click.option("--display", default=None, help="Full name.")
@click.option("--admin/--no-admin", "admin_flag", default=None, help="May do everything, or not.")
@click.option("--enable/--disable", "enabled", default=None, help="Let in, or keep out with all keys.")
@click.option("--weight", type=click.IntRange(1, 1000), default=None, help="Share of the bandwidth.")
@click.option("--unix-user", default=None, metavar="U", help="Owner of the files that the user makes.")
@shared_options
@click.pass_obj
def user_change(
    shared: Shared,
    name: str,
    email: str | None,
    display: str | None,
    admin_flag: bool | None,
    enabled: bool | None,
    weight: int | None,
    unix_user: str | None,
) -> None:
    """Change what is given of the user NAME.

    \b
    Example:
      cumulus --dir D user change alice --disable
    """
    given = {
        "email": email.strip().lower() if email is not None else None,
        "display": display,
        "admin": admin_flag,
        "disabled": None if enabled is None else not enabled,
        "weight": weight,
        "unix_user": unix_user,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise UsageError("nothing to change", hint="see cumulus user change --help")
    with shared.admin() as admin:
        changed = msgspec.structs.replace(admin.user(name), **changes)
        admin.set_user(changed)
    shared.done(f"user {changed.name} changed", **user_fields(changed))


@user.command("remove")
@click.argument("name")
@click.option("--give-to", metavar="USER", help="USER gets the buckets and the objects in them.")
@click.option("--delete-data", is_flag=True, help="Delete the buckets with all that is in them.")
@shared_options
@click.pass_obj
def user_remove(shared: Shared, name: str, give_to: str | None, delete_data: bool) -> None:
    """Remove the user NAME with all keys. If he owns buckets, say what becomes of them.

    \b
    Examples:
      cumulus --dir D user remove alice --give-to bob
      cumulus --dir D user remove alice --delete-data
    """
    if give_to and delete_data:
        raise UsageError("--give-to and --delete-data exclude each other", hint="give one of them")
    with shared.admin() as admin:
        gone = admin.user(name)
        heir = admin.user(give_to) if give_to else None
        if heir is not None and heir.id == gone.id:
            raise UsageError(f"{name} is the user to be removed", hint="give another one")
        count = 0
        if heir is not None or delete_data:
            admin.set_user(msgspec.structs.replace(gone, disabled=True))
            with shared.index() as (index, _), shared.store() as store:
                for bucket in index.buckets(gone.id):
                    if heir is not None:
                        data.give(index, store, bucket, heir)
                    else:
                        data.delete(index, store, bucket.name)
                    count += 1
        admin.remove_user(gone.id)
    buckets = f"{count} bucket{'s' * (count != 1)}"
    what = "" if not count else f", {buckets} {'given to ' + heir.name if heir else 'deleted'}"
    shared.done(f"user {gone.name} removed{what}", name=gone.name, id=gone.id, buckets=count)


# keys -------------------------------------------------------------------------------------------------
@click.group()
def key() -> None:
    """Add, list, expire and remove keys; change the key that protects them.

    \b
    Examples:
      cumulus --dir D key add alice --expires 90d
      cumulus --dir D key remove CU7KQ2PZX0V4M1LD8A3C
    """


def key_fields(one: KeyInfo) -> dict[str, object]:
    """A key as --json prints it: times in seconds since 1970, null = never."""
    expires = one.expires_ns / 10**9 if one.expires_ns else None
    return {
        "access_key": one.access_key,
        "user": one.user,
        "created": one.created_ns / 10**9,
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
    with shared.admin() as admin:
        made = make_key(admin, name, access_key, secret_key_file, expires)
    text = f"key for {made.user.name} added; it expires: {time_text(made.expires_ns)}"
    tell_key(shared, shared.config(), made, Told(secret_to, form), text, user=made.user.name)


@key.command("list")
@click.argument("name", default="")
@shared_options
@click.pass_obj
def key_list(shared: Shared, name: str) -> None:
    """List keys, of all users or of NAME. Secrets are not shown."""
    with shared.admin() as admin:
        found = admin.keys(name)
    if shared.json:
        render.print_json([key_fields(one) for one in found])
        return
    now_ns = time.time_ns()
    rows = [
        (
            one.access_key,
            one.user,
            time_text(one.created_ns),
            time_text(one.expires_ns) + (" (over)" if 0 < one.expires_ns <= now_ns else ""),
        )
        for one in found
    ]
    render.print_table(["ACCESS KEY", "USER", "CREATED", "EXPIRES"], rows)


@key.command("remove")
@click.argument("access_key")
@shared_options
@click.pass_obj
def key_remove(shared: Shared, access_key: str) -> None:
    """Remove ACCESS_KEY; servers refuse it within a second."""
    with shared.admin() as admin:
        admin.remove_key(access_key)
    shared.done(f"key {access_key} removed", access_key=access_key)


@key.command("expire")
@click.argument("access_key")
@click.argument("when", default="now")
@shared_options
@click.pass_obj
def key_expire(shared: Shared, access_key: str, when: str) -> None:
    """Let ACCESS_KEY expire WHEN: now (if not given), 2027-01-31, 30d from now, or never."""
    at_ns = parse_expiry(when, time.time_ns())
    with shared.admin() as admin:
        admin.expire_key(access_key, at_ns)
    expires = at_ns / 10**9 if at_ns else None
    shared.done(f"key {access_key} expires: {time_text(at_ns)}", access_key=access_key, expires=expires)


@key.command("rotate")
@shared_options
@click.pass_obj
def key_rotate(shared: Shared) -> None:
    """Seal all secrets in the database with a new key in secret.key. Users' keys stay as they are; servers
    that share the file go on. Copy the file again to your backup."""
    path = shared.config().secret_key
    with shared.admin() as admin:
        count = admin.rotate()
    shared.done(f"{count} secrets are sealed with a new key in {path}", sealed=count, file=str(path))


# groups -----------------------------------------------------------------------------------------------
@click.group()
def group() -> None:
    """Add, list and remove groups and their members.

    \b
    Examples:
      cumulus --dir D group add lab
      cumulus --dir D group member lab --add alice --remove bob
    """


@group.command("add")
@click.argument("name")
@shared_options
@click.pass_obj
def group_add(shared: Shared, name: str) -> None:
    """Add the group NAME."""
    with shared.admin() as admin:
        admin.add_group(check_name(name, "group name"))
    shared.done(f"group {name} added", name=name)


@group.command("list")
@shared_options
@click.pass_obj
def group_list(shared: Shared) -> None:
    """List the groups with their members."""
    with shared.admin() as admin:
        found = admin.groups()
    if shared.json:
        render.print_json([{"name": one.name, "members": one.members} for one in found])
        return
    render.print_table(["NAME", "MEMBERS"], [(one.name, ", ".join(one.members) or "-") for one in found])


@group.command("remove")
@click.argument("name")
@shared_options
@click.pass_obj
def group_remove(shared: Shared, name: str) -> None:
    """Remove the group NAME with its quota; its members stay."""
    with shared.admin() as admin:
        admin.remove_group(name)
    shared.done(f"group {name} removed", name=name)


@group.command("member")
@click.argument("name")
@click.option("--add", "joins", multiple=True, metavar="USER", help="Put USER into the group (repeatable).")
@click.option("--remove", "leaves", multiple=True, metavar="USER", help="Take USER out (repeatable).")
@shared_options
@click.pass_obj
def group_member(shared: Shared, name: str, joins: tuple[str, ...], leaves: tuple[str, ...]) -> None:
    """Put users into the group NAME, or take them out."""
    if not joins and not leaves:
        raise UsageError("nothing to change", hint="give --add USER or --remove USER")
    with shared.admin() as admin:
        for one in joins:
            admin.join(name, one)
        for one in leaves:
            admin.leave(name, one)
        members = next(found.members for found in admin.groups() if found.name == name)
    shared.done(f"members of {name}: {', '.join(members) or 'none'}", name=name, members=members)
