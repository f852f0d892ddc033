"""A picture of throughput over RTT and loss: one panel per peer, darker is nearer to the link's limit."""

from __future__ import annotations

import importlib.util
import json
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from sector._udt.trace import check_place
from sector.bench.link import Link
from sector.errors import LocalIO, SectorError, UsageError

SUFFIXES = (".png", ".svg", ".html")
NO_MATPLOTLIB = "a PNG needs matplotlib"
MATPLOTLIB_HINT = "pip install matplotlib, or write a .svg or .html"
_CELL_W, _CELL_H, _LEFT, _TOP, _GAP = 86, 46, 74, 64, 34


def _grids(
    rows: Sequence[dict[str, Any]],
) -> dict[tuple[str, str], dict[tuple[float, float], tuple[float, float]]]:
    """(rate, peer) -> {(rtt s, loss): (median steady Mb/s, share of the limit)}."""
    found: dict[tuple[str, str], dict[tuple[float, float], list[tuple[float, float]]]] = {}
    for row in rows:
        if "steady_gbps" not in row:
            continue
        link = Link.parse(row["link"])
        rate = f"{link.rate_bps / 1e6:g} Mb/s"
        cell = found.setdefault((rate, row["peer"]), {}).setdefault((link.rtt_s, link.loss), [])
        cell.append((row["steady_gbps"] * 1e3, row["steady_gbps"] * 1e9 / link.limit_bps))
    return {
        name: {
            at: (statistics.median(v[0] for v in values), statistics.median(v[1] for v in values))
            for at, values in cells.items()
        }
        for name, cells in found.items()
    }


def colour(share: float) -> str:
    """White for nothing to dark green for the whole link."""
    x = min(max(share, 0.0), 1.0)
    red, green, blue = (round(a + (b - a) * x) for a, b in ((250, 0), (250, 104), (245, 60)))
    return f"#{red:02x}{green:02x}{blue:02x}"


