"""The head of a request: bytes in, values out, or an error. Pure; strict where a proxy in front of us might
read the same bytes otherwise (RFC 9112, sections 2.2, 3, 5, 6.3)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cumulus.rest.call import Headers

MAX_HEADERS: Final = 500
_LENGTH_DIGITS: Final = 18
_KNOWN_NAMES: Final = 1024
_FIRST: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE: Final = re.compile(r"https?://([^/?#@]+)([/?].*)?", re.IGNORECASE)
# host and port (RFC 9112, section 3.2): in what is neither another reader finds another bucket
_HOST: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(:[0-9]*)?")
_BEGIN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+( |\Z)")

_names: dict[str, str] = {}  # as clients write them -> in lower case


class MalformedHead(ValueError):
    """It is no head of a request."""


class TooManyHeaders(ValueError):
    """It has more headers than anyone needs."""


class Head(NamedTuple):
    """`target` is path and query, also where the wire had a whole URL. `length` of the body: 0 for none, None
    for chunks. `persistent`: the connection may be kept. `continues`: the client knows 100 Continue
    (HTTP/1.1)."""

    method: str
    target: str
    headers: Headers
    length: int | None
    persistent: bool
    continues: bool


def parse(data: bytes) -> Head:
    """`data` is a head without the empty line at its end. Raises `MalformedHead`, `TooManyHeaders`."""
    text = data.decode("latin-1")
    lines = text.split("\r\n")
    ends = len(lines) - 1
    if text.count("\n") != ends or text.count("\r") != ends or "\0" in text:
        raise MalformedHead("a control character")
    if ends > MAX_HEADERS:
        raise TooManyHeaders(f"more than {MAX_HEADERS} headers")
    first = _FIRST.fullmatch(lines[0])
    if first is None:
        raise MalformedHead("the request line")
    pairs: list[tuple[str, str]] = []
    joined: dict[str, str] = {}
    for line in lines[1:]:
        title, colon, value = line.partition(":")
        name = _names.get(title) or _name(title)
        if not colon:
            raise MalformedHead("a header without a colon")
        value = value.strip(" \t")
        if name == "host":
            if name in joined:
                raise MalformedHead("two headers Host")
            _check_host(value)
        pairs.append((name, value))
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    method, target, minor = first.groups()
    modern = minor == "1"
    if modern and "host" not in joined:
        raise MalformedHead("no header Host")
    if target[0] not in "/*":
        target = _origin_form(target, pairs, joined)
    persistent = modern and not _closes(joined.get("connection"))
    return Head(method, target, Headers.of(pairs, joined), _length(joined), persistent, modern)


def _origin_form(target: str, pairs: list[tuple[str, str]], joined: dict[str, str]) -> str:
    """Path and query of a whole URL, whose host counts instead of the header's (RFC 9112, section 3.2.2).
    What else it may be is for others to refuse."""
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        return target
    host, rest = match[1], match[2] or "/"
    _check_host(host)
    pairs[:] = [("host", host), *(pair for pair in pairs if pair[0] != "host")]
    joined["host"] = host
    return rest if rest.startswith("/") else "/" + rest


def _check_host(host: str) -> None:
    if not _HOST.fullmatch(host):
        raise MalformedHead("name and port in Host")


def _name(title: str) -> str:
    if not _NAME.fullmatch(title):
        raise MalformedHead("the name of a header")
    name = title.lower()
    if len(title) <= 64:
        if len(_names) >= _KNOWN_NAMES:
            _names.clear()
        _names[title] = name
    return name


def _closes(connection: str | None) -> bool:
    return connection is not None and "close" in connection.lower().replace(",", " ").split()


def _length(headers: dict[str, str]) -> int | None:
    text, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None and coding.lower() != "identity":
        if coding.lower() != "chunked" or text is not None:
            raise MalformedHead("the transfer encoding")
        return None
    if text is None:
        if coding is not None:  # where the body ends nobody can tell
            raise MalformedHead("the length")
        return 0
    if not (text.isascii() and text.isdecimal()) or len(text) > _LENGTH_DIGITS:  # twice is joined by a comma
        raise MalformedHead("the length")
    return int(text)


def may_become(data: bytes) -> bool:
    """Whether what came so far can be the beginning of a head: its first word and its first line."""
    if data == b"\r":
        return True
    end = data.find(b"\r\n")
    if end < 0:
        return _BEGIN.match(data) is not None
    return _FIRST.fullmatch(data[:end].decode("latin-1")) is not None
