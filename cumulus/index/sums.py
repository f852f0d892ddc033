"""What the ledger's rows and quotas say of a bucket, its owner and his groups, read by plain SQL."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cumulus.index.api import Directory, NoSuch
from cumulus.index.ledger import Charge, Limits, Scope
from cumulus.index.readers import Run
from cumulus.index.writer import Deltas, Tx

_LIMITS = (
    "SELECT hard_bytes, hard_objects, soft_bytes, soft_objects, grace_s, over_soft_since_ns "
    "FROM quotas WHERE scope = ? AND name = ?"
)
_BUCKET = "SELECT bytes, objects, held FROM ledger WHERE bucket = ?"
_OWNERS = (
    "SELECT COALESCE(SUM(ledger.bytes), 0), COALESCE(SUM(ledger.objects), 0), COALESCE(SUM(ledger.held), 0) "
    "FROM buckets JOIN ledger ON ledger.bucket = buckets.name "
    "WHERE buckets.owner IN (SELECT value FROM json_each(?))"
)


def bucket_charge(run: Run, bucket: str) -> Charge:
    """Raises `NoSuch`."""
    found = run(_BUCKET, (bucket,)).fetchone()
    if found is None:
        raise NoSuch(f"there is no bucket {bucket}")
    return _charge(run, "bucket", bucket, bucket, found)


def owners_charge(run: Run, scope: Scope, key: str, name: str, owners: Sequence[str]) -> Charge:
    """The sum over all buckets of some owners."""
    found = run(_OWNERS, (json.dumps(list(owners)),)).fetchone()
    return _charge(run, scope, key, name, found)


def _charge(run: Run, scope: Scope, key: str, name: str, sums: tuple[int, int, int]) -> Charge:
    limits = run(_LIMITS, (scope, key)).fetchone()
    return Charge(scope, key, name, *sums, limits=Limits(*limits) if limits is not None else Limits())


def charges(run: Run, directory: Directory, bucket: str) -> list[Charge]:
    """Of the bucket, its owner and the owner's groups. Raises `NoSuch`."""
    found = run("SELECT owner FROM buckets WHERE name = ?", (bucket,)).fetchone()
    if found is None:
        raise NoSuch(f"there is no bucket {bucket}")
    return [bucket_charge(run, bucket), *owner_charges(run, directory, found[0])]


def owner_charges(run: Run, directory: Directory, owner: str) -> list[Charge]:
    """Of an owner and his groups."""
    user = directory.user(owner)
    result = [owners_charge(run, "user", owner, user.name if user else owner, [owner])]
    for group in user.groups if user else ():
        result.append(owners_charge(run, "group", group, group, directory.members(group) or []))
    return result


def add(tx: Tx, deltas: Deltas) -> None:
    """Add what a transaction changed to the ledger's rows."""
    for bucket, (size, objects, held) in deltas.items():
        if size or objects or held:
            tx.run(
                "UPDATE ledger SET bytes = bytes + ?, objects = objects + ?, held = held + ? "
                "WHERE bucket = ?",
                (size, objects, held, bucket),
            )


def recount(tx: Tx, bucket: str) -> bool:
    """Set the ledger's row to what the rows of objects and parts say; False when there is no such bucket."""
    old = "SELECT size FROM versions WHERE bucket = ?1 AND NOT marker"
    rows = f"(SELECT size FROM objects WHERE bucket = ?1 UNION ALL {old})"
    mine = "SELECT id FROM uploads WHERE bucket = ?1"
    held = f"SELECT size FROM parts WHERE upload_id IN ({mine})"
    changed = tx.run(
        f"UPDATE ledger SET bytes = (SELECT COALESCE(SUM(size), 0) FROM {rows}), "
        f"objects = (SELECT COUNT(*) FROM {rows}), "
        f"held = (SELECT COALESCE(SUM(size), 0) FROM ({held})) WHERE bucket = ?1",
        (bucket,),
    )
    return bool(changed.rowcount)


def has_soft(run: Run) -> bool:
    """Whether any quota has a soft limit."""
    query = "SELECT 1 FROM quotas WHERE soft_bytes > 0 OR soft_objects > 0 LIMIT 1"
    return run(query).fetchone() is not None


def mark_soft(tx: Tx, found: Sequence[Charge]) -> bool:
    """Note since when each charge is over its soft limit, or that it no longer is; whether any changed."""
    changed = False
    for charge in found:
        limits = charge.limits
        over = limits.over_soft(charge.used, charge.objects)
        if over == bool(limits.over_soft_since_ns):
            continue
        changed = True
        tx.run(
            "UPDATE quotas SET over_soft_since_ns = ? WHERE scope = ? AND name = ?",
            (tx.now_ns if over else 0, charge.scope, charge.key),
        )
    return changed
