"""Commands for quotas and what is used of them."""

from __future__ import annotations

import click

from cumulus.admin import accounts
from cumulus.admin.options import Shared, shared_options
from cumulus.admin.values import duration_text, time_text
from cumulus.index.admin_api import Quota, Scope
from cumulus.index.api import NoSuch, Usage
from sector.cli import render
from sector.errors import UsageError


def scope_of(user: str | None, group: str | None, bucket: str | None) -> tuple[Scope, str]:
    """Of whom a command speaks. Raises `UsageError` unless exactly one is given."""
    given: list[tuple[Scope, str]] = []
    if user:
        given.append(("user", user))
    if group:
        given.append(("group", group))
    if bucket:
        given.append(("bucket", bucket))
    if len(given) != 1:
        raise UsageError("say whose quota it is", hint="give a user's NAME, --group G or --bucket B")
    return given[0]


def usage_fields(one: Usage) -> dict[str, object]:
    """As --json prints it: bytes, 0 = no limit."""
    return {name: getattr(one, name) for name in one.__struct_fields__}


@click.group()
def quota() -> None:
    """Set, show and clear quotas of users, groups and buckets.

    \b
    Examples:
      cumulus --dir D quota set alice --bytes 10G --objects 100000
      cumulus --dir D quota set --group lab --bytes 1TiB --soft --grace 7d
    """


@quota.command("set")
@click.argument("name", required=False)
@click.option("--group", metavar="G", help="Of the group G.")
@click.option("--bucket", metavar="B", help="Of the bucket B.")
@click.option("--bytes", "size", metavar="SIZE", help="10G = 10^10 bytes, 10GiB = 10 * 2^30; none.")
@click.option("--objects", metavar="N", help="Number of objects; none.")
@click.option("--soft", is_flag=True, help="Set the soft limit: above it writes go on for the grace time.")
@click.option(
    "--grace", metavar="TIME", help="Of the soft limit: 7d, 12h.  [default: as it was, at first 7d]"
)
@shared_options
@click.pass_obj
def quota_set(
    shared: Shared,
    name: str | None,
    group: str | None,
    bucket: str | None,
    size: str | None,
    objects: str | None,
    soft: bool,
    grace: str | None,
) -> None:
    """Limit what the user NAME, a group or a bucket may hold. What is not given stays as it is.

    \b
    Examples:
      cumulus --dir D quota set alice --bytes 10G
      cumulus --dir D quota set alice --bytes 8G --soft --grace 3d
      cumulus --dir D quota set alice --grace 5d
    """
    scope, whose = scope_of(name, group, bucket)
    if size is None and objects is None and not grace:
        raise UsageError("no limit is given", hint="give --bytes SIZE or --objects N")
    with shared.admin() as admin:
        changed = accounts.set_limits(admin, scope, whose, size=size, objects=objects, soft=soft, grace=grace)
    shared.audit(shared.config(), accounts.limits_text(changed))
    _show(shared, scope, whose)


@quota.command("clear")
@click.argument("name", required=False)
@click.option("--group", metavar="G", help="Of the group G.")
@click.option("--bucket", metavar="B", help="Of the bucket B.")
@shared_options
@click.pass_obj
def quota_clear(shared: Shared, name: str | None, group: str | None, bucket: str | None) -> None:
    """Take all limits of the user NAME, a group or a bucket away.

    \b
    Example:
      cumulus --dir D quota clear alice
    """
    scope, whose = scope_of(name, group, bucket)
    with shared.admin() as admin:
        admin.set_quota(Quota(scope=scope, name=whose))
    shared.changed(f"{scope} {whose} has no quota", scope=scope, name=whose)


@quota.command("show", short_help="Show one quota, or all, with what is used.")
@click.argument("name", required=False)
@click.option("--group", metavar="G", help="Of the group G.")
@click.option("--bucket", metavar="B", help="Of the bucket B.")
@shared_options
@click.pass_obj
def quota_show(shared: Shared, name: str | None, group: str | None, bucket: str | None) -> None:
    """Show the quota of the user NAME, a group or a bucket, or all quotas, with what is used.

    \b
    Example:
      cumulus --dir D quota show --group lab
    """
    if name or group or bucket:
        _show(shared, *scope_of(name, group, bucket))
        return
    with shared.admin() as admin:
        wanted = [(one.scope, one.name) for one in admin.quotas()]
    _list(shared, wanted)


def _show(shared: Shared, scope: Scope, whose: str) -> None:
    with shared.index() as (index, _):
        one = index.usage(scope, whose)
    _print(shared, [one], usage_fields(one))


def _list(shared: Shared, wanted: list[tuple[Scope, str]]) -> None:
    """Of these what is still there."""
    found = []
    with shared.index() as (index, _):
        for scope, whose in wanted:
            try:
                found.append(index.usage(scope, whose))
            except NoSuch:
                continue  # removed meanwhile
    _print(shared, found, [usage_fields(one) for one in found])


def _print(shared: Shared, found: list[Usage], document: object) -> None:
    rows = [
        (
            one.scope,
            one.name,
            render.size_text(one.bytes),
            render.size_text(one.reserved_bytes),
            _limit(one.hard_bytes, one.soft_bytes, render.size_text),
            one.objects,
            _limit(one.hard_objects, one.soft_objects, str),
            duration_text(one.grace_s) if one.soft_bytes or one.soft_objects else "-",
            time_text(one.over_soft_since_ns) if one.over_soft_since_ns else "-",
        )
        for one in found
    ]
    heads = ["OF", "NAME", "USED", "UPLOADS", "LIMIT", "OBJECTS", "LIMIT", "GRACE", "OVER SINCE"]
    shared.listed(document, heads, rows, right=[2, 3, 4, 5, 6, 7])


def _limit(hard: int, soft: int, text: object) -> str:
    shown = text if callable(text) else str
    parts = [str(shown(hard))] * bool(hard) + [f"soft {shown(soft)}"] * bool(soft)
    return ", ".join(parts) or "-"


@click.command("usage")
@click.option("--user", metavar="U", help="Only the user U.")
@click.option("--group", metavar="G", help="Only the group G.")
@click.option("--bucket", metavar="B", help="Only the bucket B.")
@shared_options
@click.pass_obj
def usage(shared: Shared, user: str | None, group: str | None, bucket: str | None) -> None:
    """Show what users, groups and buckets hold, beside their quotas. UPLOADS are bytes of multipart uploads
    that are not complete.

    \b
    Examples:
      cumulus --dir D usage
      cumulus --dir D usage --user alice --json
    """
    if user or group or bucket:
        with shared.index() as (index, _):
            one = index.usage(*scope_of(user, group, bucket))
        _print(shared, [one], [usage_fields(one)])
        return
    wanted: list[tuple[Scope, str]] = []
    with shared.admin() as admin:
        wanted += [("user", one.name) for one in admin.users()]
        wanted += [("group", one.name) for one in admin.groups()]
    with shared.index() as (index, _):
        wanted += [("bucket", one.name) for one in index.brief_buckets()]
    _list(shared, wanted)
