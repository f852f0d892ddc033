"""What a function gets and may return, record indexes, outputs, streams, packing; all without a cluster."""

from __future__ import annotations

import operator
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

from sector.errors import BadPath, Damaged, NotFound, UsageError
from sector.sphere import records, udf
from sector.sphere.output import BucketOutput, PlainOutput
from sector.sphere.pack import load_function, pack
from sector.sphere.runtime import here, mismatch
from sector.sphere.stream import SphereStream, data_files, fixed_part, matches, natural_key
from sector.testing.udf import call
from sector.wire.base import REGISTRY, decode, encode
from sector.wire.sphere import Input, Runtime, SegmentRun


# -- functions ---------------------------------------------------------------------------------------
def test_record_granularity_gives_bytes_one_by_one() -> None:
    seen: list[bytes] = []
    result = call(lambda r, ctx: seen.append(r) or r[::-1], b"abcdefgh", record_size=3)
    assert seen == [b"abc", b"def", b"gh"]
    assert result.pieces == [b"cba", b"fed", b"hg"]


def test_index_gives_records_of_any_length() -> None:
    result = call(lambda r, ctx: b"%d," % len(r), b"abbccc", offsets=[0, 1, 3, 6])
    assert result.data == b"1,2,3,"


def test_segment_has_offsets() -> None:
    def ends(data: memoryview, ctx: udf.Context) -> bytes:
        return bytes(data[int(end) - 1] for end in ctx.offsets[1:])

    assert call(ends, b"abbccc", offsets=[0, 1, 3, 6], granularity="segment").data == b"abc"


def test_batch_is_a_read_only_view() -> None:
    def try_write(rows: Any, ctx: Any) -> Any:
        assert rows.shape == (3, 2)
        with pytest.raises(ValueError, match="read-only"):
            rows[0] = 1
        return rows.sum(axis=1, dtype=np.int32)

    result = call(try_write, np.arange(6, dtype=np.uint8), record_size=2, granularity="batch")
    assert result.data.dtype == np.int32
    assert result.data.tolist() == [1, 5, 9]


def test_structured_batch() -> None:
    star = np.dtype([("id", "<u4"), ("mag", "<f4")])
    stars = np.array([(1, 20.0), (2, 15.0)], dtype=star)
    found = call(lambda s, ctx: s[s["mag"] < 18], stars, record_size=8, granularity="batch", dtype=star)
    assert found.data["id"].tolist() == [2]


def test_pairs() -> None:
    result = call(lambda pair, ctx: pair[0] + pair[1], (b"abcd", b"wxyz"), record_size=2)
    assert result.pieces == [b"abwx", b"cdyz"]
    with pytest.raises(udf.UdfTypeError):
        call(lambda pair, ctx: None, (b"abcd", b"wxyzzz"), record_size=2)


@pytest.mark.parametrize("bad", [5, "text", {"a": b""}, [b"x", "y"], object(), np.array([object()])])
def test_wrong_types(bad: Any) -> None:
    with pytest.raises(udf.UdfTypeError):
        call(lambda data, ctx: bad, b"x")


def test_mixing_bytes_and_arrays_is_refused() -> None:
    def mixed(r: bytes, ctx: Any) -> Any:
        return r if r == b"a" else np.zeros(1)

    with pytest.raises(udf.UdfTypeError):
        call(mixed, b"ab", record_size=1)


def test_emit_and_its_errors() -> None:
    def spread(r: bytes, ctx: udf.Context) -> None:
        ctx.emit(r[0] % 3, r)

    assert call(spread, bytes(range(6)), record_size=1, buckets=3).buckets == {
        0: b"\0\3",
        1: b"\1\4",
        2: b"\2\5",
    }
    with pytest.raises(udf.UdfTypeError):
        call(spread, b"x", record_size=1)
    with pytest.raises(IndexError):
        call(lambda r, ctx: ctx.emit(3, r), b"x", record_size=1, buckets=3)
    with pytest.raises(udf.UdfTypeError):
        call(lambda r, ctx: ctx.emit(0, "text"), b"x", record_size=1, buckets=3)
    with pytest.raises(udf.UdfTypeError):
        call(lambda r, ctx: r, b"x", record_size=1, buckets=3)


@pytest.mark.parametrize("ids", [[0.5, 1.0], [0], [[0], [1]], [0, 7]])
def test_bad_bucket_ids(ids: Any) -> None:
    with pytest.raises((udf.UdfTypeError, IndexError)):
        call(lambda rows, ctx: (rows, ids), b"ab", record_size=1, granularity="batch", buckets=3)


