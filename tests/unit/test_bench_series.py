"""Links, cells, time series and pictures of `sector bench udt` (no sockets)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sector.bench import cells, picture, series, wan
from sector.bench.link import Link, grid
from sector.bench.peers import PEERS
from sector.errors import UsageError


def test_a_link_knows_its_limit_and_buffers() -> None:
    link = Link.parse("rate=1g,rtt=100ms,loss=0.1%")
    assert link.limit_bps == pytest.approx(1e9 * 1456 / 1538)
    assert link.bdp_bytes == 12_500_000 and link.buffer_bytes == 50_000_000
    assert link.loss == pytest.approx(0.001) and link.rtt_s == pytest.approx(0.1)
    assert Link.parse("rate=10m,rtt=1ms").buffer_bytes == 8_000_000
    assert Link.parse("rate=10m,delay=5ms").rtt_s == pytest.approx(0.01)
    assert Link.parse("rate=10m,burst=2%:8").loss == pytest.approx(0.02)


@pytest.mark.parametrize(
    "text", ["rtt=1ms", "rate=fast", "rate=1g,loss=120%", "rate", "rate=1g,,", "rate=1g,rtt=5"]
)
def test_what_is_no_link_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Link.parse(text)


@pytest.mark.parametrize(
    "text",
    ["rate=1g,rtt=100ms,loss=0.1%", "rate=100m,rtt=1ms,loss=0,queue=100f", "rate=1g,rtt=5ms,loss=1%,dup=1%"],
)
@pytest.mark.parametrize("peer", ["sector", "tcp-cubic8", "sector_compatible", "sector-to-libudt"])
def test_a_cell_s_name_says_link_and_peer(text: str, peer: str) -> None:
    link = Link.parse(text)
    found, name = cells.parse_cell(cells.key(link, peer))
    assert Link.parse(found) == link and name == peer


@pytest.mark.parametrize("text", ["1g-100ms-sector", "1g-100ms-0-nobody", "1g-100ms-0-queue100f", "sector"])
def test_what_is_no_cell_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Link.parse(cells.parse_cell(text)[0])


def test_a_grid_is_the_product_of_its_lists() -> None:
    links = list(grid("rate=1g;rtt=20ms,100ms;loss=0,0.1%,1%"))
    assert len(links) == 6 and links[0].name == "1g-20ms-0" and links[-1].name == "1g-100ms-1%"


def test_steady_is_the_second_half_and_silence_counts() -> None:
    samples = [0.0] * 10 + [1e6] * 10
    assert series.steady_bps(samples, 0.1, 2) == pytest.approx(8e7)
    assert series.steady_bps(samples, 0.1, 4) == 0  # nothing came any more
    assert series.first_bps(samples, 0.1, 2) == pytest.approx(4e7)
    assert series.first_bps(samples[10:], 0.1, 2) == pytest.approx(4e7)
    assert series.mean_bps(samples, 0.1, 1.5, 99) == pytest.approx(8e7)
    assert series.mean_bps([], 0.1, 0, 1) == 0


def test_the_time_to_a_rate_is_when_it_is_reached_and_kept() -> None:
    """What piled up behind one lost packet and came at once is no rate."""
    samples = [0.0, 30.0, 0.0, *[10.0] * 6]
    assert series.time_to_bps(samples, 0.1, 80 / 0.1) == pytest.approx(0.3)
    assert series.time_to_bps(samples, 0.1, 1e9) is None
    assert series.time_to_bps(samples[:6], 0.1, 80 / 0.1) is None


def test_jain_is_one_when_all_are_equal() -> None:
    assert series.jain([5, 5, 5]) == pytest.approx(1)
    assert series.jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert series.jain([0, 0]) == 0


def row(link: str, peer: str, gbps: float) -> dict[str, object]:
    return {"cell": "c", "link": link, "peer": peer, "steady_gbps": gbps}


def test_results_go_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """A series that was killed in the middle of a write loses that cell only."""
    file = tmp_path / "deep" / "r.jsonl"
    first = cells.Results(file)
    first.add({"cell": "a"})
    first.add({"cell": "a", "error": "no"})
    with file.open("a") as out:
        out.write('{"cell": "b", "gb')
    again = cells.Results(file)
    assert again.count("a") == 1 and again.count("b") == 0
    again.add({"cell": "b"})
    assert cells.Results(file).count("b") == 1 and cells.Results(file).count("a") == 1
    nowhere = cells.Results(None)
    nowhere.add({"cell": "a"})
    assert nowhere.count("a") == 1


def test_a_series_skips_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def measure(
        link: Link, peer: str, seconds: float, *, seed: int, engine: str, trace: str
    ) -> dict[str, object]:
        measured.append(f"{cells.key(link, peer)}/{seed}")
        return {"cell": cells.key(link, peer), "link": link.text, "peer": peer}

    monkeypatch.setattr(cells, "measure", measure)
    links = list(grid("rate=1g;rtt=1ms,2ms;loss=0"))
    results = cells.Results(tmp_path / "r.jsonl")
    results.add({"cell": cells.key(links[0], "libudt")})
    done = list(cells.run_series(links, ["sector", "libudt"], 1, 1, results, "user"))
    assert measured == ["1g-1ms-0-sector/1", "1g-2ms-0-sector/1", "1g-2ms-0-libudt/1"] and len(done) == 3
    assert not list(cells.run_series(links, ["sector", "libudt"], 1, 1, cells.Results(results.path), "user"))


def test_the_picture_shows_every_cell_and_the_rows_stand_beside_it(tmp_path: Path) -> None:
    rows = [
        row("rate=100m,rtt=20ms,loss=0", "sector", 0.0947),
        row("rate=100m,rtt=20ms,loss=1%", "sector", 0.09),
        row("rate=100m,rtt=20ms,loss=1%", "sector", 0.08),
        row("rate=100m,rtt=100ms,loss=0", "tcp-<x>", 0.05),
        {"cell": "d", "link": "rate=100m", "peer": "srt", "error": "no"},
    ]
    for name in ("p.svg", "p.html"):
        picture.draw(rows, tmp_path / name)
        text = (tmp_path / name).read_text()
        assert "tcp-&lt;x&gt;" in text and "100%" in text and ">85<" in text and "20 ms" in text
    assert len(json.loads((tmp_path / "p.json").read_text())["results"]) == 5
    with pytest.raises(UsageError):
        picture.draw(rows, tmp_path / "p.gif")
    with pytest.raises(UsageError):
        picture.draw([], tmp_path / "p.svg")
    assert picture.colour(0) != picture.colour(1) == picture.colour(7)


def test_netem_is_asked_for_the_same_link() -> None:
    command = wan.netem_command(Link.parse("rate=100m,rtt=100ms,jitter=2ms,loss=0.1%,dup=1%,queue=1bdp"))
    text = " ".join(command)
    assert "delay 50000us 2ms" in text and "loss random 0.1%" in text and "rate 100000000bit 38" in text
    assert "duplicate 1%" in text
    limit = int(command[command.index("limit") + 1])
    assert limit == pytest.approx(100e6 / 8 * 0.15 / 1538, abs=2)  # 1 BDP waiting, half of one on the way
    frames = wan.netem_command(Link.parse("rate=1g,rtt=1ms,queue=100f"))
    assert int(frames[frames.index("limit") + 1]) == pytest.approx(100 + 1e9 / 8 * 0.0005 / 1538, abs=2)
    gilbert = " ".join(wan.netem_command(Link.parse("rate=1g,rtt=1ms,ge=1%:20%,queue=200kb")))
    assert "loss gemodel 1% 20%" in gilbert


def test_what_netem_cannot_do_goes_to_the_emulator() -> None:
    assert wan.choose("auto", Link.parse("rate=1g,rtt=1ms"), flows=True) == "user"
    assert wan.choose("user", Link.parse("rate=1g,rtt=1ms"), flows=False) == "user"
    with pytest.raises(UsageError):
        wan.choose("netem", Link.parse("rate=1g,burst=1%:8"), flows=False)


def test_every_peer_names_itself() -> None:
    assert all(peer.name == name and peer.says for name, peer in PEERS.items())
