"""Which files a stream's paths and patterns mean."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sector.errors import NotFound, UsageError
from sector.model import FileInfo, Version
from sector.sphere.blocking import SphereProcess
from sector.sphere.inputs import find_files
from sector.sphere.stream import SphereStream


class Listing:
    """A cloud that lists some files."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    async def ls(self, base: str, *, recursive: bool) -> list[FileInfo]:
        """The files below `base`."""
        assert recursive
        return [
            FileInfo(path, "file", 1, Version(1, 1), "alice", 0o644, 0.0, "", ["s1"])
            for path in self.paths
            if path.startswith(base)
        ]


def found(pattern: str, *paths: str) -> list[str]:
    """What a pattern means among these files."""
    files = asyncio.run(find_files(cast(Any, Listing(*paths)), SphereStream(None, pattern)))
    return [file.path for file in files]


def test_a_pattern_that_fits_nothing_may_be_a_name() -> None:
    """Names may hold brackets and stars: such a file or directory is meant unless others fit."""
    assert found("/d/a[1]", "/d/a1", "/d/a[1]") == ["/d/a1"]
    assert found("/d/a[1]", "/d/a[1]", "/d/a[1]x") == ["/d/a[1]"]
    assert found("/e[x]/", "/e[x]/f", "/e[x]/g", "/ey") == ["/e[x]/f", "/e[x]/g"]
    with pytest.raises(NotFound):
        found("/d/a[1]", "/d/b")


def test_numbers_that_no_job_can_have_are_refused_by_name() -> None:
    """Before anything is sent: a slave would call the request malformed."""
    cloud = cast(Any, None)
    with pytest.raises(UsageError, match="record_size cannot be -1"):
        SphereStream(cloud, "/a", record_size=-1)
    stream = SphereStream(cloud, "/a")
    for number in (-1, 10**9):
        with pytest.raises(UsageError, match=f"a job has 0 to 1048576 buckets, not {number}"):
            SphereProcess(cloud).run(stream, lambda data, ctx: b"", buckets=number)
