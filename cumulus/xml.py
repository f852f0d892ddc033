"""Request and response documents of S3: a bounded parser and a writer.

The parser takes no document type, no entities of its own, and limits size, depth and the number of elements,
so that no body of a client can cost more than itself. Namespaces are dropped: clients write S3's, another or
none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.parsers import expat

from cumulus.errors import S3Error

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
MAX_DEPTH: Final = 12
MAX_ELEMENTS: Final = 60_000  # a completion names 10,000 parts with up to five children each


class Element:
    """One element: `tag` without namespace, `text` of its own, `children` in order, `attributes` by local
    name."""

    __slots__ = ("attributes", "children", "tag", "text")

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.text = ""
        self.children: list[Element] = []

    def all(self, tag: str) -> Iterator[Element]:
        """Its children of that name."""
        return (child for child in self.children if child.tag == tag)

    def first(self, tag: str) -> Element | None:
        """Its first child of that name."""
        return next(self.all(tag), None)

    def value(self, tag: str, default: str = "") -> str:
        """Text of its first child of that name, without white space around it."""
        child = self.first(tag)
        return default if child is None else child.text.strip()

    def raw(self, tag: str) -> str | None:
        """Text of its first child of that name as it stands (keys may begin with a space)."""
        child = self.first(tag)
        return None if child is None else child.text


class _Refused(Exception):
    """A document that is well-formed, but not one that we take."""


def _local(name: str) -> str:
    return name.rsplit(" ", 1)[-1]


class _Builder:
    def __init__(self) -> None:
        self.root: Element | None = None
        self.stack: list[Element] = []
        self.texts: list[list[str]] = []
        self.count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.stack) >= MAX_DEPTH:
            raise _Refused
        element = Element(_local(name), {_local(key): value for key, value in attributes.items()})
        if self.stack:
            self.stack[-1].children.append(element)
        else:
            self.root = element
        self.stack.append(element)
        self.texts.append([])

    def end(self, _name: str) -> None:
        self.stack.pop().text = "".join(self.texts.pop())

    def data(self, text: str) -> None:
        if self.texts:
            self.texts[-1].append(text)

    def refuse(self, *_: object) -> None:
        raise _Refused


def parse(data: bytes, root: str) -> Element:
    """The document's root, which must be named `root`. Raises `S3Error` MalformedXML."""
    builder = _Builder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.EntityDeclHandler = builder.refuse
    parser.buffer_text = True
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, _Refused, ValueError, LookupError) as error:
        raise S3Error("MalformedXML") from error
    if builder.root is None or builder.root.tag != root:
        raise S3Error("MalformedXML", f"The document must be a {root}.")
    return builder.root


def written(root: Element) -> str:
    """A document of S3's, without attributes, as text."""
    document = Writer(root.tag)
    for child in root.children:
        _write(document, child)
    return document.bytes().decode()


def _write(document: Writer, branch: Element) -> None:
    if not branch.children:
        document.leaf(branch.tag, branch.text)
        return
    document.begin(branch.tag)
    for child in branch.children:
        _write(document, child)
    document.end()


# what XML 1.0 cannot hold is written as a reference nevertheless, as S3 does; clients that cannot read it
# ask for encoding-type=url
_ESCAPES: Final = {
    **{code: f"&#x{code:X};" for code in range(0x20) if code not in (0x09, 0x0A)},
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord('"'): "&quot;",
    0xFFFE: "&#xFFFE;",
    0xFFFF: "&#xFFFF;",
}


def escape(text: str) -> str:
    """Text as it may stand in an element or an attribute."""
    return text if text.isalnum() and text.isascii() else text.translate(_ESCAPES)


def element(tag: str, value: str | int | bool) -> str:
    """An element of one value."""
    if isinstance(value, str):
        return f"<{tag}>{escape(value)}</{tag}>"
    return f"<{tag}>{('true' if value else 'false') if isinstance(value, bool) else value}</{tag}>"


class Writer:
    """Builds one document. `bytes()` gives it, once all opened elements are closed."""

    __slots__ = ("_open", "_out")

    def __init__(self, root: str, namespace: str = NAMESPACE) -> None:
        attribute = f' xmlns="{namespace}"' if namespace else ""
        self._out = ['<?xml version="1.0" encoding="UTF-8"?>\n', f"<{root}{attribute}>"]
        self._open = [root]

    def leaf(self, tag: str, value: str | int | bool) -> None:
        """An element of one value."""
        self._out.append(element(tag, value))

    def leaves(self, *pairs: tuple[str, str | int | bool]) -> None:
        """Several of them."""
        for tag, value in pairs:
            self.leaf(tag, value)

    def text(self, value: str) -> None:
        """Text of the innermost open element."""
        self._out.append(escape(value))

    def raw(self, text: str) -> None:
        """Text that is XML already; what it opens it must close."""
        self._out.append(text)

    def begin(self, tag: str, attributes: str = "") -> None:
        """Open an element; `attributes` as they stand in the document."""
        self._out.append(f"<{tag} {attributes}>" if attributes else f"<{tag}>")
        self._open.append(tag)

    def end(self) -> None:
        """Close the innermost open element."""
        self._out.append(f"</{self._open.pop()}>")

    def bytes(self) -> bytes:
        """The document; closes what is open."""
        while self._open:
            self.end()
        return "".join(self._out).encode("utf-8", "surrogatepass")
