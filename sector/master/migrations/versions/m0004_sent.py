"""The name that a slave was told to give a content, beside the one that it is known to have.

Revision 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_WHAT = "name the slave was told to give it, and may have given it"


def upgrade() -> None:
    """To this revision."""
    op.add_column("replica", sa.Column("sent_path", sa.Text(), nullable=True, comment=_WHAT))
    for name in ("sent_epoch", "sent_counter"):
        op.add_column("replica", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
    some = sa.text("sent_path IS NOT NULL")
    op.create_index(
        "ix_replica_sent", "replica", ["node", "sent_path"], sqlite_where=some, postgresql_where=some
    )


def downgrade() -> None:
    """Back to the revision before."""
    op.drop_index("ix_replica_sent", "replica")
    with op.batch_alter_table("replica", schema=None) as batch_op:
        for name in ("sent_counter", "sent_epoch", "sent_path"):
            batch_op.drop_column(name)
