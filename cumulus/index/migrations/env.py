"""Alembic's entry: runs on the connection that `cumulus.index.schema` gives it."""

from __future__ import annotations

from alembic import context

from cumulus.index.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
