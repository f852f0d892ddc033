"""What administrators do with all objects of a bucket: give them to another user, or delete them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from cumulus.admin.unfinished import part_done
from cumulus.index.api import Change, Index, IndexFailure, Put, Remove, Row, StillUsed
from cumulus.model import Acl, Bucket, Grant, User, decode_meta, encode_meta
from cumulus.ops.bin import time_to_read
from cumulus.ops.left import note
from cumulus.ops.names import BODIES, DOUBT, LEFT, ODD, PARTS, VERSIONS, body_name, version_name
from cumulus.ops.rows import OPAQUE, meta_of, row_of
from cumulus.storage.api import Changed, Entry, FileStore, Forbidden, Missing, NotEmptyStore, Unavailable
from cumulus.words import count_text
from sector.errors import NotEmpty

_PAGE: Final = 1000
_NAMED: Final = 5  # keys in a message
_LATE: Final = 20  # times that the index may hear of something after its storage has gone
_LATE_S: Final = 0.05
_HEEDED_S: Final = 2.0  # until every process heeds a policy, and small uploads under way have ended


def rows_of(index: Index, bucket: str) -> Iterator[list[Row]]:
    """All versions and markers, page by page; what was read may be removed meanwhile."""
    after = after_version = ""
    while True:
        page = index.page_versions(bucket, after=after, after_version=after_version, limit=_PAGE)
        if page.rows:
            yield page.rows
        if not page.truncated:
            return
        after, after_version = page.next, page.next_version


def give(index: Index, store: FileStore, bucket: Bucket, to: User, unread: list[str] | None = None) -> int:
    """Make `to` the owner of the bucket and of all objects in it that its owner owns, those too that uploads
    are to become. Grants to others stay,
    those to the former owner go: each list has one, made with it. Returns how many objects changed hands;
    `unread` gets the keys of others, whose records may not be read or changed, and may say the former owner
    still. Objects that change meanwhile keep their new owner. Raises `NoSuch`, `StorageError`, and
    `Unfinished` if some had changed hands: the bucket itself does so last, so again goes on from there."""
    store.check_bucket(bucket.name)
    former = bucket.owner
    if former == to.id:
        return 0
    acl = _handed(bucket.acl, former, to.id)
    count = 0
    unread = [] if unread is None else unread

    def done() -> str:
        return f"{count_text(count, 'object')} of bucket {bucket.name} given to {to.name}" if count else ""

    with part_done(done):
        for moved in _give_objects(index, store, bucket, former, to, unread):
            count = moved
        _give_uploads(index, bucket.name, former, to)
        index.set_bucket(msgspec.structs.replace(bucket, owner=to.id, acl=acl), ["owner", "acl"])
        begun = count  # and what its former owner put until then
        try:
            _give_uploads(index, bucket.name, former, to)
            for moved in _give_objects(index, store, bucket, former, to, unread):
                count = begun + moved
        except BaseException:
            with contextlib.suppress(IndexFailure):  # or once more would not find the rest
                index.set_bucket(bucket, ["owner", "acl"])
            raise
    return count


def give_rest(
    index: Index, store: FileStore, bucket: Bucket, former: str, to: User, unread: list[str]
) -> int:
    """What the user of the id `former` still owns in a bucket that is `to`'s already, by rows or by records.
    As `give`."""
    store.check_bucket(bucket.name)
    _give_uploads(index, bucket.name, former, to)
    return max(_give_objects(index, store, bucket, former, to, unread, again=True), default=0)


def unread_text(bucket: str, to: str, former: str, unread: Sequence[str]) -> str:
    """What is to be done about those."""
    some = ", ".join(unread[:_NAMED]) + (" ..." if len(unread) > _NAMED else "")
    return (
        f"{count_text(len(unread), 'object')} of bucket {bucket} could not be changed, and may still be "
        f"{former}'s: {some}; once the service may read and write such files: "
        f"cumulus bucket chown {bucket} {to} --from {former}"
    )


def _give_uploads(index: Index, bucket: str, former: str, to: User) -> None:
    after = after_id = ""
    while found := index.uploads(bucket, after=after, after_id=after_id, limit=_PAGE):
        for one in found:
            if one.owner == former:
                meta = msgspec.structs.replace(one.meta, acl=_handed(one.meta.acl, former, to.id))
                index.set_upload(msgspec.structs.replace(one, owner=to.id, meta=meta))
        after, after_id = found[-1].key, found[-1].id


def _give_objects(
    index: Index,
    store: FileStore,
    bucket: Bucket,
    former: str,
    to: User,
    unread: list[str],
    *,
    again: bool = False,
) -> Iterator[int]:
    """How many have changed hands by now, page by page. `again`: there may be some that only their records
    say to be the former owner's."""
    count, can = 0, store.capabilities
    for rows in rows_of(index, bucket.name):
        theirs = [row for row in rows if row.owner == former]
        if can.atomic_replace and can.compares:
            began = len(unread)
            changes = [change for row in theirs for change in _given(store, bucket, row, to, unread)]
            if changes:
                index.apply(changes)
            count += len(changes) - (len(unread) - began)
        else:
            count += _give_alone(index, store, bucket, theirs, to, unread)
        if again and can.atomic_replace:  # or each record is a body of its own, made anew with its row
            said = [row for row in rows if row.owner == to.id and not row.marker]
            count += _give_said(index, store, bucket, said, former, to, unread)
        yield count


