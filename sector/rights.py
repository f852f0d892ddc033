"""Directory rights: which of read, write and execute a user has on a path (spec/security.md, Sessions)."""

from __future__ import annotations

from collections.abc import Iterable

from sector.model import Right, is_below

READ, WRITE, EXECUTE = "r", "w", "x"


def rights_on(rights: Iterable[Right], path: str) -> str:
    """The letters (subset of "rwx") that count on canonical `path`: those of the longest directory in
    `rights` that holds it; "" when none does. A longer entry replaces a shorter one, so that "" on a
    directory takes what was given above it."""
    best: Right | None = None
    for right in rights:
        if is_below(path, right.path) and (best is None or len(right.path) > len(best.path)):
            best = right
    return best.what if best else ""


def allowed(rights: Iterable[Right], path: str, what: str) -> bool:
    """Whether every letter of `what` ("r", "w", "x" or several) is given on canonical `path`."""
    given = rights_on(rights, path)
    return all(letter in given for letter in what)


def both(mine: Iterable[Right], bounds: Iterable[Right], user: str) -> tuple[Right, ...]:
    """The rights of `user` that `mine` and `bounds` give alike; no entry says what one above it says."""
    one, two = tuple(mine), tuple(bounds)
    found: list[Right] = []
    for path in sorted({right.path for right in (*one, *two)}):  # a directory before what is in it
        other = rights_on(two, path)
        letters = "".join(letter for letter in rights_on(one, path) if letter in other)
        if letters != rights_on(found, path):
            found.append(Right(user, path, letters))
    return tuple(found)


def parse_letters(text: str) -> str:
    """Canonical letters from user input in any order ("wr" -> "rw"; "-" or "none" -> "").

    Raises ValueError for anything else."""
    if text in ("-", "none", ""):
        return ""
    if set(text) - set("rwx") or len(set(text)) != len(text):
        raise ValueError(f"rights {text!r} are not letters of rwx")
    return "".join(letter for letter in "rwx" if letter in text)
