"""PostgreSQL: reservations of several servers, and the functions that change and list."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cumulus.index.functions import FUNCTIONS

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make them; SQLite needs none."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.create_table(
        "holders",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column(
            "expires", sa.DateTime(timezone=True), nullable=False, comment="what it holds is free then"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_holders"),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.BigInteger, sa.Identity(), nullable=False),
        sa.Column("holder", sa.BigInteger, nullable=False),
        sa.Column("bucket", sa.Text(collation="C"), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("objects", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
        sa.ForeignKeyConstraint(
            ["holder"], ["holders.id"], name="fk_reservations_holder_holders", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_reservations_holder", "reservations", ["holder"])
    op.create_index("ix_reservations_bucket", "reservations", ["bucket"])
    for function in FUNCTIONS:
        op.execute(function)


def downgrade() -> None:
    """Drop them."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(
        "DROP FUNCTION cumulus_recount, cumulus_page, cumulus_reserve, cumulus_mark_soft, cumulus_sums, "
        "cumulus_drop_upload, cumulus_put_part, cumulus_apply, cumulus_remove, cumulus_put"
    )
    op.drop_table("reservations")
    op.drop_table("holders")
