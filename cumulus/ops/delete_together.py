"""Deleting many objects without versions with one sync of storage and one change of the index."""

from __future__ import annotations

from collections.abc import Sequence

from cumulus.index.api import Remove, Row
from cumulus.model import Bucket, Versioning
from cumulus.ops.names import other_name
from cumulus.ops.publish import remove_other
from cumulus.ops.rows import OPAQUE
from cumulus.ops.site import Site
from cumulus.storage.api import Changed, Missing, NoBucket, StorageError, Taken


def fits_together(site: Site, bucket: Bucket, row: Row) -> bool:
    """Whether `delete_together` can delete the current object of that row, at less cost than one by one. Keys
    that may have another object under another name, and files that others made, are looked at first, each by
    itself."""
    can = bucket.versioning is Versioning.OFF and site.compares and site.store.capabilities.together
    single = can and not site.has_two_names(row.key)
    ours = bool(row.token) and (site.opaque_etags or not row.etag.endswith(OPAQUE))
    return single and ours and row.name == row.key


def delete_together(site: Site, bucket: Bucket, rows: Sequence[Row]) -> list[bool | StorageError]:
    """Delete objects of different keys, each only if it is still just what its row says: one sync of storage
    and one change of the index for all of them, which a power cut may undo (then the next scan finds it).
    For each, in their order, whether it is deleted, or why storage has it still. Raises what the index
    raises, and the error of storage that is everybody's."""
    site.told.check_removal()
    found = site.store.delete_all(bucket.name, [(row.name, row.token) for row in rows])
    outcomes: list[bool | StorageError] = []
    gone: list[Remove] = []
    for row, stamp in zip(rows, found, strict=True):
        if isinstance(stamp, StorageError):
            changed = isinstance(stamp, (Changed, Missing, Taken)) and not isinstance(stamp, NoBucket)
            outcomes.append(False if changed else stamp)
            continue
        outcome: bool | StorageError = True
        try:
            if (other := other_name(row.key, row.name)) is not None:
                stamp = max(stamp, remove_other(site, bucket, other))
        except StorageError as bad:  # the index hears of what has gone all the same
            outcome = bad
        outcomes.append(outcome)
        gone.append(Remove(bucket=bucket.name, key=row.key, stamp=stamp))
    if gone:
        site.told.tell(lambda: site.index.apply_soon(gone), gone)
    return outcomes
