"""Which interpreter and packages a pickled function needs, and whether this process has them (pure)."""

from __future__ import annotations

import importlib.metadata
import sys

from sector.wire.sphere import Runtime

PACKAGES = ("cloudpickle", "numpy")


def here() -> Runtime:
    """The interpreter ("cpython-3.11") and package versions of this process."""
    python = f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]}"
    return Runtime(python, {name: importlib.metadata.version(name) for name in PACKAGES})


def _major(version: str) -> str:
    return version.split(".", 1)[0]


def mismatch(wanted: Runtime) -> tuple[str, str] | None:
    """(what differs, what to do) when a function made under `wanted` cannot run here; None when it can.
    Byte code needs the same minor version of Python; packages the same major version."""
    mine = here()
    if wanted.python != mine.python:
        return (
            f"runs {mine.python}, the job was made with {wanted.python}",
            f"start the job with {mine.python}, or the slave with {wanted.python}",
        )
    for name, version in wanted.packages.items():
        have = mine.packages.get(name)
        if have is None:
            continue
        if _major(have) != _major(version):
            return (
                f"has {name} {have}, the job was made with {name} {version}",
                f"install {name} {_major(have)}.x where the job is made, or {_major(version)}.x on the slave",
            )
    return None
