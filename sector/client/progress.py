"""What transfers tell while they run, and what they say at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sector._udt.paths import Way
from sector.model import Version


@dataclass(slots=True)
class Progress:
    """State of a put or get of one or many files. `bytes_total` and `files_total` grow while a tree is
    being read; `name` is the file that moved last; `notes` are lines that say what went wrong and how it
    went on."""

    files_total: int = 0
    files_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    name: str = ""
    notes: list[str] = field(default_factory=list)
    way: Way = Way()
    listener: Callable[[Progress], None] | None = field(default=None, repr=False)
    on_note: Callable[[str], None] | None = field(default=None, repr=False)

    def tell(self) -> None:
        """The state changed."""
        if self.listener is not None:
            self.listener(self)

    def note(self, text: str) -> None:
        """Keep a line for the summary and tell it."""
        self.notes.append(text)
        if self.on_note is not None:
            self.on_note(text)


class FileProgress:
    """One file's part of a `Progress`; knows how to start over."""

    def __init__(self, whole: Progress, name: str, size: int) -> None:
        self.whole = whole
        self.name = name
        self.size = size
        self._done = 0

    def at(self, moved: int) -> None:
        """So many bytes of the file are there."""
        moved = min(moved, self.size)
        self.whole.bytes_done += moved - self._done
        self._done = moved
        self.whole.name = self.name
        self.whole.tell()

    def finish(self) -> None:
        """The file is complete."""
        self.whole.files_done += 1
        self.at(self.size)


@dataclass(frozen=True, slots=True)
class Moved:
    """One file that was put or got. `local` and `path` say where it is, `node` which slave served it at
    last, `seconds` how long it took, `stats` what the transport counted (bytes, microseconds); `changed`: the
    local file was written to while it was put, so that the stored one may be part old, part new."""

    path: str
    local: str
    size: int
    version: Version
    digest: str
    node: str
    seconds: float
    stats: dict[str, int] = field(default_factory=dict, repr=False)
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """Outcome of a put or get. `seconds` of wall time, `notes` one line for each thing that went wrong
    on the way and was overcome, `way` UDP, or TLS if any file went so."""

    files: list[Moved]
    bytes: int
    seconds: float
    notes: list[str]
    way: Way = Way()

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    def __repr__(self) -> str:
        return f"Summary({len(self.files)} files, {self.bytes} bytes in {self.seconds:.2f} s)"


def size_text(size: float) -> str:
    """Bytes for people, decimal units: 812345678 -> "812 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
