"""Reading a local directory tree before it is put: what goes along, and what is left out, and why."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import NoReturn

from sector import errors

_NAMED = 3


@dataclass(slots=True)
class Tree:
    """What stands below a local directory, by names relative to it, in order: `folders`, `files` with their
    sizes, `links` that were not followed, `loops` that lead back to where they stand, and `others`: what is
    no file or leads nowhere."""

    folders: list[str] = field(default_factory=list)
    files: list[tuple[str, int]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def notes(self, top: str) -> list[str]:
        """One line for each kind of entry that is left out."""
        lines = []
        if self.links:
            lines.append(f"{_named(top, self.links, 'symbolic link')} left out (put -L follows links)")
        if self.loops:
            lines.append(f"{_named(top, self.loops, 'symbolic link')} left out: back to a directory above")
        if self.others:
            lines.append(f"{_named(top, self.others, 'entry', 'entries')} left out: not a regular file")
        return lines


def _named(top: str, names: list[str], one: str, many: str = "") -> str:
    shown = ", ".join(repr(os.path.join(top, name))[1:-1] for name in names[:_NAMED])
    more = ", …" if len(names) > _NAMED else ""
    return f"{len(names)} {one if len(names) == 1 else many or one + 's'} ({shown}{more})"


def plan_tree_thd(source: str, recursive: bool, follow: bool) -> Tree | None:
    """None if `source` is no directory, else what is below it. A link given as `source` itself is followed;
    those below only if `follow`, and none that leads to a directory it stands in. Raises LocalIO, also if
    a directory cannot be read: a copy that lacks a part would be taken for a whole one."""
    if not os.path.exists(source):
        raise errors.LocalIO(f"{source}: no such file or directory", hint="check the name")
    if not os.path.isdir(source):
        return None
    if not recursive:
        raise errors.LocalIO(f"{source} is a directory", hint="use -r to put all that is in it")
    tree = Tree()
    above = {source: frozenset([_identity(os.stat(source))])}
    for top, names, inner in os.walk(source, followlinks=follow, onerror=_unreadable):
        known = above.pop(top)
        names.sort()
        for name in list(names):
            full = os.path.join(top, name)
            inside = os.path.normpath(os.path.join(os.path.relpath(top, source), name))
            try:
                here = _identity(os.stat(full)) if follow else (0, 0)
            except OSError as error:
                _unreadable(error)
            if os.path.islink(full) and (not follow or here in known):
                (tree.loops if follow else tree.links).append(inside)
                names.remove(name)
                continue
            tree.folders.append(inside)
            above[full] = known | {here}
        for name in sorted(inner):
            _file(tree, os.path.join(top, name), os.path.relpath(os.path.join(top, name), source), follow)
    return tree


def _file(tree: Tree, full: str, inside: str, follow: bool) -> None:
    if os.path.islink(full) and not follow:
        tree.links.append(inside)
        return
    try:
        info = os.stat(full)
    except OSError:  # gone since, or a link that leads nowhere
        tree.others.append(inside)
        return
    if stat.S_ISREG(info.st_mode):
        tree.files.append((inside, info.st_size))
    else:
        tree.others.append(inside)


def check_distinct(moves: list[tuple[str, str]]) -> None:
    """Refuses two sources that would end in one place, one of them lost. Raises UsageError."""
    taken: dict[str, str] = {}
    for source, place in moves:
        if place in taken:
            raise errors.UsageError(
                f"{taken[place]} and {source} would both become {place}", hint="name a place for each"
            )
        taken[place] = source


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _unreadable(error: OSError) -> NoReturn:
    raise errors.LocalIO(f"{error.filename}: {error.strerror}", hint="nothing was put") from None
