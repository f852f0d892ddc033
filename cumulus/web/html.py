"""HTML that is safe by construction: what is not `Html` is text and is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from sector.errors import printable

_VOID: Final = frozenset({"meta", "link", "input", "br"})


class Html(str):
    """Markup that was made here."""

    __slots__ = ()


Child = object  # Html, text, a number, an iterable of these, None for nothing


def text(value: object) -> Html:
    """A value as text, with what would command a terminal or turn the reading direction made visible."""
    return Html(escape(printable(str(value)), quote=True))


def _children(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield child
        elif isinstance(child, str) or not isinstance(child, Iterable):
            yield text(child)
        else:
            yield from _children(child)


def join(*children: Child) -> Html:
    """One after the other."""
    return Html("".join(_children(children)))


def el(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element. An attribute's name loses its last `_`, others become `-`; True gives one without value,
    None and False none."""
    parts = [name]
    for key, value in attributes.items():
        label = key.removesuffix("_").replace("_", "-")
        if value is True:
            parts.append(label)
        elif value is not None and value is not False:
            parts.append(f'{label}="{text(value)}"')
    start = f"<{' '.join(parts)}>"
    return Html(start if name in _VOID else f"{start}{join(*children)}</{name}>")
