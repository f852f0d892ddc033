"""For those who test programs that use Sector: `SimCluster` (a whole cluster in one process, in simulated
time) and `call` (a user function without any cluster). Loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {"SimCluster": "sector.testing.cluster", "call": "sector.testing.udf"}
__all__ = ["SimCluster", "call"]

if TYPE_CHECKING:
    from sector.testing.cluster import SimCluster
    from sector.testing.udf import call


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'sector.testing' has no attribute {name!r}")
