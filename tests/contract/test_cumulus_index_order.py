"""Changes of one key that arrive in any order leave what they leave in order, in rows and in the ledger; and
who looks meanwhile sees each version where it is."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest
from cumulus_bench import Bench, bucket, row
from hypothesis import given
from hypothesis import strategies as st

from cumulus.index.api import Change, Index, Put, Remove

NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """One database for all examples, each with a bucket of its own."""
    made = Bench(tmp_path_factory.mktemp("order"), request.param)
    yield made.index
    made.close()


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """What happened to one key, in order: a bucket without versioning, then perhaps with it, then perhaps
    suspended. Versions that are removed exist, or existed."""
    changes: list[Change] = []
    versions = ["null"]
    states = ["off"] * draw(st.integers(0, 3)) + ["on"] * draw(st.integers(0, 4))
    states += ["suspended"] * draw(st.integers(0, 3))
    for stamp, state in enumerate(states, 1):
        what = draw(st.sampled_from(["put", "put", "marker", "remove"]))
        if what == "remove" and state == "off":
            changes.append(Remove(bucket="", key="k", stamp=stamp))
        elif what == "remove":
            gone = draw(st.sampled_from(versions))
            changes.append(Remove(bucket="", key="k", stamp=stamp, version=gone))
        else:
            id = f"v{stamp}" if state == "on" else "null"
            versions.append(id)
            marker = what == "marker" and state != "off"
            made = row("k", stamp, 0 if marker else 2**stamp, version=id, marker=marker)
            changes.append(Put(row=made, keep=state != "off"))
    return changes


def outcome(index: Index, changes: list[Change]) -> object:
    """All rows of the key, what is current, and the ledger, after these changes."""
    name = f"order{next(NUMBERS)}"
    index.add_bucket(bucket(name))
    for change in changes:
        if isinstance(change, Put):
            made = row("k", change.row.stamp, change.row.size, bucket=name, version=change.row.version,
                       marker=change.row.marker)  # fmt: skip
            index.apply([Put(row=made, keep=change.keep)])
        else:
            index.apply([Remove(bucket=name, key="k", stamp=change.stamp, version=change.version)])
    rows = index.page_versions(name).rows
    current, usage = index.lookup(name, "k"), index.usage("bucket", name)
    assert usage.bytes == sum(one.size for one in rows)
    assert usage.objects == sum(not one.marker for one in rows)
    assert [one.latest for one in rows] == [True, *[False] * len(rows)][: len(rows)]
    assert (current.stamp if current else None) == (rows[0].stamp if rows else None)
    listed = [one.stamp for one in index.page(name).rows]
    assert listed == ([current.stamp] if current is not None and not current.marker else [])
    return [(one.version, one.stamp, one.marker) for one in rows]


@given(history=histories(), data=st.data())
def test_order_of_arrival_does_not_count(index: Index, history: list[Change], data: st.DataObject) -> None:
    """Two writers, or a recovery beside them, tell the index of the same key."""
    shuffled = data.draw(st.permutations(history))
    assert outcome(index, shuffled) == outcome(index, history)


def test_a_version_on_its_way_is_in_one_place(index: Index) -> None:
    """It becomes current and an older one again while another looks for it and lists all of them."""
    name = f"order{next(NUMBERS)}"
    index.add_bucket(bucket(name))
    first = row("k", 1, bucket=name, version="first")
    index.apply([Put(row=first, keep=True)])
    over = threading.Event()

    def move() -> None:
        for stamp in itertools.count(2):
            if over.is_set():
                return
            above = row("k", stamp, bucket=name, version=f"v{stamp}", marker=stamp % 2 == 0)
            index.apply([Put(row=above, keep=True)])
            index.apply([Remove(bucket=name, key="k", stamp=stamp, version=above.version)])

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for _ in range(300):
            found = index.lookup(name, "k", "first")
            assert found is not None and found.size == 10
            listed = index.page_versions(name).rows
            assert [one.version for one in listed].count("first") == 1
            assert [one.latest for one in listed] == [True, False][: len(listed)]
            assert index.lookup(name, "k") is not None
    finally:
        over.set()
        mover.join()
