"""Sector: a storage and compute cloud over wide areas. The few public names, resolved when first used.

Importing this package loads neither Twisted nor the C core (PEP 562), so that a Sphere worker stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "connect": "sector.client.blocking",
    "Cloud": "sector.client.blocking",
    "SphereStream": "sector.sphere.stream",
    "SphereProcess": "sector.sphere.blocking",
    "SectorError": "sector.errors",
}
__all__ = ["Cloud", "SectorError", "SphereProcess", "SphereStream", "__version__", "connect"]

if TYPE_CHECKING:
    from sector.client.blocking import Cloud, connect
    from sector.errors import SectorError
    from sector.sphere.blocking import SphereProcess
    from sector.sphere.stream import SphereStream


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'sector' has no attribute {name!r}")