def _give_said(
    index: Index,
    store: FileStore,
    bucket: Bucket,
    rows: Sequence[Row],
    former: str,
    to: User,
    unread: list[str],
) -> int:
    """Of rows that say they are his already, those of whose records that is not true. How many."""
    compares = store.capabilities.compares
    changes: list[Change] = []
    count = 0
    for row in rows:
        if not _says(store, bucket, row, former, unread):
            continue
        began = len(unread)
        with contextlib.nullcontext() if compares else index.alone(bucket.name, row.key):
            now = row if compares else index.lookup(bucket.name, row.key, row.version)
            if now is None or (now.name, now.owner) != (row.name, row.owner):
                continue
            given = _given(store, bucket, msgspec.structs.replace(now, owner=former), to, unread)
            if given and not compares:
                index.apply(given)
        changes += given
        count += bool(given) and len(unread) == began
    if changes and compares:
        index.apply(changes)
    return count


def _says(store: FileStore, bucket: Bucket, row: Row, former: str, unread: list[str]) -> bool:
    """Whether a row's record says that it is the former owner's."""
    try:
        _, entry = _stored(store, row)
    except Missing:
        return False
    except Forbidden:
        if not row.etag.endswith(OPAQUE):
            unread.append(row.key)
        return False
    meta = meta_of(bucket, entry)
    return entry.meta is not None and meta is not None and meta.acl.owner == former


def _give_alone(
    index: Index, store: FileStore, bucket: Bucket, rows: Sequence[Row], to: User, unread: list[str]
) -> int:
    """The same where storage does not see to it that nothing else has come in an object's place: one by one,
    while no server changes the key. How many. A body that is copied for it is copied before."""
    count, over = 0, list[tuple[str, int]]()
    anew = not store.capabilities.atomic_replace
    try:
        for row in rows:
            copied = _copied(store, row, to) if anew and not row.marker else None
            with index.alone(bucket.name, row.key):
                now = index.lookup(bucket.name, row.key, row.version)
                same = now is not None and (now.name, now.owner) == (row.name, row.owner)
                began = len(unread)
                changes = (
                    _given_now(store, bucket, now, to, copied, unread) if now is not None and same else []
                )
                if changes:
                    index.apply(changes)
            count += bool(changes) and len(unread) == began
            if copied is not None and changes:
                over.append((row.name, time.time_ns() + int(time_to_read(row.size) * 1e9)))
            elif copied is not None:
                over.append((copied.name, time.time_ns()))
    finally:
        if over:
            note(store, bucket.name, over)
    return count


def _given_now(
    store: FileStore, bucket: Bucket, row: Row, to: User, copied: Entry | None, unread: list[str]
) -> Sequence[Change]:
    """`_given`; where bodies have names of their own the row gets `copied`, nothing where that is not."""
    if copied is not None:
        return [
            Put(
                row=msgspec.structs.replace(row, owner=to.id, name=copied.name, token=copied.token), keep=True
            )
        ]
    return _given(store, bucket, row, to, unread) if row.marker or store.capabilities.atomic_replace else []