def test_params_objects_log_progress() -> None:
    def use(data: Any, ctx: udf.Context) -> bytes:
        ctx.log("hello")
        ctx.progress(2.0)
        ctx.objects["seen"] = ctx.objects.get("seen", 0) + 1
        assert os.path.isdir(ctx.scratch)
        return str(ctx.params).encode()

    objects: dict[str, int] = {}
    result = call(use, b"x", params={"a": 1}, objects=objects)
    call(use, b"x", objects=objects)
    assert (result.data, result.log, result.progress, objects) == (b"{'a': 1}", ["hello"], 1.0, {"seen": 2})


# -- outputs -----------------------------------------------------------------------------------------
@effort(60)
@given(
    data=st.lists(st.tuples(st.integers(0, 6), st.binary(max_size=40)), max_size=80),
    limit=st.integers(1, 500),
)
def test_spilled_buckets_equal_unspilled(data: list[tuple[int, bytes]], limit: int) -> None:
    with tempfile.TemporaryFile() as file:
        output = BucketOutput(file.fileno(), 7, "", limit)
        for bucket, piece in data:
            output.emit(bucket, piece)
        done = output.finish()
        raw = os.pread(file.fileno(), 1 << 20, 0)
    expected = [b"".join(p for b, p in data if b == bucket) for bucket in range(7)]
    assert raw[: done.bytes] == b"".join(expected)
    assert np.frombuffer(raw[done.bytes :], "<i8").tolist() == [len(e) for e in expected]


@given(pieces=st.lists(st.binary(max_size=5), max_size=30))
def test_plain_output_keeps_lengths_only_when_they_differ(pieces: list[bytes]) -> None:
    with tempfile.TemporaryFile() as file:
        output = PlainOutput(file.fileno())
        for piece in pieces:
            output.piece(piece)
        done = output.finish()
        raw = os.pread(file.fileno(), 1 << 20, 0)
    assert raw[: done.bytes] == b"".join(pieces)
    assert done.pieces == len(pieces)
    table = np.frombuffer(raw[done.bytes :], "<i8").tolist()
    if len({len(p) for p in pieces}) <= 1:
        assert table == []
        assert done.row_bytes == (len(pieces[0]) if pieces else 0)
    else:
        assert table == [len(p) for p in pieces]


@pytest.mark.parametrize("text", ["<f8", "|u1", "[('a', '<i4'), ('b', '<f8', (2,))]"])
def test_dtype_text_round_trip(text: str) -> None:
    assert udf.dtype_text(udf.dtype_from(text)) == udf.dtype_text(np.dtype(udf.dtype_from(text)))


