"""Users, keys, groups, quotas, buckets, the ledger, objects and uploads."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


# PostgreSQL sorts text by a language unless it is told not to
_TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def _text(name: str, nullable: bool = False, comment: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, _TEXT, nullable=nullable, comment=comment)


def _number(name: str, comment: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=False, comment=comment)


def _bytes(name: str, comment: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.LargeBinary, nullable=False, comment=comment)


def _flag(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean, nullable=False)


def upgrade() -> None:
    """Make the tables."""
    _people()
    _buckets()
    _objects()
    _uploads()


def _people() -> None:
    op.create_table(
        "users",
        _text("id", comment="canonical id, 64 hex digits"),
        _text("name"),
        _text("display"),
        _text("email", comment="lower case, or empty"),
        sa.Column("weight", sa.Integer, nullable=False),
        _flag("disabled"),
        _flag("admin"),
        _text("unix_user"),
        _number("created_ns"),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
    )
    op.create_index("ix_users_email", "users", ["email"])
    op.create_table(
        "access_keys",
        _text("access_key"),
        _text("user_id"),
        _bytes("secret", "sealed: key number, nonce, AES-GCM; the access key is associated data"),
        _number("created_ns"),
        _number("expires_ns", "0 = never"),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_access_keys_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("access_key", name="pk_access_keys"),
    )
    op.create_index("ix_access_keys_user_id", "access_keys", ["user_id"])
    op.create_table(
        "groups",
        _text("name"),
        _number("created_ns"),
        sa.PrimaryKeyConstraint("name", name="pk_groups"),
    )
    op.create_table(
        "members",
        _text("group_name"),
        _text("user_id"),
        sa.ForeignKeyConstraint(
            ["group_name"], ["groups.name"], name="fk_members_group_name_groups", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_members_user_id_users", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("group_name", "user_id", name="pk_members"),
    )
    op.create_index("ix_members_user_id", "members", ["user_id"])
    op.create_table(
        "quotas",
        _text("scope", comment="user, group or bucket"),
        _text("name", comment="a user's canonical id, else the name"),
        _number("hard_bytes", "0 = no limit, as in the next three"),
        _number("hard_objects"),
        _number("soft_bytes"),
        _number("soft_objects"),
        _number("grace_s"),
        _number("over_soft_since_ns", "0 = not over a soft limit"),
        sa.PrimaryKeyConstraint("scope", "name", name="pk_quotas"),
    )


def _buckets() -> None:
    op.create_table(
        "buckets",
        _text("name"),
        _text("owner"),
        _bytes("record", "cumulus.model.Bucket as MessagePack"),
        sa.PrimaryKeyConstraint("name", name="pk_buckets"),
    )
    op.create_index("ix_buckets_owner", "buckets", ["owner"])
    op.create_table(
        "ledger",
        _text("bucket"),
        _number("bytes", "of all versions"),
        _number("objects", "all versions but delete markers"),
        _number("held", "bytes of parts of uploads in progress"),
        sa.PrimaryKeyConstraint("bucket", name="pk_ledger"),
    )


def _object_columns() -> list[sa.Column[Any]]:
    return [
        _text("bucket"),
        _bytes("key"),
        _text("version"),
        _number("stamp", "orders the versions of a key"),
        _text("name", nullable=True, comment="in storage; NULL = as the key"),
        _bytes("token"),
        _number("size"),
        _text("etag"),
        _number("modified_ns"),
        _text("owner"),
        _text("checksum"),
        _text("checksum_type"),
    ]


def _objects() -> None:
    op.create_table(
        "objects",
        *_object_columns(),
        sa.PrimaryKeyConstraint("bucket", "key", name="pk_objects"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "versions",
        *_object_columns(),
        _flag("marker"),
        sa.PrimaryKeyConstraint("bucket", "key", "version", name="pk_versions"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_versions_order", "versions", ["bucket", "key", sa.text("stamp DESC")])
    op.create_table(
        "removed",
        _text("bucket"),
        _bytes("key"),
        _text("version", comment="empty = whatever is current"),
        _number("stamp"),
        _number("at_ns"),
        sa.PrimaryKeyConstraint("bucket", "key", "version", name="pk_removed"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_removed_at_ns", "removed", ["at_ns"])


def _uploads() -> None:
    op.create_table(
        "uploads",
        _text("id"),
        _text("bucket"),
        _bytes("key"),
        _number("created_ns"),
        _bytes("record", "cumulus.index.api.Upload as MessagePack"),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_order", "uploads", ["bucket", "key", "created_ns", "id"])
    op.create_table(
        "parts",
        _text("upload_id"),
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        _number("size"),
        _bytes("record", "cumulus.model.Part as MessagePack"),
        sa.PrimaryKeyConstraint("upload_id", "number", name="pk_parts"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop them."""
    first = ("parts", "uploads", "removed", "versions", "objects", "ledger", "buckets", "quotas")
    for table in (*first, "members", "groups", "access_keys", "users"):
        op.drop_table(table)