def _copied(store: FileStore, row: Row, to: User) -> Entry | None:
    """A row's bytes with a record that names the new owner, as a body of its own: the former one is not
    written over, somebody may read it. None when it has gone."""
    try:
        source = store.open_read(row.bucket, row.name)
    except Missing:
        return None
    try:
        meta = source.entry.meta
        if meta is None:
            return None
        return store.copy(source, row.bucket, body_name(), _handed_meta(meta, row, to))
    finally:
        source.close()


def _handed_meta(meta: bytes, row: Row, to: User) -> bytes:
    known = decode_meta(meta)
    return encode_meta(msgspec.structs.replace(known, acl=_handed(known.acl, row.owner, to.id)))


def _handed(acl: Acl, former: str, to: str) -> Acl:
    """The list under its new owner; full control is his where the former owner had it."""
    grants = []
    for grant in acl.grants:
        if grant.grantee != f"user:{former}":
            grants.append(grant)
        elif grant.permission == "FULL_CONTROL":
            grants.append(Grant(grantee=f"user:{to}", permission="FULL_CONTROL"))
    return Acl(owner=to, grants=tuple(dict.fromkeys(grants)))


def _given(store: FileStore, bucket: Bucket, row: Row, to: User, unread: list[str]) -> list[Change]:
    """The row with its new owner, in storage first; nothing when it has gone, or is another's by now. What
    has its sum has a record as well, mostly; where that may not be read or changed, `unread` gets the key."""
    if row.marker:
        return [Put(row=msgspec.structs.replace(row, owner=to.id), keep=True)]
    with contextlib.suppress(Missing, Changed):
        try:
            name, entry = _stored(store, row)
        except Forbidden:  # so is its record; a scan says whose it is once it may be read
            if not row.etag.endswith(OPAQUE):
                unread.append(row.key)
            return [Put(row=msgspec.structs.replace(row, owner=to.id), keep=True)]
        meta = meta_of(bucket, entry)
        if entry.meta is None or meta is None:  # of others, who may have changed it: a scan says what it is
            return [Put(row=msgspec.structs.replace(row, owner=to.id), keep=True)]
        if (meta.acl.owner, meta.version) != (row.owner, row.version):
            return []
        try:
            given = store.set_meta(row.bucket, name, _handed_meta(entry.meta, row, to), entry.token)
        except Forbidden:
            unread.append(row.key)
            return [Put(row=msgspec.structs.replace(row, owner=to.id), keep=True)]
        new = msgspec.structs.replace(row, owner=to.id, token=given.token)
        if row.latest:
            new = msgspec.structs.replace(new, stamp=max(row.stamp, given.stamp))
            if entry.token != row.token and (meta := meta_of(bucket, given)) is not None:
                # one of which the index has not heard yet, or that others have moved there
                new = msgspec.structs.replace(
                    row_of(bucket, given, meta), stamp=max(row.stamp + 1, given.stamp)
                )
        return [Put(row=new, keep=True)]
    return []


def _stored(store: FileStore, row: Row) -> tuple[str, Entry]:
    """Where a version is: an older one has a name of its own, though its row may still have the one that is
    the current object's by now, and the current one may have got the key's since. Raises `Missing`."""
    kept = version_name(row.key, row.version)
    if not row.latest or row.name == kept:
        with contextlib.suppress(Missing):
            return kept, store.stat(row.bucket, kept)
    name = row.key if row.name == kept else row.name
    return name, store.stat(row.bucket, name)


def check_deletable(store: FileStore, bucket: str) -> None:
    """Raises `NotEmpty` for something in the way of `delete`, with its path."""
    with contextlib.suppress(Missing):  # it is gone already
        if found := store.obstacle(bucket):
            hint = "look what it is and remove it by hand, then once more"
            raise NotEmpty(f"bucket {bucket!r} has {found!r} in it, which is no object", hint=hint)


