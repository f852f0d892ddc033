"""What lies below the HTTP floor, opened in order by the settings and closed in the reverse order: the
database, the storage, the gateway over both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from twisted.logger import Logger

from cumulus.config import Config
from cumulus.index.api import Directory, Index, IndexFailure, Put
from cumulus.model import Versioning
from cumulus.opening import open_index, open_store
from cumulus.ops.names import ODD, is_plain
from cumulus.ops.rows import meta_of, row_of
from cumulus.rest.call import Gateway
from cumulus.rest.gateway import S3Gateway, make_gateway
from cumulus.rest.request import RestSettings
from cumulus.storage.api import FileStore, StorageError
from sector.errors import LocalIO, SectorError

log = Logger()

BATCH: Final = 500


class Parts:
    """A gateway and what it stands on. `close` blocks."""

    def __init__(self, gateway: Gateway, close: Callable[[], None]) -> None:
        self.gateway = gateway
        self.close = close


@contextmanager
def _errors() -> Iterator[None]:
    """What the parts raise as what a person is told."""
    try:
        yield
    except (StorageError, IndexFailure) as bad:
        raise LocalIO(str(bad)) from bad


def _complain(bad: SectorError) -> None:
    log.error("the users stay as they were: {why}", why=bad.message)


def _gateway(config: Config, store: FileStore, index: Index, directory: Directory) -> S3Gateway:
    server = config.server
    settings = RestSettings(
        region=server.region,
        domain=server.domain,
        allow_sigv2=config.auth.allow_sigv2,
        opaque_etags=config.storage.etag == "opaque",
    )
    return make_gateway(settings, store, index, directory)


def take_in(store: FileStore, index: Index) -> int:
    """Finish what a crash interrupted: the storage puts itself right, and the index hears of what was
    published and may be missing from it. How many entries. Raises `StorageError`, `IndexFailure`."""
    count, batch = 0, []
    for name, entry in store.recover():
        bucket = index.bucket(name)
        meta = None if bucket is None else meta_of(bucket, entry)
        if bucket is None or meta is None or not (is_plain(entry.name) or entry.name.startswith(ODD)):
            continue
        keep = bucket.versioning is Versioning.ENABLED
        batch.append(Put(row=row_of(bucket, entry, meta), keep=keep))
        count += 1
        if len(batch) == BATCH:
            index.apply(batch)
            batch.clear()
    if batch:
        index.apply(batch)
    return count


def open_parts(config: Config) -> Parts:
    """Everything in this process; what a crash left is put right first. Raises `SectorError`. Blocks."""
    with ExitStack() as stack, _errors():
        index, directory = open_index(config, _complain)
        stack.callback(directory.close)
        stack.callback(index.close)
        store = open_store(config)
        stack.callback(store.close)
        count = take_in(store, index)
        if count:
            log.info("{count} objects were looked at again after the last stop", count=count)
        gateway = _gateway(config, store, index, directory)
        stack.callback(gateway.close)
        return Parts(gateway, stack.pop_all().close)
    raise AssertionError("not reached: the errors are raised")
