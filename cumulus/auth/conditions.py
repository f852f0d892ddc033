"""Conditions of bucket policies: operators and the keys they compare. Pure.

Keys are compared without case. What is not known here is refused when a policy is set: a condition that
nobody understands would otherwise allow or deny by accident.
Source: IAM user guide, "IAM JSON policy elements: Condition operators"; S3, "Condition keys".
"""

from __future__ import annotations

import ipaddress
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from cumulus.auth import times
from cumulus.auth.actions import TAG, has_key
from cumulus.model import Identity, ObjectMeta

if TYPE_CHECKING:
    from cumulus.rest.call import Call

# condition keys that are a query parameter, and those that are a header
_PARAMETERS: Final = {"prefix": "s3:prefix", "delimiter": "s3:delimiter", "max-keys": "s3:max-keys",
                      "versionId": "s3:versionid"}  # fmt: skip
_OF_LISTINGS: Final = ("s3:prefix", "s3:delimiter", "s3:max-keys")
_HEADERS: Final = {
    "user-agent": "aws:useragent",
    "referer": "aws:referer",
    "x-amz-acl": "s3:x-amz-acl",
    "x-amz-copy-source": "s3:x-amz-copy-source",
    "x-amz-metadata-directive": "s3:x-amz-metadata-directive",
    "x-amz-content-sha256": "s3:x-amz-content-sha256",
    "x-amz-storage-class": "s3:x-amz-storage-class",
    "x-amz-grant-read": "s3:x-amz-grant-read",
    "x-amz-grant-write": "s3:x-amz-grant-write",
    "x-amz-grant-read-acp": "s3:x-amz-grant-read-acp",
    "x-amz-grant-write-acp": "s3:x-amz-grant-write-acp",
    "x-amz-grant-full-control": "s3:x-amz-grant-full-control",
    "if-match": "s3:if-match",
    "if-none-match": "s3:if-none-match",
}
# what an upload's beginning says of the object; its parts and its completion are about the same object
_OF_BEGINNING: Final = tuple(
    name
    for name in _HEADERS.values()
    if name.startswith(("s3:x-amz-acl", "s3:x-amz-grant-", "s3:x-amz-storage-class"))
)
_OWN: Final = ("aws:sourceip", "aws:securetransport", "aws:currenttime", "aws:epochtime", "aws:username",
               "aws:userid")  # fmt: skip
