"""Commands for administrators: users, directory rights, nodes, allow-lists."""

from __future__ import annotations

import time

import click

from sector._udt.traffic import shown as shown_traffic
from sector.cli import render
from sector.cli.calls import call
from sector.cli.main import Shared, shared_options
from sector.cli.preflight import preflight
from sector.cli.scrub import scrub, scrub_text
from sector.cli.tls_once import read_password
from sector.errors import NotFound, UsageError
from sector.model import Right, check_path
from sector.rights import parse_letters
from sector.wire.admin import (
    Acl,
    AclChange,
    AclEntry,
    AclList,
    Grant,
    NodeList,
    Nodes,
    Revoke,
    UserAdd,
    UserAddresses,
    UserInfo,
    UserList,
    UserPasswd,
    UserRemove,
    UserRoles,
    Users,
)

password_option = click.option(
    "--password-file", metavar="FILE", help="File with the password, - = standard input; else a prompt."
)


class _NameType(click.ParamType[str]):
    """A name of a user or node, as far as a message can carry it: 1 to 128 characters."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            raise UsageError("the name is empty", hint="give a name of 1 to 128 characters")
        if len(value) > 128:
            raise UsageError(f"a name of {len(value)} characters is too long", hint="128 are allowed")
        return value


NAME = _NameType()


def _done(shared: Shared, text: str, **fields: object) -> None:
    if shared.json:
        render.print_json(fields)
    else:
        click.echo(text)


# users ------------------------------------------------------------------------------------------------
@click.group()
def user() -> None:
    """Add, list and remove users, set passwords, roles and addresses.

    \b
    Examples:
      sector user add alice
      sector user list
    """


@user.command("add")
@click.argument("name", type=NAME)
@click.option("--admin", is_flag=True, help="Make the user an administrator.")
@click.option("--service", is_flag=True, help="Let the user act for others: an account for Cumulus.")
@password_option
@shared_options
@click.pass_obj
def user_add(shared: Shared, name: str, admin: bool, service: bool, password_file: str | None) -> None:
    """Add the user NAME. Rights on directories are given with `sector grant`.

    \b
    Examples:
      sector user add alice
      sector user add alice --password-file pw
      sector user add cumulus --service --password-file pw
    """
    password = read_password(password_file, f"Password of {name}", confirm=True, known=False)
    roles = ["user", *(["admin"] if admin else []), *(["service"] if service else [])]
    call(shared, UserAdd(name, password, roles))
    if len(password) < 8:
        render.say("this password is short; choose a longer one with sector user passwd")
    _done(
        shared, f"user {name} added; give rights with: sector grant {name} /PATH rw", name=name, roles=roles
    )


@user.command("list")
@shared_options
@click.pass_obj
def user_list(shared: Shared) -> None:
    """List the users with roles and rights.

    \b
    Example:
      sector user list --json
    """
    found = _users(shared)
    if shared.json:
        render.print_json([_user_json(info) for info in found])
        return
    rows = [
        (
            info.name,
            ",".join(info.roles),
            " ".join(f"{right.path}:{right.what or '-'}" for right in info.rights) or "-",
            " ".join(info.addresses) or "any",
            time.strftime("%Y-%m-%d", time.localtime(info.created)),
        )
        for info in found
    ]
    render.print_table(("name", "roles", "rights", "addresses", "since"), rows)


def _users(shared: Shared) -> list[UserInfo]:
    found: list[UserInfo] = []
    while True:
        page: Users = call(shared, UserList(after=found[-1].name if found else ""))
        found.extend(page.users)
        if not page.more or not page.users:
            return found


def _user_json(info: UserInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "roles": info.roles,
        "rights": [{"path": right.path, "rights": right.what} for right in info.rights],
        "addresses": info.addresses,
        "created": info.created,
    }


@user.command("roles")
@click.argument("name", type=NAME)
@click.argument("roles", nargs=-1, type=click.Choice(["user", "admin", "service"]))
@shared_options
@click.pass_obj
def user_roles(shared: Shared, name: str, roles: tuple[str, ...]) -> None:
    """Set the ROLES of the user NAME; without any, show them.

    Those that are given are all that he has then; all his sessions end, also those that he has for others.

    user is what everybody is, and alone a plain user; admin may change users, rights and allow-lists; service
    may act for any user, as far as its own rights on directories reach.

    \b
    Examples:
      sector user roles cumulus service
      sector user roles cumulus             what he has
      sector user roles cumulus user        no other role any more
    """
    if not roles:
        known = [info for info in _users(shared) if info.name == name]
        if not known:
            raise NotFound(f"there is no user {name}", hint="sector user list")
        wanted = known[0].roles
    else:
        wanted = [role for role in ("user", "admin", "service") if role == "user" or role in roles]
        call(shared, UserRoles(name, wanted))
    _done(shared, f"user {name} has the roles {', '.join(wanted)}", name=name, roles=wanted)


_RULES = """
The rule with the longest prefix that holds an address decides. Where none does, he may come if he has no
allowing rule at all. Every change ends all his sessions, also those that he has for others.
"""


def _change_addresses(
    shared: Shared, name: str, ranges: tuple[str, ...], remove: bool, mark: str, said: str
) -> None:
    if not ranges:
        if remove:
            raise UsageError("no address range is given", hint="name the rules that are to be removed")
        known = [info for info in _users(shared) if info.name == name]
        if not known:
            raise NotFound(f"there is no user {name}", hint="sector user list")
        rules = known[0].addresses
        _done(shared, f"user {name} comes from: {' '.join(rules) or 'any'}", name=name, addresses=rules)
        return
    if any(one.startswith("!") for one in ranges):
        raise UsageError("an address range has no ! in front", hint="sector user deny NAME CIDR")
    rules = [mark + one for one in ranges]
    call(shared, UserAddresses(name, [] if remove else rules, rules if remove else []))
    text = f"{said}: {' '.join(ranges)}" if not remove else f"rules of user {name} removed: {' '.join(rules)}"
    _done(shared, text, name=name, **{"removed" if remove else "added": rules})


@user.command("allow", short_help="Let the user NAME log in from these addresses.", epilog=_RULES)
@click.argument("name", type=NAME)
@click.argument("ranges", metavar="[CIDR]...", nargs=-1)
@click.option("--remove", is_flag=True, help="Take these allowing rules away again.")
@shared_options
@click.pass_obj
def user_allow(shared: Shared, name: str, ranges: tuple[str, ...], remove: bool) -> None:
    """Let the user NAME log in from these addresses; without any, show his rules.

    With the first allowing rule he may come from nowhere else.

    \b
    Examples:
      sector user allow cumulus 10.1.0.7
      sector user allow alice 10.1.0.0/16 2001:db8::/32
      sector user allow alice 10.1.0.0/16 --remove
      sector user allow alice               what rules he has
    """
    _change_addresses(shared, name, ranges, remove, "", f"user {name} may come from")


@user.command("deny", short_help="Refuse the user NAME from these addresses.", epilog=_RULES)
@click.argument("name", type=NAME)
@click.argument("ranges", metavar="[CIDR]...", nargs=-1)
@click.option("--remove", is_flag=True, help="Take these denying rules away again.")
@shared_options
@click.pass_obj
def user_deny(shared: Shared, name: str, ranges: tuple[str, ...], remove: bool) -> None:
    """Refuse the user NAME from these addresses; without any, show his rules.

    \b
    Examples:
      sector user deny alice 192.0.2.0/24
      sector user deny alice 192.0.2.0/24 --remove
    """
    _change_addresses(shared, name, ranges, remove, "!", f"user {name} may not come from")


@user.command("remove", short_help="Remove the user NAME; his files stay.")
@click.argument("name", type=NAME)
@shared_options
@click.pass_obj
def user_remove(shared: Shared, name: str) -> None:
    """Remove the user NAME; his sessions end within seconds, his files stay.

    \b
    Example:
      sector user remove alice
    """
    call(shared, UserRemove(name))
    _done(shared, f"user {name} removed", name=name)


@user.command("passwd", short_help="Set the password of NAME, or your own.")
@click.argument("name", required=False, type=NAME)
@password_option
@click.option("--old-password-file", metavar="FILE", help="File with the old password (for your own).")
@shared_options
@click.pass_obj
def user_passwd(
    shared: Shared, name: str | None, password_file: str | None, old_password_file: str | None
) -> None:
    """Set the password of NAME, or your own; all sessions of that user end.

    \b
    Examples:
      sector user passwd alice --password-file pw
      sector user passwd
    """
    me = shared.client_config().client.user
    target = name or me
    if not target:
        raise UsageError("no user name is given", hint="sector user passwd NAME")
    old = ""
    if target == me:
        old = read_password(old_password_file, f"Old password of {target}", option="--old-password-file")
    password = read_password(password_file, f"New password of {target}", confirm=True, known=False)
    call(shared, UserPasswd(target, password, old))
    _done(shared, f"password of {target} set; log in again: sector login --user {target}", name=target)


# rights -----------------------------------------------------------------------------------------------
@click.command()
@click.argument("user_name", metavar="USER", type=NAME)
@click.argument("path")
@click.argument("rights", metavar="RIGHTS")
@shared_options
@click.pass_obj
def grant(shared: Shared, user_name: str, path: str, rights: str) -> None:
    """Give USER the RIGHTS on the directory PATH and all below it.

    RIGHTS are letters of rwx: read, write, execute (ship functions that run on these files); "none" takes
    what a directory above gives. They replace those that were set on the same PATH.

    \b
    Examples:
      sector grant alice /sdss r
      sector grant alice /home/alice rwx
      sector grant alice /sdss/private none
    """
    try:
        letters = parse_letters(rights)
    except ValueError as bad:
        raise UsageError(str(bad), hint="write r, rw, rwx or none") from None
    call(shared, Grant(Right(user_name, check_path(path), letters)))
    shown = letters or "no rights"
    _done(shared, f"{user_name} has {shown} on {path}", user=user_name, path=check_path(path), rights=letters)


@click.command()
@click.argument("user_name", metavar="USER", type=NAME)
@click.argument("path")
@shared_options
@click.pass_obj
def revoke(shared: Shared, user_name: str, path: str) -> None:
    """Take the rights that USER has on exactly PATH; his sessions end within seconds.

    \b
    Example:
      sector revoke alice /sdss
    """
    call(shared, Revoke(user_name, check_path(path)))
    _done(shared, f"rights of {user_name} on {path} taken", user=user_name, path=check_path(path))


# nodes ------------------------------------------------------------------------------------------------
@click.group()
def node() -> None:
    """Show the nodes; have them read their replicas again; check a machine before it joins.

    \b
    Examples:
      sector node list
      sector node scrub --all --wait
      sector node preflight --config slave1.toml
    """


@node.command("list")
@shared_options
@click.pass_obj
def node_list(shared: Shared) -> None:
    """List the slaves with state, space and files.

    \b
    Example:
      sector node list --json
    """
    nodes: Nodes = call(shared, NodeList())
    if shared.json:
        plain = [render.plain(info) | {"traffic": shown_traffic(info.traffic)} for info in nodes.nodes]
        render.print_json(plain)
        return
    rows = [
        (
            info.id,
            info.state,
            info.host,
            info.topology,
            info.pid,
            info.files,
            render.size_text(info.used_bytes),
            render.size_text(info.free_bytes),
            scrub_text(info.scrub),
        )
        for info in nodes.nodes
    ]
    heads = ("node", "state", "host", "topology", "pid", "files", "used", "free", "scrubbed")
    render.print_table(heads, rows, right=(4, 5, 6, 7))


node.add_command(preflight)
node.add_command(scrub)


# allow-lists ------------------------------------------------------------------------------------------
@click.group()
def acl() -> None:
    """Say which slaves and masters may join.

    \b
    Examples:
      sector acl slave add slave4 --address 10.0.0.0/24
      sector acl slave list
    """


def _acl_group(role: str) -> click.Group:
    def example(arguments: str) -> str:
        return f"\b\nExample:\n  sector acl {role} {arguments}"

    @click.group(role, help=f"Allow-list of {role}s.", epilog=example("list"))
    def group() -> None:
        pass

    @group.command(
        "add",
        help=f"Let the {role} NAME join, from the given addresses or from anywhere.",
        epilog=example(f"add {role}4 --address 10.0.0.0/24"),
    )
    @click.argument("name", type=NAME)
    @click.option("--address", "addresses", metavar="CIDR", multiple=True, help="Only from here; repeatable.")
    @shared_options
    @click.pass_obj
    def add(shared: Shared, name: str, addresses: tuple[str, ...]) -> None:
        call(shared, AclChange(role, name, True, list(addresses)))
        _done(shared, f"{role} {name} may join", role=role, name=name, addresses=list(addresses))

    @group.command("remove", help=f"Refuse the {role} NAME from now on.", epilog=example(f"remove {role}4"))
    @click.argument("name", type=NAME)
    @shared_options
    @click.pass_obj
    def remove(shared: Shared, name: str) -> None:
        call(shared, AclChange(role, name, False))
        _done(shared, f"{role} {name} may not join any more", role=role, name=name)

    @group.command("list", help=f"Show the {role}s that may join.", epilog=example("list --json"))
    @shared_options
    @click.pass_obj
    def show(shared: Shared) -> None:
        found = _nodes(shared, role)
        if shared.json:
            render.print_json(found)
        else:
            rows = [(entry.name, " ".join(entry.addresses) or "any") for entry in found]
            render.print_table(("name", "addresses"), rows)

    return group


def _nodes(shared: Shared, role: str) -> list[AclEntry]:
    found: list[AclEntry] = []
    while True:
        page: Acl = call(shared, AclList(role, after=found[-1].name if found else ""))
        found.extend(page.entries)
        if not page.more or not page.entries:
            return found


for _role in ("slave", "master"):
    acl.add_command(_acl_group(_role))
