"""Commands on files: ls, stat, mkdir, put, get, cat, mv, rm, replicate: parse, call the client, render."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from sector._udt.limits import receiving, sending, sentence
from sector.cli.main import Shared, shared_options
from sector.cli.render import print_json, print_table, say, size_text
from sector.cli.transfer_live import Live
from sector.client.bars import bar
from sector.client.progress import Moved, Progress, Summary
from sector.config import parse_rate
from sector.errors import LocalIO, UsageError, printable
from sector.model import FileInfo, Version
from sector.wire.files import Replicas

if TYPE_CHECKING:
    from sector.client.blocking import Cloud

CAT_BYTES = 8 << 20


class _RateType(click.ParamType[int]):
    """Bytes a second from "50MB/s"."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_rate(value)
        except ValueError as bad:
            self.fail(str(bad), param, ctx)


RATE = _RateType()
TRACE_EVENTS = 1 << 16
NEVER = Version(0, 0)


def connection(shared: Shared) -> Any:
    """The cloud of the user's settings, for a `with` block. The client is loaded here: --help and completion
    need not wait for it."""
    from sector.client.blocking import connected

    return connected(shared.client_config(), on_note=say)


def info_json(info: FileInfo) -> dict[str, Any]:
    """One entry as in `stat --json` (design section 9); `version` "EPOCH.COUNTER", `mode` octal text.
    The root was always there: it has neither version nor time (null)."""
    return {
        "path": info.path,
        "kind": info.kind,
        "size": info.size,
        "version": f"{info.version.epoch}.{info.version.counter}" if info.version != NEVER else None,
        "owner": info.owner,
        "mode": f"{info.mode & 0o7777:04o}",
        "mtime": info.mtime or None,
        "digest": info.digest,
        "replicas": list(info.replicas),
    }


def when(mtime: float | None) -> str:
    """A time for people."""
    return "-" if mtime is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(mtime))


@click.command()
@click.argument("path", default="/")
@click.option("-l", "long", is_flag=True, help="Size, owner, time and number of replicas.")
@click.option("-r", "-R", "--recursive", is_flag=True, help="All that is below.")
@shared_options
@click.pass_obj
def ls(shared: Shared, path: str, long: bool, recursive: bool) -> None:
    """List a directory of the cloud (default "/").

    \b
    Examples:
      sector ls /sdss
      sector ls -l -r /sdss
      sector ls /sdss --json | jq -r '.[].path'
    """
    with connection(shared) as cloud:
        entries = cloud.ls(path, recursive=recursive)
    if shared.json:
        print_json([info_json(entry) for entry in entries])
        return
    names = [_listed(entry, recursive) for entry in entries]
    if not long:
        for name in names:
            click.echo(name)
        return
    rows = [
        (
            "d" if entry.kind == "dir" else "-",
            f"{entry.mode & 0o777:03o}",
            "-" if entry.kind == "dir" else len(entry.replicas),
            entry.owner,
            "-" if entry.kind == "dir" else entry.size,
            when(info_json(entry)["mtime"]),
            name,
        )
        for entry, name in zip(entries, names, strict=True)
    ]
    print_table(("", "mode", "copies", "owner", "size", "changed", "name"), rows, right=(2, 4))


def _listed(entry: FileInfo, whole: bool) -> str:
    name = entry.path if whole else entry.path.rsplit("/", 1)[1]
    return printable(name) + ("/" if entry.kind == "dir" else "")


@click.command()
@click.argument("path")
@shared_options
@click.pass_obj
def stat(shared: Shared, path: str) -> None:
    """Show what the cloud knows of a file or directory.

    Only the root has neither version nor mtime: "-", with --json null.

    \b
    Examples:
      sector stat /sdss/sdss1.dat
      sector stat /sdss/sdss1.dat --json | jq .replicas
    """
    with connection(shared) as cloud:
        info = cloud.stat(path)
    if shared.json:
        print_json(info_json(info))
        return
    fields = info_json(info)
    fields["path"] = printable(info.path)
    fields["mtime"] = when(fields["mtime"])
    fields["replicas"] = ", ".join(info.replicas) or "-"
    fields["size"] = "-" if info.kind == "dir" else f"{info.size} bytes"
    for name, value in fields.items():
        click.echo(f"{name + ':':<10} {value or '-'}")


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("-p", "--parents", is_flag=True, help="Make directories above too; it may exist already.")
@shared_options
@click.pass_obj
def mkdir(shared: Shared, paths: tuple[str, ...], parents: bool) -> None:
    """Make directories.

    \b
    Examples:
      sector mkdir /sdss
      sector mkdir -p /sdss/dr5/u
    """
    with connection(shared) as cloud:
        for path in paths:
            cloud.mkdir(path, parents=parents)
    if shared.json:
        print_json({"paths": list(paths)})


