"""Cross-origin requests: a bucket's CORS configuration, which rule fits, what a browser is told. Pure.

Source: Amazon S3 user guide, "Using cross-origin resource sharing (CORS)"; Fetch standard, CORS protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cumulus.errors import S3Error
from cumulus.kept import Kept
from cumulus.xml import Element, parse

MAX_RULES: Final = 100
MAX_SIZE: Final = 64 * 1024
MAX_ASKED: Final = 100  # names of headers that a page may ask for at once
METHODS: Final = ("GET", "PUT", "POST", "DELETE", "HEAD")
VARY: Final = ("Vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method")
_TAGS: Final = frozenset(
    {"ID", "AllowedOrigin", "AllowedMethod", "AllowedHeader", "ExposeHeader", "MaxAgeSeconds"}
)

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class CorsRule:
    """One rule. `origins` and `headers` (lower case) may have one star each; `max_age_s` None = not said."""

    origins: tuple[str, ...]
    methods: tuple[str, ...]
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    max_age_s: int | None = None
    id: str = ""

    def fits(self, origin: str, method: str, asked: Sequence[str]) -> bool:
        """Whether a page of that origin may send the method with these headers (lower case)."""
        return (
            method in self.methods
            and any(_like(pattern, origin) for pattern in self.origins)
            and all(any(_like(pattern, name) for pattern in self.headers) for name in asked)
        )


def _like(pattern: str, text: str) -> bool:
    """Only a star is special, of which there is one at most."""
    before, star, behind = pattern.partition("*")
    if not star:
        return pattern == text
    return len(before) + len(behind) <= len(text) and text.startswith(before) and text.endswith(behind)


def _refuse(message: str, code: str = "InvalidRequest") -> S3Error:
    return S3Error(code, message)


@Kept
def parse_cors(document: str) -> tuple[CorsRule, ...]:
    """The rules of a CORSConfiguration. Raises `S3Error` MalformedXML, InvalidRequest. The last are
    kept."""
    data = document.encode("utf-8", "replace")
    if len(data) > MAX_SIZE:
        raise S3Error("MalformedXML", f"The CORS configuration is larger than {MAX_SIZE} bytes.")
    root = parse(data, "CORSConfiguration")
    if not root.children or any(child.tag != "CORSRule" for child in root.children):
        raise S3Error("MalformedXML", "A CORSConfiguration is made of CORSRule elements.")
    if len(root.children) > MAX_RULES:
        raise _refuse(f"The number of CORS rules should not exceed allowed limit of {MAX_RULES} rules.")
    return tuple(_rule(element) for element in root.children)


def _rule(element: Element) -> CorsRule:
    unknown = [child.tag for child in element.children if child.tag not in _TAGS]
    if unknown:
        raise S3Error("MalformedXML", f"CORSRule has no element {unknown[0][:64]}.")
    origins, methods, headers, exposed = (
        tuple(child.text.strip() for child in element.all(tag))
        for tag in ("AllowedOrigin", "AllowedMethod", "AllowedHeader", "ExposeHeader")
    )
    if not origins or not methods:
        raise S3Error("MalformedXML", "A CORSRule needs AllowedOrigin and AllowedMethod.")
    for method in methods:
        if method not in METHODS:
            raise _refuse(
                f"Found unsupported HTTP method in CORS config. Unsupported method is {method[:32]}"
            )
    for kind, values in (("AllowedOrigin", origins), ("AllowedHeader", headers)):
        for value in values:
            if value.count("*") > 1:
                raise _refuse(f'{kind} "{value[:128]}" can not have more than one wildcard.')
    for value in exposed:
        if "*" in value:
            raise _refuse(
                f'ExposeHeader "{value[:128]}" contains wildcard. We currently do not support wildcard.'
            )
    lower = tuple(value.lower() for value in headers)
    identifier = element.value("ID")
    if len(identifier) > 255:
        raise _refuse("The ID of a CORS rule has at most 255 characters.")
    return CorsRule(origins, methods, lower, exposed, _age(element), identifier)


def _age(element: Element) -> int | None:
    text = element.value("MaxAgeSeconds")
    if element.first("MaxAgeSeconds") is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise S3Error("MalformedXML", "MaxAgeSeconds must be a number.")
    return int(text)


def preflight(rules: Sequence[CorsRule], origin: str, method: str, asked: str) -> Pairs:
    """Headers of the answer to OPTIONS. `method` and `asked` are Access-Control-Request-Method and -Headers.
    Raises `S3Error` BadRequest, AccessForbidden (also when the bucket has no rules)."""
    if not origin:
        raise S3Error("BadRequest", "Insufficient information. Origin request header needed.")
    if method not in METHODS:
        raise S3Error("BadRequest", f"Invalid Access-Control-Request-Method: {method[:32] or 'null'}")
    if not rules:
        raise S3Error("AccessForbidden", "CORSResponse: CORS is not enabled for this bucket.")
    names = list(dict.fromkeys(name for word in asked.split(",") if (name := word.strip().lower())))
    if len(names) > MAX_ASKED:
        raise S3Error("BadRequest", f"Access-Control-Request-Headers names more than {MAX_ASKED} headers.")
    rule = next((rule for rule in rules if rule.fits(origin, method, names)), None)
    if rule is None:
        raise S3Error(
            "AccessForbidden",
            "CORSResponse: This CORS request is not allowed. No rule of the bucket fits its Origin, "
            "Access-Control-Request-Method and Access-Control-Request-Headers.",
        )
    answer = _answer(rule, origin)
    if names:
        answer.append(("Access-Control-Allow-Headers", ", ".join(names)))
    if rule.max_age_s is not None:
        answer.append(("Access-Control-Max-Age", str(rule.max_age_s)))
    return answer


def reply_headers(rules: Sequence[CorsRule], origin: str, method: str) -> Pairs:
    """What the reply to the request itself carries; nothing when no rule fits or no page sent it."""
    if not origin:
        return []
    rule = next((rule for rule in rules if rule.fits(origin, method, ())), None)
    return _answer(rule, origin) if rule is not None else []


def _answer(rule: CorsRule, origin: str) -> Pairs:
    # a literal "*" allows no credentials, so it is given only where the rule says nothing narrower
    anybody = "*" in rule.origins
    pairs = [
        ("Access-Control-Allow-Origin", "*" if anybody else origin),
        ("Access-Control-Allow-Methods", ", ".join(rule.methods)),
    ]
    if rule.exposed:
        pairs.append(("Access-Control-Expose-Headers", ", ".join(rule.exposed)))
    if not anybody:
        pairs.append(("Access-Control-Allow-Credentials", "true"))
    return [*pairs, VARY]
