"""Directory rights: the longest directory that holds a path decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sector.model import Right, is_below
from sector.rights import allowed, both, parse_letters, rights_on

PATHS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map(lambda names: "/" + "/".join(names))
LETTERS = st.sampled_from(["", "r", "w", "x", "rw", "rx", "wx", "rwx"])
RIGHTS = st.lists(st.builds(Right, st.just("u"), PATHS, LETTERS), max_size=6, unique_by=lambda r: r.path)


def right(path: str, what: str) -> Right:
    return Right("u", path, what)


def test_without_rights_nothing_is_allowed() -> None:
    assert not allowed([], "/a", "r")


def test_a_right_counts_on_the_directory_and_below_but_not_beside_it() -> None:
    rights = [right("/a", "rw")]
    assert allowed(rights, "/a", "rw") and allowed(rights, "/a/b/c", "r")
    assert not allowed(rights, "/ab", "r") and not allowed(rights, "/", "r")
    assert not allowed(rights, "/a", "x")


def test_the_longest_directory_wins_even_if_it_gives_less() -> None:
    rights = [right("/", "rwx"), right("/private", ""), right("/private/mine", "r")]
    assert allowed(rights, "/x", "rwx")
    assert not allowed(rights, "/private/y", "r")
    assert allowed(rights, "/private/mine/z", "r") and not allowed(rights, "/private/mine/z", "w")


@given(RIGHTS, PATHS)
def test_the_answer_is_that_of_the_deepest_entry(rights: list[Right], path: str) -> None:
    holding = sorted(
        (r for r in rights if is_below(path, r.path)), key=lambda r: r.path.count("/") * (r.path != "/")
    )
    assert rights_on(rights, path) == (holding[-1].what if holding else "")


@given(RIGHTS, RIGHTS, PATHS)
def test_what_two_give_alike(one: list[Right], two: list[Right], path: str) -> None:
    """On any path; in an order of no meaning, with no entry too many."""
    found = both(one, two, "v")
    assert set(rights_on(found, path)) == set(rights_on(one, path)) & set(rights_on(two, path))
    assert {entry.user for entry in found} <= {"v"}
    for entry in found:
        rest = [other for other in found if other is not entry]
        assert rights_on(rest, entry.path) != entry.what


@pytest.mark.parametrize(
    ("text", "letters"), [("r", "r"), ("wr", "rw"), ("xwr", "rwx"), ("-", ""), ("none", "")]
)
def test_letters_in_any_order(text: str, letters: str) -> None:
    assert parse_letters(text) == letters


@pytest.mark.parametrize("text", ["q", "rr", "read", "RW"])
def test_other_letters_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_letters(text)
