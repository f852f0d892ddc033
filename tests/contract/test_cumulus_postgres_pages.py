"""What a page costs in PostgreSQL: rows that it reads and leaves out, as EXPLAIN ANALYZE counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cumulus_bench import Bench, row, upload

from cumulus.index import listing, uploads
from cumulus.index.api import Put
from cumulus.index.postgres import PostgresIndex
from cumulus.index.readers import Run

MANY = 3000


@pytest.fixture
def bench(tmp_path: Path, postgres_here: str) -> Iterator[Bench]:
    """An empty database."""
    made = Bench(tmp_path, "postgresql")
    yield made
    made.close()


def read(bench: Bench, page: Callable[[Run], object]) -> int:
    """Rows that its statements have read from tables, those that they have left out included."""
    assert isinstance(bench.index, PostgresIndex)
    with psycopg.connect(bench.url, autocommit=True) as connection:
        connection.execute("ANALYZE")
    plans: list[Any] = []
    with bench.index._pool.run() as run:

        def explained(sql: str, values: tuple[Any, ...]) -> Any:
            plans.append(run("EXPLAIN (ANALYZE, FORMAT JSON) " + sql, values).fetchone()[0][0]["Plan"])
            return run(sql, values)

        page(explained)
    assert plans
    return sum(_read(plan) for plan in plans)


def _read(plan: dict[str, Any]) -> int:
    mine = plan["Actual Rows"] if "Relation Name" in plan else 0
    left_out = plan.get("Rows Removed by Filter", 0)
    return int(mine) + int(left_out) + sum(_read(below) for below in plan.get("Plans", ()))


@pytest.mark.parametrize("delimiter", ["", "/"])
def test_the_last_page_of_a_key_with_many_versions_reads_none_of_those_before(
    bench: Bench, delimiter: str
) -> None:
    """Nor do those before it: a listing of all would cost their square."""
    changes = [Put(row=row("k", n, version=f"v{n}"), keep=True) for n in range(1, MANY + 1)]
    for at in range(0, MANY, 500):
        bench.index.apply(changes[at : at + 500])
    bench.index.apply([Put(row=row(f"m{number}"), keep=True) for number in range(5)])
    found: list[Any] = []

    def last(run: Run) -> None:
        at: dict[str, Any] = {"prefix": "", "after": "k", "after_version": "v6", "delimiter": delimiter}
        found.append(listing.page_versions(run, "b", **at, limit=8, rows=listing.in_pieces(9)))

    assert read(bench, last) < 100
    assert [one.version for one in found[0].rows] == ["v5", "v4", "v3", "v2", "v1", *["null"] * 3]
    assert not any(one.latest for one in found[0].rows[:5]) and found[0].truncated


@pytest.mark.parametrize("same", [True, False])
def test_a_page_of_uploads_reads_none_of_those_before(bench: Bench, same: bool) -> None:
    """Of one key or of many."""
    for n in range(MANY):
        bench.index.add_upload(upload(f"u{n:04}", "k" if same else f"k{n:04}", n))
    key = "k" if same else f"k{MANY - 3:04}"
    for prefix in ("", "k"):
        found: list[Any] = []
        page = partial(uploads.page, bucket="b", prefix=prefix, after=key, after_id=f"u{MANY - 3}", limit=10)
        assert read(bench, lambda run, page=page, found=found: found.extend(page(run))) < 100
        assert [one.id for one in found] == [f"u{MANY - 2}", f"u{MANY - 1}"]
