"""From a stream to segments: listing, record indexes, cutting. Runs in the client, on its session."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np

from sector.client.cloud import CloudClient
from sector.errors import Busy, NotFound, SectorError, TimedOut, Unavailable, Unreachable, UsageError
from sector.model import FileInfo, Version, check_path
from sector.sphere import plan, records
from sector.sphere.plan import Plan, Segment, Source, Span
from sector.sphere.records import Offsets
from sector.sphere.stream import KnownFile, SphereStream, data_files, fixed_part, matches
from sector.wire.files import Stat


async def find_files(client: CloudClient, stream: SphereStream) -> list[KnownFile]:
    """The files of a stream in input order. Raises `NotFound` when a path or pattern gives none,
    `Unavailable` when no slave that has a file is up."""
    found = list(stream.files)
    for path in stream.paths:
        base, is_glob = fixed_part(path)
        if is_glob:
            entries = {e.path: e for e in await client.ls(base, recursive=True) if e.kind == "file"}
            names = sorted(p for p in entries if matches(p, path))
            if not names:  # as in a shell: what fits nothing stands for itself
                names = sorted(p for p in entries if f"{p}/".startswith(f"{path.rstrip('/')}/"))
        else:
            info = await client.stat(check_path(path))
            if info.kind == "file":
                found.append(_known(info))
                continue
            entries = {e.path: e for e in await client.ls(base, recursive=True) if e.kind == "file"}
            names = list(entries)
        if not path.endswith(records.SUFFIX):
            names = data_files(names)
        if not names:
            raise NotFound(f"{path}: no such files", hint="look with sector ls -r")
        found += [_known(entries[name]) for name in names]
    return found


def _known(info: FileInfo) -> KnownFile:
    if not info.replicas:
        raise Unavailable(
            f"{info.path} cannot be read now: no slave that has it is up", hint="sector node list"
        )
    return KnownFile(info.path, info.size, info.version, tuple(info.replicas))


async def make_segments(
    client: CloudClient,
    stream: SphereStream,
    streams: list[list[KnownFile]],
    slots: int,
    goal: int | None = None,
) -> list[Segment]:
    """Segments of a stream (whose parts have the files `streams`) for `slots` SPE slots, of about `goal`
    bytes (default: by the amount of data). Raises `UsageError`, `NotFound`."""
    groups = _pair_files(streams, stream.granularity)
    total = sum(file.size for files in streams for file in files)
    size = goal or plan.target_size(total, slots)
    smax = max(plan.S_MAX, size)
    pieces: list[tuple[Span, ...]] = []
    for group in groups:
        sources, offsets = [], []
        for file, part in zip(group, stream.parts, strict=True):
            source, index = await _source(client, file, part)
            sources.append(source)
            offsets.append(index)
        cut = stream.granularity != "file" and all(p.record_size or p.index for p in stream.parts)
        if cut:
            pieces += plan.cut(sources, offsets, size, smax=smax)
        else:
            pieces.append(plan.cut_whole(sources))
    return plan.numbered(pieces)


def _pair_files(streams: list[list[KnownFile]], granularity: str) -> list[tuple[KnownFile, ...]]:
    if len(streams) == 1:
        return [(file,) for file in streams[0]]
    if granularity == "file":
        by_name = [{os.path.basename(file.path): file for file in files} for files in streams]
        whole = all(len(names) == len(files) for names, files in zip(by_name, streams, strict=True))
        if whole and all(names.keys() == by_name[0].keys() for names in by_name):
            order = [os.path.basename(file.path) for file in streams[0]]
            return [tuple(names[key] for names in by_name) for key in order]
    if len({len(files) for files in streams}) != 1:
        counts = " and ".join(str(len(files)) for files in streams)
        raise UsageError(f"the paired streams have {counts} files", hint="pair streams with as many files")
    return list(zip(*streams, strict=True))


async def _source(client: CloudClient, file: KnownFile, part: SphereStream) -> tuple[Source, Offsets | None]:
    if not part.index:
        width = part.record_size if part.granularity != "file" else 0
        return Source(file.path, file.size, file.version, file.holders, width or part.record_size), None
    try:
        info = await client.stat(records.index_path(file.path))
    except NotFound:
        raise NotFound(
            f"{file.path} has no record index", hint=f"store one as {records.index_path(file.path)}"
        ) from None
    offsets = records.check(await _read_index(client, info), file.size)
    index = (info.version, info.size, tuple(info.replicas))
    return Source(file.path, file.size, file.version, file.holders, 0, index), offsets


async def _read_index(client: CloudClient, info: FileInfo) -> Any:
    """The index as an array over a mapped temporary file: it may be larger than memory."""
    records.record_count(info.size)
    folder = await client.run(tempfile.mkdtemp, "", "sphere-index-")
    local = os.path.join(folder, "idx")
    try:
        await client.get(info.path, local)
        return await client.run(_map_thd, local)
    finally:
        await client.run(shutil.rmtree, folder, True)


def _map_thd(local: str) -> Any:
    return np.memmap(local, dtype=records.OFFSET, mode="r")


def is_astray(work: Plan, segment: int, here: AbstractSet[str]) -> bool:
    """Whether of some input of a segment none of the slaves that are known to have it is among these."""
    sources = [span.source for span in work.segments[segment].spans]
    known = [source.holders for source in sources] + [source.index[2] for source in sources if source.index]
    return any(holders and here.isdisjoint(holders) for holders in known)


async def look_again(
    client: CloudClient, work: Plan, segment: int, error: SectorError | None = None, patience_s: float = 0.0
) -> bool | None:
    """Whether the very same content of a segment's input has come to other slaves since the job knows it, as
    a copy, say, that was made where another one went. They are asked, too, from now on. `error`: only if it
    names such an input. None: for so long the master could not be asked."""
    known = work.segments[segment]
    if error is not None and not any(span.source.path in error.message for span in known.spans):
        return False
    try:
        spans = [replace(span, source=await _now(client, span.source, patience_s)) for span in known.spans]
    except (Busy, Unavailable, Unreachable, TimedOut):
        return None
    except SectorError:
        return False
    found = replace(known, spans=tuple(spans))
    work.relocate(found)
    return found != known


async def _now(client: CloudClient, source: Source, patience_s: float) -> Source:
    """The source with all holders of its content, new ones first. Raises `NotFound` and others."""
    holders = await _holders(client, source.path, source.version, source.holders, patience_s)
    index = source.index
    if index is not None:
        path = records.index_path(source.path)
        index = (*index[:2], await _holders(client, path, index[0], index[2], patience_s))
    return replace(source, holders=holders, index=index)


async def _holders(
    client: CloudClient, path: str, version: Version, known: tuple[str, ...], patience_s: float
) -> tuple[str, ...]:
    info: FileInfo = (await client.call(Stat(path), patience_s=patience_s)).info
    if (info.kind, info.version) != ("file", version):
        raise NotFound(f"{path} is not what it was")
    return (*(node for node in info.replicas if node not in known), *known)
