"""Documents: what the parser takes and refuses, and that what is written can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cumulus.errors import S3Error
from cumulus.xml import MAX_DEPTH, MAX_ELEMENTS, Writer, parse


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"text",
        b"<a>",
        b"<b/>",
        b"<a/><a/>",
        b"<!DOCTYPE a><a/>",
        b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        b'<!DOCTYPE a SYSTEM "http://example.org/a.dtd"><a/>',
        b"<a>&undefined;</a>",
        b"<a" + b"><x" * MAX_DEPTH + b">",
        b"<a>" + b"<b/>" * MAX_ELEMENTS + b"</a>",
        b"\xff\xfe<a/>",
        b"<a>\x00</a>",
        b"<?xml version='1.0' encoding='x-unknown'?><a/>",
        b"<p:a/>",
    ],
)
def test_what_is_refused(document: bytes) -> None:
    with pytest.raises(S3Error, match="MalformedXML"):
        parse(document, "a")


def test_namespaces_are_dropped_and_texts_kept() -> None:
    inner = b'<n:b k="1"> two &amp; <![CDATA[<three>]]> </n:b><c/>'
    root = parse(b'<?xml version="1.0"?><n:a xmlns:n="urn:x">' + inner + b"</n:a>", "a")
    assert root.value("b") == "two & <three>" and root.raw("b") == " two & <three> "
    assert [child.tag for child in root.children] == ["b", "c"]
    assert root.children[0].attributes == {"k": "1"}
    assert (root.value("none", "default"), root.raw("none"), root.first("none")) == ("default", None, None)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")))
def test_what_is_written_reads_back(text: str) -> None:
    document = Writer("a")
    document.leaves(("b", text), ("n", 7), ("yes", True))
    document.begin("inner")
    document.text(text)
    root = parse(document.bytes(), "a")
    assert (root.raw("b"), root.value("n"), root.value("yes")) == (text, "7", "true")
    assert root.raw("inner") == text


def test_control_characters_are_written_as_references() -> None:
    """As S3 does; what cannot be said in XML does not break the elements around it."""
    document = Writer("a", namespace="")
    document.leaf("b", "\x01<\r\ufffe")
    assert document.bytes().endswith(b"<a><b>&#x1;&lt;&#xD;&#xFFFE;</b></a>")
