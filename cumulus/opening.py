"""From settings to the parts: database, users, storage (what the service and the commands both open)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from cumulus.backends.registry import make_fsspec, make_sector, make_store
from cumulus.config import Config
from cumulus.index.api import Directory, Index
from cumulus.index.registry import (
    NOTHING_IN_IT,
    Options,
    database_lacks,
    make_admin,
    make_index,
    make_text_admin,
    note_users_elsewhere,
)
from cumulus.index.text_file import TextFile
from cumulus.model import Bucket, key_of
from cumulus.redirect import HostsFile
from cumulus.secrets import Keyring
from cumulus.storage.api import FileStore, StorageError
from cumulus.words import count_text
from sector.errors import BadConfig, LocalIO, SectorError

COPIED: Final = "the files were copied there, and headers, owners and versions of objects are not theirs yet"
TAKE_OVER: Final = "cumulus doctor --copied takes them over, before the service runs"

if TYPE_CHECKING:  # what TLS needs takes every admin command a tenth of a second to load
    from cumulus.http.tls import TlsFiles
    from cumulus.http.trust import Trust
    from cumulus.index.admin_api import Admin


def database_options(config: Config) -> Options:
    """What `[database]` says of PostgreSQL."""
    database = config.database
    password = str(config.file(database.password_file)) if database.password_file else ""
    return Options(password_file=password, connections=database.connections)


def tls_of(
    config: Config, section: Literal["tls", "admin"], spare: tuple[bytes, bytes] | None = None
) -> TlsFiles | None:
    """Certificate and key of that section; None where it has none. `spare` is used where they cannot be.
    Raises `BadConfig`."""
    from cumulus.http.tls import TlsFiles

    named = config.tls if section == "tls" else config.admin
    files = config.file(named.cert), config.file(named.key)
    return TlsFiles(*files, section, spare) if named.cert else None


def trust_of(config: Config) -> Trust:
    """Whose certificates count at other servers. Raises `BadConfig`."""
    from cumulus.http.trust import Trust

    return Trust(config.file(config.redirect.ca_file) if config.redirect.ca_file else None)


def check_files(config: Config) -> None:
    """Read the files that the settings name, as the service does at its start: keys, users, certificate,
    servers. Raises `BadConfig`, `LocalIO`."""
    if config.auth.source == "file":
        TextFile(config.file(config.auth.file), lambda bad: None).close()
    else:
        Keyring(config.secret_key)
    tls_of(config, "tls")
    tls_of(config, "admin")
    if config.redirect.mode != "none":
        trust_of(config)
        polled = config.redirect.mode == "least-loaded"
        hosts = config.file(config.redirect.hosts_file)
        HostsFile(hosts, lambda bad: None, time.monotonic, admin_needed=polled)


def check_database(config: Config) -> None:
    """That the database is there, unless this may be the first start: SQLite's file, PostgreSQL's tables and
    what is in them are not made anew where `cumulus init` had made some, or where there are buckets. Raises
    `BadConfig`, `LocalIO`, `IndexFailure`."""
    where, what = database_lacks(config.database_url, database_options(config))
    if not what:
        return
    emptied = what == NOTHING_IN_IT  # `init`, or the first start, leaves a user in it
    if emptied or config.auth.source == "file":
        kept = _has_buckets(config, where, what)
        if kept is False:
            return
        if kept is None:
            backend = config.store_url.partition(":")[0]
            what += f", and whether storage has buckets its backend {backend!r} does not say"
        elif emptied:
            what += ", though there are buckets in storage"
    hint = "restore it from your backup, or begin with an empty one: cumulus init DIR --new-database"
    raise LocalIO(f"{config.path}: [database] url: {where} {what}", hint=hint)


def _has_buckets(config: Config, where: str, what: str) -> bool | None:
    kind, _, path = config.store_url.partition(":")
    if kind == "posix":
        from cumulus.backends.posix.store import holds_buckets  # the store would make its directories

        return holds_buckets(path)
    try:
        store = open_store(config)
        try:
            return store.has_buckets()
        finally:
            store.close()
    except StorageError as bad:
        why = f"and whether storage has buckets cannot be told: {bad}"
        raise LocalIO(f"{config.path}: [database] url: {where} {what}, {why}") from None


def open_index(
    config: Config, complain: Callable[[SectorError], None], clock: Callable[[], int] = time.time_ns
) -> tuple[Index, Directory]:
    """Index and users; `complain` hears of errors in a changed file of users. Close the index first, then
    the directory. Raises `BadConfig`, `LocalIO`, `IndexFailure`."""
    check_database(config)
    sync, options = config.storage.fsync, database_options(config)
    if config.auth.source == "file":
        users = TextFile(config.file(config.auth.file), complain)
        made = make_index(config.database_url, directory=users, sync=sync, clock=clock, options=options)
        note_users_elsewhere(config.database_url, options)
        return made
    keyring = Keyring(config.secret_key)
    return make_index(config.database_url, keyring, sync=sync, clock=clock, options=options)


def open_admin(config: Config, *, new: bool = False) -> Admin:
    """For changing users, keys, groups and quotas (of users in a text file: quotas); `new` makes the
    database. Raises `BadConfig`, `LocalIO`, `IndexFailure`."""
    if not new:
        check_database(config)
    if config.auth.source == "file":
        where = config.file(config.auth.file)
        admin = make_text_admin(config.database_url, where, options=database_options(config))
        note_users_elsewhere(config.database_url, database_options(config))
        return admin
    return make_admin(config.database_url, Keyring(config.secret_key), options=database_options(config))


def check_storage(config: Config, index: Index) -> None:
    """Nothing is made anew where the buckets of the database should be. Raises `LocalIO`."""
    kind, _, path = config.store_url.partition(":")
    if kind != "posix" or os.path.isdir(os.path.join(path, "data")):
        return
    buckets = index.brief_buckets()
    if buckets:
        what = f"{path} has no directory data, though the database has {count_text(len(buckets), 'bucket')}"
        hint = "is its disk mounted? else restore it, or make the directory to begin without objects"
        raise LocalIO(f"{config.path}: [storage] path: {what}", hint=hint)


def check_records(config: Config) -> list[str]:
    """That the files of objects are those that their records were made for: the service would take copies for
    files of others, and overwrite what belongs to them. Returns buckets that were copied where others were
    not. Raises `LocalIO`."""
    kind, _, path = config.store_url.partition(":")
    if kind != "posix":
        return []
    from cumulus.backends.posix.copied import look

    found = look(path, key_of)
    if found.copied and not found.any_fits:
        raise LocalIO(f"{config.path}: [storage] path: {path}: {COPIED}", hint=TAKE_OVER)
    return found.copied


def buckets_away(store: FileStore, buckets: Iterable[Bucket]) -> Iterator[tuple[str, str]]:
    """Of these the buckets that cannot be served now, and why."""
    for bucket in buckets:
        try:
            store.check_bucket(bucket.name)
        except StorageError as bad:
            yield bucket.name, str(bad)


def open_store(config: Config) -> FileStore:
    """The storage. Raises `BadConfig` for an unknown backend, `StorageError`."""
    try:
        kind, _, argument = config.storage.backend.partition(":")
        if kind == "fsspec" and config.storage.known_hosts:
            return make_fsspec(argument, str(config.file(config.storage.known_hosts)))
        if config.sector.map_users:
            return make_sector(argument, config.sector.max_users)
        return make_store(config.store_url, fsync=config.storage.fsync)
    except ValueError as bad:
        raise BadConfig(f"{config.path}: [storage] backend: {bad}") from None
