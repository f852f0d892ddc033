"""Alembic's entry: runs on the connection that the store gives it."""

from __future__ import annotations

from alembic import context

from sector.security.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
