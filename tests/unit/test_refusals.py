"""Lines about refused datagrams: one a source and minute, bounded."""

from __future__ import annotations

from sector.refusals import Watch


def test_a_flood_is_one_line_a_minute() -> None:
    """The first comes at once, the next counts what came since."""
    watch = Watch()
    lines: list[str] = []
    for second in range(130):
        lines += watch.look([("10.0.0.9", (second * 10_000, 0, 0))], 1000.0 + second)
    assert lines == [
        "datagrams from 10.0.0.9: 10000 under a wrong key",
        "datagrams from 10.0.0.9: 600000 under a wrong key",
        "datagrams from 10.0.0.9: 600000 under a wrong key",
    ]


def test_a_few_doubled_or_late_datagrams_are_no_news() -> None:
    """Networks double; the last datagrams of a transfer come late."""
    watch = Watch()
    assert watch.look([("h", (0, 63, 3))], 1000.0) == []
    line = "datagrams from h: 64 replayed, 3 for tickets that are over or unknown"
    assert watch.look([("h", (0, 64, 3))], 1001.0) == [line]


def test_many_sources_do_not_flood_the_log() -> None:
    """16 lines a minute, then how many were left out."""
    watch = Watch()
    hosts = [(f"10.0.1.{n}", (5, 0, 0)) for n in range(40)]
    assert len(watch.look(hosts, 1000.0)) == 16
    assert watch.look(hosts, 1001.0) == []
    assert watch.look(hosts, 1061.0) == ["datagrams from 24 more sources in the last minute"]


def test_both_ports_of_a_node_count_as_one_source() -> None:
    """And a source that the port forgot begins anew."""
    watch = Watch()
    both = [("h", (1, 0, 0)), ("h", (2, 0, 0))]
    assert watch.look(both, 1000.0) == ["datagrams from h: 3 under a wrong key"]
    assert watch.look([("h", (1, 0, 0))], 1061.0) == ["datagrams from h: 1 under a wrong key"]
