"""The first schema: settings, entries, replicas, tombstones, trash, leases, sessions, mirrored rights.

Revision 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "entry",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("mode", sa.Integer(), nullable=False),
        sa.Column("mtime", sa.Float(), nullable=False, comment="seconds since 1970"),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("copies", sa.Integer(), nullable=False, comment="asked for by a user, 0 = as configured"),
        sa.Column(
            "serial", sa.BigInteger(), nullable=False, comment="mirror serial of a directory, 0 for files"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_entry")),
        sa.UniqueConstraint("path", name=op.f("uq_entry_path")),
    )
    with op.batch_alter_table("entry", schema=None) as batch_op:
        batch_op.create_index("ix_entry_parent_path", ["parent", "path"], unique=False)
        batch_op.create_index(
            "ix_entry_serial",
            ["serial"],
            unique=False,
            sqlite_where=sa.text("serial > 0"),
            postgresql_where=sa.text("serial > 0"),
        )

    op.create_table(
        "lease",
        sa.Column("id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("mode", sa.Integer(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False, comment="seconds since 1970"),
        sa.Column("state", sa.Text(), nullable=False, comment="open or published"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
    )
    with op.batch_alter_table("lease", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_lease_expires"), ["expires"], unique=False)
        batch_op.create_index(
            "uq_lease_open_path",
            ["path"],
            unique=True,
            sqlite_where=sa.text("state = 'open'"),
            postgresql_where=sa.text("state = 'open'"),
        )

    op.create_table(
        "mirrored_right",
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("serial", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("user", "path", name=op.f("pk_mirrored_right")),
    )
    with op.batch_alter_table("mirrored_right", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_mirrored_right_serial"), ["serial"], unique=False)

    op.create_table(
        "session",
        sa.Column("id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("secret_wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.BigInteger(), nullable=False),
        sa.Column("rights_epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False, comment="seconds since 1970"),
        sa.Column("cidr", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False, comment="JSON array of names"),
        sa.Column("rights", sa.Text(), nullable=False, comment="JSON array of [user, path, letters]"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
    )
    op.create_table(
        "setting",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_setting")),
    )
    op.create_table(
        "tombstone",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False, comment="seconds since 1970"),
        sa.Column("directory", sa.Boolean(), nullable=False),
        sa.Column("serial", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_tombstone")),
    )
    with op.batch_alter_table("tombstone", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tombstone_serial"), ["serial"], unique=False)

    op.create_table(
        "trash",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("surplus", sa.Boolean(), nullable=False, comment="true = no tombstone goes with it"),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False, comment="seconds since 1970"),
        sa.PrimaryKeyConstraint("node", "path", "surplus", name=op.f("pk_trash")),
    )
    with op.batch_alter_table("trash", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_trash_path"), ["path"], unique=False)

    op.create_table(
        "replica",
        sa.Column("entry_id", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.Column("confirmed", sa.Float(), nullable=False, comment="seconds since 1970"),
        sa.Column("bad", sa.Boolean(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False, comment="number of the last report that named it"),
        sa.Column(
            "old_path", sa.Text(), nullable=True, comment="name the slave knows until it confirms a rename"
        ),
        sa.Column("old_epoch", sa.BigInteger(), nullable=False),
        sa.Column("old_counter", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["entry_id"], ["entry.id"], name=op.f("fk_replica_entry_id_entry"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("entry_id", "node", name=op.f("pk_replica")),
    )
    with op.batch_alter_table("replica", schema=None) as batch_op:
        batch_op.create_index("ix_replica_node", ["node"], unique=False)
        batch_op.create_index(
            "ix_replica_old",
            ["node", "old_path"],
            unique=False,
            sqlite_where=sa.text("old_path IS NOT NULL"),
            postgresql_where=sa.text("old_path IS NOT NULL"),
        )


def downgrade() -> None:
    """Back to the one before."""
    with op.batch_alter_table("replica", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_replica_old",
            sqlite_where=sa.text("old_path IS NOT NULL"),
            postgresql_where=sa.text("old_path IS NOT NULL"),
        )
        batch_op.drop_index("ix_replica_node")

    op.drop_table("replica")
    with op.batch_alter_table("trash", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_trash_path"))

    op.drop_table("trash")
    with op.batch_alter_table("tombstone", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tombstone_serial"))

    op.drop_table("tombstone")
    op.drop_table("setting")
    op.drop_table("session")
    with op.batch_alter_table("mirrored_right", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_mirrored_right_serial"))

    op.drop_table("mirrored_right")
    with op.batch_alter_table("lease", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_lease_open_path",
            sqlite_where=sa.text("state = 'open'"),
            postgresql_where=sa.text("state = 'open'"),
        )
        batch_op.drop_index(batch_op.f("ix_lease_expires"))

    op.drop_table("lease")
    with op.batch_alter_table("entry", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_entry_serial", sqlite_where=sa.text("serial > 0"), postgresql_where=sa.text("serial > 0")
        )
        batch_op.drop_index("ix_entry_parent_path")

    op.drop_table("entry")
