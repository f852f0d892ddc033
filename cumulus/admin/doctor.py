"""`cumulus doctor`: what a service needs, looked at one by one; and the index made anew from storage."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import click
import msgspec

from cumulus.admin import data
from cumulus.admin.buckets import opened
from cumulus.admin.options import Shared, shared_options
from cumulus.admin.places import REACH, unknown, way_back, without_links
from cumulus.admin.verifying import verify
from cumulus.backends.posix.copied import look
from cumulus.backends.posix.store import PosixStore
from cumulus.backends.posix.unserved import unserved
from cumulus.config import Config
from cumulus.index.api import Change, Directory, Index, IndexFailure, Put, Remove, Row
from cumulus.index.revision import HEAD
from cumulus.model import Bucket, ObjectMeta, Versioning, key_of
from cumulus.opening import COPIED, TAKE_OVER
from cumulus.ops.find import NOT_THERE
from cumulus.ops.left import discarded
from cumulus.ops.names import BODIES, DOUBT, ODD, VERSIONS, first_name, odd_name
from cumulus.ops.rows import as_made, body_names, meta_of, row_of
from cumulus.secrets import Keyring, check_private
from cumulus.storage.api import Entry, FileStore, Forbidden, Missing, NoBucket, StorageError
from cumulus.words import count_text
from sector.cli import render
from sector.errors import SectorError, UsageError, printable

_PAGE: Final = 1000
_NAMES: Final = 100  # that are told
_LOOK_S: Final = 30.0
_FREE: Final = 0.05
_OLDER: Final = "older ones are upgraded by the next cumulus serve; newer ones need a newer program"
_LOST: Final = "restore a backup, or cumulus init DIR --new-database"
_UNKNOWN: Final = (
    "cumulus bucket add NAME --owner U makes one again{}, then doctor --rebuild; or move it away"
)
_DAMAGED: Final = (
    "put what is damaged again from a backup, or delete it, and have the disk looked at;"
    " what may not be read needs another owner or mode"
)
_SOON_S: Final = 21 * 86400.0  # a certificate that ends before that is worth a warning
State = Literal["ok", "warning", "failed"]


class Finding(msgspec.Struct, frozen=True):
    """What one check found; `hint` says what to do."""

    check: str
    state: State
    text: str
    hint: str = ""


def check_database(config: Config) -> Finding:
    """The tables are there and whole."""
    from cumulus.index.registry import sqlite_path

    if config.several_servers:
        return _check_postgres(config)
    path = sqlite_path(config.database_url)
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            answer = connection.execute("PRAGMA quick_check").fetchone()[0]
            version = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as bad:
        return Finding("database", "failed", f"{path}: {bad}", _LOST if _is_lost(path, bad) else REACH)
    if answer != "ok":
        return Finding("database", "failed", f"{path}: {answer}", "restore a backup, then doctor --rebuild")
    return _of_version(str(path), version)


def _of_version(where: str, version: str) -> Finding:
    """Other tables are not looked into: that would upgrade them, maybe under a service that runs."""
    if version == HEAD:
        return Finding("database", "ok", f"{where}, version {version}")
    text = f"{where} has version {version} of the tables, this program {HEAD}"
    return Finding("database", "warning" if version < HEAD else "failed", text, _OLDER)


def _is_lost(path: Path, bad: sqlite3.Error) -> bool:
    """Whether the file is gone or no good; else it is there, and something keeps us from it."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    name: str = getattr(bad, "sqlite_errorname", "")
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR"))