@pytest.mark.parametrize("text", ["O", "[('a', 'O')]", "nonsense", "[1, 2]", "__import__('os')"])
def test_bad_dtypes(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        udf.dtype_from(text)


@pytest.mark.parametrize(
    "text", ["[" + "-" * 60000 + "1]", "{" * 30000, "[(" * 20000, "{'names': []}", "[()]"]
)
def test_a_type_that_a_slave_made_up_is_one_error(text: str) -> None:
    with pytest.raises(ValueError, match="bad dtype"):
        udf.dtype_from(text)


# -- record indexes ----------------------------------------------------------------------------------
@given(
    data=st.binary(max_size=300), cut=st.integers(1, 20), delimiter=st.sampled_from([b"\n", b"ab", b"\0\0\0"])
)
def test_delimited_records_in_any_chunks(data: bytes, cut: int, delimiter: bytes) -> None:
    chunks = [data[i : i + cut] for i in range(0, len(data), cut)]
    offsets = np.concatenate(list(records.delimited(chunks, delimiter)))
    records.check(offsets, len(data))
    pieces = [data[a:b] for a, b in pairwise(offsets)]
    expected = [p + delimiter for p in data.split(delimiter)]
    expected[-1] = expected[-1][: -len(delimiter)]
    assert pieces == [p for p in expected if p]


def test_index_files() -> None:
    offsets = records.from_lengths([3, 0, 4])
    raw = records.encode(offsets)
    assert len(raw) == 32
    assert records.record_count(len(raw)) == 3
    assert records.decode(raw).tolist() == [0, 3, 3, 7]
    assert records.fixed(10, 4).tolist() == [0, 4, 8, 10]
    for bad in ([0, 5], [1, 7], [0, 5, 3, 7], []):
        with pytest.raises(Damaged):
            records.check(np.array(bad, dtype=np.int64), 7)
    with pytest.raises(Damaged):
        records.record_count(12)


# -- streams -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options",
    [
        {"granularity": "pages"},
        {"record_size": 5, "index": True},
        {"granularity": "batch"},
        {"granularity": "record"},
        {"record_size": -1},
    ],
)
def test_bad_streams(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SphereStream(None, "/x", **options)


def test_stream_defaults_and_pairs() -> None:
    assert SphereStream(None, "/x").granularity == "file"
    assert SphereStream(None, "/x", record_size=4).granularity == "record"
    assert SphereStream(None, ["/x", "/y"], index=True).paths == ("/x", "/y")
    pair = SphereStream(None, "/a", record_size=1) + SphereStream(None, "/b", record_size=2)
    assert [part.paths for part in pair.parts] == [("/a",), ("/b",)]
    with pytest.raises(UsageError):
        _ = SphereStream(None, "/a") + SphereStream(None, "/b", record_size=2)
    with pytest.raises(BadPath):
        SphereStream(None, "relative")


def test_globs() -> None:
    assert fixed_part("/a/b*/c") == ("/a", True)
    assert fixed_part("/a/b") == ("/a/b", False)
    assert fixed_part("/*.dat") == ("/", True)
    assert matches("/a/b.dat", "/a/*.dat")
    assert not matches("/a/x/b.dat", "/a/*.dat")
    assert matches("/a/x/y/b.dat", "/a/**/*.dat")
    assert data_files(["/o.10", "/o.2", "/o.2.idx"]) == ["/o.2", "/o.10"]
    assert sorted(["x10", "x9", "a"], key=natural_key) == ["a", "x9", "x10"]
    squares = ["/d/area_10²", "/d/area_9²", "/d/²", "/d/area_9"]
    assert sorted(squares, key=natural_key) == ["/d/area_9", "/d/area_9²", "/d/area_10²", "/d/²"]


# -- packing -----------------------------------------------------------------------------------------
def test_functions_of_a_file_travel_by_value(tmp_path: Path) -> None:
    (tmp_path / "helper_of_mine.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "mine.py").write_text(
        "from helper_of_mine import twice\nFACTOR = 3\n"
        "def work(data, ctx):\n    return bytes(twice(bytes(data)) * FACTOR)\n"
    )
    blob = pack(load_function(f"{tmp_path / 'mine.py'}:work"), {"a": 1}, (tmp_path / "mine.py",))
    (tmp_path / "blob").write_bytes(blob)
    code = (
        "import pickle, sys; b = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(b['function'](b'ab', None), b['params'], sorted(b['files']))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(tmp_path / "blob")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "b'abababababab' {'a': 1} ['mine.py']"


def test_bad_functions(tmp_path: Path) -> None:
    source = tmp_path / "bad.py"
    source.write_text("x = 1\n")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    for text in ("bad.py", f"{source}:x", f"{broken}:f", f"{source}:a b", "no.such.module:f"):
        with pytest.raises(UsageError):
            load_function(text)
    for text in (f"{source}:missing", f"{tmp_path}/none.py:f"):
        with pytest.raises(NotFound):
            load_function(text)
    with pytest.raises(UsageError, match="cannot be sent"):
        pack(lambda data, ctx: None, threading.Lock())
    with pytest.raises(UsageError):
        pack(7, None)  # type: ignore[arg-type]


def test_a_function_that_takes_other_arguments_is_refused_before_it_travels() -> None:
    """By its signature; a method, a partial, defaults and a function in C are as good as any."""

    def whole(segment: Any) -> None:
        return None

    for bad in (whole, lambda data, ctx, more: None, lambda *, data, ctx: None):
        with pytest.raises(UsageError, match=r"cannot be called as \S+\(data, ctx\)"):
            pack(bad, None)
    for good in (lambda data, ctx, more=1: None, lambda *args: None, partial(max, key=len), operator.eq):
        assert pack(good, None)


def test_other_interpreters_are_refused_with_both_versions() -> None:
    assert mismatch(here()) is None
    why, remedy = mismatch(Runtime("cpython-3.99")) or ("", "")
    assert "cpython-3.99" in why and here().python in why and remedy
    why, _ = mismatch(Runtime(here().python, {"numpy": "99.1"})) or ("", "")
    assert "numpy 99.1" in why
    assert mismatch(Runtime(here().python, {"pandas": "1.0"})) is None


# -- messages ----------------------------------------------------------------------------------------
def test_messages_have_their_numbers_and_travel() -> None:
    numbers = [n for n, cls in REGISTRY.items() if cls.__module__ == "sector.wire.sphere"]
    assert all(0x0400 <= n <= 0x04FF for n in numbers)
    from sector.model import Version

    request = SegmentRun("0" * 16, 1, 2, bytes(32), [Input("/a", Version(1, 2), 3, 0, 3)], "file")
    assert decode(SegmentRun, encode(request)) == request


def test_a_worker_loads_neither_twisted_nor_the_core() -> None:
    code = (
        "import sys; import sector.sphere.worker, sector.sphere.spawner\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('twisted', 'sqlalchemy', 'OpenSSL')"
        " or m.startswith(('sector._udt', 'sector.client', 'sector.rpc'))]\n"
        "print(bad)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def lines() -> Iterator[bytes]:
    yield b"a\n"
    yield b"b\n"


def test_generators_are_iterables_of_bytes() -> None:
    assert call(lambda data, ctx: lines(), b"x").pieces == [b"a\n", b"b\n"]
    assert pickle.dumps(here())
