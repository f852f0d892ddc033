"""The pure rules below S3's operations: names, ranges, conditions, rows, what a quota's refusal says."""

from __future__ import annotations

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cumulus.auth.host import host_bucket
from cumulus.errors import S3Error
from cumulus.index.api import OverQuota
from cumulus.model import Acl, Bucket, ObjectMeta, Part, encode_meta
from cumulus.ops.conditions import Conditions
from cumulus.ops.names import check_bucket_name, check_key, first_name, is_plain, odd_name, version_name
from cumulus.ops.quota import quota_error, size_text
from cumulus.ops.ranges import copy_range, part_range, read_range
from cumulus.ops.rows import meta_of, row_of
from cumulus.rest import table
from cumulus.rest.headers import mail_safe
from cumulus.rest.target import copy_source, parse, parse_query
from cumulus.storage.api import Entry
from cumulus.storage.names import check_name


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400))
def test_every_key_has_a_name_that_storage_can_hold(key: str) -> None:
    """A plain key is its own name, any other has one of ours, and no two have the same."""
    name = first_name(key)
    check_name(name)
    assert (name == key) == is_plain(key)
    check_name(odd_name(key))
    check_name(version_name(key, "null"))


@pytest.mark.parametrize(
    "key", ["a//b", "/a", "a/", ".", "a/../b", "./a", "x" * 256, "é" * 128, ".cumulus/x", "a\0"]
)
def test_odd_keys(key: str) -> None:
    assert not is_plain(key) and first_name(key).startswith(".cumulus/odd/")


@pytest.mark.parametrize(
    "key", ["a", "a/b", "é" * 127, "x" * 255, "..a", "a.", ".cumulus2", "a/.cumulus", "\n"]
)
def test_plain_keys(key: str) -> None:
    assert first_name(key) == key


def test_names_of_buckets_and_lengths_of_keys() -> None:
    for name in ("abc", "a-b.c1", "x" * 63):
        check_bucket_name(name)
    for name in (
        "",
        "ab",
        "Abc",
        "a_b",
        "-ab",
        "ab-",
        "a..b",
        "a.-b",
        "10.0.0.1",
        "xn--a",
        "a--use1-az4--x-s3",
        "a--table-s3",
        "a.mrap",
        "x" * 64,
        "a/b",
        "é" * 3,
    ):
        with pytest.raises(S3Error, match="InvalidBucketName"):
            check_bucket_name(name)
    check_key("é" * 512)
    with pytest.raises(S3Error, match="KeyTooLongError"):
        check_key("é" * 512 + "x")


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_ranges_lie_within_the_object(size: int, first: int, last: int) -> None:
    """Whatever is asked for, what is sent is what a slice would give."""
    body = bytes(range(size))
    asked = [
        (f"bytes={first}-{last}", body[first : last + 1], size <= first <= last, first > last),
        (f"bytes=-{last}", body[-last:], last == 0 or size == 0, False),
    ]
    for text, wanted, outside, ignored in asked:
        if outside:
            with pytest.raises(S3Error, match="InvalidRange"):
                read_range(text, size)
            continue
        found = read_range(text, size)
        assert (found is None) == ignored
        assert found is None or body[found[0] : found[0] + found[1]] == wanted


def test_metadata_of_bytes_that_are_no_text() -> None:
    assert mail_safe("r\xf6d") == mail_safe("r\xc3\xb6d") == "=?UTF-8?B?csO2ZA==?="


def test_ranges_of_copies_and_parts() -> None:
    assert copy_range("bytes=2-3", 10) == (2, 2)
    for text, code in (
        ("bytes=2-10", "InvalidArgument"),
        ("bytes=3-2", "InvalidArgument"),
        ("2-3", "InvalidArgument"),
    ):
        with pytest.raises(S3Error, match=code):
            copy_range(text, 10)
    meta = ObjectMeta(key="k", size=5, etag="e", modified_ns=0, acl=Acl(owner="o"))
    assert part_range(meta, 1) == (0, 5)
    parts = (Part(number=3, size=2, etag=""), Part(number=9, size=3, etag=""))
    whole = ObjectMeta(key="k", size=5, etag="e", modified_ns=0, acl=Acl(owner="o"), parts=parts)
    assert (part_range(whole, 3), part_range(whole, 9)) == ((0, 2), (2, 3))
    for number in (1, 2, 10):
        with pytest.raises(S3Error, match="InvalidPartNumber"):
            part_range(whole, number)
    with pytest.raises(S3Error, match="InvalidPartNumber"):
        part_range(meta, 2)


SECOND = 10**9


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (Conditions(), ""),
        (Conditions(match=("e",)), ""),
        (Conditions(match=("*",)), ""),
        (Conditions(match=("x",)), "PreconditionFailed"),
        (Conditions(none_match=("e",)), "PreconditionFailed"),
        (Conditions(none_match=("*",)), "PreconditionFailed"),
        (Conditions(none_match=("x",)), ""),
        (Conditions(size=3), ""),
        (Conditions(size=4), "PreconditionFailed"),
        (Conditions(exact_modified_ns=5 * SECOND + 7), ""),
        (Conditions(exact_modified_ns=6 * SECOND), "PreconditionFailed"),
        (Conditions(unmodified_since_ns=4 * SECOND), "PreconditionFailed"),
        (Conditions(modified_since_ns=5 * SECOND), ""),  # RFC 9110: for GET and HEAD alone
    ],
)
def test_conditions_of_writes(conditions: Conditions, code: str) -> None:
    """Of an object with the ETag e, 3 bytes, changed in second 5."""
    there = ("e", 5 * SECOND + 1, 3)
    if not code:
        conditions.check_write(there)
        return
    with pytest.raises(S3Error, match=code):
        conditions.check_write(there)