def _check_postgres(config: Config) -> Finding:
    import psycopg

    from cumulus.index.postgres_pool import Target, failure
    from cumulus.opening import database_options

    hint = "check [database], and that PostgreSQL runs and lets this machine in"
    try:
        target = Target(config.database_url, database_options(config).password_file)
        with target.connect() as connection:
            there = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
            if not there or not there[0]:
                return Finding("database", "failed", f"{target.where}: has no tables", _LOST)
            version = (connection.execute("SELECT version_num FROM alembic_version").fetchone() or ("none",))[
                0
            ]
            unsafe = connection.execute(
                "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'"
            ).fetchall()
    except SectorError as bad:
        return Finding("database", "failed", bad.message, bad.hint)
    except IndexFailure as bad:
        return Finding("database", "failed", str(bad), hint)
    except psycopg.Error as bad:
        return Finding("database", "failed", str(failure(bad, target.where)), hint)
    found = _of_version(target.where, version)
    if unsafe and found.state == "ok":
        text = f"{found.text}; {' and '.join(name for (name,) in unsafe)} off"
        return Finding("database", "warning", text, "a power cut may damage the database: turn it on")
    return found


def check_secrets(config: Config) -> Finding:
    """The key that opens users' secrets, or the file of users."""
    try:
        if config.auth.source == "file":
            path = config.file(config.auth.file)
            check_private(path)
        else:
            path = config.secret_key
            Keyring(path)
    except SectorError as bad:
        return Finding("secrets", "failed", bad.message, bad.hint)
    return Finding("secrets", "ok", str(path))


def check_certificates(config: Config, now_ns: int) -> Iterator[Finding]:
    """Of [tls] and [admin]: that they fit their keys, and their dates; of a chain the first that ends."""
    from cumulus.opening import tls_of

    sections: tuple[Literal["tls"], Literal["admin"]] = ("tls", "admin")
    for section in sections:
        name = f"certificate of [{section}]"
        try:
            files = tls_of(config, section)
        except SectorError as bad:
            yield Finding(name, "failed", bad.message, bad.hint)
            continue
        if files is not None:
            yield _dates(name, config.file(getattr(config, section).cert), now_ns)


