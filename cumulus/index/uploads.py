"""Multipart uploads in progress, inside a transaction or by a reader."""

from __future__ import annotations

from typing import Any

import msgspec

from cumulus.index.api import NameTaken, NoSuch, StillUsed, Upload
from cumulus.index.listing import behind
from cumulus.index.readers import Run
from cumulus.index.writer import Tx
from cumulus.model import Part

_encoder = msgspec.msgpack.Encoder()
_upload = msgspec.msgpack.Decoder(Upload)
_part = msgspec.msgpack.Decoder(Part)


def add(tx: Tx, upload: Upload) -> None:
    """Raises `NameTaken`, `NoSuch` (the bucket)."""
    if tx.run("SELECT 1 FROM uploads WHERE id = ?", (upload.id,)).fetchone():
        raise NameTaken(f"there is an upload {upload.id} already")
    if not tx.run("SELECT 1 FROM buckets WHERE name = ?", (upload.bucket,)).fetchone():
        raise NoSuch(f"there is no bucket {upload.bucket}")
    tx.run(
        "INSERT INTO uploads (id, bucket, key, created_ns, record) VALUES (?, ?, ?, ?, ?)",
        (upload.id, upload.bucket, upload.key.encode(), upload.created_ns, _encoder.encode(upload)),
    )


def renew(run: Run, upload: Upload) -> None:
    """Another record of an upload that is there still."""
    run("UPDATE uploads SET record = ? WHERE id = ?", (_encoder.encode(upload), upload.id))


def get(run: Run, bucket: str, key: str, id: str) -> Upload | None:
    """The upload of that id, if it is one of that key."""
    found = run("SELECT record FROM uploads WHERE id = ?", (id,)).fetchone()
    upload = _upload.decode(found[0]) if found is not None else None
    return upload if upload is not None and (upload.bucket, upload.key) == (bucket, key) else None


def page(run: Run, bucket: str, prefix: str, after: str, after_id: str, limit: int) -> list[Upload]:
    """In order of key, creation, id."""
    first, last = prefix.encode(), after.encode()
    # one bound below: of two, a database may begin at the lower one
    begin, values = _behind(run, bucket, last, after_id) if after and last >= first else ("key >= ?", [first])
    where = f"SELECT record FROM uploads WHERE bucket = ? AND {begin}"
    if prefix:
        where += " AND key < ?"
        values.append(behind(first))
    found = run(where + " ORDER BY key, created_ns, id LIMIT ?", (bucket, *values, limit)).fetchall()
    return [_upload.decode(row[0]) for row in found]


def _behind(run: Run, bucket: str, key: bytes, id: str) -> tuple[str, list[Any]]:
    if not id:
        return "key > ?", [key]
    found = run(
        "SELECT created_ns FROM uploads WHERE bucket = ? AND key = ? AND id = ?", (bucket, key, id)
    ).fetchone()
    if found is None:  # it has ended since; the key begins anew
        return "key >= ?", [key]
    return "(key, created_ns, id) > (?, ?, ?)", [key, found[0], id]


def put_part(tx: Tx, id: str, part: Part) -> int:
    """Record a part; returns the size of the one it replaces. Raises `NoSuch`."""
    upload = tx.run("SELECT bucket FROM uploads WHERE id = ?", (id,)).fetchone()
    if upload is None:
        raise NoSuch(f"there is no upload {id}")
    former = tx.run("SELECT size FROM parts WHERE upload_id = ? AND number = ?", (id, part.number)).fetchone()
    replaced = int(former[0]) if former is not None else 0
    tx.run(
        "INSERT INTO parts (upload_id, number, size, record) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (upload_id, number) DO UPDATE SET size = excluded.size, record = excluded.record",
        (id, part.number, part.size, _encoder.encode(part)),
    )
    tx.charge(upload[0], 0, 0, part.size - replaced)
    return replaced


def parts(run: Run, id: str, after: int, limit: int) -> list[Part]:
    """In order of their numbers."""
    found = run(
        "SELECT record FROM parts WHERE upload_id = ? AND number > ? ORDER BY number LIMIT ?",
        (id, after, limit),
    ).fetchall()
    return [_part.decode(row[0]) for row in found]


def claim(tx: Tx, id: str, claimant: str, life_s: float) -> bool:
    """As `Index.claim_upload`. Raises `NoSuch`."""
    _, other = _claimed(tx, id, claimant)
    if not other:
        until_ns = tx.now_ns + int(life_s * 1e9)
        tx.run("UPDATE uploads SET claimant = ?, claimed_until_ns = ? WHERE id = ?", (claimant, until_ns, id))
    return not other


def free_all(tx: Tx) -> None:
    """As `Index.free_uploads`."""
    tx.run("UPDATE uploads SET claimed_until_ns = 0 WHERE claimed_until_ns > 0")


def _claimed(tx: Tx, id: str, claimant: str) -> tuple[str, bool]:
    """The bucket of an upload, and whether another has claimed it. Raises `NoSuch`."""
    query = "SELECT bucket, claimant <> ? AND claimed_until_ns > ? FROM uploads WHERE id = ?"
    found = tx.run(query, (claimant, tx.now_ns, id)).fetchone()
    if found is None:
        raise NoSuch(f"there is no upload {id}")
    return found[0], bool(found[1])


def being_completed(id: str) -> StillUsed:
    """Said to who may not end an upload."""
    return StillUsed(f"upload {id} is being completed: try again in a minute")


def drop(tx: Tx, id: str, claimant: str) -> bool:
    """Take out an upload with its parts; False when there is none. Raises `StillUsed`."""
    try:
        bucket, other = _claimed(tx, id, claimant)
    except NoSuch:
        return False
    if other:
        raise being_completed(id)
    held = tx.run("SELECT COALESCE(SUM(size), 0) FROM parts WHERE upload_id = ?", (id,)).fetchone()[0]
    tx.run("DELETE FROM parts WHERE upload_id = ?", (id,))
    tx.run("DELETE FROM uploads WHERE id = ?", (id,))
    tx.charge(bucket, 0, 0, -held)
    return True