def test_conditions_on_nothing() -> None:
    Conditions(none_match=("*",)).check_write(None)
    for conditions in (Conditions(match=("*",)), Conditions(size=1), Conditions(exact_modified_ns=1)):
        with pytest.raises(S3Error, match="NoSuchKey"):
            conditions.check_write(None)


def test_rows_of_our_own_and_of_outside_bytes() -> None:
    bucket = Bucket(name="b", owner="o", created_ns=1, acl=Acl(owner="o"))
    meta = ObjectMeta(
        key="k", size=3, etag="e", modified_ns=7, acl=Acl(owner="u"), checksums={"sha1": "s", "crc32": "c"},
        checksum_type="FULL_OBJECT",
    )  # fmt: skip
    entry = Entry(name="k", size=3, mtime_ns=9, token=b"t", stamp=11, meta=encode_meta(meta))
    assert meta_of(bucket, entry) == meta
    row = row_of(bucket, entry, meta)
    assert (row.owner, row.stamp, row.checksum, row.checksum_type) == ("u", 11, "CRC32,SHA1", "FULL_OBJECT")
    for record in (None, b"damaged", b""):
        outside = Entry(name="k", size=3, mtime_ns=9, token=b"t", stamp=11, meta=record)
        found = meta_of(bucket, outside)
        assert found is not None and found.acl.owner == "o" and found.etag.endswith("-0")
        other = meta_of(bucket, Entry(name="k", size=3, mtime_ns=9, token=b"u", stamp=11, meta=record))
        assert other is not None and other.etag != found.etag
        inside = Entry(name=".cumulus/odd/x", size=3, mtime_ns=9, token=b"t", stamp=11, meta=record)
        assert meta_of(bucket, inside) is None


def test_what_a_quota_says() -> None:
    error = quota_error(OverQuota("user", "alice", "bytes", 9_800_000_000, 400_000_000, 10_000_000_000), 5)
    assert error.message == "Quota of alice reached: 9.8 GB used + 0.4 GB being written, limit 10 GB."
    count = quota_error(OverQuota("group", "lab", "objects", 9, 1, 10), 5)
    assert count.message == "Quota of group lab reached: 9 objects + 1 being written, limit 10 objects."
    assert [size_text(size) for size in (0, 999, 1000, 1_500_000)] == ["0 B", "999 B", "1 kB", "1.5 MB"]


def test_targets() -> None:
    found = parse("/bkt/a%2Fb+c%C3%A9?list-type=2&prefix=x+y%2B&prefix=z&flag", "host", "")
    assert (found.bucket, found.key) == ("bkt", "a/b+cé")
    assert found.query == {"list-type": "2", "prefix": "x y+", "flag": ""}
    assert parse("http://host/bkt/k?a=1", "host", "").key == "k"
    assert parse("http://host", "host", "").bucket == ""
    assert host_bucket("b.c.S3.example:80", "s3.EXAMPLE") == "b.c"
    assert host_bucket("s3.example", "s3.example") == host_bucket("other", "s3.example") == ""
    assert copy_source("/b/k%3F?versionId=v%31") == ("b", "k?", "v1")
    assert copy_source("b/k") == ("b", "k", None)
    assert copy_source("b%2Fa+b%2Bc%20d") == ("b", "a b+c d", None)
    assert parse_query("&&a") == {"a": ""}


def test_the_table_is_whole() -> None:
    """Each row can be reached, is named once and says why it is not as in S3."""
    names = [row.name for row in table.OPERATIONS]
    assert len(set(names)) == len(names)
    rows = {(row.method, row.level, row.query, row.header) for row in table.OPERATIONS}
    assert len(rows) == len(names)
    for row in table.OPERATIONS:
        assert (row.handler is None) == (row.status == "no"), row.name
        assert row.note or row.status == "yes", row.name


def test_every_operation_that_a_client_library_knows_is_told_from_the_others() -> None:
    """One that we lack must never act on the object or the bucket itself."""
    model = botocore.session.get_session().get_service_model("s3")
    skip = {"WriteGetObjectResponse", "ListDirectoryBuckets"}  # of other services
    for name in model.operation_names:
        http = model.operation_model(name).http
        path, _, query = http["requestUri"].partition("?")
        level = "object" if "{Key" in path else "bucket" if "{Bucket}" in path else "service"
        first = query.partition("&")[0].partition("=")[0]
        if name in skip or not first or first in ("x-id", "list-type"):
            continue
        rows = [row for row in table.OPERATIONS if (row.method, row.level) == (http["method"], level)]
        assert any(row.query == first for row in rows), f"{name}: {http['method']} {level} ?{first}"
