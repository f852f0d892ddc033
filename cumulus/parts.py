"""What lies below the HTTP floor, opened in order by the settings and closed in the reverse order: the
database, the storage, the gateway over both."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, cast

from twisted.logger import Logger

from cumulus import unix
from cumulus.auth import lifecycle
from cumulus.config import Config
from cumulus.index.api import Directory, Index, IndexFailure, NoSuch, Put
from cumulus.index.registry import sqlite_path
from cumulus.index.remote import connect_index
from cumulus.index.server import IndexServer
from cumulus.index.sqlite import SqliteIndex
from cumulus.model import Versioning
from cumulus.opening import (
    COPIED,
    TAKE_OVER,
    buckets_away,
    check_records,
    check_storage,
    open_index,
    open_store,
)
from cumulus.ops.jobs import Jobs, hash_waiting
from cumulus.ops.names import ODD, is_mark, is_plain
from cumulus.ops.owners import Owners
from cumulus.ops.rows import meta_of, row_of
from cumulus.ops.site import Site
from cumulus.redirect import Balancer, HostsFile
from cumulus.rest.gateway import S3Gateway, make_gateway
from cumulus.rest.hops import Hops
from cumulus.rest.request import RestSettings
from cumulus.storage.api import FileStore, StorageError, Unavailable
from cumulus.words import count_text
from sector.errors import BadConfig, LocalIO, SectorError

log = Logger()

BATCH: Final = 500
SETTLE_S: Final = 600.0  # for which the clock has to be as it is before lifecycle rules delete by it


class Parts:
    """A gateway and what it stands on. `work` and `heal` are to be called every second, each from one thread,
    `close` at the end; all block. `socket` is where workers find the index, "" = in the database."""

    def __init__(
        self,
        gateway: S3Gateway,
        work: Callable[[], object],
        close: Callable[[], None],
        take_in: Callable[[], object] = lambda: None,
    ) -> None:
        self.gateway = gateway
        self.work = work
        self.close = close
        self.socket = ""
        self._take_in = take_in
        self._bereft = threading.Event()

    def worker_ended(self) -> None:
        """A process that wrote in the same storage has ended, perhaps in the middle of something."""
        self._bereft.set()

    def heal(self) -> None:
        """Finish what such a process has begun, so that its journal goes: while that is there, every removal
        must stay on record. Raises `StorageError`, `IndexFailure`; the next call tries again."""
        if not self._bereft.is_set():
            return
        self._bereft.clear()
        try:
            self._take_in()
        except BaseException:
            self._bereft.set()
            raise

    def hurry(self) -> None:
        """The service ends: what is at work in the background leaves the rest for the next start."""
        self.gateway.site.stopping = True


@contextmanager
def _errors(stack: ExitStack) -> Iterator[None]:
    """What the parts raise as what a person is told; what was opened before is closed."""
    try:
        yield
    except (StorageError, IndexFailure) as bad:
        stack.close()
        raise LocalIO(str(bad)) from bad
    except BaseException:
        stack.close()
        raise


def _complain(bad: SectorError) -> None:
    log.error("the users stay as they were: {why}", why=bad.message)


def _keep(bad: SectorError) -> None:
    log.error("the servers to redirect to stay as they were: {why}", why=bad.message)


def _tell_expired(bucket: str, expired: int, aborted: int) -> None:
    log.info(
        "bucket {bucket}: by its lifecycle {versions} deleted, {uploads} ended",
        bucket=bucket,
        versions=count_text(expired, "object"),
        uploads=count_text(aborted, "upload"),
    )


def _balancer(config: Config) -> Balancer | None:
    """What `[redirect]` says, if requests are redirected. Raises as `hosts_of`."""
    redirect = config.redirect
    if redirect.mode in ("none", "proxy"):
        return None
    return Balancer(redirect.mode, hosts_of(config).servers, random.SystemRandom(), point=redirect.point)


def _hops(config: Config) -> Hops | None:
    """For requests that servers pass on; None where the site has no key for that. Raises `BadConfig`,
    `LocalIO`."""
    redirect = config.redirect
    if redirect.mode != "proxy" and not config.secret_key.exists():
        return None
    return Hops(config.secret_key, point=redirect.mode == "proxy" and redirect.point)


def hosts_of(config: Config) -> HostsFile:
    """The servers that `[redirect]` names. Raises `BadConfig`, `LocalIO`."""
    redirect = config.redirect
    path, polled = config.file(redirect.hosts_file), redirect.mode == "least-loaded"
    return HostsFile(path, _keep, time.monotonic, admin_needed=polled)


def _gateway(config: Config, store: FileStore, index: Index, directory: Directory) -> S3Gateway:
    server = config.server
    settings = RestSettings(
        region=server.region,
        domain=server.domain,
        allow_sigv2=config.auth.allow_sigv2,
        opaque_etags=config.storage.etag == "opaque",
    )
    balancer, hops = _balancer(config), _hops(config)
    return make_gateway(settings, store, index, directory, balancer=balancer, hops=hops)


def _is_body(name: str) -> bool:
    """Whether a storage name is that of a current object."""
    return is_plain(name) or is_mark(name) or name.startswith(ODD)


def take_in(store: FileStore, index: Index, *, beside: bool = False) -> int:
    """Finish what a crash interrupted: the storage puts itself right, and the index hears of what was
    published and may be missing from it. How many entries. `beside`: others serve already. Raises
    `StorageError`, `IndexFailure`."""
    count, batch = 0, []
    for name, entry in store.recover_beside() if beside else store.recover():
        bucket = index.bucket(name)
        meta = None if bucket is None else meta_of(bucket, entry)
        if bucket is None or meta is None or not _is_body(entry.name):
            continue
        keep = bucket.versioning is not Versioning.OFF
        batch.append(Put(row=row_of(bucket, entry, meta), keep=keep))
        count += 1
        if len(batch) == BATCH:
            _apply(index, batch)
            batch.clear()
    if batch:
        _apply(index, batch)
    store.recovered()
    return count


def _apply(index: Index, puts: list[Put]) -> None:
    with suppress(NoSuch):  # another server has removed the bucket
        index.apply(puts)


def give_files(store: FileStore, directory: Directory, *, warn: bool = True) -> None:
    """Files of users who have an account on this machine belong to it, where the storage has owners and this
    process may give files away; if not, the log says so."""
    if store.capabilities.owners and unix.may_give_files():
        store.own_by(Owners(directory, unix.account, _no_account).of)
        return
    named = directory.unix_users() if warn else {}
    if named:
        why = f"it needs {unix.NEEDS}" if store.capabilities.owners else "the storage has no owners of files"
        log.warn("files of {users} will be the service's: {why}", users=", ".join(named), why=why)


def _no_account(name: str) -> None:
    log.warn("there is no account {account} on this machine; its files are the service's", account=name)


def remember_until_synced(site: Site) -> None:
    """What storage can tell after a crash the index need not have on disk, nor have heard of, until storage
    forgets it."""

    def settle() -> None:
        try:
            site.told.settle()
            site.index.sync()
        except IndexFailure as bad:
            raise Unavailable(str(bad)) from bad

    site.store.before_forgetting(settle)


def _open_all(config: Config, stack: ExitStack) -> tuple[Parts, Index, Directory]:
    index, directory = open_index(config, _complain)
    stack.callback(directory.close)
    stack.callback(index.close)
    for key in directory.check_secrets():
        log.error("{file} does not open the secret of {key}", file=str(config.secret_key), key=key)
    check_storage(config, index)
    for name in check_records(config):
        log.error("bucket {bucket}: {what}; {hint}", bucket=name, what=COPIED, hint=TAKE_OVER)
    store = open_store(config)
    stack.callback(store.close)
    for name, why in buckets_away(store, index.brief_buckets()):
        log.error("bucket {bucket} is not served: {why}", bucket=name, why=why)
    give_files(store, directory)

    def recover(when: str, *, beside: bool = False) -> None:
        if count := take_in(store, index, beside=beside):
            log.info("{count} objects were looked at again {when}", count=count, when=when)

    recover("after the last stop")
    if not config.several_servers:
        with suppress(IndexFailure):  # on a full disk, say: they end by themselves
            index.free_uploads()
    gateway = _gateway(config, store, index, directory)
    stack.callback(gateway.close)
    remember_until_synced(gateway.site)
    store.keep_room()
    index.keep_room()
    jobs = Jobs(
        gateway.site, lifecycle, rescan_s=config.storage.rescan_s, settle_s=SETTLE_S, told=_tell_expired
    )

    def work() -> None:
        if index.leads():
            jobs.run()
        else:
            hash_waiting(gateway.site)

    def again() -> None:
        recover("after the end of a worker", beside=True)
        jobs.process_died()

    return Parts(gateway, work, stack.close, again), index, directory


def open_parts(config: Config) -> Parts:
    """Everything in this process; what a crash left is put right first. Raises `SectorError`. Blocks."""
    stack = ExitStack()
    with _errors(stack):
        parts = _open_all(config, stack)[0]
        parts.gateway.site.alone = not config.several_servers
        return parts
    raise AssertionError("not reached: the errors are raised")


def open_head(config: Config) -> Parts:
    """The same for the head of several workers, with the index offered to them where they cannot use the
    database directly. Raises `SectorError`."""
    if config.one_process:
        raise BadConfig(
            f"{config.path}: [storage] backend {config.storage.backend} lives in one process",
            hint="serve with workers = 1",
        )
    stack = ExitStack()
    with _errors(stack):
        parts, index, directory = _open_all(config, stack)
        if config.several_servers:
            return parts
        # the path of a socket may have 107 bytes
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="cumulus-"))
        server = IndexServer(cast(SqliteIndex, index), directory, Path(scratch, "index"))
        stack.callback(server.close)
        parts.socket = str(server.path)
        return parts
    raise AssertionError("not reached: the errors are raised")


def _connect(config: Config, socket: str) -> tuple[Index, Directory]:
    return connect_index(Path(socket), sqlite_path(config.database_url))


def open_worker(config: Config, socket: str) -> Parts:
    """A worker's: its own storage, the head's index ("" = the database itself). Raises `SectorError`.
    Blocks."""
    stack = ExitStack()
    with _errors(stack):
        index, directory = _connect(config, socket) if socket else open_index(config, _complain)
        stack.callback(directory.close)
        stack.callback(index.close)
        check_storage(config, index)  # where a worker has died since
        store = open_store(config)
        stack.callback(store.close)
        give_files(store, directory, warn=False)
        gateway = _gateway(config, store, index, directory)
        stack.callback(gateway.close)
        remember_until_synced(gateway.site)
        return Parts(gateway, partial(hash_waiting, gateway.site), stack.close)
    raise AssertionError("not reached: the errors are raised")
