"""Paths that wait to be looked at: of small files, of large ones, and those nobody has looked at yet."""

from __future__ import annotations

from collections.abc import Iterator

Kind = bool | None
"""Whether a file is small; None = not known yet."""

KINDS: tuple[Kind, ...] = (True, False, None)


class Waiting:
    """Each path once, in one line for each kind, in the order in which they came; those that were tried in
    vain are marked. Nobody who looks for one kind, or for marked ones, walks past the others."""

    def __init__(self) -> None:
        self._lines: dict[Kind, dict[str, None]] = {kind: {} for kind in KINDS}
        self._marked: dict[Kind, dict[str, None]] = {kind: {} for kind in KINDS}

    def put(self, path: str, small: Kind = None, marked: bool = False) -> None:
        """To the end of its line; one that waits stays where it is."""
        if path not in self:
            self._lines[small][path] = None
            if marked:
                self._marked[small][path] = None

    def pop(self, path: str) -> bool:
        """Take a path out; whether it was here."""
        for kind, line in self._lines.items():
            if path in line:
                del line[path]
                self._marked[kind].pop(path, None)
                return True
        return False

    def mark(self, path: str) -> None:
        """It was tried in vain, if it waits here."""
        for kind, line in self._lines.items():
            if path in line:
                self._marked[kind][path] = None

    def unmark(self, path: str) -> None:
        """That is no longer so."""
        for marked in self._marked.values():
            marked.pop(path, None)

    def marked(self, *kinds: Kind) -> Iterator[str]:
        """The marked paths of these kinds, those of a kind in the order in which they were marked."""
        return (path for kind in kinds for path in self._marked[kind])

    def count_marked(self, *kinds: Kind) -> int:
        """How many there are of these."""
        return sum(len(self._marked[kind]) for kind in kinds)

    def line(self, small: Kind) -> Iterator[str]:
        """The paths of one kind."""
        return iter(self._lines[small])

    def count(self, *kinds: Kind) -> int:
        """How many there are of these kinds."""
        return sum(len(self._lines[kind]) for kind in kinds)

    def __len__(self) -> int:
        return self.count(*KINDS)

    def __contains__(self, path: object) -> bool:
        return any(path in line for line in self._lines.values())

    def __iter__(self) -> Iterator[str]:
        return (path for line in self._lines.values() for path in line)
