"""Commands that look: find, du, df."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

import click

from sector.cli import files
from sector.cli.files import info_json
from sector.cli.main import Shared, shared_options
from sector.cli.render import print_json, print_table, size_text
from sector.errors import printable
from sector.model import FileInfo
from sector.wire.admin import NodeInfo

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGTP]?)(i?)B?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


class _SizeType(click.ParamType[int]):
    """Bytes from "10M" (10^7) or "10MiB"."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size: write 500, 10M or 10MiB", param, ctx)
        return round(float(match[1]) * int((1024 if match[3] else 1000) ** _POWERS[match[2]]))


SIZE = _SizeType()
Test = Callable[[FileInfo], bool]


@click.command()
@click.argument("path", default="/")
@click.option("--name", "names", multiple=True, metavar="GLOB", help="Last name, as *.dat; may be repeated.")
@click.option("--type", "kind", type=click.Choice(["f", "d"]), help="Files or directories alone.")
@click.option("--larger", type=SIZE, metavar="SIZE", help="Files of more bytes, as 10M or 10MiB.")
@click.option("--smaller", type=SIZE, metavar="SIZE", help="Files of fewer bytes.")
@click.option("--newer", type=click.FloatRange(min=0), metavar="DAYS", help="Changed within so many days.")
@click.option("--older", type=click.FloatRange(min=0), metavar="DAYS", help="Not changed for so many days.")
@click.option("--owner", metavar="USER", help="Of this user.")
@click.option("--copies-below", "copies", type=click.IntRange(1, 64), help="Files with fewer good replicas.")
@click.option("-0", "--print0", "zero", is_flag=True, help="Names as they are, each ended by a NUL byte.")
@shared_options
@click.pass_obj
def find(
    shared: Shared,
    path: str,
    names: tuple[str, ...],
    kind: str | None,
    larger: int | None,
    smaller: int | None,
    newer: float | None,
    older: float | None,
    owner: str | None,
    copies: int | None,
    zero: bool,
) -> None:
    """Print what is below a directory of the cloud and fits all that is asked for.

    \b
    Examples:
      sector find /sdss --name '*.dat' --larger 1G
      sector find / --copies-below 2
      sector find /tmp --type f --older 30 -0 | xargs -0 sector rm
    """
    now = time.time()
    tests: list[Test] = []
    if names:
        tests.append(lambda e: any(fnmatchcase(e.path.rsplit("/", 1)[1], name) for name in names))
    if kind is not None:
        tests.append(lambda e: e.kind == ("file" if kind == "f" else "dir"))
    if larger is not None:
        tests.append(lambda e: e.kind == "file" and e.size > larger)
    if smaller is not None:
        tests.append(lambda e: e.kind == "file" and e.size < smaller)
    if newer is not None:
        tests.append(lambda e: e.mtime > now - newer * 86400)
    if older is not None:
        tests.append(lambda e: e.mtime <= now - older * 86400)
    if owner is not None:
        tests.append(lambda e: e.owner == owner)
    if copies is not None:
        tests.append(lambda e: e.kind == "file" and len(e.replicas) < copies)
    with files.connection(shared) as cloud:
        found = [entry for entry in cloud.ls(path, recursive=True) if all(test(entry) for test in tests)]
    if shared.json:
        print_json([info_json(entry) for entry in found])
    elif zero:
        for entry in found:
            sys.stdout.buffer.write(entry.path.encode() + b"\0")
        sys.stdout.buffer.flush()
    else:
        for entry in found:
            click.echo(printable(entry.path))


def _sums(path: str, entries: Iterable[FileInfo], depth: int) -> list[dict[str, Any]]:
    """Of the directories up to `depth` levels below a path, each behind what is in it, then of the path."""
    top = path.rstrip("/") or "/"
    kept: dict[str, dict[str, Any]] = {}

    def line(folder: str) -> dict[str, Any]:
        return kept.setdefault(folder, {"path": folder, "files": 0, "bytes": 0, "replica_bytes": 0})

    for entry in entries:
        names = [name for name in entry.path.removeprefix(top).split("/") if name]
        if entry.kind == "dir" and len(names) <= depth:
            line(entry.path)
        if entry.kind == "file":
            folders = [top]
            for name in names[:-1][:depth]:
                folders.append(f"{folders[-1].rstrip('/')}/{name}")
            for folder in folders:
                line(folder)["files"] += 1
                line(folder)["bytes"] += entry.size
                line(folder)["replica_bytes"] += entry.size * len(entry.replicas)
    below = sorted((name for name in kept if name != top), key=lambda name: [*name.split("/"), "\U0010ffff"])
    return [kept[name] for name in below] + [line(top)]


@click.command()
@click.argument("paths", nargs=-1)
@click.option(
    "-d", "--depth", type=click.IntRange(min=0), default=0, help="Directories so many levels below."
)
@shared_options
@click.pass_obj
def du(shared: Shared, paths: tuple[str, ...], depth: int) -> None:
    """Show how much lies below directories of the cloud (default "/"): bytes of files, then of all replicas.

    \b
    Examples:
      sector du /sdss
      sector du -d 1
      sector du /sdss /web --json | jq '.[].bytes'
    """
    lines: list[dict[str, Any]] = []
    with files.connection(shared) as cloud:
        for path in paths or ("/",):
            lines += _sums(path, cloud.ls(path, recursive=True), depth)
    if shared.json:
        print_json(lines)
        return
    rows = [(x["files"], size_text(x["bytes"]), size_text(x["replica_bytes"]), x["path"]) for x in lines]
    print_table(("files", "size", "with copies", "path"), rows, right=(0, 1, 2))


def _free(nodes: Iterable[NodeInfo]) -> int:
    """Free bytes of all; of slaves that share a disk once."""
    disks: dict[tuple[str, str], int] = {}
    for node in nodes:
        disk = (node.host, node.disk) if node.disk else (node.id, "")
        disks[disk] = max(disks.get(disk, 0), node.free_bytes)
    return sum(disks.values())


@click.command()
@shared_options
@click.pass_obj
def df(shared: Shared) -> None:
    """Show the room on the slaves' disks: used by files of the cloud, and free for them. What slaves of one
    host share counts once in the sum.

    \b
    Examples:
      sector df
      sector df --json | jq -r '.[] | select(.free_bytes < 1e12) | .id'
    """
    with files.connection(shared) as cloud:
        nodes: list[NodeInfo] = cloud.nodes()
    if shared.json:
        print_json(
            [
                {
                    "id": node.id,
                    "state": node.state,
                    "topology": node.topology,
                    "files": node.files,
                    "used_bytes": node.used_bytes,
                    "free_bytes": node.free_bytes,
                    "host": node.host,
                    "disk": node.disk,
                }
                for node in nodes
            ]
        )
        return
    rows = [(n.id, n.state, n.files, size_text(n.used_bytes), size_text(n.free_bytes)) for n in nodes]
    up = [node for node in nodes if node.state != "lost"]
    used, free = sum(node.used_bytes for node in up), _free(up)
    rows.append(("all", f"{len(up)} here", sum(n.files for n in up), size_text(used), size_text(free)))
    print_table(("slave", "state", "files", "used", "free"), rows, right=(2, 3, 4))