# -------------------------------------------------------------------------------------------- transfers
def transfer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What put and get share."""
    for option in (
        click.option(
            "--progress",
            "progress_kind",
            type=click.Choice(["json"]),
            help="Progress as JSON lines on standard error.",
        ),
        click.option(
            "--stats",
            is_flag=True,
            help="Show what the transport counted and what was slow; on a terminal a line while files move.",
        ),
        click.option(
            "--trace",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="Write the last 65536 events of the transport as qlog-like JSON.",
        ),
        click.option(
            "-j",
            "--parallel",
            type=click.IntRange(1, 64),
            default=None,
            help="Files at once.  [default: 4, of those up to 1 MiB 32]",
        ),
        click.option(
            "--limit",
            type=RATE,
            default=0,
            metavar="RATE",
            help="At most so much together, as 50MB/s or 400Mb/s.",
        ),
        click.option("-r", "-R", "--recursive", is_flag=True, help="Directories with all that is in them."),
    ):
        function = option(function)
    return function


@contextmanager
def told(shared: Shared, title: str, kind: str | None, live: Live | None = None) -> Iterator[Progress]:
    """A progress that is shown as the user asked; notes go to standard error."""
    if kind == "json":
        progress = Progress(on_note=lambda text: click.echo(json.dumps({"note": text}), err=True))
        last = [0.0]

        def line(now: Progress) -> None:
            if time.monotonic() - last[0] >= 0.25 or now.files_done == now.files_total:
                last[0] = time.monotonic()
                fields = ("files_done", "files_total", "bytes_done", "bytes_total", "name")
                click.echo(json.dumps({name: getattr(now, name) for name in fields}), err=True)

        progress.listener = line
        yield progress
        return
    if live is not None:
        progress = Progress(listener=live)
        try:
            yield progress
        finally:
            live.stop()
            for note in progress.notes:
                say(note)
        return
    notes: list[str] = []
    try:
        with bar(title, shared.bars) as progress:
            progress.on_note = notes.append if shared.bars else say
            yield progress
    finally:
        for note in notes:
            say(note)


def limits(verb: str, stats: dict[str, int]) -> dict[str, float]:
    """What held a transfer up: shares of its time."""
    return sending(stats, transfer=True) if verb == "put" else receiving(stats)


def _rounded(shares: dict[str, float]) -> dict[str, float]:
    return {name: round(share, 4) for name, share in shares.items()}


@contextmanager
def traced(cloud: Cloud, path: str | None) -> Iterator[None]:
    """Write a trace of the transfers inside to a file, also when they fail."""
    if path is None:
        yield
        return
    from sector._udt.trace import check_place

    with _no_place(path):
        check_place(path)
    trace = cloud.trace(TRACE_EVENTS)
    try:
        yield
    finally:
        with _no_place(path):
            trace.write(path, "sector transfers", "client")


@contextmanager
def _no_place(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalIO(
            f"the trace cannot be written to {path}: {error.strerror}", hint="name another file with --trace"
        ) from None


def report(shared: Shared, verb: str, summary: Summary, stats: bool) -> None:
    """The outcome of a put or get."""
    if shared.json:
        files = [
            {
                "path": one.path,
                "local": one.local,
                "size": one.size,
                "version": f"{one.version.epoch}.{one.version.counter}",
                "digest": one.digest,
                "node": one.node,
                "seconds": round(one.seconds, 6),
                **({"changed": one.changed} if verb == "put" else {}),
                **({"stats": one.stats, "limited": _rounded(limits(verb, one.stats))} if stats else {}),
            }
            for one in summary.files
        ]
        print_json(
            {
                "files": files,
                "bytes": summary.bytes,
                "seconds": round(summary.seconds, 6),
                "gbps": round(summary.rate * 8 / 1e9, 6),
                "notes": summary.notes,
                "path": summary.way.name,
                "path_reason": summary.way.reason,
            }
        )
        return
    count = f"{len(summary.files)} file{'' if len(summary.files) == 1 else 's'}"
    say(
        f"{verb} {count}, {size_text(summary.bytes)} in {summary.seconds:.1f} s ({size_text(summary.rate)}/s)"
    )
    if stats:
        for one in summary.files:
            why = sentence(limits(verb, one.stats), one.stats)
            say(f"{printable(one.path)}: slave {one.node}, {one.seconds:.3f} s, {why}")
            for name, value in sorted(one.stats.items()):
                say(f"  {name} = {value}")


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="LOCAL... REMOTE")
@click.option("--no-replace", is_flag=True, help="Refuse to replace a file that exists.")
@click.option("-L", "--follow", is_flag=True, help="Take what symbolic links in directories lead to.")
@transfer_options
@shared_options
@click.pass_obj
def put(
    shared: Shared,
    sources: tuple[str, ...],
    recursive: bool,
    parallel: int | None,
    limit: int,
    stats: bool,
    trace: str | None,
    progress_kind: str | None,
    no_replace: bool,
    follow: bool,
) -> int:
    """Store files of this machine in the cloud.

    REMOTE that is a directory, or ends with /, takes the files by name; else it names the one file.
    Directories that are missing are made. A file is visible when all of it is safe on a slave's disk.
    Of a directory, symbolic links and what is no file are left out, and a line says so. If a file is
    written to while it is read, a line says so, and the exit status is 1. LOCAL that is - stores standard
    input, all of it at its end, as the file REMOTE.

    \b
    Examples:
      sector put sdss1.dat /sdss/
      tar c pages | sector put - /backup/pages.tar
      sector put -r pages /web
      sector put big.dat /big.dat --stats
      sector put big.dat /big.dat --limit 50MB/s
    """
    if len(sources) < 2:
        raise UsageError("put needs a local file and a cloud path", hint="sector put FILE /path")
    if "-" in sources[:-1]:
        if len(sources) > 2 or recursive or follow or parallel is not None:
            raise UsageError("put - stores standard input as one file", hint="sector put - /path")
        with connection(shared) as cloud, traced(cloud, trace):
            raw: Any = cloud.open(sources[-1], "xb" if no_replace else "wb", limit=limit)
            live = Live(cloud.running, sending=True) if stats and shared.bars else None
            summary = _put_input(raw, told(shared, "put", progress_kind, live))
        report(shared, "put", summary, stats)
        return 0
    with connection(shared) as cloud:
        live = Live(cloud.running, sending=True) if stats and shared.bars else None
        with traced(cloud, trace), told(shared, "put", progress_kind, live) as progress:
            summary = cloud.put(
                list(sources[:-1]) if len(sources) > 2 else sources[0],
                sources[-1],
                recursive=recursive,
                create="new" if no_replace else "any",
                follow=follow,
                parallel=parallel,
                limit=limit,
                progress=progress,
            )
    report(shared, "put", summary, stats)
    return 1 if any(one.changed for one in summary.files) else 0


def _put_input(raw: Any, showing: AbstractContextManager[Progress]) -> Summary:
    """Standard input as a file; nothing of it when it cannot be read to its end."""
    with raw as place:
        shutil.copyfileobj(sys.stdin.buffer, place, CAT_BYTES)
        with showing as progress:
            raw.progress = progress
            raw.close()
    moved: Moved = raw.published
    return Summary([moved], moved.size, moved.seconds, progress.notes, progress.way)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="REMOTE... [LOCAL]")
@click.option("--no-replace", is_flag=True, help="Refuse to replace a local file that exists.")
@transfer_options
@shared_options
@click.pass_obj
def get(
    shared: Shared,
    paths: tuple[str, ...],
    recursive: bool,
    parallel: int | None,
    limit: int,
    stats: bool,
    trace: str | None,
    progress_kind: str | None,
    no_replace: bool,
) -> None:
    """Fetch files of the cloud to this machine (default: the current directory).

    A local file appears when all of it has arrived and its digest was verified. If a slave stops, another
    replica goes on at the same place. LOCAL that is - prints the files on standard output, as cat does.

    \b
    Examples:
      sector get /sdss/sdss1.dat
      sector get /sdss/sdss1.dat copy.dat
      sector get -r /web pages
    """
    remote, local = (list(paths[:-1]), paths[-1]) if len(paths) > 1 else (list(paths), ".")
    if local == "-":
        if shared.json or recursive or stats or parallel is not None:
            raise UsageError(
                "get to - prints bytes of files, one after the other",
                hint="leave --json, --stats, -j and -r away, or name a place",
            )
        _print_files(shared, remote, limit, trace, progress_kind)
        return
    with connection(shared) as cloud:
        live = Live(cloud.running, sending=False) if stats and shared.bars else None
        with traced(cloud, trace), told(shared, "get", progress_kind, live) as progress:
            summary = cloud.get(
                remote if len(remote) > 1 else remote[0],
                local,
                recursive=recursive,
                overwrite=not no_replace,
                parallel=parallel,
                limit=limit,
                progress=progress,
            )
    report(shared, "got", summary, stats)


@click.command()
@click.argument("paths", nargs=-1, required=True)
@shared_options
@click.pass_obj
def cat(shared: Shared, paths: tuple[str, ...]) -> None:
    """Print files on standard output, as they are.

    \b
    Examples:
      sector cat /web/index.html
      sector cat /logs/1 /logs/2 | grep error
    """
    if shared.json:
        raise UsageError("cat prints bytes, not JSON", hint="leave --json away")
    _print_files(shared, paths)


def _print_files(
    shared: Shared, paths: Iterable[str], limit: int = 0, trace: str | None = None, kind: str | None = None
) -> None:
    quiet = replace(shared, no_progress=True)  # a bar would stand between what is printed
    with connection(shared) as cloud, traced(cloud, trace), told(quiet, "get", kind) as progress:
        for path in paths:
            _cat(cloud, path, limit, progress)
    sys.stdout.buffer.flush()


def _cat(cloud: Cloud, path: str, limit: int, progress: Progress) -> None:
    with cloud.open(path, "rb", limit=limit, progress=progress) as source:
        while chunk := source.read(CAT_BYTES):
            sys.stdout.buffer.write(chunk)


# --------------------------------------------------------------------------------------- mv, rm, copies
@click.command()
@click.argument("source")
@click.argument("target")
@click.option("-f", "--force", is_flag=True, help="Replace a file that exists.")
@shared_options
@click.pass_obj
def mv(shared: Shared, source: str, target: str, force: bool) -> None:
    """Rename a file or directory, or move it into a directory.

    \b
    Examples:
      sector mv /sdss/a.dat /sdss/b.dat
      sector mv /sdss/dr5 /archive/
    """
    with connection(shared) as cloud:
        cloud.mv(source, target, overwrite=force)
    if shared.json:
        print_json({"source": source, "target": target})


@click.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("-r", "-R", "--recursive", is_flag=True, help="Directories with all that is in them.")
@shared_options
@click.pass_obj
def rm(shared: Shared, paths: tuple[str, ...], recursive: bool) -> None:
    """Remove files or directories.

    \b
    Examples:
      sector rm /sdss/a.dat
      sector rm -r /sdss/dr5
    """
    files = size = 0
    with connection(shared) as cloud:
        for path in paths:
            removed = cloud.rm(path, recursive=recursive)
            files += removed.files
            size += removed.bytes
    if shared.json:
        print_json({"files": files, "bytes": size})


def _copies(state: Replicas) -> str:
    if state.have > state.wanted:
        return f"{state.have} replicas, {state.wanted} wanted"
    return f"{state.have} of {state.wanted} replicas"


@click.command()
@click.argument("path")
@click.option("-n", "--copies", type=click.IntRange(0, 64), default=0, help="Replicas; 0 = as configured.")
@click.option("--wait", is_flag=True, help="Return when they are there.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Give up waiting after so many seconds.")
@shared_options
@click.pass_obj
def replicate(shared: Shared, path: str, copies: int, wait: bool, timeout: float | None) -> None:
    """Bring a file, or all files of a directory, to its number of replicas now.

    \b
    Examples:
      sector replicate --wait /sdss/sdss1.dat
      sector replicate -n 4 /sdss
    """
    last: list[Replicas] = []

    def changed(state: Replicas) -> None:
        if shared.bars and (not last or last[-1] != state):
            say(f"{printable(path)}: {_copies(state)}")
        last[:] = [state]

    with connection(shared) as cloud:
        state = cloud.replicate(path, copies=copies, wait=wait, timeout_s=timeout, progress=changed)
    if shared.json:
        print_json({"path": path, "wanted": state.wanted, "have": state.have, "replicas": list(state.nodes)})
    else:
        nodes = f" ({', '.join(state.nodes)})" if state.nodes else ""
        click.echo(f"{printable(path)}: {_copies(state)}{nodes}")
