"""Who shares, and with which weight: users, or groups, or addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cumulus.model import User

By = Literal["user", "group", "address", "none"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """`by` says among whom bandwidth is shared equally; "none": nobody waits for others. `weights` False:
    all weigh the same."""

    by: By = "user"
    weights: bool = True

    def of(self, user: User | None, peer: str) -> tuple[str, float]:
        """Who is charged for a request of `user` (None: anonymous) from the address `peer`, and his weight:
        a user's own times the largest of his groups', or with `by` "group" that of his heaviest group."""
        if user is None or self.by == "address":
            return f"address {peer}", 1.0
        if self.by == "group" and user.groups:
            weights = {name: user.group_weights.get(name, 1) for name in user.groups}
            name = min(user.groups, key=lambda one: (-weights[one], one))
            return f"group {name}", float(weights[name]) if self.weights else 1.0
        heaviest = max([user.group_weights.get(name, 1) for name in user.groups], default=1)
        return f"user {user.id}", float(user.weight * heaviest) if self.weights else 1.0
