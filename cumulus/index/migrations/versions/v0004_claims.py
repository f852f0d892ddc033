"""Uploads that are being completed; what is told of a bucket that has gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cumulus.index.functions import FUNCTIONS

revision = "0004"
down_revision = "0003"

_TEXT = sa.String().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Uploads that are there are nobody's."""
    who = "who completes it and alone may end it"
    op.add_column("uploads", sa.Column("claimant", _TEXT, nullable=False, server_default="", comment=who))
    until = sa.Column(
        "claimed_until_ns", sa.BigInteger, nullable=False, server_default="0", comment="that ends then"
    )
    op.add_column("uploads", until)
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute("DROP FUNCTION IF EXISTS cumulus_apply(json, bigint[], bigint)")
    op.execute("DROP FUNCTION IF EXISTS cumulus_drop_upload(text, json, bigint[], bigint)")
    for function in FUNCTIONS:
        op.execute(function)


def downgrade() -> None:
    """Forget them; the functions of before are made by the program of before."""
    op.drop_column("uploads", "claimed_until_ns")
    op.drop_column("uploads", "claimant")