_CREATES: Final = "s3:objectcreationoperation"
KEYS: Final = frozenset((*_PARAMETERS.values(), *_HEADERS.values(), *_OWN, _CREATES))
_SOURCE: Final = "s3:x-amz-copy-source"
_LONGEST: Final = 2048  # of a value that the client sends: longer than any key or its source
_SHORT: Final = 128  # patterns that are kept as expressions
_FEW_RUNS: Final = 8


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What decisions look at besides who asks for what: `key` is the object's, "" for the bucket itself;
    `values` are condition keys in lower case with what the request says."""

    peer: str = ""
    secure: bool = False
    now_ns: int = 0
    key: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


def _bucket_and_key(source: str) -> str:
    """Of a copy's source, which clients may encode and begin with a slash or not: one text for one object
    (as `cumulus.rest.target.copy_source` reads it)."""
    path = source.partition("?versionId=")[0].replace("+", " ").encode("latin-1", "replace")
    return unquote_to_bytes(path).decode("utf-8", "replace").lstrip("/")


def context_of(
    call: Call, query: Mapping[str, str], key: str = "", *, creates: bool | None = None
) -> RequestContext:
    """Of a request; `query` are its parameters, decoded. `creates`: whether what it makes is an object, and
    not a part of one. Of what the client says the beginning counts."""
    values = {name: query[parameter] for parameter, name in _PARAMETERS.items() if parameter in query}
    values |= {name: call.headers.get(header) for header, name in _HEADERS.items() if header in call.headers}
    if _SOURCE in values:
        values[_SOURCE] = _bucket_and_key(values[_SOURCE])
    values = {name: value[:_LONGEST] for name, value in values.items()}
    if creates is not None:
        values[_CREATES] = "true" if creates else "false"
    return RequestContext(call.peer, call.secure, call.at_ns, key, values)


def about(context: RequestContext, action: str) -> RequestContext:
    """The same for one action: without keys that its requests do not have, whatever the client sent. Those of
    a listing belong to the bucket: who asks for an object lists nothing, though he may have to be allowed
    to."""
    values = {name: value for name, value in context.values.items() if has_key(action, name)}
    if context.key:
        values = {name: value for name, value in values.items() if name not in _OF_LISTINGS}
    return replace(context, values=values)


def begun_with(call: Call) -> dict[str, str]:
    """What the parts and the completion of an upload that this request begins are judged by too."""
    values = context_of(call, {}).values
    return {name: values[name] for name in _OF_BEGINNING if name in values}


def as_begun(context: RequestContext, asked: Mapping[str, str]) -> RequestContext:
    """Of a part or a completion of an upload that began with that: what its own headers say of the object
    counts for nothing."""
    values = {name: value for name, value in context.values.items() if name not in _OF_BEGINNING}
    return replace(context, values={**values, **asked})


Values = Mapping[str, str]


def values_of(context: RequestContext, identity: Identity, meta: ObjectMeta | None) -> dict[str, str]:
    """All condition keys that this request has."""
    values = dict(context.values)
    values["aws:securetransport"] = "true" if context.secure else "false"
    values["aws:currenttime"] = times.iso(context.now_ns)
    values["aws:epochtime"] = str(context.now_ns // times.SECOND)
    if context.peer:
        values["aws:sourceip"] = context.peer
    if identity.user is not None:
        values["aws:username"], values["aws:userid"] = identity.user.name, identity.user.id
    if meta is not None:
        values |= {TAG + name: value for name, value in meta.tags.items()}
    return values


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    """A pattern with * and ? as an expression that takes linear time for each star."""
    pieces = ["".join("." if c == "?" else re.escape(c) for c in piece) for piece in pattern.split("*")]
    if len(pieces) == 1:
        return re.compile(pieces[0], re.DOTALL)
    middle = "".join(f"(?>.*?{piece})" for piece in pieces[1:-1] if piece)
    return re.compile(f"{pieces[0]}{middle}.*{pieces[-1]}", re.DOTALL)


def like(pattern: str, text: str) -> bool:
    """Whether a pattern with * (any run) and ? (any one character) covers the text."""
    if len(pattern) - pattern.count("*") > len(text):
        return False
    if len(pattern) <= _SHORT:
        return _glob(pattern).fullmatch(text) is not None
    return _covers(pattern, text)


def _covers(pattern: str, text: str) -> bool:
    """The same without an expression, which costs a hundred times the pattern in memory and milliseconds to
    make: variables in policies make new patterns of what clients send. What is between two stars is taken
    where it comes first."""
    first, *rest = pattern.split("*")
    if not rest:
        return len(first) == len(text) and _stands(first, text, 0)
    at, end = len(first), len(text) - len(rest[-1])
    if end < at or not _stands(first, text, 0) or not _stands(rest[-1], text, end):
        return False
    for piece in rest[:-1]:
        found = text.find(piece, at, end) if "?" not in piece else _search(piece, text, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _stands(piece: str, text: str, at: int) -> bool:
    """Whether a piece without stars covers the text from there on."""
    for run in piece.split("?"):
        if not text.startswith(run, at):
            return False
        at += len(run) + 1
    return True


def _search(piece: str, text: str, start: int, end: int) -> int:
    """Where a piece with ? first covers the text between two places, -1 for nowhere."""
    runs = piece.split("?")
    if len(runs) > _FEW_RUNS:
        return _search_bits(piece, text, start, end)
    longest = max(runs, key=len)
    before = piece.index(longest)
    last = end - len(piece) + before + len(longest)  # where the longest run may end
    at = text.find(longest, start + before, last)
    while at >= 0:
        if _stands(piece, text, at - before):
            return at - before
        at = text.find(longest, at + 1, last)
    return -1


def _search_bits(piece: str, text: str, start: int, end: int) -> int:
    """The same. Bit n says that the first n + 1 characters of the piece cover what was read last."""
    fits: dict[str, int] = {}  # bit n: that character may be the one at n
    any_one = 0
    for at, c in enumerate(piece):
        if c == "?":
            any_one |= 1 << at
        else:
            fits[c] = fits.get(c, 0) | 1 << at
    now, last = 0, 1 << len(piece) - 1
    for at in range(start, end):
        now = (now << 1 | 1) & (fits.get(text[at], 0) | any_one)
        if now & last:
            return at - len(piece) + 1
    return -1


def light(pattern: str) -> bool:
    """Whether it is compared within some 20 µs, whatever a client sends."""
    return len(pattern) <= _SHORT and "${" not in pattern.replace("${aws:username}", "")


_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
# stand for themselves in patterns: ${*}, ${?}, ${$}; * and ? as characters of Unicode's private area
_LITERAL: Final = {"*": "\ue000", "?": "\ue001", "$": "$"}


def variables(text: str) -> list[str]:
    """Condition keys that a text names as ${key}, in lower case."""
    return [name.lower() for name in _VARIABLE.findall(text) if name not in _LITERAL]


def fill(pattern: str, values: Values) -> str | None:
    """The pattern with its variables' values, whose own * and ? count as letters; None when one has none.
    To be compared with a text through `protect`."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        if match[1] in _LITERAL:
            return _LITERAL[match[1]]
        found = values.get(match[1].lower())
        missing = missing or found is None
        return protect(found or "")

    filled = _VARIABLE.sub(value, pattern) if "${" in pattern else pattern
    return None if missing else filled


def protect(text: str) -> str:
    """A text whose * and ? are letters."""
    return text.replace("*", "\ue000").replace("?", "\ue001")


# operators: the request's value, one value of the policy, the request's values (for variables)
Compare = Callable[[str, str, Values], bool]
Check = Callable[[str], object]


def _string(fold: bool) -> Compare:
    def compare(actual: str, wanted: str, values: Values) -> bool:
        filled = fill(protect(wanted) if "${" not in wanted else _protect_outside(wanted), values)
        if filled is None:
            return False
        left, right = protect(actual), filled
        return left.casefold() == right.casefold() if fold else left == right

    return compare


