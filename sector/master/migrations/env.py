"""Runs the migrations on the connection that `sector.master.store` hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from sector.master.models import Base


def run(connection: Connection) -> None:
    """Bring the schema to the wanted revision, in the caller's transaction."""
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=True, compare_type=True
    )
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])
