"""`cumulus traffic`: requests and bytes by day, user, bucket or operation, added up over the access log and
logrotate has made of it."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import click
import msgspec

from cumulus.admin.options import Shared, shared_options
from cumulus.config import Config
from cumulus.words import count_text
from sector.cli import render
from sector.errors import LocalIO, UsageError

KINDS: Final = ("day", "month", "user", "bucket", "operation")
_FAILED: Final = 400  # and above
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")


class _Line(msgspec.Struct):
    """What is used of a line (`cumulus.http.access_log.Record`)."""

    time: str
    status: int
    bytes_in: int
    bytes_out: int
    user: str = ""
    bucket: str = ""
    operation: str = ""


class Sums(msgspec.Struct):
    """Of some requests; `failed` had status 400 or above, 499 (the client had gone) among them."""

    requests: int = 0
    failed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Wanted(NamedTuple):
    """Days, both included ("" = all there are), and whose lines ("" = all)."""

    since: str = ""
    until: str = ""
    user: str = ""
    bucket: str = ""

    def has(self, line: _Line) -> bool:
        """Whether the line counts."""
        day = line.time[:10]
        return (
            (not self.since or day >= self.since)
            and (not self.until or day <= self.until)
            and (not self.user or line.user == self.user)
            and (not self.bucket or line.bucket == self.bucket)
        )


def logs(path: Path) -> list[Path]:
    """The log and what rotation has made of it: access.log, access.log.1, access.log-20260301.gz."""
    others = [one for mark in ".-" for one in path.parent.glob(f"{path.name}{mark}*") if one.is_file()]
    return [*sorted(others), *([path] if path.exists() else [])]


def _opened(path: Path) -> BinaryIO:
    file: BinaryIO = path.open("rb")
    if file.read(2) != b"\x1f\x8b":
        file.seek(0)
        return file
    file.close()
    return gzip.open(path, "rb")  # type: ignore[return-value]


def lines(path: Path) -> Iterator[_Line | None]:
    """Of one file; None for what is none, as one that a full disk has cut. Raises `LocalIO`."""
    decoder = msgspec.json.Decoder(_Line)
    try:
        with _opened(path) as file:
            for text in file:
                try:
                    line = decoder.decode(text)
                except msgspec.MsgspecError:
                    yield None if text.strip() else _Line("", 0, 0, 0)
                    continue
                yield line if _DAY.match(line.time) else None
    except (OSError, EOFError) as bad:
        raise LocalIO(f"{path}: {getattr(bad, 'strerror', None) or bad}") from None


def add_up(
    found: Iterable[_Line], by: tuple[str, ...], wanted: Wanted, sums: dict[tuple[str, ...], Sums]
) -> None:
    """Add the lines that count to the sums of what they are `by`."""
    cut = {"day": 10, "month": 7}
    for line in found:
        if not wanted.has(line):
            continue
        key = tuple(line.time[: cut[one]] if one in cut else getattr(line, one) for one in by)
        into = sums.get(key)
        if into is None:
            into = sums[key] = Sums()
        into.requests += 1
        into.failed += line.status >= _FAILED
        into.bytes_in += line.bytes_in
        into.bytes_out += line.bytes_out


def _check_day(text: str | None, flag: str) -> str:
    try:
        return date.fromisoformat(text).isoformat() if text is not None else ""
    except ValueError:
        raise UsageError(f"{flag} {text!r} is no day", hint="write 2026-03-01") from None


def _files(config: Config, given: tuple[str, ...]) -> list[Path]:
    if given:
        return [Path(one) for one in given]
    if not config.log.access:
        hint = 'write [log] access = "access.log", or give FILE'
        raise UsageError("the settings name no access log", hint=hint)
    found = logs(config.file(config.log.access))
    if not found:
        raise LocalIO(f"{config.file(config.log.access)}: there is no log yet", hint="serve first")
    return found


@click.command("traffic", short_help="Sum up the access log by day, user, bucket or operation.")
@click.argument("files", metavar="[FILE]...", nargs=-1)
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(KINDS),
    help="What has a line of its own (repeatable).  [default: day, user]",
)
@click.option("--since", metavar="DAY", help="From this day on (UTC).")
@click.option("--until", metavar="DAY", help="Up to this day, which is included.")
@click.option("--user", default="", metavar="U", help="Only requests of the user U.")
@click.option("--bucket", default="", metavar="B", help="Only requests about the bucket B.")
@shared_options
@click.pass_obj
def traffic(
    shared: Shared,
    files: tuple[str, ...],
    by: tuple[str, ...],
    since: str | None,
    until: str | None,
    user: str,
    bucket: str,
) -> None:
    """Sum up requests and bytes of the access log and of what logrotate has made of it (or of FILEs, also
    packed by gzip). A request belongs to the day (UTC) on which it began; USER is empty for anonymous ones.

    \b
    Examples:
      cumulus --dir D traffic --since 2026-03-01 --until 2026-03-31 --by user
      cumulus --dir D traffic --by month --by bucket --json
      cumulus --dir D traffic server1.log server2.log.gz
    """
    wanted = Wanted(_check_day(since, "--since"), _check_day(until, "--until"), user, bucket)
    by = tuple(dict.fromkeys(by)) or ("day", "user")
    sums: dict[tuple[str, ...], Sums] = {}
    for path in _files(shared.config(), files):
        bad = 0

        def good(path: Path = path) -> Iterator[_Line]:
            nonlocal bad
            for line in lines(path):
                if line is None:
                    bad += 1
                elif line.time:
                    yield line

        add_up(good(), by, wanted, sums)
        if bad:
            render.say(f"{path}: {count_text(bad, 'line')} of it cannot be read")
    found = sorted(sums.items())
    document = [dict(zip(by, key, strict=True)) | msgspec.structs.asdict(one) for key, one in found]
    rows = [
        (
            *(part or "-" for part in key),
            one.requests,
            one.failed,
            render.size_text(one.bytes_in),
            render.size_text(one.bytes_out),
        )
        for key, one in found
    ]
    heads = [*(one.upper() for one in by), "REQUESTS", "FAILED", "IN", "OUT"]
    shared.listed(document, heads, rows, right=range(len(by), len(heads)))
