"""How many examples a property test tries when the usual hundred do not fit it."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

USUAL = 100


def effort(examples: int, **more: Any) -> settings:
    """Settings with `examples`, or as many times more as the profile asks for (deep: 20)."""
    return settings(max_examples=examples * settings().max_examples // USUAL, deadline=None, **more)
