"""What commands print: JSON for machines, tables and short lines for people. Data goes to standard output,
talk to standard error."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click
import msgspec

from sector.errors import printable

_LONE: Final = re.compile("[\ud800-\udfff]")
_WIDE: Final = 64  # columns of a cell that others are padded to


def plain(value: Any) -> Any:
    """`value` as JSON knows it: Structs become objects by field name, bytes hex, addresses "HOST:PORT"."""
    if isinstance(value, msgspec.Struct):
        if type(value).__name__ == "Address":
            return str(value)
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value


def json_text(value: Any, indent: int | None = None) -> str:
    """A JSON document that can be written as UTF-8: what is no text in a local name is escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _LONE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json_text(plain(value), 2 if sys.stdout.isatty() else None))


def columns(text: str) -> int:
    """How many columns of a terminal the text takes: East Asian characters two, marks above others none."""
    if text.isascii():
        return len(text)
    marks = ("Mn", "Me")
    wide = ("W", "F")
    return sum(
        0 if unicodedata.category(c) in marks else 2 if unicodedata.east_asian_width(c) in wide else 1
        for c in text
    )


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> None:
    """Columns in line; `right` are the indexes of those aligned to the right. A cell that is very long moves
    the rest of its own row only."""
    cells = [list(heads), *([printable(str(cell)) for cell in row] for row in rows)]
    taken = [[columns(cell) for cell in row] for row in cells]
    widths = [max((w for w in column if w <= _WIDE), default=_WIDE) for column in zip(*taken, strict=True)]
    to_right = set(right)
    for row, lengths in zip(cells, taken, strict=True):
        line = []
        for i, (cell, length) in enumerate(zip(row, lengths, strict=True)):
            blanks = " " * (widths[i] - length)
            line.append(blanks + cell if i in to_right else cell + blanks)
        click.echo("  ".join(line).rstrip())


def say(text: str) -> None:
    """One line of talk on standard error."""
    click.echo(printable(text), err=True)


def size_text(size: float) -> str:
    """Bytes for people, decimal units: 1234567 -> "1.2 MB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def duration_text(seconds: float) -> str:
    """Seconds for people: 3700 -> "1 h 1 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} days"
