"""Builds `sector._udt._ffi` (cffi API mode, stable ABI) from the C core in csrc/."""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CORE = ROOT / "csrc"
FOLDERS = ("base", "crypto", "udt", "sgmp", "sdc", "io")


def _relative(paths: list[Path]) -> list[str]:
    # setuptools wants sources relative to the project
    return [os.path.relpath(path, ROOT) for path in paths]


def _cdef() -> str:
    return (HERE / "_cdef.h").read_text()


ffi = FFI()
ffi.cdef(_cdef())
ffi.set_source(
    "sector._udt._ffi",
    '#include "udt.h"\n#include "_glue.h"\n',
    sources=_relative(sorted(path for folder in FOLDERS for path in (CORE / folder).glob("*.c"))),
    depends=_relative([HERE / "_glue.h", *sorted(CORE.glob("*/*.h"))]),
    include_dirs=_relative([CORE / "include", CORE, HERE]),
    define_macros=[("_GNU_SOURCE", "1")],
    libraries=["ssl", "crypto", "dl"],
    extra_compile_args=["-std=gnu11", "-O2", "-g", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffi.compile(verbose=True)
