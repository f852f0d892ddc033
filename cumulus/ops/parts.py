"""Where the parts of an upload lie: at their final place in one file where storage can do that, else each
under a name of its own; and how they become one object.

A part of a known size goes to (number - 1) * slot of a file that all parts of the upload share, where `slot`
is the size of the parts that came before or are on their way, or its own. The index says which parts lie
there; bytes that it does not speak of are nothing. So a part that is sent again does not touch the one that
counts: it gets a name of its own. At the end, if all parts but the last fill their slots, the file becomes
the object as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from cumulus.errors import S3Error
from cumulus.index.api import Upload
from cumulus.model import ObjectMeta, Part, encode_meta
from cumulus.ops.drafts import asks
from cumulus.ops.incoming import Incoming
from cumulus.ops.names import part_name, part_prefix, slots_name, slots_prefix
from cumulus.ops.site import Site
from cumulus.storage.api import Entry, IfToken, ObjectStream, Piece, RangeStream

MAX_PARTS: Final = 10_000
LEAST: Final = 128 << 10  # bytes of a first part that begins a shared file
SLOTS: Final = 16  # shared files of one upload that are looked at
ROUND: Final = 64 << 10  # bytes; clients send multiples of it, but for the last part
LOOKS: Final = 8
LOOK_S: Final = 0.003
MOST: Final = 8 << 40  # bytes at which such a file ends; many file systems have none longer than 16 TiB


class IncomingPart(Incoming):
    """One part on its way in. `slot` is that of `Part`."""

    def __init__(
        self,
        site: Site,
        upload: Upload,
        number: int,
        *,
        size: int | None,
        limit: int,
        algorithms: Iterable[str],
    ) -> None:
        """Raises as `Incoming`."""
        self._upload = upload
        self.number = number
        self.slot = 0
        name = f"{part_prefix(upload.id, number)}incoming"
        super().__init__(site, upload.bucket, name, size=size, limit=limit, algorithms=algorithms, objects=0)

    def _open(self, bucket: str, name: str) -> ObjectStream | RangeStream:
        return self._claim(bucket) or super()._open(bucket, name)

    def _claim(self, bucket: str) -> RangeStream | None:
        """The part's place in the shared file, if that is free."""
        size = self.expected
        if not size or not self._site.store.capabilities.offsets:
            return None
        slot = self._slot(bucket, size)
        start = (self.number - 1) * slot
        if not slot or start + size > MOST:
            return None
        new = not self._is_used(slot)
        claimed = self._site.store.open_range(
            bucket, slots_name(self._upload.id, slot), start, size, create=new
        )
        if claimed is None:
            return None
        try:
            # asked while nobody else can write there
            there = self._site.index.parts(self._upload.id, after=self.number - 1, limit=1)
            taken = bool(there) and (there[0].number, there[0].slot) == (self.number, slot)
        except BaseException:
            claimed.leave()
            raise
        if taken:  # the part that counts until this one does
            claimed.leave()
            return None
        self.slot = slot
        return claimed

    def _is_used(self, slot: int) -> bool:
        """Whether the index has parts in the file of that slot. If that is gone it has become an object, by a
        completion that did not come to its end: a new one would have holes where they were."""
        for limit in (2, 100, MAX_PARTS):  # the first ones are there mostly
            first = self._site.index.parts(self._upload.id, limit=limit)
            if any(part.slot == slot for part in first):
                return True
            if len(first) < limit:
                break
        return False

    def _slot(self, bucket: str, size: int) -> int:
        """The slot for a part of this size; 0: none."""
        known = max((part.size for part in self._site.index.parts(self._upload.id, limit=2)), default=0)
        if not known and self.number > 1:
            known = self._on_their_way(bucket, size)
        if size <= known:
            return known if known >= LEAST else 0
        return size if size >= LEAST else 0

    def _on_their_way(self, bucket: str, size: int) -> int:
        """The size of the parts of which none has ended; 0: nobody knows. Clients that send parts side by
        side send the last one, which is smaller, with the others: then a shared file tells. A size that is
        not round is that of a last part, mostly, and the first may be just behind it."""
        prefix = slots_prefix(self._upload.id)
        for look in range(LOOKS):
            if look:
                time.sleep(LOOK_S)
            there = self._site.store.names(bucket, prefix=prefix, limit=SLOTS)
            tails = (entry.name[len(prefix) :] for entry in there)
            known = max((int(tail) for tail in tails if tail.isascii() and tail.isdigit()), default=0)
            if known or size % ROUND == 0:
                break
        return known

    def keep(self, part: Part) -> Part:
        """Make it durable where it is; the part with its place."""
        part = msgspec.structs.replace(part, number=self.number, size=self.size, slot=self.slot)
        if isinstance(self._stream, RangeStream):
            self.confirm()
            self._stream.sync()
        else:
            record = ObjectMeta(
                key=self._upload.key,
                size=part.size,
                etag=part.etag,
                modified_ns=part.modified_ns,
                acl=self._upload.meta.acl,
            )
            self.place(own_name(self._upload, part), encode_meta(record), None)
        return part


def own_name(upload: Upload, part: Part) -> str:
    """Of a part that has a file of its own."""
    return part_name(upload.id, part.number, part.etag)


def join(
    site: Site,
    upload: Upload,
    parts: Sequence[Part],
    name: str,
    meta: bytes,
    if_token: IfToken,
    confirm: Callable[[], None],
) -> Entry:
    """Publish parts, which the index has, as one object, if `confirm` raises nothing just before. Raises as
    `FileStore.concat`, and `S3Error` InvalidPart when they are not the upload's parts any more."""
    if not any(part.slot for part in parts):
        names = [own_name(upload, part) for part in parts]
        if asks(type(site.store), "concat", "size"):
            size = sum(part.size for part in parts)
            return site.store.concat(upload.bucket, names, name, meta, if_token, check=confirm, size=size)
        if asks(type(site.store), "concat"):
            return site.store.concat(upload.bucket, names, name, meta, if_token, check=confirm)
        confirm()
        return site.store.concat(upload.bucket, names, name, meta, if_token)
    pieces = [_piece(upload, part) for part in parts]

    def check() -> None:
        """What lies in a slot is what the index says, or is not in it."""
        there = {part.number: part for part in site.index.parts(upload.id, limit=MAX_PARTS)}
        for part in parts:
            if there.get(part.number) != part:
                raise S3Error("InvalidPart", fields={"UploadId": upload.id, "PartNumber": str(part.number)})
        confirm()

    base = _base(site, upload, parts)
    return site.store.join(upload.bucket, pieces, name, meta, if_token, base=base, check=check)


def _piece(upload: Upload, part: Part) -> Piece:
    if part.slot:
        return Piece(slots_name(upload.id, part.slot), (part.number - 1) * part.slot, part.size)
    return Piece(own_name(upload, part), 0, part.size)


def _base(site: Site, upload: Upload, parts: Sequence[Part]) -> str:
    """The shared file that may become the object: its slots are where these parts belong, and there are no
    other parts in it, which would be lost. "": none."""
    slot = parts[0].size if len(parts) > 1 else parts[0].slot
    fits = all(part.number == place for place, part in enumerate(parts, 1))
    fits = fits and all(part.size == slot for part in parts[:-1]) and parts[-1].size <= slot
    if not fits or not any(part.slot == slot for part in parts):
        return ""
    behind = site.index.parts(upload.id, after=len(parts), limit=MAX_PARTS)
    return "" if any(part.slot == slot for part in behind) else slots_name(upload.id, slot)
