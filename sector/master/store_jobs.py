"""Sphere jobs in the master's database: one row each, its body opaque to SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import delete, insert, select
from twisted.internet.defer import Deferred

from sector.master.models import JobRow
from sector.master.store import Store
from sector.master.store_tx import SqlTx


def job_save(store: Store, job_id: str, started: float, body: bytes) -> Deferred[None]:
    """Write or replace a job's row."""

    def save(tx: SqlTx) -> None:
        tx.connection.execute(delete(JobRow).where(JobRow.id == job_id))
        tx.connection.execute(insert(JobRow).values(id=job_id, started=started, body=body))

    return store.write(save)


def job_load(store: Store, limit: int) -> Deferred[list[bytes]]:
    """Bodies of the newest `limit` jobs, newest first."""

    def load(tx: SqlTx) -> list[bytes]:
        query = select(JobRow.body).order_by(JobRow.started.desc()).limit(limit)
        return list(tx.connection.execute(query).scalars())

    return store.read(load)


def job_forget(store: Store, job_ids: Iterable[str]) -> Deferred[None]:
    """Remove rows."""
    doomed = list(job_ids)

    def forget(tx: SqlTx) -> None:
        for job_id in doomed:
            tx.connection.execute(delete(JobRow).where(JobRow.id == job_id))

    return store.write(forget)


def job_leases(
    store: Store, user: str, output: str, nodes: Collection[str]
) -> Deferred[list[tuple[bytes, str]]]:
    """(id, path) of open leases on files `output`.… that slaves of `nodes` hold for a user."""

    def find(tx: SqlTx) -> list[tuple[bytes, str]]:
        held = tx.leases_of(user) if output else []
        return [(row.id, row.path) for row in held if row.node in nodes and row.path.startswith(f"{output}.")]

    return store.read(find)
