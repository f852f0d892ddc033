"""Tables of the database as SQLAlchemy knows them; migrations make them, a test compares the two.

Keys are UTF-8 in a binary column, so that their order is that of S3 listings. `objects` has the current
version of each key unless that is a delete marker; `versions` has everything else.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


# PostgreSQL sorts text by a language unless it is told not to
TEXT = String().with_variant(Text(collation="C"), "postgresql")
POSTGRES = {"dialect": "postgresql"}  # tables that SQLite does not have


def _text(name: str, **options: Any) -> Column[str]:
    return Column(name, TEXT, nullable=False, **options)


def _number(name: str, **options: Any) -> Column[int]:
    return Column(name, BigInteger, nullable=False, **options)


def _bytes(name: str, **options: Any) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False, **options)


def _key(name: str, **options: Any) -> Column[str]:
    return Column(name, TEXT, primary_key=True, **options)


users = Table(
    "users",
    metadata,
    _key("id", comment="canonical id, 64 hex digits"),
    _text("name", unique=True),
    _text("display"),
    _text("email", index=True, comment="lower case, or empty"),
    Column("weight", Integer, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("admin", Boolean, nullable=False),
    _text("unix_user"),
    _number("created_ns"),
)

access_keys = Table(
    "access_keys",
    metadata,
    _key("access_key"),
    Column("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    _bytes("secret", comment="sealed: key number, nonce, AES-GCM; the access key is associated data"),
    _number("created_ns"),
    _number("expires_ns", comment="0 = never"),
)

groups = Table(
    "groups",
    metadata,
    _key("name"),
    _number("created_ns"),
    Column("weight", Integer, nullable=False, server_default="1"),
    _text("id", server_default="", comment="by which rights are given: the name, or name, # and more"),
)

members = Table(
    "members",
    metadata,
    Column("group_name", TEXT, ForeignKey("groups.name", ondelete="CASCADE"), primary_key=True),
    Column("user_id", TEXT, ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True),
)

quotas = Table(
    "quotas",
    metadata,
    _key("scope", comment="user, group or bucket"),
    _key("name", comment="a user's canonical id, else the name"),
    _number("hard_bytes", comment="0 = no limit, as in the next three"),
    _number("hard_objects"),
    _number("soft_bytes"),
    _number("soft_objects"),
    _number("grace_s"),
    _number("over_soft_since_ns", comment="0 = not over a soft limit"),
)

buckets = Table(
    "buckets",
    metadata,
    _key("name"),
    _text("owner", index=True),
    _bytes("record", comment="cumulus.model.Bucket as MessagePack"),
)

ledger = Table(
    "ledger",
    metadata,
    _key("bucket"),
    _number("bytes", comment="of all versions"),
    _number("objects", comment="all versions but delete markers"),
    _number("held", comment="bytes of parts of uploads in progress"),
)


def _object_columns() -> list[Column[Any]]:
    return [
        _number("stamp", comment="orders the versions of a key"),
        Column("name", TEXT, nullable=True, comment="in storage; NULL = as the key"),
        _bytes("token"),
        _number("size"),
        _text("etag"),
        _number("modified_ns"),
        _text("owner"),
        _text("checksum"),
        _text("checksum_type"),
    ]


objects = Table(
    "objects",
    metadata,
    _key("bucket"),
    Column("key", LargeBinary, primary_key=True),
    _text("version"),
    *_object_columns(),
    sqlite_with_rowid=False,
)

versions = Table(
    "versions",
    metadata,
    _key("bucket"),
    Column("key", LargeBinary, primary_key=True),
    _key("version"),
    *_object_columns(),
    Column("marker", Boolean, nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_versions_order", versions.c.bucket, versions.c.key, versions.c.stamp.desc())

removed = Table(
    "removed",
    metadata,
    _key("bucket"),
    Column("key", LargeBinary, primary_key=True),
    _key("version", comment="empty = whatever is current"),
    _number("stamp"),
    _number("at_ns", index=True),
    sqlite_with_rowid=False,
)

uploads = Table(
    "uploads",
    metadata,
    _key("id"),
    _text("bucket"),
    _bytes("key"),
    _number("created_ns"),
    _bytes("record", comment="cumulus.index.api.Upload as MessagePack"),
    _text("claimant", server_default="", comment="who completes it and alone may end it"),
    _number("claimed_until_ns", server_default="0", comment="that ends then"),
    Index("ix_uploads_order", "bucket", "key", "created_ns", "id"),
)

parts = Table(
    "parts",
    metadata,
    _key("upload_id"),
    Column("number", Integer, primary_key=True, autoincrement=False),
    _number("size"),
    _bytes("record", comment="cumulus.model.Part as MessagePack"),
    sqlite_with_rowid=False,
)

holders = Table(
    "holders",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("expires", DateTime(timezone=True), nullable=False, comment="what it holds is free then"),
    info=POSTGRES,
)

reservations = Table(
    "reservations",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("holder", BigInteger, ForeignKey("holders.id", ondelete="CASCADE"), nullable=False, index=True),
    _text("bucket", index=True),
    _number("bytes"),
    _number("objects"),
    info=POSTGRES,
)


def tables_of(dialect: str) -> list[Table]:
    """The tables that a database of that kind has."""
    return [table for table in metadata.sorted_tables if table.info.get("dialect", dialect) == dialect]
