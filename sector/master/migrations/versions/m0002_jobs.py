"""Sphere jobs.

Revision 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "job",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("started", sa.Float(), nullable=False, comment="seconds since 1970"),
        sa.Column("body", sa.LargeBinary(), nullable=False, comment="msgpack of sector.master.jobs.JobState"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_started"), ["started"], unique=False)


def downgrade() -> None:
    """Back to the revision before."""
    op.drop_table("job")