def _dates(name: str, path: Path, now_ns: int) -> Finding:
    from cryptography import x509

    from cumulus.http.trust import read_certificates

    chain = [x509.load_pem_x509_certificate(one) for one in read_certificates(path)]
    begins = max(one.not_valid_before_utc for one in chain)
    ends = min(one.not_valid_after_utc for one in chain)
    now = datetime.fromtimestamp(now_ns // 10**9, UTC)
    left = (ends - now).total_seconds()
    text = f"{path}: good from {begins:%Y-%m-%d} to {ends:%Y-%m-%d %H:%M}Z"
    if left <= 0:
        return Finding(name, "failed", text, "clients refuse it: put a new one there")
    if now < begins:
        return Finding(name, "failed", text, "it is not valid yet: is the clock right?")
    if left < _SOON_S:
        return Finding(name, "warning", text, f"{_days(left)} left: renew it")
    return Finding(name, "ok", text)


def _days(seconds: float) -> str:
    days = round(seconds / 86400)
    return f"{count_text(days, 'day')} {'is' if days == 1 else 'are'}"


def check_directory(path: Path) -> Iterator[Finding]:
    """Rights, extended attributes, hard links, free space of a directory for objects."""
    if not path.is_dir():
        text = "is a file, not a directory" if path.exists() else "does not exist"
        yield Finding("rights", "failed", f"{path}: {text}", "make it, or see that its disk is mounted")
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("rights", "failed", f"{path}: cannot be written", "change owner or mode")
        return
    yield Finding("rights", "ok", str(path))
    try:
        yield from _try_out(path)
    except OSError as bad:
        full = bad.errno in (errno.ENOSPC, errno.EDQUOT)
        yield Finding(
            "space" if full else "attributes",
            "failed",
            f"{path}: {bad.strerror}",
            "make room: uploads are refused" if full else "see that it can be written",
        )
        return
    usage = shutil.disk_usage(path)
    text = f"{render.size_text(usage.free)} of {render.size_text(usage.total)} are free"
    short = usage.free < _FREE * usage.total
    yield Finding("space", "warning" if short else "ok", text, "make room" if short else "")
    files = os.statvfs(path)
    if files.f_files and files.f_favail < _FREE * files.f_files:  # 0: a file system that makes them as needed
        text = f"the file system has inodes for {files.f_favail:,} more files, of {files.f_files:,}"
        yield Finding("files", "warning", text, "uploads are refused without: remove files, or make more")


def _try_out(path: Path) -> Iterator[Finding]:
    """What the file system can. Raises `OSError` where nothing can be written."""
    with tempfile.TemporaryDirectory(prefix=".cumulus-doctor-", dir=path) as scratch:
        file = Path(scratch, "file")
        file.write_bytes(b"x")
        yield _attempt(
            "attributes",
            lambda: os.setxattr(file, "user.cumulus", b"x"),
            "metadata is kept in small files beside the objects then",
        )
        yield _attempt(
            "hard links",
            lambda: os.link(file, Path(scratch, "link")),
            "buckets cannot have versioning here",
        )


def _attempt(name: str, act: Callable[[], None], without: str) -> Finding:
    try:
        act()
    except OSError as bad:
        return Finding(name, "warning", f"not on this file system: {bad.strerror}", without)
    return Finding(name, "ok", "work")


def check_names(path: Path) -> Finding:
    """Names that others made in buckets and that no key can be; for half a minute at most."""
    look = unserved(path, _NAMES, _LOOK_S)
    of = count_text(look.seen, "name") if look.whole else f"the first {count_text(look.seen, 'name')}"
    if not look.names:
        can = "the one name there can be a key" if look.seen == 1 else f"all of {of} can be keys"
        return Finding("names", "ok", can if look.seen else "none yet")
    text = f"among {of} these can be no keys, and are not served: {', '.join(look.names)}"
    return Finding("names", "warning", text, "rename them: keys are UTF-8, 1,024 bytes at most")


def check_records(path: Path) -> Iterator[Finding]:
    """Whether the records of objects are of the files that are there."""
    if names := look(str(path), key_of).copied:
        yield Finding("records", "failed", f"{', '.join(names[:_NAMES])}: {COPIED}", TAKE_OVER)


def check_clock(now_ns: int) -> Finding:
    """Signatures hold for a quarter of an hour: a clock far off refuses all."""
    newest = Path(__file__).stat().st_mtime_ns
    if now_ns < newest - 86400 * 10**9:
        return Finding("clock", "failed", "the clock is behind this program's files", "set it (NTP)")
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_ns // 10**9)))


def check_contents(config: Config) -> Iterator[Finding]:
    """Whether what the database knows of can be had: the secrets of users, the directories of buckets."""
    from cumulus.opening import open_index

    try:
        index, directory = open_index(config, lambda bad: None)
    except (SectorError, IndexFailure) as bad:
        yield _failed("database", bad)
        return
    try:
        yield from _each_secret(config, directory)
        if config.store_url.startswith("posix:"):
            yield from _each_bucket(config, index)
    finally:
        index.close()
        directory.close()


def _each_secret(config: Config, directory: Directory) -> Iterator[Finding]:
    try:
        for key in directory.check_secrets():
            text = f"{config.secret_key} does not open the secret of {key}"
            yield Finding("secrets", "failed", text, "restore the file, or remove the key and add another")
    except (SectorError, IndexFailure) as bad:
        yield _failed("secrets", bad)


def _each_bucket(config: Config, index: Index) -> Iterator[Finding]:
    from cumulus.opening import buckets_away, check_storage, open_store

    path = config.store_url.removeprefix("posix:")
    try:
        check_storage(config, index)
        known = index.buckets()
        count = len(known)
        away, linkless = dict[str, str](), list[str]()
        if count:
            store = open_store(config)
            try:
                away = dict(buckets_away(store, known))
                linkless = without_links(store, path, (one for one in known if one.name not in away))
            finally:
                store.close()
    except (SectorError, StorageError, IndexFailure) as bad:
        yield _failed("buckets", bad)
        return
    for one in known:
        if why := away.get(one.name):
            hint = way_back(config.store_url, one)
            yield Finding("buckets", "failed", f"{one.name} is not served: {why}", hint)
    if linkless:
        text = f"not on the disks of {', '.join(linkless[:_NAMES])}"
        yield Finding("hard links", "warning", text, "these buckets cannot have versioning")
    if strange := unknown(Path(path), {one.name for one in known})[:_NAMES]:
        text = (
            f"the database does not know {', '.join(name for name, _ in strange)}, of which there are files"
        )
        adopted = ", ".join(f"{name} with --path {shlex.quote(place)}" for name, place in strange if place)
        yield Finding("buckets", "warning", text, _UNKNOWN.format(f" ({adopted})" if adopted else ""))
    if not away:
        there = "the directory of 1 is" if count == 1 else f"the directories of {count:,} are"
        yield Finding("buckets", "ok", f"{there} there" if count else "none yet")


def _failed(check: str, bad: Exception) -> Finding:
    if isinstance(bad, SectorError):
        return Finding(check, "failed", bad.message, bad.hint)
    return Finding(check, "failed", str(bad))


def findings(config: Config, storage: Path | None) -> list[Finding]:
    """All checks, in order; `storage` is looked at instead of the settings' directory."""
    found = [Finding("settings", "ok", config.path), check_database(config), check_secrets(config)]
    if storage is None and all(one.state != "failed" and one.hint != _OLDER for one in found):
        found += check_contents(config)
    found += check_certificates(config, time.time_ns())
    where = storage
    if where is None and config.store_url.startswith("posix:"):
        where = Path(config.store_url.removeprefix("posix:"))
    if where is not None:
        found += check_directory(where)
        if where.is_dir():
            found.append(check_names(where))
            found += check_records(where)
    found.append(check_clock(time.time_ns()))
    return found


# rebuild ----------------------------------------------------------------------------------------------
def entries_of(store: FileStore, bucket: str) -> Iterator[list[Entry]]:
    """All that may be an object or an older version, page by page; markers before bodies, since
    `_interrupted` asks what the index says before it hears of those."""
    for prefix in ("", ODD, VERSIONS, BODIES):
        try:
            yield from store.entries(bucket, prefix, _PAGE)
        except NoBucket:
            raise
        except Missing:
            continue


def rebuild(index: Index, store: FileStore, bucket: Bucket) -> tuple[int, int]:
    """Make the rows of a bucket fit what storage has. Returns (rows taken in, rows removed)."""
    keep = bucket.versioning is not Versioning.OFF
    over = set() if store.capabilities.atomic_replace else discarded(store, bucket.name)
    taken = gone = 0
    for entries in entries_of(store, bucket.name):
        changes: list[Change] = []
        for entry in entries:
            meta = meta_of(bucket, entry)
            stays = meta is not None and _interrupted(index, store, bucket, meta, over)
            if meta is not None and entry.name not in over and not stays:
                made = as_made(bucket, entry, meta, atomic=store.capabilities.atomic_replace)
                changes.append(Put(row=row_of(bucket, made, meta), keep=keep))
        index.apply(changes)
        taken += len(changes)
    with contextlib.suppress(Missing):  # all is known again
        store.delete(bucket.name, DOUBT)
    for rows in data.rows_of(index, bucket.name):
        lost: list[Change] = []
        for row in rows:
            if not row.marker and not _has_body(store, bucket, row):
                lost.append(Remove(bucket=bucket.name, key=row.key, stamp=row.stamp, version=row.version))
        if lost:
            index.apply(lost)
        gone += len(lost)
    return taken, gone


def _interrupted(index: Index, store: FileStore, bucket: Bucket, marker: ObjectMeta, over: set[str]) -> bool:
    """Whether that is a delete marker of which the index knows nothing, beside the older object that it
    should have hidden: a crash has interrupted the deletion, or the disk has refused it, and nobody was told
    that it was done. The object is served, so it stays listed; one of the same id, "null", also if it came
    after the marker, which has not taken it. Where bodies have names of their own the index alone can tell:
    by the version of that id, if its body is there, and not among what is `over`."""
    if not marker.marker:
        return False
    row = index.lookup(bucket.name, marker.key, marker.version)
    if row is not None and row.marker and row.modified_ns >= marker.modified_ns:
        return False
    if not store.capabilities.atomic_replace:
        there = row is not None and not row.marker and row.name not in over
        return row is not None and there and _has_body(store, bucket, row)
    for name in (first_name(marker.key), odd_name(marker.key)):
        try:
            meta = meta_of(bucket, store.stat(bucket.name, name))
        except NoBucket:
            raise
        except NOT_THERE:
            continue
        except Forbidden:  # its row comes by itself, and is the current one if it came later
            continue
        if meta is None or meta.key != marker.key:
            continue
        if meta.version == marker.version or meta.modified_ns <= marker.modified_ns:
            return not meta.marker
    return False


def _versioned(shared: Shared, index: Index, store: FileStore, bucket: Bucket) -> Bucket:
    """A bucket that has older versions has had versioning, which only its database knew: it is on again, or
    nobody could see them, and the next ones would replace one another."""
    if bucket.versioning is not Versioning.OFF:
        return bucket
    try:
        if not store.names(bucket.name, prefix=VERSIONS, limit=1):
            return bucket
    except NoBucket:
        raise
    except Missing:
        return bucket
    bucket = msgspec.structs.replace(bucket, versioning=Versioning.ENABLED)
    index.set_bucket(bucket, ["versioning"])
    what = f"bucket {bucket.name}: versioning is enabled again, since it has older versions"
    shared.audit(shared.config(), what)
    render.say(what)
    return bucket


def _has_body(store: FileStore, bucket: Bucket, row: Row) -> bool:
    """Whether there is what a row speaks of. A server may be at work: what was replaced or deleted since the
    directory was read has its body under its version's name, though its row says another."""
    for name in body_names(row, atomic=store.capabilities.atomic_replace):
        try:
            meta = meta_of(bucket, store.stat(bucket.name, name))
        except NoBucket:
            raise
        except NOT_THERE:
            continue
        except Forbidden:  # it may well be
            return True
        same = meta is not None and meta.version == row.version and meta.marker == row.marker
        if (row.latest and name == row.name) or same:
            return True
    return False


def _rebuild_all(shared: Shared, *, copied: bool = False) -> bool:
    """All buckets that can be reached; false if some were left out, which are told. `copied`: their records
    are given to the copies of their files first."""
    report: list[dict[str, object]] = []
    left_out: dict[str, str] = {}
    if copied and not shared.config().store_url.startswith("posix:"):
        raise UsageError("--copied is for plain files", hint="records of other storage name no inodes")
    if copied:
        shared.check_account()
    with opened(shared) as (index, _, store):
        for bucket in index.buckets():
            more: dict[str, object] = {}
            try:
                if copied and isinstance(store, PosixStore):
                    given = store.take_over(bucket.name)
                    more = {"taken_over": given.given, "fitting": given.kept, "changed": given.left}
                    what = f"bucket {bucket.name}: {count_text(given.given, 'record')} taken over by copies"
                    shared.audit(shared.config(), what)
                taken, gone = rebuild(index, store, _versioned(shared, index, store, bucket))
            except StorageError as bad:
                left_out[bucket.name] = f"{bad} ({way_back(shared.config().store_url, bucket)})"
                report.append({"name": bucket.name, "objects": None, "removed": None, "left_out": str(bad)})
                continue
            index.recount(bucket.name)
            what = f"bucket {bucket.name}: index made anew, {taken} found, {gone} removed from it"
            shared.audit(shared.config(), what)
            report.append({"name": bucket.name, "objects": taken, "removed": gone, **more})
    columns = ["name", "objects", "removed"] + ["taken_over", "changed"] * copied
    heads = ["BUCKET", "FOUND", "REMOVED FROM THE INDEX"] + ["TAKEN OVER", "CHANGED SINCE"] * copied
    rows = [[one[name] for name in columns] for one in report if one["name"] not in left_out]
    shared.listed(report, heads, rows, right=range(1, len(heads)))
    for name, why in left_out.items():
        render.say(f"bucket {name} is left out: {why}")
    return not left_out


def _verify_all(shared: Shared) -> bool:
    """Read the objects of all buckets; whether all are right and could be looked at."""
    report: list[dict[str, object]] = []
    well = True
    with opened(shared) as (index, _, store):
        for bucket in index.buckets():
            try:
                done = verify(store, bucket)
            except StorageError as bad:
                well = False
                hint = way_back(shared.config().store_url, bucket)
                render.say(f"bucket {bucket.name} is left out: {bad} ({hint})")
                report.append({"name": bucket.name, "left_out": str(bad)})
                continue
            well = well and not done.damaged
            for one in done.damaged:
                version = f" (version {one.version})" if one.version else ""
                render.say(printable(f"damaged: {bucket.name}/{one.key}{version}: {one.why}"))
            if done.more:
                render.say(f"and {done.more:,} more in bucket {bucket.name}")
            if done.damaged:
                render.say(f"bucket {bucket.name}: {_DAMAGED}")
            found = {"right": done.right, "without_sum": done.without, "bytes": done.bytes}
            damaged = [one._asdict() for one in done.damaged]
            report.append({"name": bucket.name, **found, "damaged": damaged, "more_damaged": done.more})
    rows = [
        (one["name"], one["right"], one["without_sum"], render.size_text(int(str(one["bytes"]))),
         len(damages) + int(str(one["more_damaged"])))
        for one in report
        if isinstance(damages := one.get("damaged"), list)
    ]  # fmt: skip
    shared.listed(report, ["BUCKET", "RIGHT", "WITHOUT A SUM", "READ", "DAMAGED"], rows, right=range(1, 5))
    return well


@click.command("doctor")
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--storage", metavar="PATH", help="Look at this directory instead of the one in the settings.")
@click.option("--rebuild", "anew", is_flag=True, help="Make the index of all buckets fit what storage has.")
@click.option("--copied", is_flag=True, help="The tree is a copy: take its records over, then as --rebuild.")
@click.option("--verify", "read", is_flag=True, help="Read all objects, and compare them with their sums.")
@shared_options
@click.pass_obj
def doctor(
    shared: Shared, directory: str | None, storage: str | None, anew: bool, copied: bool, read: bool
) -> int:
    """Check settings, database, secrets, certificates, the directory for objects, names in it that can be no
    keys, whether objects were copied there, and the clock. Exit status 1 when something failed, when an
    object is damaged, and when --rebuild, --copied or --verify left out a bucket that cannot be reached.

    \b
    Examples:
      cumulus doctor /srv/cumulus
      cumulus --dir D doctor --rebuild
      cumulus --dir D doctor --copied      after cp -a to another disk, or from a backup
      cumulus --dir D doctor --verify
    """
    shared.take_directory(directory)
    if (anew or copied) and read:
        raise UsageError("--verify changes nothing", hint="give it alone, before or after")
    if (anew or copied or read) and storage is not None:
        hint = "leave it out, or change [storage] path first"
        flag = "--copied" if copied else "--verify" if read else "--rebuild"
        raise UsageError(f"{flag} works on the storage of the settings, not on --storage", hint=hint)
    if anew or copied:
        return int(not _rebuild_all(shared, copied=copied))
    if read:
        return int(not _verify_all(shared))
    if storage == "":
        raise UsageError("--storage is empty", hint="name a directory, or leave it out")
    found = findings(shared.config(), Path(storage).absolute() if storage else None)
    if shared.json:
        render.print_json(found)
    else:
        for one in found:
            hint = f" ({one.hint})" if one.hint and one.state != "ok" else ""
            click.echo(printable(f"{one.state:<8}  {one.check:<10}  {one.text}{hint}"))
    return int(any(one.state == "failed" for one in found))
