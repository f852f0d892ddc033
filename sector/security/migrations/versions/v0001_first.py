"""Users, rights, allow-lists, changes and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "users",
        sa.Column("name", sa.String, nullable=False),
        sa.Column("password_hash", sa.String, nullable=False, comment="Argon2id, PHC string"),
        sa.Column("roles", sa.String, nullable=False, comment="names separated by spaces"),
        sa.Column("addresses", sa.String, nullable=False, comment="CIDR rules separated by spaces, ! denies"),
        sa.Column("rights_epoch", sa.Integer, nullable=False, comment="sessions with a lower one are closed"),
        sa.Column("created", sa.Double, nullable=False, comment="seconds since 1970"),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
    )
    op.create_table(
        "rights",
        sa.Column("user", sa.String, nullable=False),
        sa.Column("path", sa.String, nullable=False),
        sa.Column(
            "what",
            sa.String,
            nullable=False,
            comment="subset of rwx; empty takes what a directory above gives",
        ),
        sa.ForeignKeyConstraint(["user"], ["users.name"], name="fk_rights_user_users", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user", "path", name="pk_rights"),
    )
    op.create_table(
        "nodes",
        sa.Column("role", sa.String, nullable=False, comment="slave or master"),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("addresses", sa.String, nullable=False, comment="CIDR rules separated by spaces"),
        sa.PrimaryKeyConstraint("role", "name", name="pk_nodes"),
    )
    op.create_table(
        "changes",
        sa.Column("subject", sa.String, nullable=False, comment="user:NAME, slave:NAME, master:NAME"),
        sa.Column("serial", sa.Integer, nullable=False, comment="grows over the whole database"),
        sa.Column("epoch", sa.Integer, nullable=False, comment="rights_epoch of a user; 0 = removed"),
        sa.PrimaryKeyConstraint("subject", name="pk_changes"),
        sa.UniqueConstraint("serial", name="uq_changes_serial"),
    )
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double, nullable=False, comment="seconds since 1970"),
        sa.Column("who", sa.String, nullable=False),
        sa.Column("what", sa.String, nullable=False),
        sa.Column("detail", sa.String, nullable=False),
        sa.Column(
            "hash", sa.LargeBinary(32), nullable=False, comment="SHA-256 over the line before and this"
        ),
        sa.PrimaryKeyConstraint("seq", name="pk_audit"),
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("audit", "changes", "nodes", "rights", "users"):
        op.drop_table(table)