def svg(rows: Sequence[dict[str, Any]]) -> str:
    """The picture as SVG. Raises UsageError when there is nothing to draw."""
    grids = _grids(rows)
    if not grids:
        raise UsageError("no cell with a result to draw")
    rtts = sorted({at[0] for cells in grids.values() for at in cells})
    losses = sorted({at[1] for cells in grids.values() for at in cells})
    panel_w, panel_h = _LEFT + _CELL_W * len(losses) + _GAP, _TOP + _CELL_H * len(rtts) + _GAP
    across = max(1, min(3, len(grids)))
    down = -(-len(grids) // across)
    width, height = across * panel_w + _GAP, down * panel_h + _GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, ((rate, peer), cells) in enumerate(grids.items()):
        x, y = _GAP + i % across * panel_w, _GAP + i // across * panel_h
        out.append(f'<g transform="translate({x},{y})">')
        out.append(f'<text x="{_LEFT}" y="16" font-size="16" font-weight="bold">{escape(peer)}</text>')
        out.append(f'<text x="{_LEFT}" y="35" fill="#666">{escape(rate)}: steady Mb/s, RTT by loss</text>')
        for k, loss in enumerate(losses):
            out.append(_text(_LEFT + _CELL_W * (k + 0.5), _TOP - 8, f"{loss * 100:g} %"))
        for j, rtt in enumerate(rtts):
            out.append(_text(_LEFT - 34, _TOP + _CELL_H * (j + 0.5) + 5, f"{rtt * 1e3:g} ms"))
            for k, loss in enumerate(losses):
                out.append(_cell(_LEFT + _CELL_W * k, _TOP + _CELL_H * j, cells.get((rtt, loss))))
        out.append("</g>")
    return "\n".join([*out, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, fill: str = "#222") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="{fill}">{escape(text)}</text>'


def _cell(x: float, y: float, value: tuple[float, float] | None) -> str:
    box = f'<rect x="{x}" y="{y}" width="{_CELL_W - 2}" height="{_CELL_H - 2}" '
    if value is None:
        return box + 'fill="white" stroke="#ddd"/>'
    mbps, share = value
    ink = "white" if share > 0.55 else "#222"
    middle = x + _CELL_W / 2 - 1
    number = f"{mbps:.0f}" if mbps >= 10 else f"{mbps:.1f}"
    return (
        box
        + f'fill="{colour(share)}"/>'
        + _text(middle, y + 19, number, ink)
        + _text(middle, y + 35, f"{share:.0%}", ink)
    )


def html(rows: Sequence[dict[str, Any]]) -> str:
    """A page with the picture and the rows it was made of."""
    plain = [{k: v for k, v in row.items() if not k.startswith("samples")} for row in rows]
    data = escape(json.dumps(plain, indent=1))
    return (
        "<!doctype html>\n<meta charset='utf-8'>\n<title>Throughput over RTT and loss</title>\n"
        f"{svg(rows)}<details><summary>{len(plain)} results</summary><pre>{data}</pre></details>\n"
    )


def png(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The picture as PNG, by matplotlib. Raises SectorError when that is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise SectorError(NO_MATPLOTLIB, hint=MATPLOTLIB_HINT) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import LinearSegmentedColormap

    grids = _grids(rows)
    if not grids:
        raise UsageError("no cell with a result to draw")
    rtts = sorted({at[0] for cells in grids.values() for at in cells})
    losses = sorted({at[1] for cells in grids.values() for at in cells})
    across = max(1, min(3, len(grids)))
    down = -(-len(grids) // across)
    shades = LinearSegmentedColormap.from_list("share", [colour(0), colour(1)])
    size = (across * (1.3 + 1.0 * len(losses)), down * (1.3 + 0.6 * len(rtts)))
    figure, axes = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(grids) :]:
        axis.set_visible(False)
    for axis, ((rate, peer), cells) in zip(axes.flat, grids.items(), strict=False):
        shares = [[cells.get((rtt, loss), (0, float("nan")))[1] for loss in losses] for rtt in rtts]
        axis.imshow(shares, cmap=shades, vmin=0, vmax=1, aspect="auto")
        axis.set_title(f"{peer}, {rate}: steady Mb/s", fontsize=10)
        axis.set_xticks(range(len(losses)), [f"{loss * 100:g} %" for loss in losses], fontsize=8)
        axis.set_yticks(range(len(rtts)), [f"{rtt * 1e3:g} ms" for rtt in rtts], fontsize=8)
        axis.set_xlabel("loss", fontsize=8)
        axis.set_ylabel("RTT", fontsize=8)
        for j, rtt in enumerate(rtts):
            for k, loss in enumerate(losses):
                if (rtt, loss) in cells:
                    mbps, share = cells[rtt, loss]
                    ink = "white" if share > 0.55 else "#222222"
                    text = f"{mbps:.0f}\n{share:.0%}"
                    axis.text(k, j, text, ha="center", va="center", color=ink, fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def check(path: Path) -> None:
    """Says before a series of hours what draw() would say at its end. Raises UsageError, SectorError,
    LocalIO."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"a picture is a .png, .svg or .html, not {path.name!r}")
    if path.suffix.lower() == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise SectorError(NO_MATPLOTLIB, hint=MATPLOTLIB_HINT)
    try:
        for place in path, path.with_suffix(".json"):
            check_place(place)
    except OSError as error:
        raise LocalIO(f"the picture cannot be written to {path}: {error.strerror}") from None


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the picture by its suffix, and the rows as JSON beside it."""
    suffix = path.suffix.lower()
    if suffix == ".png":
        png(rows, path)
    elif suffix == ".svg":
        path.write_text(svg(rows))
    elif suffix == ".html":
        path.write_text(html(rows))
    else:
        raise UsageError(f"a picture is a .png, .svg or .html, not {path.name!r}")
    path.with_suffix(".json").write_text(json.dumps({"bench": "udt", "results": list(rows)}) + "\n")
