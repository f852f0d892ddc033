"""Rows of the table of figures of Cumulus: what was measured, what it must be, and whether it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from judge import Figure, Found, Line, failures, number, ratio

from sector.bench.common import machine

CLIENTS = ("curl", "s3cmd", "boto3", "awscli", "rclone")
PEERS = ("versitygw", "minio", "sink")
WAYS = ("up", "down")


def rate(found: Found, size: str, client: str, server: str, way: str) -> float | None:
    """Median MB/s of a cell."""
    return found.median(f"{size}-{client}-{server}", f"{way}_mb_per_s")


def least(found: Found, size: str, client: str, way: str) -> float | None:
    """What Cumulus must reach with a client: 1.5 x the better of versitygw and MinIO, but no more than 0.9 x
    what the client does with a server that does nothing. None if one of them was not measured."""
    gateway, minio, sink = (rate(found, size, client, server, way) for server in PEERS)
    if gateway is None or minio is None or sink is None:
        return None
    return min(1.5 * max(gateway, minio), 0.9 * sink)


def beside(found: Found, size: str, client: str) -> str:
    """`versitygw 94/306, ...`: up and down."""
    parts = []
    for server in PEERS:
        rates = "/".join(number(rate(found, size, client, server, way), "{:.0f}") for way in WAYS)
        parts.append(f"{server} {rates}")
    return ", ".join(parts)


def throughput_lines(found: Found, sizes: Sequence[str]) -> Iterator[Line]:
    """MB/s by size and client."""
    for size in sizes:
        for client in CLIENTS:
            figures = [
                Figure(
                    f"MB/s {way}",
                    rate(found, size, client, "cumulus", way),
                    least(found, size, client, way),
                    form="{:.0f}",
                )
                for way in WAYS
            ]
            yield Line(f"{size}, {client}", figures, beside(found, size, client))
        yield tools(found, size)
    if "512M" in sizes:
        opaque = rate(found, "512M", "curl", "opaque", "up")
        yield Line(
            '512M, curl, `etag = "opaque"`',
            [Figure("MB/s up", opaque, 1000, form="{:.0f}")],
            f"with MD5 {number(rate(found, '512M', 'curl', 'cumulus', 'up'), '{:.0f}')}",
        )


def tools(found: Found, size: str) -> Line:
    """curl beside programs that are not S3."""
    up, down = (rate(found, size, "curl", "cumulus", way) for way in WAYS)
    md5, nginx = found.median(f"{size}-md5", "up_mb_per_s"), rate(found, size, "nginx", "nginx", "down")
    scp = [rate(found, size, "scp", "scp", way) for way in WAYS]
    figures = [
        Figure("of openssl's MD5, up", ratio(up, md5), 0.8, form="{:.2f}"),
        Figure("of nginx, down", ratio(down, nginx), 0.95, form="{:.2f}"),
    ]
    if size != "16M":
        figures.append(Figure("x scp, up", ratio(up, scp[0]), 1.0, form="{:.2f}"))
        figures.append(Figure("x scp, down", ratio(down, scp[1]), 1.0, form="{:.2f}"))
    grid = "/".join(number(rate(found, size, "gridftp", "gridftp", way), "{:.0f}") for way in WAYS)
    disk = number(found.median(f"{size}-md5", "synced_mb_per_s"), "{:.0f}")
    return Line(
        f"{size}, curl beside other programs",
        figures,
        f"openssl {number(md5, '{:.0f}')}, dd to the disk {disk}, nginx {number(nginx, '{:.0f}')}, scp"
        f" {'/'.join(number(one, '{:.0f}') for one in scp)}, GridFTP {grid}",
    )


def small_lines(found: Found, _: Sequence[str]) -> Iterator[Line]:
    """Requests a second."""
    for op, what, aim in (("get", "GET/s", None), ("put", "PUT/s", None), ("list", "pages/s", 250.0)):
        mine, minio, gateway = (
            found.median(f"small-{server}", f"{op}_per_s") for server in ("cumulus", "minio", "versitygw")
        )
        if op == "put":
            aim = gateway
        cpu = number(found.median("small-cumulus", f"{op}_cpu_ms"))
        yield Line(
            f"4 KB objects, 16 connections, {op.upper()}",
            [Figure(what, mine, minio, aim, "{:.0f}")],
            f"MinIO {number(minio, '{:.0f}')}, versitygw {number(gateway, '{:.0f}')}; our processor time a"
            f" request {cpu} ms, p99 {number(found.median('small-cumulus', f'{op}_p99_ms'))} ms",
        )


def open_lines(found: Found, _: Sequence[str]) -> Iterator[Line]:
    """Latency at 70 % of the maximum."""
    for op, most in (("get", 50.0), ("put", 100.0)):
        others = ", ".join(
            f"{server} {number(found.median(f'open-{server}', f'{op}_p99_ms'))} ms at"
            f" {number(found.median(f'open-{server}', f'{op}_offered_per_s'), '{:.0f}')}/s"
            for server in ("minio", "versitygw")
        )
        rate_per_s = found.median("open-cumulus", f"{op}_offered_per_s")
        yield Line(
            f"4 KB objects, open loop at 70 %, {op.upper()}",
            [Figure("ms p99", found.median("open-cumulus", f"{op}_p99_ms"), most, low=True)],
            f"at {number(rate_per_s, '{:.0f}')}/s; {others}",
        )


def sync_lines(found: Found, _: Sequence[str]) -> Iterator[Line]:
    """Durable PUTs where a sync takes long."""
    yield Line(
        "4 KB objects, every sync takes 5 ms, PUT",
        [
            Figure("PUT/s", found.median("slow-syncs", "put_per_s"), 700, form="{:.0f}"),
            Figure("syncs a PUT", found.median("slow-syncs", "syncs_per_put"), 0.5, low=True),
        ],
        f"p99 {number(found.median('slow-syncs', 'p99_ms'))} ms",
    )


def complete_lines(found: Found, _: Sequence[str]) -> Iterator[Line]:
    """Putting parts together."""
    size = found.median("complete-cumulus", "bytes")
    others = ", ".join(
        f"{server} {number(found.median(f'complete-{server}', 'complete_s'))} s"
        for server in ("versitygw", "minio")
    )
    yield Line(
        f"complete of {number(None if size is None else size / 1e9)} GB in equal parts",
        [Figure("s", found.median("complete-cumulus", "complete_s"), 1.0, low=True)],
        others,
    )


def load_lines(found: Found, _: Sequence[str]) -> Iterator[Line]:
    """Many clients; for comparison."""
    for storage in ("posix", "memory", "fsspec"):
        for way in ("direct", "redirected"):
            texts = []
            for op in ("get", "put"):
                rates = found.lists(f"load-{storage}-{way}", f"{op}_mbps")
                texts.append(f"{op.upper()} " + "/".join(number(one, "{:.0f}") for one in rates or [None]))
            yield Line(f"1 MB objects, {storage}, {way}, 1/4/16/64 clients", [], "MB/s: " + ", ".join(texts))


def replication_lines(found: Found, _: Sequence[str]) -> Iterator[Line]:
    """More servers."""
    rates = {count: found.median(f"replication-{count}", "mb_per_s") for count in (1, 2, 4, 8)}
    busy = found.median("replication-8", "machine_busy")
    yield Line(
        "80 clients that follow redirections, servers behind 100 Mb/s each",
        [Figure("x one server, 8 servers", ratio(rates[8], rates[1]), 7.0, form="{:.2f}")],
        ", ".join(f"{count}: {number(one)} MB/s" for count, one in rates.items())
        + f"; with 8 the machine that has all of them is busy at {number(busy, '{:.0%}')}",
    )


def fairness_lines(found: Found, _: Sequence[str]) -> Iterator[Line]:
    """Equal shares, and weighted ones."""
    for mode, most, farthest in (("down-same", 2.5, 6.0), ("down-own", 2.5, 6.0), ("up", 3.0, 8.0)):
        mine = {
            name: found.median("fairness-cumulus", f"{mode}_{name}")
            for name in ("cv", "farthest", "total_of_alone")
        }
        others = ", ".join(
            f"{server} {number(found.median(f'fairness-{server}', f'{mode}_cv'))} /"
            f" {number(found.median(f'fairness-{server}', f'{mode}_farthest'))} %"
            for server in ("versitygw", "minio")
        )
        yield Line(
            f"32 clients, {mode.replace('-', ', ')}",
            [
                Figure("% variation", mine["cv"], most, low=True),
                Figure("% farthest", mine["farthest"], farthest, low=True),
                Figure("of one client alone, together", mine["total_of_alone"], 0.9, form="{:.2f}"),
            ],
            others,
        )
    for mode in ("weights-down", "weights-up"):
        share = found.median("fairness-cumulus", f"{mode}_ratio")
        off = None if share is None else abs(share / 3 - 1) * 100
        yield Line(
            f"weight 3 on one connection against 1 on sixteen, {mode.rpartition('-')[2]}",
            [Figure("% off 3:1", off, 5.0, low=True)],
            f"{number(share)} : 1",
        )


def memory_lines(found: Found, _: Sequence[str]) -> Iterator[Line]:
    """What it needs at most."""
    for mode in ("up", "down-own"):
        yield Line(
            f"32 clients of a server with 512 MiB of memory, {mode}",
            [Figure("MB", found.median("memory", f"{mode}_server_pss_mb"), 200, low=True, form="{:.0f}")],
            f"{number(found.median('memory', f'{mode}_total'), '{:.0f}')} MB/s together",
        )


ALL: dict[str, Callable[[Found, Sequence[str]], Iterator[Line]]] = {
    "Throughput": throughput_lines,
    "Small objects": small_lines,
    "At 70 % of the maximum": open_lines,
    "Slow disks": sync_lines,
    "Large uploads": complete_lines,
    "Clients, redirection, storage": load_lines,
    "More servers": replication_lines,
    "Fair shares": fairness_lines,
    "Memory": memory_lines,
}
WORDS = {"aim": "reach the aim", "ok": "reach what they must", "**missed**": "miss", "-": "not measured"}


def markdown(found: Found, settings: str, sizes: Sequence[str]) -> str:
    """The whole document."""
    where = machine()
    runs: dict[str, int] = {}
    for row in found.rows:
        runs[row["cell"]] = runs.get(row["cell"], 0) + 1
    counts = f"{min(runs.values())} to {max(runs.values())}" if runs else "no"
    commits = sorted({str(row.get("commit", "")) for row in found.rows})
    mixed = f" **Measured with {len(commits)} commits; `--fresh` begins anew.**" if len(commits) > 1 else ""
    groups = {head: list(make(found, sizes)) for head, make in ALL.items()}
    tally: dict[str, int] = {}
    for line in (line for group in groups.values() for line in group if line.figures):
        tally[line.verdict] = tally.get(line.verdict, 0) + 1
    out = [
        "# Figures of Cumulus",
        "",
        f"{where['cpu']}, {where['cores']} cores, kernel {where['kernel']}; {settings}; medians of {counts}"
        f" runs, peers in the same run; commits {', '.join(commits)}.{mixed}",
        "",
        "Rows: " + ", ".join(f"{tally[mark]} {text}" for mark, text in WORDS.items() if mark in tally) + ".",
        "MB = 10^6 bytes; pairs are up/down. With each client Cumulus must reach 1.5 x the better of"
        " versitygw and MinIO, or 0.9 x what the client does with a sink.",
    ]
    for head, group in groups.items():
        out += ["", f"## {head}", "", "| what | figures (must) | beside | |", "| --- | --- | --- | --- |"]
        for line in group:
            figures = "<br>".join(figure.text for figure in line.figures) or "-"
            out.append(
                f"| {line.what} | {figures} | {line.beside} | {line.verdict if line.figures else ''} |"
            )
    out += failures(found)
    return "\n".join(out) + "\n"
