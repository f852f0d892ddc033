"""Commands for buckets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from cumulus.admin import data
from cumulus.admin.options import InUse, Shared, shared_options
from cumulus.admin.places import way_back
from cumulus.admin.unfinished import recorded
from cumulus.admin.values import time_text
from cumulus.errors import S3Error
from cumulus.index.api import Directory, Index, NoSuch
from cumulus.model import Acl, Bucket, User
from cumulus.opening import buckets_away
from cumulus.ops.buckets import remove
from cumulus.ops.expiring import Done
from cumulus.ops.jobs import rescan
from cumulus.ops.names import check_bucket_name
from cumulus.ops.site import Site
from cumulus.storage.api import FileStore, StorageError
from cumulus.words import count_text
from sector.cli import render
from sector.errors import SectorError, UsageError, printable


@contextmanager
def opened(shared: Shared) -> Iterator[tuple[Index, Directory, FileStore]]:
    """Index, users and storage, also beside a running server."""
    with shared.index() as (index, directory), shared.store(index) as store:
        yield index, directory, store


def find(index: Index, name: str) -> Bucket:
    """Raises `NoSuch`."""
    found = index.bucket(name)
    if found is None:
        raise NoSuch(f"there is no bucket {name}")
    return found


def find_user(directory: Directory, name: str) -> User:
    """Raises `NoSuch`."""
    found = directory.user(name)
    if found is None:
        raise NoSuch(f"there is no user {name}")
    return found


def take_in(index: Index, directory: Directory, store: FileStore, bucket: Bucket) -> Done:
    """Let the index follow what others did in the directory of a bucket."""
    site = Site(store, index, directory, time.time_ns, opaque_etags=True)  # servers hash what is asked for
    done = Done()
    try:
        rescan(site, bucket, done)
    finally:
        site.close()
    return done


@click.group()
def bucket() -> None:
    """Add, list, show, rescan, give away and remove buckets. S3 clients make buckets themselves.

    \b
    Examples:
      cumulus --dir D bucket add climate --owner alice --path /data/climate
      cumulus --dir D bucket list
    """


@bucket.command("add")
@click.argument("name")
@click.option("--owner", required=True, metavar="U", help="User who owns it.")
@click.option("--path", metavar="DIR", help="Serve this directory as it is; files stay in place.")
@shared_options
@click.pass_obj
def bucket_add(shared: Shared, name: str, owner: str, path: str | None) -> None:
    """Add the bucket NAME, empty or with what is in a directory.

    \b
    Example:
      cumulus --dir D bucket add climate --owner alice --path /data/climate
    """
    try:
        check_bucket_name(name)
    except S3Error as bad:
        hint = "3 to 63 of a-z 0-9 . -, as S3 demands"
        raise UsageError(f"{name!r}: {bad.message}", hint=hint) from None
    if path == "":
        raise UsageError("--path is empty", hint="name a directory, or leave it out")
    path = "" if path is None else os.path.abspath(path)
    shared.check_account()
    with opened(shared) as (index, directory, store):
        user = find_user(directory, owner)
        made = Bucket(name=name, owner=user.id, created_ns=time.time_ns(), acl=Acl(owner=user.id), path=path)
        index.add_bucket(made)
        try:
            store.create_bucket(name, path)
        except BaseException:
            index.drop_bucket(name)
            raise
        done = take_in(index, directory, store, made)
    files = f" with {count_text(done.renewed, 'file')}" if done.renewed else ""
    shared.changed(
        f"bucket {name} of {user.name} added{files}",
        name=name,
        owner=user.name,
        path=path,
        files=done.renewed,
    )


def why_away(shared: Shared, index: Index, found: Sequence[Bucket]) -> dict[str, str]:
    """Of these, by name, those that cannot be served now, a disk not being mounted, and why. Known of plain
    files only."""
    if not found or not shared.config().store_url.startswith("posix:"):
        return {}
    try:
        with shared.store(index) as store:
            return dict(buckets_away(store, found))
    except (SectorError, StorageError) as bad:
        return {one.name: str(bad) for one in found}


def bucket_fields(one: Bucket, index: Index, directory: Directory, away: str | None) -> dict[str, Any]:
    """A bucket as --json prints it; `away` says why it cannot be served now, if it cannot."""
    usage = index.usage("bucket", one.name)
    user = directory.user(one.owner)
    return {
        "name": one.name,
        "owner": user.name if user else one.owner,
        "created": one.created_ns / 10**9,
        "path": one.path,
        "region": one.region,
        "versioning": one.versioning.value,
        "bytes": usage.bytes,
        "objects": usage.objects,
        "away": away,
    }


@bucket.command("list")
@click.option("--owner", default=None, metavar="U", help="Only those of the user U.")
@shared_options
@click.pass_obj
def bucket_list(shared: Shared, owner: str | None) -> None:
    """List the buckets. One whose directory cannot be reached, as its disk is not mounted, is away.

    \b
    Example:
      cumulus --dir D bucket list --owner alice
    """
    with shared.index() as (index, directory):
        whose = find_user(directory, owner).id if owner else None
        buckets = index.buckets(whose)
        away = why_away(shared, index, buckets)
        found = [bucket_fields(one, index, directory, away.get(one.name)) for one in buckets]
    rows = [
        (
            one["name"],
            one["owner"],
            one["objects"],
            render.size_text(one["bytes"]),
            "away" if one["away"] else "-",
            one["path"] or "-",
        )
        for one in found
    ]
    shared.listed(found, ["NAME", "OWNER", "OBJECTS", "SIZE", "STATE", "PATH"], rows, right=[2, 3])
    if not shared.json:
        for name, why in away.items():
            render.say(f"bucket {name} is away: {why}")


@bucket.command("show")
@click.argument("name")
@click.option("--odd", is_flag=True, help="List the keys that no file system can name, and where they are.")
@shared_options
@click.pass_obj
def bucket_show(shared: Shared, name: str, odd: bool) -> None:
    """Show the bucket NAME.

    \b
    Example:
      cumulus --dir D bucket show climate --odd
    """
    with shared.index() as (index, directory):
        one = find(index, name)
        if odd:
            _show_odd(shared, index, name)
            return
        away = why_away(shared, index, [one]).get(name)
        fields = bucket_fields(one, index, directory, away)
    if shared.json:
        render.print_json(fields)
        return
    fields |= {
        "created": time_text(int(fields["created"] * 10**9)),
        "bytes": f"{fields['bytes']} ({render.size_text(fields['bytes'])})",
    }
    for label, value in fields.items():
        click.echo(printable(f"{label:<10}  {value if value not in ('', None) else '-'}"))


def _show_odd(shared: Shared, index: Index, name: str) -> None:
    found = [
        {"key": row.key, "version": row.version, "name": row.name}
        for rows in data.rows_of(index, name)
        for row in rows
        if not row.marker and row.name != row.key and row.latest
    ]
    rows = [(one["key"], one["name"]) for one in found]
    shared.listed(found, ["KEY", "FILE IN THE BUCKET"], rows)


@bucket.command("rescan", short_help="Take in now what others changed in its directory.")
@click.argument("name")
@shared_options
@click.pass_obj
def bucket_rescan(shared: Shared, name: str) -> None:
    """Take in now what others changed in the directory of the bucket NAME. A running server does so by
    itself, every rescan_s seconds.

    \b
    Example:
      cumulus --dir D bucket rescan climate
    """
    with opened(shared) as (index, directory, store):
        done = take_in(index, directory, store, find(index, name))
    shared.changed(
        f"{name}: {done.renewed} new or changed, {done.gone} gone",
        name=name,
        renewed=done.renewed,
        gone=done.gone,
    )


@bucket.command("chown", short_help="Give a bucket and its objects to another user.")
@click.argument("name")
@click.argument("user")
@click.option(
    "--from",
    "former",
    metavar="FORMER",
    help="Of a bucket that is USER's: what FORMER (name or id) has there.",
)
@shared_options
@click.pass_obj
def bucket_chown(shared: Shared, name: str, user: str, former: str | None) -> None:
    """Give the bucket NAME, and the objects in it that its owner owns, to USER.

    \b
    Examples:
      cumulus --dir D bucket chown climate bob
      cumulus --dir D bucket chown climate bob --from alice
    """
    shared.check_account()
    unread: list[str] = []
    with recorded(shared), opened(shared) as (index, directory, store):
        to, given = find_user(directory, user), find(index, name)
        owner = directory.user(former or given.owner)
        whose = owner.name if owner is not None else former or given.owner
        if former is None:
            count = data.give(index, store, given, to, unread)
        elif given.owner != to.id:
            hint = f"first give him the bucket: cumulus bucket chown {name} {to.name}"
            raise UsageError(f"bucket {name} is not {to.name}'s", hint=hint)
        else:
            count = data.give_rest(index, store, given, owner.id if owner is not None else former, to, unread)
    text = f"bucket {name} is {to.name}'s now, with {count_text(count, 'object')}"
    fields: dict[str, Any] = {"unread": unread} if unread else {}
    shared.changed(text, name=name, owner=to.name, objects=count, **fields)
    if unread:
        render.say(data.unread_text(name, to.name, whose, unread))


@bucket.command("remove")
@click.argument("name")
@click.option("--delete-data", is_flag=True, help="Delete its objects, versions and uploads too.")
@click.option("--forget", is_flag=True, help="Forget it; its directory, there or not, stays as it is.")
@shared_options
@click.pass_obj
def bucket_remove(shared: Shared, name: str, delete_data: bool, forget: bool) -> None:
    """Remove the bucket NAME. One that is not empty goes only with --delete-data; with --forget only Cumulus
    knows no more of it: for a bucket added with --path whose disk is gone for good, or used without Cumulus.

    \b
    Examples:
      cumulus --dir D bucket remove climate --delete-data
      cumulus --dir D bucket remove climate --forget
    """
    if delete_data and forget:
        raise UsageError("--delete-data and --forget contradict each other", hint="give one of them")
    with recorded(shared), opened(shared) as (index, directory, store):
        found = find(index, name)
        if forget:
            _forget(shared, index, store, found)
            return
        count = data.delete(index, store, name) if delete_data else 0
        if not delete_data:
            _remove_empty(index, directory, store, found)
    objects = count_text(count, "object")
    shared.changed(f"bucket {name} removed, {objects} deleted", name=name, objects=count)


def _forget(shared: Shared, index: Index, store: FileStore, found: Bucket) -> None:
    if not found.path:
        try:
            store.check_bucket(found.name)
            hint = "--delete-data deletes it"
        except StorageError:
            hint = way_back(shared.config().store_url, found)
        raise UsageError(f"bucket {found.name} was not added with --path", hint=hint)
    data.forget(index, store, found.name)
    shared.changed(f"bucket {found.name} forgotten, {found.path} stays", name=found.name, path=found.path)


def _remove_empty(index: Index, directory: Directory, store: FileStore, found: Bucket) -> None:
    site = Site(store, index, directory, time.time_ns)
    try:
        remove(site, found)
    except S3Error as bad:
        raise InUse(
            f"bucket {found.name}: {bad.message}", hint="--delete-data deletes what is in it"
        ) from None
    finally:
        site.close()
