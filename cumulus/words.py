"""How messages say numbers."""

from __future__ import annotations


def count_text(number: int, what: str) -> str:
    """`1 object`, `2 objects`."""
    return f"{number:,} {what}{'s' * (number != 1)}"
