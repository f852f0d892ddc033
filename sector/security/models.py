"""Tables of the security database. Rows never leave `store.py`."""

from __future__ import annotations

from sqlalchemy import Double, ForeignKey, LargeBinary, MetaData
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


class UserRow(Base):
    """A user of the cluster."""

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(primary_key=True)
    password_hash: Mapped[str] = mapped_column(comment="Argon2id, PHC string")
    roles: Mapped[str] = mapped_column(comment="names separated by spaces")
    addresses: Mapped[str] = mapped_column(comment="CIDR rules separated by spaces, ! denies")
    rights_epoch: Mapped[int] = mapped_column(comment="sessions with a lower one are closed")
    created: Mapped[float] = mapped_column(Double, comment="seconds since 1970")


class RightRow(Base):
    """A user's right on a directory and below."""

    __tablename__ = "rights"

    user: Mapped[str] = mapped_column(ForeignKey("users.name", ondelete="CASCADE"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    what: Mapped[str] = mapped_column(comment="subset of rwx; empty takes what a directory above gives")


class NodeRow(Base):
    """A node that may join."""

    __tablename__ = "nodes"

    role: Mapped[str] = mapped_column(primary_key=True, comment="slave or master")
    name: Mapped[str] = mapped_column(primary_key=True)
    addresses: Mapped[str] = mapped_column(comment="CIDR rules separated by spaces")


class ChangeRow(Base):
    """The last change of a subject, for masters that watch; one row a subject."""

    __tablename__ = "changes"

    subject: Mapped[str] = mapped_column(primary_key=True, comment="user:NAME, slave:NAME, master:NAME")
    serial: Mapped[int] = mapped_column(unique=True, comment="grows over the whole database")
    epoch: Mapped[int] = mapped_column(comment="rights_epoch of a user; 0 = removed")


class AuditRow(Base):
    """A line of the audit log; only appended to."""

    __tablename__ = "audit"

    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[float] = mapped_column(Double, comment="seconds since 1970")
    who: Mapped[str]
    what: Mapped[str]
    detail: Mapped[str]
    hash: Mapped[bytes] = mapped_column(LargeBinary(32), comment="SHA-256 over the line before and this")
