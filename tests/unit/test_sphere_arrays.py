"""Arrays that functions get and return: what a scientist puts in comes out, or is refused by name."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import pytest

from sector.errors import UsageError
from sector.sphere import udf
from sector.sphere.output import PlainOutput
from sector.sphere.result import Part, Spool
from sector.sphere.stream import SphereStream
from sector.testing.udf import call

STAR = np.dtype([("id", "<i4"), ("mag", "<f8"), ("kind", "<i2")])
STARS = np.array([(1, 20.5, 3), (2, 15.25, 4)], dtype=STAR)


def part_of(*results: Any) -> Part:
    """The part that a client gets when a function returned these."""
    with tempfile.TemporaryFile() as file:
        sink = PlainOutput(file.fileno())
        for result in results:
            udf.check_result(result, sink, 0)
        done = sink.finish()
        raw = os.pread(file.fileno(), done.bytes + 8 * done.table, 0)
    spool = Spool()
    at = spool.room(len(raw))
    spool.put_thd(at, raw)
    return Part(
        0,
        0,
        None,
        done.bytes,
        dtype=done.dtype,
        shape=tuple(done.shape),
        pieces=done.pieces,
        row_bytes=done.row_bytes,
        table=done.table,
        spool=spool,
        at=at,
    )


@pytest.mark.parametrize(
    "fields", [["id", "mag"], ["id", "kind"], ["kind", "id"], ["mag"]], ids=lambda names: "-".join(names)
)
def test_selected_fields_come_back_under_their_names(fields: list[str]) -> None:
    for data in (call(lambda rows, ctx: STARS[fields], b"x").data, part_of(STARS[fields]).data):
        assert data.dtype.names == tuple(fields)
        assert all(data[name].tolist() == STARS[name].tolist() for name in fields)


def test_nested_and_aligned_types_are_kept() -> None:
    inner = np.dtype([("x", "i1"), ("y", "<f8")], align=True)
    outer = np.dtype([("at", inner, (2,)), ("n", ">u2"), ("name", "S3")], align=True)
    rows = np.zeros(3, dtype=outer)
    rows["at"]["y"], rows["n"], rows["name"] = 1.5, 7, b"abc"
    data = part_of(rows).data
    assert data.dtype == outer
    assert data["at"]["y"].tolist() == rows["at"]["y"].tolist() and data["n"].tolist() == [7, 7, 7]


def test_wide_tables_come_back() -> None:
    wide = np.dtype([(f"column_{number}", "<f8") for number in range(600)])
    data = part_of(np.ones(2, dtype=wide)).data
    assert data.dtype == wide and data["column_599"].tolist() == [1, 1]


def test_too_many_fields_are_refused_where_they_are_returned() -> None:
    wide = np.dtype([(f"column_{number}", "<f8") for number in range(5000)])
    with pytest.raises(udf.UdfTypeError, match="an array of 5000 fields"):
        part_of(np.ones(2, dtype=wide))


@pytest.mark.parametrize("rows", [np.arange(12, dtype="<u2").reshape(4, 3), STARS, np.arange(5.0)])
def test_records_of_arrays_are_their_rows(rows: Any) -> None:
    records = list(part_of(rows, rows).records())
    assert records == [row.tobytes() for row in rows] * 2


def test_no_rows_are_no_records() -> None:
    assert list(part_of(np.zeros((0, 4))).records()) == []


def test_masked_values_are_not_passed_off_as_data() -> None:
    masked = np.ma.masked_array([1.0, -999.0, 3.0], mask=[False, True, False])
    with pytest.raises(udf.UdfTypeError, match="masked"):
        part_of(masked)
    with pytest.raises(udf.UdfTypeError, match="masked"):
        call(lambda data, ctx: (masked, np.zeros(3, int)), b"x", buckets=2)
    assert part_of(masked.compressed()).data.tolist() == [1, 3]
    assert part_of(np.ma.masked_array([1.0, 2.0])).data.tolist() == [1, 2]


def test_a_dtype_that_would_do_nothing_or_fail_on_the_slave_is_refused() -> None:
    with pytest.raises(UsageError, match="granularity batch"):
        SphereStream(None, "/a", record_size=8, dtype="<f8")
    with pytest.raises(UsageError, match="16 bytes is no whole number of items of 12"):
        SphereStream(None, "/a", record_size=16, granularity="batch", dtype="<f4,<i8")


def batches(path: str, dtype: Any) -> SphereStream:
    return SphereStream(None, path, record_size=8, granularity="batch", dtype=dtype)


def test_paired_streams_of_different_types_are_not_read_as_one_of_them() -> None:
    with pytest.raises(UsageError, match="same dtype"):
        batches("/a", "<f8") + batches("/b", "<i8")
    assert (batches("/a", "<f8") + batches("/b", "<f8")).dtype == "<f8"


def test_a_pair_that_is_cut_anew_stays_a_pair() -> None:
    pair = (batches("/a", None) + batches("/b", None)).cut(granularity="file")
    assert [part.paths for part in pair.parts] == [("/a",), ("/b",)]
    assert {part.granularity for part in pair.parts} == {"file"}
