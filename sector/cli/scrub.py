"""`sector node scrub`: have slaves read all of their replicas again, and say what was rotten."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click

from sector.cli import render
from sector.cli.calls import Ask, converse
from sector.cli.main import Shared, shared_options
from sector.errors import UsageError
from sector.wire.admin import NodeScrub, NodeScrubbed, NodeScrubs
from sector.wire.slave import ScrubState

POLL_S = 1.0
SILENT_S = 60.0
"""A slave that does not answer for so long is waited for no longer."""
REPAIR_S = 120.0
"""Repairs without any progress for so long are waited for no longer."""
REPAIR_WORDS = {
    "record": "its record was written anew, the content is good",
    "repaired": "repaired from a good copy",
    "waiting": "not repaired yet: fewer good copies than wanted",
    "lost": "NO good copy is left; the bad ones are in .sector/attic of their slaves",
    "gone": "the file was removed or replaced meanwhile",
}


def scrub_text(state: ScrubState) -> str:
    """How the scrub of a slave stands, in a few words."""
    if state.running:
        return f"{percent([state])} % now"
    return time.strftime("%Y-%m-%d", time.localtime(state.ended)) if state.ended else "never"


def percent(states: Sequence[ScrubState]) -> int:
    """How much of the running passes is done."""
    total = sum(state.total_bytes for state in states)
    return 100 * sum(state.done_bytes for state in states) // total if total else 0


async def watch(
    ask: Ask,
    clock: Any,
    names: Sequence[str],
    limit_s: float | None,
    show: Callable[[Sequence[NodeScrubbed]], None],
) -> tuple[NodeScrubs, bool]:
    """Begin a scrub on the slaves and follow it to its end and that of the repairs; False = not all came to
    an end. Passes that a restart of a slave forgot are begun again."""
    from sector.clock import pause  # it loads Twisted, and --help need not wait for that

    begun: NodeScrubs = await ask(NodeScrub(list(names), True))
    wanted = {node.id: node.state.number for node in begun.nodes if not node.error}
    heard = dict.fromkeys(wanted, clock.seconds())
    running, result = set(wanted), begun
    end = clock.seconds() + limit_s if limit_s is not None else float("inf")
    while running and clock.seconds() < end:
        await pause(clock, POLL_S)
        result = await ask(NodeScrub(sorted(running)))
        show(result.nodes)
        for node in result.nodes:
            if node.error:
                if clock.seconds() - heard[node.id] > SILENT_S:
                    running.discard(node.id)
                continue
            heard[node.id] = clock.seconds()
            if node.state.number < wanted[node.id]:
                again: NodeScrubs = await ask(NodeScrub([node.id], True))
                wanted[node.id] = again.nodes[0].state.number
            elif node.state.number > wanted[node.id] or not node.state.running:
                running.discard(node.id)
    waiting, since = -1, clock.seconds()
    while True:
        result = await ask(NodeScrub([node.id for node in begun.nodes], found=True))
        now = sum(bad.repair == "waiting" for node in result.nodes for bad in node.bad)
        if now != waiting:
            waiting, since = now, clock.seconds()
        if not now or clock.seconds() - since > REPAIR_S or clock.seconds() >= end:
            return result, not running
        await pause(clock, POLL_S)


class _Line:
    """The line that says on a terminal how far all is."""

    def __init__(self, bars: bool) -> None:
        self._bars = bars

    def __call__(self, nodes: Sequence[NodeScrubbed]) -> None:
        if not self._bars:
            return
        states = [node.state for node in nodes if not node.error]
        bad = sum(state.bad_files for state in states)
        slaves = f"{len(nodes)} slave{'s' if len(nodes) != 1 else ''}"
        size = render.size_text(sum(state.total_bytes for state in states))
        text = f"{slaves}: {percent(states)} % of {size}, {bad} bad replicas"
        os.write(2, b"\r\x1b[K" + text.encode())

    def stop(self) -> None:
        """No more of it."""
        if self._bars:
            os.write(2, b"\r\x1b[K")


@click.command()
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("--all", "every", is_flag=True, help="All slaves.")
@click.option("--wait", is_flag=True, help="Wait until all is read and repaired; say what was bad.")
@click.option(
    "--timeout",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    help="Wait so many seconds at most.",
)
@shared_options
@click.pass_obj
def scrub(shared: Shared, nodes: tuple[str, ...], every: bool, wait: bool, timeout: float | None) -> int:
    """Have slaves read their replicas again now and look for rot.

    They do so by themselves every two weeks (scrub_days of their settings); this is at the full scrub_rate, a
    fourth of it while transfers run. A bad replica is set aside and copied anew from a good one. With --wait
    the exit status is 1 if anything was rotten, if a slave did not answer, or if the time was over; Ctrl-C
    ends the waiting, not the scrub.

    \b
    Examples:
      sector node scrub slave1
      sector node scrub --all --wait
      sector node scrub --all --wait --json
    """
    if every == bool(nodes):
        raise UsageError("name the slaves to scrub, or --all", hint="sector node list shows them")
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    line = _Line(shared.bars)

    async def work(ask: Ask, reactor: Any) -> tuple[NodeScrubs, bool]:
        if wait:
            return await watch(ask, reactor, nodes, timeout, line)
        return await ask(NodeScrub(list(nodes), True)), True

    try:
        found, ended = converse(shared, work)
    finally:
        line.stop()
    failed = any(node.error for node in found.nodes) or not ended
    bad = sum(node.state.bad_files for node in found.nodes) if wait else 0
    if shared.json:
        render.print_json(_document(found, ended if wait else False))
    else:
        _tell(found, wait, ended)
    return 1 if failed or bad else 0


def _document(found: NodeScrubs, ended: bool) -> dict[str, object]:
    repairs = Counter(bad.repair for node in found.nodes for bad in node.bad)
    return {
        "ended": ended,
        "bad_replicas": sum(node.state.bad_files for node in found.nodes),
        **{f"bad_{name}": repairs[name] for name in REPAIR_WORDS},
        "nodes": [
            {
                **render.plain(node),
                "bad": [{**render.plain(bad), "version": _version(bad)} for bad in node.bad],
            }
            for node in found.nodes
        ],
    }


def _version(bad: Any) -> str:
    return f"{bad.version.epoch}.{bad.version.counter}"


def _tell(found: NodeScrubs, wait: bool, ended: bool) -> None:
    for node in found.nodes:
        if node.error:
            render.say(f"{node.id}: {node.error}")
    good = [node for node in found.nodes if not node.error]
    if not wait:
        for node in good:
            size = render.size_text(node.state.total_bytes)
            click.echo(f"{node.id}: scrub {node.state.number} of {size} has begun; see sector node list")
        return
    rows = [
        (
            node.id,
            node.state.total_files,
            render.size_text(node.state.total_bytes),
            node.state.bad_files,
            node.state.bad_blocks,
            "running" if node.state.running else "ended",
        )
        for node in good
    ]
    render.print_table(("node", "files", "read", "bad", "blocks", "scrub"), rows, right=range(1, 5))
    for node in good:
        for bad in node.bad:
            words = REPAIR_WORDS.get(bad.repair, bad.repair)
            click.echo(f"{node.id} {bad.path} (version {_version(bad)}): {bad.why}: {words}")
        more = node.state.bad_files - len(node.bad)
        if more > 0:
            click.echo(f"{node.id}: {more} more bad replicas; its log names them")
    if not ended:
        render.say("not all is read yet; the scrub goes on: see sector node list")
