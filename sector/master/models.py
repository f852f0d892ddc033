"""Tables of the master's database. Rows stay in the store; a version is two columns, epoch and counter."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMES)


class Setting(Base):
    """Numbers of the database itself: epoch, counter (of versions), serial (of the mirror), rebuilding, and a
    row "awaited:ID" for each slave that a rebuild ended without."""

    __tablename__ = "setting"

    key: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class EntryRow(Base):
    """A file or directory. The root has no row."""

    __tablename__ = "entry"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    path: Mapped[str] = mapped_column(Text, unique=True)
    parent: Mapped[str] = mapped_column(Text)
    kind: Mapped[str] = mapped_column(Text)
    size: Mapped[int] = mapped_column(BigInteger)
    epoch: Mapped[int] = mapped_column(BigInteger)
    counter: Mapped[int] = mapped_column(BigInteger)
    owner: Mapped[str] = mapped_column(Text)
    mode: Mapped[int] = mapped_column(Integer)
    mtime: Mapped[float] = mapped_column(Float, comment="seconds since 1970")
    digest: Mapped[str] = mapped_column(Text)
    copies: Mapped[int] = mapped_column(Integer, comment="asked for by a user, 0 = as configured")
    serial: Mapped[int] = mapped_column(BigInteger, comment="mirror serial of a directory, 0 for files")

    __table_args__ = (
        Index("ix_entry_parent_path", "parent", "path"),
        Index(
            "ix_entry_serial", "serial", sqlite_where=text("serial > 0"), postgresql_where=text("serial > 0")
        ),
    )


class ReplicaRow(Base):
    """Content of an entry on a slave, of any version."""

    __tablename__ = "replica"

    entry_id: Mapped[int] = mapped_column(ForeignKey("entry.id", ondelete="CASCADE"), primary_key=True)
    node: Mapped[str] = mapped_column(Text, primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger)
    counter: Mapped[int] = mapped_column(BigInteger)
    confirmed: Mapped[float] = mapped_column(Float, comment="seconds since 1970")
    bad: Mapped[bool] = mapped_column(Boolean)
    seen: Mapped[int] = mapped_column(
        BigInteger, comment="number of the last report that named it, or that was drawn last when it came"
    )
    old_path: Mapped[str | None] = mapped_column(
        Text, comment="name the slave knows until it confirms a rename"
    )
    old_epoch: Mapped[int] = mapped_column(BigInteger)
    old_counter: Mapped[int] = mapped_column(BigInteger)
    sent_path: Mapped[str | None] = mapped_column(
        Text, comment="name the slave was told to give it, and may have given it"
    )
    sent_epoch: Mapped[int] = mapped_column(BigInteger, server_default="0")
    sent_counter: Mapped[int] = mapped_column(BigInteger, server_default="0")

    __table_args__ = (
        Index("ix_replica_node", "node"),
        Index(
            "ix_replica_old",
            "node",
            "old_path",
            sqlite_where=text("old_path IS NOT NULL"),
            postgresql_where=text("old_path IS NOT NULL"),
        ),
        Index(
            "ix_replica_sent",
            "node",
            "sent_path",
            sqlite_where=text("sent_path IS NOT NULL"),
            postgresql_where=text("sent_path IS NOT NULL"),
        ),
    )


class TombstoneRow(Base):
    """A deleted path; gone when something newer stands there."""

    __tablename__ = "tombstone"

    path: Mapped[str] = mapped_column(Text, primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger)
    counter: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[float] = mapped_column(Float, comment="seconds since 1970")
    directory: Mapped[bool] = mapped_column(Boolean)
    serial: Mapped[int] = mapped_column(BigInteger, index=True)


class TrashRow(Base):
    """Content that a slave is to remove and has not yet confirmed to have removed."""

    __tablename__ = "trash"

    node: Mapped[str] = mapped_column(Text, primary_key=True)
    path: Mapped[str] = mapped_column(Text, primary_key=True, index=True)
    surplus: Mapped[bool] = mapped_column(
        Boolean, primary_key=True, comment="true = no tombstone goes with it"
    )
    epoch: Mapped[int] = mapped_column(BigInteger)
    counter: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[float] = mapped_column(Float, comment="seconds since 1970")


class LeaseRow(Base):
    """A write lease. Published ones stay for a day, so that a repeated Publish gets the same answer."""

    __tablename__ = "lease"

    id: Mapped[bytes] = mapped_column(LargeBinary(16), primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    node: Mapped[str] = mapped_column(Text)
    epoch: Mapped[int] = mapped_column(BigInteger)
    counter: Mapped[int] = mapped_column(BigInteger)
    size: Mapped[int] = mapped_column(BigInteger)
    user: Mapped[str] = mapped_column(Text)
    owner: Mapped[str] = mapped_column(Text)
    mode: Mapped[int] = mapped_column(Integer)
    expires: Mapped[float] = mapped_column(Float, index=True, comment="seconds since 1970")
    state: Mapped[str] = mapped_column(Text, comment="open or published")

    __table_args__ = (
        Index(
            "uq_lease_open_path",
            "path",
            unique=True,
            sqlite_where=text("state = 'open'"),
            postgresql_where=text("state = 'open'"),
        ),
    )


class SessionRecord(Base):
    """A login session; the secret is sealed by the cluster key, which is not in the database."""

    __tablename__ = "session"

    id: Mapped[bytes] = mapped_column(LargeBinary(16), primary_key=True)
    user: Mapped[str] = mapped_column(Text)
    secret_wrapped: Mapped[bytes] = mapped_column(LargeBinary)
    key_id: Mapped[int] = mapped_column(BigInteger)
    rights_epoch: Mapped[int] = mapped_column(BigInteger)
    expires: Mapped[float] = mapped_column(Float, comment="seconds since 1970")
    cidr: Mapped[str] = mapped_column(Text)
    roles: Mapped[str] = mapped_column(Text, comment="JSON array of names")
    rights: Mapped[str] = mapped_column(Text, comment="JSON array of [user, path, letters]")
    via: Mapped[str] = mapped_column(
        Text, server_default="", comment="service account that acts for the user"
    )
    via_epoch: Mapped[int] = mapped_column(BigInteger, server_default="0")


class RightRow(Base):
    """Directory rights as the security server last told them, for the mirror on the slaves; letters "" =
    taken away."""

    __tablename__ = "mirrored_right"

    user: Mapped[str] = mapped_column(Text, primary_key=True)
    path: Mapped[str] = mapped_column(Text, primary_key=True)
    what: Mapped[str] = mapped_column(Text)
    serial: Mapped[int] = mapped_column(BigInteger, index=True)


class JobRow(Base):
    """A Sphere job as lists show it and as it goes on after a restart of the master."""

    __tablename__ = "job"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    started: Mapped[float] = mapped_column(Float, index=True, comment="seconds since 1970")
    body: Mapped[bytes] = mapped_column(LargeBinary, comment="msgpack of sector.master.jobs.JobState")
