"""Delete markers in storage: how one takes the place of another, or of the body of a version "null", and how
it is taken back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from cumulus.model import Bucket
from cumulus.ops.find import NOT_THERE, Found
from cumulus.ops.publish import null_aside
from cumulus.ops.rows import meta_of
from cumulus.ops.site import Site
from cumulus.storage.api import ABSENT, Changed, Entry, IfToken, NoBucket, NoSpace

TRIES: Final = 32
T = TypeVar("T")
Store = Callable[[IfToken], Entry]  # stores a marker


def with_room(site: Site, act: Callable[[], T]) -> T:
    """What a removal has to write, also when there is no room but what was set aside. Raises what it
    raises."""
    while True:
        try:
            return act()
        except NoSpace:
            if not site.store.make_room():
                raise


def take_back(site: Site, bucket: Bucket, marker: Entry, former: Entry | None) -> None:
    """A marker of ours goes, if it is there still; the marker that it has replaced comes back, unless the
    index has an object in that one's place by now."""
    meta = None if former is None else meta_of(bucket, former)
    row = None if meta is None else site.index.lookup(bucket.name, meta.key, meta.version)
    if former is None or former.meta is None or (row is not None and not row.marker):
        site.remove_if(bucket.name, marker.name, marker.token)
        return
    stream = site.store.open_write(bucket.name, marker.name, 0)
    try:
        with suppress(Changed):
            stream.commit(former.meta, marker.token)
    finally:
        stream.close()


def store_over(
    site: Site, bucket: Bucket, found: Found, aside: Entry, gone: int, store: Store
) -> tuple[int, Entry] | None:
    """The marker takes the place of the body `aside`, when what was found has lost its name (`gone`: that
    removal's stamp). Gives the marker, and the stamp at which the key counts as deleted: `gone`, as what is
    put under the name after that has a later one; or, where others have changed what is aside, the marker's,
    which is later than theirs. None: then something has been put since, and no marker of ours is there.
    Raises `Changed`, and storage errors."""
    now: Entry | None = aside
    for number in range(TRIES):
        with suppress(Changed):
            marker = store(ABSENT if now is None else now.token)
            if not number:
                return gone, marker
            if not _is_put(site, bucket, found, aside):
                return max(gone, marker.stamp), marker
            site.remove_if(bucket.name, marker.name, marker.token)
        if _is_put(site, bucket, found, aside):
            return None
        now = null_aside(site, bucket, found.meta.key)
    raise Changed(f"the version null of {found.meta.key!r} is being changed")


def _is_put(site: Site, bucket: Bucket, found: Found, aside: Entry) -> bool:
    """Whether an object has been put under the name that what was found has lost. That itself may have it
    again, or what was aside: another process makes them current just now."""
    try:
        meta = meta_of(bucket, site.store.stat(bucket.name, found.entry.name))
    except NoBucket:
        raise
    except NOT_THERE:
        return False
    null = meta_of(bucket, aside)
    known = [(one.version, one.modified_ns) for one in (found.meta, null) if one is not None]
    return meta is not None and (meta.version, meta.modified_ns) not in known
