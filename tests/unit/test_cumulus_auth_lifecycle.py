"""cumulus.auth.lifecycle: which rule lets what go when, and which configurations are none."""

from __future__ import annotations

import pytest

from cumulus.auth import times
from cumulus.auth.lifecycle import (
    Due,
    days_after,
    expiration,
    expiration_header,
    marker_expiration,
    noncurrent_expiration,
    parse_lifecycle,
    upload_expiration,
)
from cumulus.errors import S3Error

NOON = times.parse_iso("2013-05-24T12:00:00Z")


def config(*rules: str) -> str:
    rules_text = "".join(f"<Rule>{rule}</Rule>" for rule in rules)
    return f"<LifecycleConfiguration>{rules_text}</LifecycleConfiguration>"


def rule(action: str, where: str = "<Filter/>", id: str = "r", status: str = "Enabled") -> str:
    return f"<ID>{id}</ID><Status>{status}</Status>{where}{action}"


DAYS = "<Expiration><Days>{}</Days></Expiration>"
UPLOADS = (
    "<AbortIncompleteMultipartUpload><DaysAfterInitiation>{}</DaysAfterInitiation>"
    "</AbortIncompleteMultipartUpload>"
)
SMALL = "<ObjectSizeLessThan>9</ObjectSizeLessThan>"
OLD = "<NoncurrentVersionExpiration><NoncurrentDays>{}</NoncurrentDays>{}</NoncurrentVersionExpiration>"
NEWER = "<NewerNoncurrentVersions>{}</NewerNoncurrentVersions>"
MARKERS = "<Expiration><ExpiredObjectDeleteMarker>{}</ExpiredObjectDeleteMarker></Expiration>"


def day(text: str) -> int:
    return times.parse_iso(text)


def test_days_end_at_midnight() -> None:
    """As the documentation counts: from the event, then on to the next midnight; a midnight stays one."""
    assert days_after(NOON, 1) == day("2013-05-26")
    assert days_after(day("2013-05-24"), 1) == day("2013-05-25")


def test_the_earliest_rule_counts() -> None:
    """By days or by date; rules that are disabled do not."""
    off = rule(DAYS.format(1), id="off", status="Disabled")
    rules = parse_lifecycle(config(rule(DAYS.format(30), id="month"), rule(DAYS.format(2), id="soon"), off))
    assert expiration(rules, "k", 1, {}, NOON) == Due(day("2013-05-27"), "soon")
    dated = parse_lifecycle(
        config(rule("<Expiration><Date>2013-05-25T00:00:00.000Z</Date></Expiration>", id="fixed"))
    )
    assert expiration([*rules, *dated], "k", 1, {}, NOON) == Due(day("2013-05-25"), "fixed")
    assert expiration((), "k", 1, {}, NOON) is None


@pytest.mark.parametrize(
    ("where", "taken"),
    [
        ("<Prefix>logs/</Prefix>", "prefix both"),
        ("<Filter/>", "prefix both tag large"),
        ("<Filter><Prefix>logs/</Prefix></Filter>", "prefix both"),
        ("<Filter><Tag><Key>a</Key><Value>1</Value></Tag></Filter>", "tag both"),
        ("<Filter><ObjectSizeGreaterThan>10</ObjectSizeGreaterThan></Filter>", "large"),
        ("<Filter><ObjectSizeLessThan>11</ObjectSizeLessThan></Filter>", "prefix both tag"),
        (
            "<Filter><And><Prefix>logs/</Prefix><Tag><Key>a</Key><Value>1</Value></Tag>"
            "<ObjectSizeLessThan>11</ObjectSizeLessThan></And></Filter>",
            "both",
        ),
    ],
)
def test_filters(where: str, taken: str) -> None:
    """By prefix, tags, sizes (neither limit is inside), and all of them."""
    rules = parse_lifecycle(config(rule(DAYS.format(1), where)))
    objects: dict[str, tuple[str, int, dict[str, str]]] = {
        "prefix": ("logs/x", 10, {}),
        "both": ("logs/x", 10, {"a": "1", "b": "2"}),
        "tag": ("x", 10, {"a": "1"}),
        "large": ("x", 11, {"a": "2"}),
    }
    for name, (key, size, tags) in objects.items():
        assert (expiration(rules, key, size, tags, NOON) is not None) is (name in taken.split()), name


def test_versions_that_are_not_current() -> None:
    """From the day they were replaced; the newest few may stay."""
    rules = parse_lifecycle(config(rule(OLD.format(3, NEWER.format(2)))))
    assert noncurrent_expiration(rules, "k", 1, {}, NOON, 2) == Due(day("2013-05-28"), "r")
    assert noncurrent_expiration(rules, "k", 1, {}, NOON, 1) is None
    assert expiration(rules, "k", 1, {}, NOON) is None
    every = parse_lifecycle(config(rule(OLD.format(3, ""))))
    assert noncurrent_expiration(every, "k", 1, {}, NOON, 0) == Due(day("2013-05-28"), "r")


