"""Commands for users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from cumulus.admin import accounts
from cumulus.admin.keys import Told, key_fields, read_secret, taken_back, tell_key, with_key_options
from cumulus.admin.options import Shared, shared_options
from cumulus.admin.unfinished import recorded
from cumulus.index.admin_api import Admin
from cumulus.index.api import Index
from cumulus.model import User
from cumulus.storage.api import FileStore
from cumulus.words import count_text
from sector.cli import render
from sector.errors import printable


def user_fields(user: User) -> dict[str, object]:
    """A user as --json prints him."""
    return {name: getattr(user, name) for name in user.__struct_fields__ if name != "group_ids"}


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
    config, told = shared.config(), Told(secret_to, form)
    told.check(config)
    with shared.admin() as admin:
        made = accounts.add_user(
            admin,
            name=name,
            display=display,
            email=email,
            is_admin=is_admin,
            groups=groups,
            weight=weight,
            unix_user=unix_user,
            user_id=user_id,
            access_key=access_key,
            secret=read_secret(secret_key_file) if secret_key_file is not None else None,
            expires=expires,
        )
        fields = {"name": name, "id": made.user.id, "email": made.user.email, "display": display}
        with taken_back(lambda: admin.remove_user(made.user.id)):
            tell_key(shared, config, made, told, f"user {name} added", **fields)


@user.command("list")
@shared_options
@click.pass_obj
def user_list(shared: Shared) -> None:
    """List the users.

    \b
    Example:
      cumulus --dir D user list --json
    """
    with shared.admin() as admin:
        found = admin.users()
    rows = [
        (one.name, one.email, ",".join(one.groups), one.weight, _states(one), one.id[:12]) for one in found
    ]
    heads = ["NAME", "E-MAIL", "GROUPS", "WEIGHT", "STATE", "ID"]
    shared.listed([user_fields(one) for one in found], heads, rows, right=[3])


def _states(one: User) -> str:
    return ",".join(["admin"] * one.admin + ["disabled"] * one.disabled) or "-"


@user.command("show")
@click.argument("name")
@shared_options
@click.pass_obj
def user_show(shared: Shared, name: str) -> None:
    """Show the user NAME with keys and usage.

    \b
    Example:
      cumulus --dir D user show alice
    """
    with shared.admin() as admin:
        found, keys = admin.user(name), admin.keys(name)
    with shared.index() as (index, _):
        usage = index.usage("user", found.id)
        owned = [one.name for one in index.brief_buckets(found.id)]
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
        ("holds", f"{render.size_text(usage.bytes)} in {count_text(usage.objects, 'object')}"),
    ):
        click.echo(printable(f"{label:<10}  {value}"))


@user.command("rename")
@click.argument("name")
@click.argument("new_name")
@shared_options
@click.pass_obj
def user_rename(shared: Shared, name: str, new_name: str) -> None:
    """Give the user NAME another one. Keys, buckets and rights stay.

    \b
    Example:
      cumulus --dir D user rename bob robert
    """
    with shared.admin() as admin:
        changed = accounts.change_user(admin, name, new_name=new_name)
    shared.changed(f"user {name} is {new_name} now", name=new_name, id=changed.id)


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
    with shared.admin() as admin:
        former = admin.user(name)
        changed = accounts.change_user(
            admin,
            name,
            display=display,
            email=email,
            is_admin=admin_flag,
            disabled=None if enabled is None else not enabled,
            weight=weight,
            unix_user=unix_user,
        )
        _warn_of_none(admin, former)
    given = {
        "email": email, "display": display, "administrator": admin_flag, "enabled": enabled,
        "weight": weight, "unix user": unix_user,
    }  # fmt: skip
    how = ", ".join(f"{label} {value!r}" for label, value in given.items() if value is not None)
    shared.changed(f"user {changed.name} changed", how=how, **user_fields(changed))


def _warn_of_none(admin: Admin, former: User) -> None:
    """`former` was changed or removed: is there still an administrator?"""
    if former.admin and not any(one.admin and not one.disabled for one in admin.users()):
        render.say("no administrator is left for the admin page; cumulus user change NAME --admin makes one")


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

    @contextmanager
    def opened() -> Iterator[tuple[Index, FileStore]]:
        with shared.index() as (index, _), shared.store(index) as store:
            yield index, store

    if give_to:
        shared.check_account()
    with recorded(shared), shared.admin() as admin:
        gone = accounts.remove_user(admin, name, opened, give_to=give_to or "", delete_data=delete_data)
        _warn_of_none(admin, gone.user)
    count = gone.buckets
    buckets = count_text(count, "bucket")
    what = "" if not count else f", {buckets} {'given to ' + gone.heir.name if gone.heir else 'deleted'}"
    shared.changed(
        f"user {gone.user.name} removed{what}", name=gone.user.name, id=gone.user.id, buckets=count
    )
    for note in gone.notes:
        render.say(note)
