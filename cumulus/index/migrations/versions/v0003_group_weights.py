"""Weights of groups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Groups that are there weigh 1."""
    op.add_column("groups", sa.Column("weight", sa.Integer, nullable=False, server_default="1"))


def downgrade() -> None:
    """Forget them."""
    op.drop_column("groups", "weight")
