"""Who shares, and with which weight: users, or groups, or addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from cumulus.model import User

By = Literal["user", "group", "address", "none"]


MOST: Final = 1000  # the largest weight


def parse_weights(text: str) -> dict[str, int]:
    """Weights of groups, "lab=4, ops=2". Raises ValueError with what to write."""
    found: dict[str, int] = {}
    for piece in filter(None, (one.strip() for one in text.split(","))):
        name, _, value = piece.rpartition("=")
        name, value = name.strip(), value.strip()
        if not name or name in found or not value.isdecimal() or not 1 <= int(value) <= MOST:
            raise ValueError(f"{piece!r} is not GROUP=WEIGHT, each group once, weights from 1 to {MOST}")
        found[name] = int(value)
    return found


@dataclass(frozen=True, slots=True)
class Sharing:
    """`by` says among whom bandwidth is shared equally; "none": nobody waits for others. `weights` False:
    all weigh the same. `groups` has weights of groups that count instead of those that users bring along
    (`User.group_weights`)."""

    by: By = "user"
    weights: bool = True
    groups: Mapping[str, int] = field(default_factory=dict)

    def of(self, user: User | None, peer: str) -> tuple[str, float]:
        """Who is charged for a request of `user` (None: anonymous) from the address `peer`, and his weight:
        a user's own times the largest of his groups', or with `by` "group" that of his heaviest group."""
        if user is None or self.by == "address":
            return f"address {peer}", 1.0
        if self.by == "group" and user.groups:
            weights = self._weights(user)
            name = min(user.groups, key=lambda one: (-weights[one], one))
            return f"group {name}", float(weights[name]) if self.weights else 1.0
        heaviest = max(self._weights(user).values(), default=1)
        return f"user {user.id}", float(user.weight * heaviest) if self.weights else 1.0

    def _weights(self, user: User) -> dict[str, int]:
        known = dict(zip(user.groups, user.group_weights, strict=False))
        return {name: self.groups.get(name, known.get(name, 1)) for name in user.groups}
