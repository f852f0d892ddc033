"""Sessions of service accounts that act for other users.

Revision 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    with op.batch_alter_table("session", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "via",
                sa.Text(),
                server_default="",
                nullable=False,
                comment="service account that acts for the user",
            )
        )
        batch_op.add_column(sa.Column("via_epoch", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    """Back to the revision before; sessions by service accounts end."""
    op.execute(sa.text("DELETE FROM session WHERE via <> ''"))
    with op.batch_alter_table("session", schema=None) as batch_op:
        batch_op.drop_column("via_epoch")
        batch_op.drop_column("via")
