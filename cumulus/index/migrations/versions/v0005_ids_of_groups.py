"""Ids of groups, and of whom policies name."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")
_ARN = re.compile(r"arn:aws:iam::[^:]*:(user|group)/(?:[^/]*/)*([^/*]+)")


def upgrade() -> None:
    """A group that is there keeps the rights given to its name: that is its id. Policies mean those who have
    the names now; a name that nobody has stays a name."""
    comment = "by which rights are given: the name, or name, # and more"
    op.add_column("groups", sa.Column("id", _TEXT, nullable=False, server_default="", comment=comment))
    connection = op.get_bind()
    connection.execute(sa.text("UPDATE groups SET id = name"))
    known = {f"user:{row.name}": row.id for row in connection.execute(sa.text("SELECT name, id FROM users"))}
    for row in connection.execute(sa.text("SELECT name FROM groups")):
        known[f"group:{row.name}"] = row.name
    for row in connection.execute(sa.text("SELECT name, record FROM buckets")).all():
        record = msgspec.msgpack.decode(bytes(row.record))
        named = _named(record["policy"]) if record.get("policy") else []
        if ids := {name: known[name] for name in named if name in known}:
            values = {"name": row.name, "record": msgspec.msgpack.encode(record | {"principals": ids})}
            connection.execute(sa.text("UPDATE buckets SET record = :record WHERE name = :name"), values)


def _named(policy: str) -> list[str]:
    """Users and groups whose names stand in a policy that was valid when it was set."""
    try:
        document: Any = json.loads(policy)
        statements = document["Statement"]
        statements = statements if isinstance(statements, list) else [statements]
        who = [one.get(key) for one in statements for key in ("Principal", "NotPrincipal")]
        given = [one["AWS"] for one in who if isinstance(one, dict) and "AWS" in one]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    found = []
    for text in (one for some in given for one in (some if isinstance(some, list) else [some])):
        match = _ARN.fullmatch(text)
        found.append(f"{match[1]}:{match[2]}" if match else f"user:{text}")
    return found


def downgrade() -> None:
    """Forget them; the program of before passes over what else stands in a record."""
    op.drop_column("groups", "id")
