"""Lifecycle of a bucket: its configuration, and what it says shall go when. Pure; others do it.

Times are counted as S3 does: days after the event, then on to the next midnight (UTC). Transitions to other
storage classes are refused, since there is one class here.
Source: Amazon S3 user guide, "Lifecycle configuration elements", "How S3 Lifecycle counts days".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final, NamedTuple
from urllib.parse import quote

from cumulus.auth import times
from cumulus.errors import S3Error
from cumulus.kept import Kept
from cumulus.xml import Element, parse, written

MAX_RULES: Final = 1000
MAX_SIZE: Final = 1024 * 1024
DAY_NS: Final = 24 * 3600 * times.SECOND
_MAX_DAYS: Final = 2**31 - 1
_LAST_S: Final = 253_402_300_799  # the end of the year 9999


class Due(NamedTuple):
    """From when something shall be gone, and the ID of the rule that says so ("" if it has none)."""

    at_ns: int
    rule: str


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    """One rule that is enabled. Of its actions those that it lacks are None or False; sizes are bytes."""

    id: str = ""
    prefix: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    larger_than: int | None = None
    smaller_than: int | None = None
    days: int | None = None
    date_ns: int | None = None
    lone_markers: bool = False
    noncurrent_days: int | None = None
    newer_noncurrent: int = 0
    upload_days: int | None = None

    def covers(self, key: str, size: int, tags: Mapping[str, str]) -> bool:
        """Whether its filter takes an object."""
        return (
            key.startswith(self.prefix)
            and all(tags.get(name) == value for name, value in self.tags.items())
            and (self.larger_than is None or size > self.larger_than)
            and (self.smaller_than is None or size < self.smaller_than)
        )

    @property
    def narrow(self) -> bool:
        """Whether its filter looks at more than the key (delete markers and uploads have no more)."""
        return bool(self.tags) or self.larger_than is not None or self.smaller_than is not None


Rules = Sequence[LifecycleRule]


def days_after(at_ns: int, days: int) -> int:
    """The first midnight that is at least so many days later."""
    return -(-(at_ns + days * DAY_NS) // DAY_NS) * DAY_NS


def expiration_header(due: Due) -> str:
    """The value of x-amz-expiration."""
    seconds = min(due.at_ns // times.SECOND, _LAST_S)
    return f'expiry-date="{formatdate(seconds, usegmt=True)}", rule-id="{quote(due.rule)}"'


def abort_headers(due: Due) -> list[tuple[str, str]]:
    """What replies about an upload say of its end."""
    seconds = min(due.at_ns // times.SECOND, _LAST_S)
    rule = due.rule if due.rule.isascii() and due.rule.isprintable() else quote(due.rule)
    return [("x-amz-abort-date", formatdate(seconds, usegmt=True)), ("x-amz-abort-rule-id", rule)]


def _earliest(dues: list[Due]) -> Due | None:
    return min(dues, default=None)


def expiration(rules: Rules, key: str, size: int, tags: Mapping[str, str], modified_ns: int) -> Due | None:
    """When the current version of an object expires; None = never."""
    dues = []
    for rule in rules:
        if rule.days is not None and rule.covers(key, size, tags):
            dues.append(Due(days_after(modified_ns, rule.days), rule.id))
        if rule.date_ns is not None and rule.covers(key, size, tags):
            dues.append(Due(rule.date_ns, rule.id))
    return _earliest(dues)


def noncurrent_expiration(
    rules: Rules, key: str, size: int, tags: Mapping[str, str], since_ns: int, newer: int
) -> Due | None:
    """When a version goes that is no longer current since `since_ns`, with so many newer versions of the key
    that are not current either."""
    return _earliest([
        Due(days_after(since_ns, rule.noncurrent_days), rule.id)
        for rule in rules
        if rule.noncurrent_days is not None
        and newer >= rule.newer_noncurrent
        and rule.covers(key, size, tags)
    ])  # fmt: skip


def marker_expiration(rules: Rules, key: str, modified_ns: int) -> Due | None:
    """When a delete marker goes that is the only version left of its key."""
    dues = []
    for rule in rules:
        if rule.narrow or not key.startswith(rule.prefix):
            continue
        if rule.lone_markers:
            dues.append(Due(modified_ns, rule.id))
        elif rule.days is not None:
            dues.append(Due(days_after(modified_ns, rule.days), rule.id))
        elif rule.date_ns is not None:
            dues.append(Due(rule.date_ns, rule.id))
    return _earliest(dues)


def upload_expiration(rules: Rules, key: str, initiated_ns: int) -> Due | None:
    """When a multipart upload is aborted that is not complete by then."""
    return _earliest([
        Due(days_after(initiated_ns, rule.upload_days), rule.id)
        for rule in rules
        if rule.upload_days is not None and not rule.narrow and key.startswith(rule.prefix)
    ])  # fmt: skip


# reading


def _malformed(message: str) -> S3Error:
    return S3Error("MalformedXML", message)


def _invalid(message: str) -> S3Error:
    return S3Error("InvalidArgument", message)


@Kept
def parse_lifecycle(document: str) -> tuple[LifecycleRule, ...]:
    """The enabled rules of a LifecycleConfiguration; the others are checked too. Raises `S3Error`
    MalformedXML, InvalidArgument, InvalidRequest, NotImplemented. The last are kept."""
    data = document.encode("utf-8", "replace")
    if len(data) > MAX_SIZE:
        raise _malformed(f"The lifecycle configuration is larger than {MAX_SIZE} bytes.")
    root = parse(data, "LifecycleConfiguration")
    if not root.children or any(child.tag != "Rule" for child in root.children):
        raise _malformed("A LifecycleConfiguration is made of Rule elements.")
    if len(root.children) > MAX_RULES:
        raise _invalid(f"A lifecycle configuration has at most {MAX_RULES} rules.")
    names = [name for name in (element.value("ID") for element in root.children) if name]
    if len(set(names)) != len(names):
        raise _invalid("Rule ID must be unique. Found same ID for more than one rule")
    rules = [(_status(element), _rule(element)) for element in root.children]
    return tuple(rule for enabled, rule in rules if enabled)


def with_ids(document: str, new_id: Callable[[], str]) -> str:
    """A valid document in which each rule has an ID; as it is, if all have. Raises as `parse_lifecycle`."""
    parse_lifecycle(document)
    root = parse(document.encode("utf-8", "replace"), "LifecycleConfiguration")
    nameless = [rule for rule in root.children if not rule.value("ID")]
    if not nameless:
        return document
    for rule in nameless:
        name = Element("ID", {})
        name.text = new_id()
        rule.children = [name, *(child for child in rule.children if child.tag != "ID")]
    named = written(root)
    parse_lifecycle(named)
    return named


def _status(element: Element) -> bool:
    status = element.value("Status")
    if status not in ("Enabled", "Disabled"):
        raise _malformed("The Status of a rule must be Enabled or Disabled.")
    return status == "Enabled"


def _rule(element: Element) -> LifecycleRule:
    _only(element, f"ID Status Filter Prefix Transition NoncurrentVersionTransition {' '.join(_ACTIONS)}")
    if element.first("Transition") is not None or element.first("NoncurrentVersionTransition") is not None:
        raise S3Error("NotImplemented", "There is one storage class here; transitions are not implemented.")
    values: dict[str, object] = {"id": element.value("ID")}
    if len(element.value("ID")) > 255:
        raise _invalid("ID length should not exceed allowed limit of 255")
    values |= _filter(element)
    for tag, read in _ACTIONS.items():
        child = element.first(tag)
        if child is not None:
            values |= read(child)
    rule = LifecycleRule(**values)  # type: ignore[arg-type]
    if all(element.first(tag) is None for tag in _ACTIONS):
        raise S3Error("InvalidRequest", "At least one action needs to be specified in a rule.")
    if rule.upload_days is not None and rule.narrow:
        raise S3Error(
            "InvalidRequest", "AbortIncompleteMultipartUpload cannot be specified with Tags or sizes."
        )
    if rule.lone_markers and rule.narrow:
        raise S3Error("InvalidRequest", "ExpiredObjectDeleteMarker cannot be specified with Tags or sizes.")
    return rule


def _only(element: Element, tags: str) -> None:
    """Raises `S3Error` MalformedXML for a child that is none of these, or is there twice (but for Tag)."""
    seen: set[str] = set()
    for child in element.children:
        if child.tag not in tags.split() or (child.tag in seen and child.tag not in ("Tag", "Transition")):
            raise _malformed(f"{element.tag} cannot have this element {child.tag[:64]}, or not twice.")
        seen.add(child.tag)


def _filter(rule: Element) -> dict[str, object]:
    """What a rule applies to: Filter, or the older Prefix beside it."""
    box = rule.first("Filter")
    if (box is None) is (rule.first("Prefix") is None):
        raise _malformed("A rule needs either Filter or Prefix.")
    if box is None:
        return {"prefix": _text(rule, "Prefix")}
    _only(box, "And Prefix Tag ObjectSizeGreaterThan ObjectSizeLessThan")
    if len(box.children) > 1:
        raise _malformed("A Filter has one condition; several stand in And.")
    both = box.first("And")
    if both is not None:
        _only(both, "Prefix Tag ObjectSizeGreaterThan ObjectSizeLessThan")
        box = both
    found: dict[str, object] = {"prefix": _text(box, "Prefix"), "tags": _tags(box)}
    for tag, name in (("ObjectSizeGreaterThan", "larger_than"), ("ObjectSizeLessThan", "smaller_than")):
        if box.first(tag) is not None:
            found[name] = _number(box, tag, 0, 2**63)
    return found


def _text(element: Element, tag: str) -> str:
    return element.raw(tag) or ""


def _tags(element: Element) -> dict[str, str]:
    tags: dict[str, str] = {}
    for child in element.all("Tag"):
        name = _text(child, "Key")
        if not name or name in tags or len(name) > 128 or len(_text(child, "Value")) > 256:
            raise _malformed("A Tag needs a Key that is not there twice, and a Value.")
        tags[name] = _text(child, "Value")
    return tags


def _number(element: Element, tag: str, low: int, high: int) -> int:
    text = element.value(tag)
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or not low <= int(text) <= high:
        raise _invalid(
            f"'{tag}' for {element.tag} action must be a {'positive' if low else 'non-negative'} integer"
        )
    return int(text)


def _expiration(element: Element) -> dict[str, object]:
    _only(element, "Date Days ExpiredObjectDeleteMarker")
    if len(element.children) != 1:
        raise _malformed("An Expiration has one of Days, Date, ExpiredObjectDeleteMarker.")
    if element.first("Days") is not None:
        return {"days": _number(element, "Days", 1, _MAX_DAYS)}
    if element.first("Date") is not None:
        return {"date_ns": _date(element.value("Date"))}
    flag = element.value("ExpiredObjectDeleteMarker")
    if flag not in ("true", "false"):
        raise _malformed("ExpiredObjectDeleteMarker must be true or false.")
    return {"lone_markers": flag == "true"}


def _date(text: str) -> int:
    try:
        at_ns = times.parse_iso(text)
    except ValueError:
        raise _malformed("An expiration's Date must be in ISO 8601 form.") from None
    if at_ns % DAY_NS:
        raise _invalid("'Date' must be at midnight GMT")
    return at_ns


def _noncurrent(element: Element) -> dict[str, object]:
    _only(element, "NoncurrentDays NewerNoncurrentVersions")
    found: dict[str, object] = {"noncurrent_days": _number(element, "NoncurrentDays", 1, _MAX_DAYS)}
    if element.first("NewerNoncurrentVersions") is not None:
        found["newer_noncurrent"] = _number(element, "NewerNoncurrentVersions", 1, 100)
    return found


def _upload(element: Element) -> dict[str, object]:
    _only(element, "DaysAfterInitiation")
    return {"upload_days": _number(element, "DaysAfterInitiation", 1, _MAX_DAYS)}


_ACTIONS: Final[dict[str, Callable[[Element], dict[str, object]]]] = {
    "Expiration": _expiration,
    "NoncurrentVersionExpiration": _noncurrent,
    "AbortIncompleteMultipartUpload": _upload,
}