def _protect_outside(text: str) -> str:
    """`protect` outside of variables."""
    parts, at = [], 0
    for match in _VARIABLE.finditer(text):
        parts += [protect(text[at : match.start()]), match[0]]
        at = match.end()
    return "".join(parts) + protect(text[at:])


def _like(actual: str, wanted: str, values: Values) -> bool:
    filled = fill(wanted, values)
    return filled is not None and like(filled, protect(actual))


def _ordered(parse: Callable[[str], float], order: Callable[[float, float], bool]) -> Compare:
    def compare(actual: str, wanted: str, _values: Values) -> bool:
        try:
            return order(parse(actual), parse(wanted))
        except ValueError:
            return False

    return compare


def _number(text: str) -> float:
    if not re.fullmatch(r"[+-]?\d{1,30}(\.\d{1,30})?", text, re.ASCII):
        raise ValueError("not a number")
    return float(text)


def _date(text: str) -> int:
    return times.parse_iso(text) if not text.isdecimal() else int(text[:12]) * times.SECOND


@lru_cache(maxsize=4096)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(text, strict=False)


def _address(actual: str, wanted: str, _values: Values) -> bool:
    try:
        address = ipaddress.ip_address(actual.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address) in _network(wanted)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return text.lower() == "true"


def _bool(actual: str, wanted: str, _values: Values) -> bool:
    return actual.lower() == wanted.lower()


def _no_check(_text: str) -> None:
    return None


def _orders(kind: str, parse: Callable[[str], float]) -> dict[str, tuple[Compare, Check, bool]]:
    rows = {"Equals": operator.eq, "LessThan": operator.lt, "LessThanEquals": operator.le,
            "GreaterThan": operator.gt, "GreaterThanEquals": operator.ge}  # fmt: skip
    table: dict[str, tuple[Compare, Check, bool]] = {
        kind + name: (_ordered(parse, order), parse, False) for name, order in rows.items()
    }
    table[f"{kind}NotEquals"] = (_ordered(parse, operator.eq), parse, True)
    return table


# name: how one value is compared, what a policy's value has to be, whether the whole is turned round
_OPERATORS: Final[dict[str, tuple[Compare, Check, bool]]] = {
    "StringEquals": (_string(False), _no_check, False),
    "StringNotEquals": (_string(False), _no_check, True),
    "StringEqualsIgnoreCase": (_string(True), _no_check, False),
    "StringNotEqualsIgnoreCase": (_string(True), _no_check, True),
    "StringLike": (_like, _no_check, False),
    "StringNotLike": (_like, _no_check, True),
    "IpAddress": (_address, _network, False),
    "NotIpAddress": (_address, _network, True),
    "Bool": (_bool, _truth, False),
    **_orders("Numeric", _number),
    **_orders("Date", _date),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One key under one operator; `values` are alternatives."""

    operator: str
    key: str
    values: tuple[str, ...]
    if_exists: bool = False

    def holds(self, actual: Values) -> bool:
        """Of a request with these values. A key that the request lacks fails, but satisfies a negated
        operator and one with IfExists."""
        value = actual.get(self.key)
        if self.operator == "Null":
            return any(_truth(wanted) is (value is None) for wanted in self.values)
        compare, _, negated = _OPERATORS[self.operator]
        if value is None:
            return negated or self.if_exists
        return any(compare(value, wanted, actual) for wanted in self.values) is not negated

    @property
    def light(self) -> bool:
        """Whether no value is a pattern that takes long to compare."""
        return all(map(light, self.values))

    @property
    def restricts(self) -> bool:
        """Whether it leaves only certain people or addresses (a policy without such a one is public)."""
        return (
            self.key in ("aws:sourceip", "aws:username", "aws:userid")
            and self.operator in ("IpAddress", "StringEquals", "StringEqualsIgnoreCase", "StringLike")
            and not self.if_exists
            and not any(value in ("*", "0.0.0.0/0", "::/0") for value in self.values)
        )


def make(name: str, key: str, values: tuple[str, ...]) -> Condition:
    """A condition as a policy writes it. Raises `ValueError` with what is wrong."""
    base = name.removesuffix("IfExists")
    if base not in _OPERATORS and name != "Null":
        raise ValueError(f"unknown operator {name[:64]!r}")
    lower = key.lower()
    if lower not in KEYS and not (lower.startswith(TAG) and len(key) > len(TAG)):
        raise ValueError(f"unknown key {key[:128]!r}")
    if lower.startswith(TAG):
        lower = TAG + key[len(TAG) :]  # names of tags have case
    check = _truth if name == "Null" else _OPERATORS[base][1]
    for value in values:
        try:
            check(value)
        except ValueError:
            raise ValueError(f"{value[:64]!r} cannot be a value of {name}") from None
        unknown = [variable for variable in variables(value) if variable not in KEYS]
        if unknown:
            raise ValueError(f"unknown variable {unknown[0][:64]!r}")
    return Condition(base if name != "Null" else name, lower, values, name != base and name != "Null")