def test_uploads() -> None:
    """Below the prefix only."""
    rules = parse_lifecycle(config(rule(UPLOADS.format(7), "<Filter><Prefix>a</Prefix></Filter>")))
    assert upload_expiration(rules, "ab", NOON) == Due(day("2013-06-01"), "r")
    assert upload_expiration(rules, "b", NOON) is None


def test_delete_markers_that_are_alone() -> None:
    """At once where a rule says so, else with the days or the date of objects; never by tags."""
    assert marker_expiration(parse_lifecycle(config(rule(MARKERS.format("true")))), "k", NOON) == Due(
        NOON, "r"
    )
    assert marker_expiration(parse_lifecycle(config(rule(MARKERS.format("false")))), "k", NOON) is None
    assert marker_expiration(parse_lifecycle(config(rule(DAYS.format(1)))), "k", NOON) == Due(
        day("2013-05-26"), "r"
    )
    dated = parse_lifecycle(config(rule("<Expiration><Date>2013-05-25</Date></Expiration>")))
    assert marker_expiration(dated, "k", NOON) == Due(day("2013-05-25"), "r")
    tagged = "<Filter><Tag><Key>a</Key><Value>1</Value></Tag></Filter>"
    assert marker_expiration(parse_lifecycle(config(rule(DAYS.format(1), tagged))), "k", NOON) is None
    assert (
        marker_expiration(parse_lifecycle(config(rule(DAYS.format(1), "<Prefix>a</Prefix>"))), "k", NOON)
        is None
    )


def test_the_header() -> None:
    """As S3 writes it; dates that HTTP cannot write end with the year 9999."""
    assert expiration_header(Due(day("2013-05-26"), "a b")) == (
        'expiry-date="Sun, 26 May 2013 00:00:00 GMT", rule-id="a%20b"'
    )
    rules = parse_lifecycle(config(rule(DAYS.format(2**31 - 1))))
    due = expiration(rules, "k", 1, {}, NOON)
    assert due is not None
    assert "31 Dec 9999" in expiration_header(due)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<Lifecycle/>", "MalformedXML"),
        ("<LifecycleConfiguration/>", "MalformedXML"),
        (config("").replace("Rule", "Rules"), "MalformedXML"),
        (config(rule(DAYS.format(1))) + " " * 2**20, "MalformedXML"),
        (config(*[rule(DAYS.format(1), id="")] * 1001), "InvalidArgument"),
        (config(rule(DAYS.format(1)), rule(DAYS.format(2))), "InvalidArgument"),
        (config(rule(DAYS.format(1), id="x" * 256)), "InvalidArgument"),
        (config(rule(DAYS.format(1), status="On")), "MalformedXML"),
        (config(rule("")), "InvalidRequest"),
        (config(rule(DAYS.format(1), "")), "MalformedXML"),
        (config(rule(DAYS.format(1), "<Filter/><Prefix/>")), "MalformedXML"),
        (config(rule(DAYS.format(1), f"<Filter><Prefix>a</Prefix>{SMALL}</Filter>")), "MalformedXML"),
        (config(rule(DAYS.format(1), "<Filter><Colour/></Filter>")), "MalformedXML"),
        (config(rule(DAYS.format(1), "<Filter><Tag><Value>a</Value></Tag></Filter>")), "MalformedXML"),
        (config(rule(DAYS.format(1), f"<Filter>{SMALL.replace('9', 'x')}</Filter>")), "InvalidArgument"),
        (config(rule(DAYS.format(0))), "InvalidArgument"),
        (config(rule(DAYS.format("1.5"))), "InvalidArgument"),
        (config(rule(DAYS.format(2**31))), "InvalidArgument"),
        (config(rule(DAYS.format(1) + DAYS.format(1))), "MalformedXML"),
        (config(rule("<Expiration/>")), "MalformedXML"),
        (config(rule("<Expiration><Days>1</Days><Date>2013-05-25</Date></Expiration>")), "MalformedXML"),
        (config(rule("<Expiration><Date>soon</Date></Expiration>")), "MalformedXML"),
        (config(rule("<Expiration><Date>2013-05-25T01:00:00Z</Date></Expiration>")), "InvalidArgument"),
        (config(rule(MARKERS.format("yes"))), "MalformedXML"),
        (config(rule(MARKERS.format("true"), f"<Filter>{SMALL}</Filter>")), "InvalidRequest"),
        (config(rule(UPLOADS.format(1), f"<Filter>{SMALL}</Filter>")), "InvalidRequest"),
        (config(rule(UPLOADS.format(0))), "InvalidArgument"),
        (config(rule(OLD.format(1, NEWER.format(101)))), "InvalidArgument"),
        (config(rule(OLD.format("", ""))), "InvalidArgument"),
        (config(rule("<Transition><Days>1</Days></Transition>")), "NotImplemented"),
        (config(rule("<Colour/>")), "MalformedXML"),
        (config(rule(DAYS.format(0), status="Disabled")), "InvalidArgument"),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(text: str, code: str) -> None:
    """With S3's codes; rules that are disabled are checked too."""
    with pytest.raises(S3Error) as caught:
        parse_lifecycle(text)
    assert caught.value.code == code
