"""Commands for groups."""

from __future__ import annotations

import click

from cumulus.admin import accounts
from cumulus.admin.options import Shared, shared_options
from sector.errors import UsageError


@click.group()
def group() -> None:
    """Add, change, list and remove groups and their members.

    \b
    Examples:
      cumulus --dir D group add lab --weight 4
      cumulus --dir D group member lab --add alice --remove bob
    """


@group.command("add")
@click.argument("name")
@click.option("--weight", type=click.IntRange(1, 1000), default=1, help="Share of the bandwidth.")
@shared_options
@click.pass_obj
def group_add(shared: Shared, name: str, weight: int) -> None:
    """Add the group NAME.

    \b
    Example:
      cumulus --dir D group add lab --weight 4
    """
    with shared.admin() as admin:
        accounts.add_group(admin, name, weight)
    shared.changed(f"group {name} added", name=name, weight=weight)


@group.command("change")
@click.argument("name")
@click.option("--weight", type=click.IntRange(1, 1000), required=True, help="Share of the bandwidth.")
@shared_options
@click.pass_obj
def group_change(shared: Shared, name: str, weight: int) -> None:
    """Change the weight of the group NAME. One in `[fair] group_weights` counts instead.

    \b
    Example:
      cumulus --dir D group change lab --weight 4
    """
    with shared.admin() as admin:
        accounts.change_group(admin, name, weight)
    shared.changed(f"group {name} has the weight {weight} now", name=name, weight=weight)


@group.command("list")
@shared_options
@click.pass_obj
def group_list(shared: Shared) -> None:
    """List the groups with their members.

    \b
    Example:
      cumulus --dir D group list
    """
    with shared.admin() as admin:
        found = admin.groups()
    rows = [(one.name, one.weight, ", ".join(one.members) or "-") for one in found]
    shared.listed(found, ["NAME", "WEIGHT", "MEMBERS"], rows, right=[1])


@group.command("remove")
@click.argument("name")
@shared_options
@click.pass_obj
def group_remove(shared: Shared, name: str) -> None:
    """Remove the group NAME with its quota; its members stay.

    \b
    Example:
      cumulus --dir D group remove lab
    """
    with shared.admin() as admin:
        admin.remove_group(name)
    shared.changed(f"group {name} removed", name=name)


@group.command("member")
@click.argument("name")
@click.option("--add", "joins", multiple=True, metavar="USER", help="Put USER into the group (repeatable).")
@click.option("--remove", "leaves", multiple=True, metavar="USER", help="Take USER out (repeatable).")
@shared_options
@click.pass_obj
def group_member(shared: Shared, name: str, joins: tuple[str, ...], leaves: tuple[str, ...]) -> None:
    """Put users into the group NAME, or take them out.

    \b
    Example:
      cumulus --dir D group member lab --add alice --remove bob
    """
    if not joins and not leaves:
        raise UsageError("nothing to change", hint="give --add USER or --remove USER")
    with shared.admin() as admin:
        coming, going = ({admin.user(one).name for one in named} for named in (joins, leaves))
        if both := coming & going:
            names = ", ".join(sorted(both))
            raise UsageError(f"{names}: --add and --remove exclude each other", hint="give one of them")
        for one in joins:
            admin.join(name, one)
        for one in leaves:
            admin.leave(name, one)
        members = next(found.members for found in admin.groups() if found.name == name)
    shared.changed(f"members of {name}: {', '.join(members) or 'none'}", name=name, members=members)