def delete(index: Index, store: FileStore, bucket: str) -> int:
    """Delete a bucket with its objects, versions and uploads, and plain files that others put there. Returns
    how many objects there were. Raises `NotEmpty` before anything is deleted where there is something else,
    `NoSuch`, `StorageError`, and `Unfinished` if some were deleted; again goes on where it ended."""
    check_deletable(store, bucket)
    count = 0

    def all_of_it() -> None:
        nonlocal count
        begun = count
        for deleted in _delete_objects(index, store, bucket):
            count = begun + deleted
        _delete_rest(index, store, bucket)

    with part_done(lambda: f"{count_text(count, 'object')} of bucket {bucket} deleted" if count else ""):
        try:
            all_of_it()
        except (NotEmptyStore, StillUsed, Unavailable):  # somebody puts more and more
            with _closed(index, bucket):
                all_of_it()
    return count


@contextlib.contextmanager
def _closed(index: Index, bucket: str) -> Iterator[None]:
    """Inside nobody but administrators may do anything in the bucket, which is about to go; where it does not
    go it has its policy again."""
    before = index.bucket(bucket)
    if before is None:
        yield
        return
    policy = msgspec.json.encode({"Version": "2012-10-17", "Statement": [_nothing(bucket)]}).decode()
    index.set_bucket(msgspec.structs.replace(before, policy=policy, principals={}), ["policy", "principals"])
    try:
        time.sleep(_HEEDED_S)
        yield
    except BaseException:
        with contextlib.suppress(IndexFailure):
            index.set_bucket(before, ["policy", "principals"])
        raise


def _nothing(bucket: str) -> dict[str, object]:
    arn = f"arn:aws:s3:::{bucket}"
    return {
        "Sid": "BucketIsBeingRemoved",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, f"{arn}/*"],
    }


def _delete_objects(index: Index, store: FileStore, bucket: str) -> Iterator[int]:
    """How many have been deleted by now, page by page."""
    _drop_uploads(index, bucket)
    count = 0
    for rows in rows_of(index, bucket):
        index.apply([_gone(store, row) for row in rows])
        count += sum(not row.marker for row in rows)
        yield count
    with contextlib.suppress(Missing):
        for names in store.walk(bucket):
            count += _delete_names(store, bucket, names)
            yield count


def _delete_rest(index: Index, store: FileStore, bucket: str) -> None:
    """What has no key, and the bucket."""
    with contextlib.suppress(Missing):
        for prefix in (ODD, PARTS, VERSIONS, BODIES, LEFT, DOUBT):
            after = ""
            while names := [entry.name for entry in store.names(bucket, after, prefix, _PAGE)]:
                _delete_names(store, bucket, names)
                after = names[-1]
    with contextlib.suppress(Missing):
        store.remove_hollow(bucket)
        store.delete_bucket(bucket)
    for _ in range(_LATE):
        with contextlib.suppress(StillUsed):
            index.drop_bucket(bucket)
            return
        _forget_rows(index, bucket)  # a server has told of what went with its storage
        time.sleep(_LATE_S)
    index.drop_bucket(bucket)


def forget(index: Index, store: FileStore, bucket: str) -> None:
    """Take a bucket with an adopted directory out of the index, without a look at the directory. Raises
    `NoSuch`, `StorageError`; again goes on where it ended."""
    _forget_rows(index, bucket)
    store.forget_bucket(bucket)
    index.drop_bucket(bucket)


def _forget_rows(index: Index, bucket: str) -> None:
    _drop_uploads(index, bucket)
    for rows in rows_of(index, bucket):
        gone = [Remove(bucket=row.bucket, key=row.key, version=row.version, stamp=row.stamp) for row in rows]
        index.apply(gone)


def _drop_uploads(index: Index, bucket: str) -> None:
    for upload in iter(lambda: index.uploads(bucket, limit=_PAGE), []):
        for one in upload:
            index.drop_upload(one.id)


def _delete_names(store: FileStore, bucket: str, names: Sequence[str]) -> int:
    for name in names:
        with contextlib.suppress(Missing):
            store.delete(bucket, name)
    return len(names)


def _gone(store: FileStore, row: Row) -> Remove:
    stamp = row.stamp
    if not row.marker:
        with contextlib.suppress(Missing):
            stamp = max(stamp, store.delete(row.bucket, row.name))
    return Remove(bucket=row.bucket, key=row.key, version=row.version, stamp=stamp)
