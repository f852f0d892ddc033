"""Input of a Sphere job: which files, and how they are cut into records and segments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sector.errors import UsageError
from sector.model import Version, check_path
from sector.sphere.records import SUFFIX
from sector.sphere.udf import GRANULARITIES, dtype_from, dtype_text

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file whose place is known already (output of another job): no look-up is needed."""

    path: str
    size: int
    version: Version
    holders: tuple[str, ...]


class SphereStream:
    """Files as input of a job.

    `paths`: files, directories (all files below) and globs (`*`, `?`, `[...]` within one name; `**` below) of
    the cloud. Records have `record_size` bytes, or lie as the record index beside each file says
    (`index=True`). `granularity` says what the function gets: "record" bytes, "batch"
    `uint8[n, record_size]` (or `[n]` of `dtype`), "segment" or "file" a memoryview; the default is "record"
    with records and "file" without. Files ending in ".idx" are taken only when named. Two streams added
    (`A + B`) are paired: records by position, files by name where the names agree. Raises `UsageError`.

    >>> stream = SphereStream(None, "/sdss/*.dat", record_size=100, granularity="batch")
    >>> stream
    SphereStream('/sdss/*.dat', record_size=100, granularity='batch')
    """

    def __init__(
        self,
        cloud: Any,
        paths: str | Iterable[str] = (),
        *more: str,
        record_size: int = 0,
        index: bool = False,
        granularity: str | None = None,
        dtype: Any = None,
    ) -> None:
        first = (paths,) if isinstance(paths, str) else tuple(paths)
        self.cloud = cloud
        self.paths: tuple[str, ...] = (*first, *more)
        self.files: tuple[KnownFile, ...] = ()
        self.record_size = int(record_size)
        self.index = bool(index)
        self.dtype = _dtype(dtype)
        self.granularity = granularity or ("record" if self.record_size or self.index else "file")
        self.paired: tuple[SphereStream, ...] = ()
        self.stage = 0
        self._check()

    def _check(self) -> None:
        if self.granularity not in GRANULARITIES:
            raise UsageError(
                f"granularity {self.granularity!r} is not known", hint=f"use {', '.join(GRANULARITIES)}"
            )
        if self.record_size < 0:
            raise UsageError(f"record_size cannot be {self.record_size}", hint="give the bytes of one record")
        if self.record_size and self.index:
            raise UsageError("give either record_size or index, not both")
        if self.granularity == "batch" and not self.record_size:
            raise UsageError("granularity batch needs record_size")
        if self.granularity == "record" and not (self.record_size or self.index):
            raise UsageError(
                "granularity record needs record_size or index", hint="sphere run: --record-size N or --index"
            )
        if self.dtype:
            if self.granularity != "batch":
                raise UsageError("a dtype is for granularity batch", hint="add granularity='batch'")
            width = dtype_from(self.dtype).itemsize
            if not width or self.record_size % width:
                raise UsageError(
                    f"a record of {self.record_size} bytes is no whole number of items of {width} bytes each",
                    hint=f"that is what dtype {self.dtype[:80]} has",
                )
        for path in self.paths:
            check_path(path)

    @classmethod
    def of_files(
        cls, cloud: Any, files: Sequence[KnownFile], *, record_size: int = 0, stage: int = 0
    ) -> SphereStream:
        """A stream over files whose places are known."""
        stream = cls(cloud, record_size=record_size)
        stream.files = tuple(files)
        stream.stage = stage
        return stream

    def cut(
        self,
        *,
        record_size: int = 0,
        index: bool = False,
        granularity: str | None = None,
        dtype: Any = None,
    ) -> SphereStream:
        """The same files cut in another way, those of a pair both."""
        if self.paired:
            first, *rest = [
                part.cut(record_size=record_size, index=index, granularity=granularity, dtype=dtype)
                for part in self.paired
            ]
            return sum(rest, first)
        stream = SphereStream(
            self.cloud,
            self.paths,
            record_size=record_size,
            index=index,
            granularity=granularity,
            dtype=dtype,
        )
        stream.files, stream.stage = self.files, self.stage
        return stream

    def __add__(self, other: SphereStream) -> SphereStream:
        if not isinstance(other, SphereStream):
            return NotImplemented
        parts = (*self.parts, *other.parts)
        if any(part.granularity != self.granularity for part in parts):
            raise UsageError("paired streams need the same granularity")
        if any(part.dtype != self.dtype for part in parts):
            raise UsageError(
                "paired streams need the same dtype",
                hint="give none, and use rows.view(dtype) in the function",
            )
        stream = SphereStream.of_files(self.cloud, ())
        stream.granularity, stream.dtype, stream.paired = self.granularity, self.dtype, parts
        stream.stage = max(part.stage for part in parts)
        return stream

    @property
    def parts(self) -> tuple[SphereStream, ...]:
        """The paired streams, or this one."""
        return self.paired or (self,)

    def __repr__(self) -> str:
        if self.paired:
            return " + ".join(map(repr, self.paired))
        names = [*map(repr, self.paths)]
        if self.files:
            names.append(f"{len(self.files)} files")
        if self.record_size:
            names.append(f"record_size={self.record_size}")
        if self.index:
            names.append("index=True")
        return f"SphereStream({', '.join(names)}, granularity={self.granularity!r})"


def _dtype(dtype: Any) -> str:
    if dtype is None:
        return ""
    try:
        return dtype_text(dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(f"dtype {dtype!r} is no NumPy type for records: {error}") from None


def natural_key(path: str) -> list[tuple[int, int, str]]:
    """Order in which "out.2" comes before "out.10"."""
    return [
        (1, int(part), "") if part.isdecimal() else (0, 0, part)
        for part in re.split(r"([0-9]+)", path)
        if part
    ]


def fixed_part(pattern: str) -> tuple[str, bool]:
    """The directory above the first name with a wildcard (or the path itself), and whether there is one."""
    names = check_path(pattern).split("/")[1:]
    for position, name in enumerate(names):
        if _GLOB.search(name):
            return "/" + "/".join(names[:position]), True
    return check_path(pattern), False


def matches(path: str, pattern: str) -> bool:
    """Whether a path fits a pattern; wildcards stay within a name, "**" is any number of names."""
    return _match(path.split("/")[1:], check_path(pattern).split("/")[1:])


def _match(names: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_match(names[skip:], patterns[1:]) for skip in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _match(names[1:], patterns[1:])


def data_files(paths: Iterable[str]) -> list[str]:
    """Files of a directory or glob as input: in natural order, without record indexes."""
    return sorted((p for p in paths if not p.endswith(SUFFIX)), key=natural_key)
