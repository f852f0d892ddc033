"""Paths that wait to be looked at: of small files, of large ones, and those nobody has looked at yet."""

from __future__ import annotations

from collections.abc import Iterator

Kind = bool | None
"""Whether a file is small; None = not known yet."""

KINDS: tuple[Kind, ...] = (True, False, None)


class Waiting:
    """Each path once, in one line for each kind, in the order in which they came. Nobody who looks for one
    kind walks past the others."""

    def __init__(self) -> None:
        self._lines: dict[Kind, dict[str, None]] = {kind: {} for kind in KINDS}

    def put(self, path: str, small: Kind = None) -> None:
        """To the end of its line; one that waits stays where it is."""
        if path not in self:
            self._lines[small][path] = None

    def pop(self, path: str) -> bool:
        """Take a path out; whether it was here."""
        for line in self._lines.values():
            if path in line:
                del line[path]
                return True
        return False

    def line(self, small: Kind) -> Iterator[str]:
        """The paths of one kind."""
        return iter(self._lines[small])

    def count(self, *kinds: Kind) -> int:
        """How many there are of these kinds."""
        return sum(len(self._lines[kind]) for kind in kinds)

    def large(self, path: str) -> bool:
        """Whether it waits among the large ones."""
        return path in self._lines[False]

    def __len__(self) -> int:
        return self.count(*KINDS)

    def __contains__(self, path: object) -> bool:
        return any(path in line for line in self._lines.values())

    def __iter__(self) -> Iterator[str]:
        return (path for line in self._lines.values() for path in line)
