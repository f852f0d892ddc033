"""Commands for network people: `udtcat` and the `bench` group."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from sector.cli.main import Shared, json_option
from sector.cli.render import print_json
from sector.errors import LocalIO, UsageError


@click.command(
    epilog="""\b
Examples:
  sector udtcat -l 9000 > copy.tar                      (receive)
  sector udtcat 192.0.2.7 9000 < data.tar               (send)
  sector udtcat --rendezvous -l 9000 192.0.2.7 9000     (both sides, through NAT)
"""
)
@click.option("-l", "--listen", type=click.IntRange(0, 65535), metavar="PORT", help="Local UDP port.")
@click.option("--rendezvous", is_flag=True, help="Both sides connect to each other; needs -l and HOST PORT.")
@click.option("--message", is_flag=True, help="Message mode instead of a byte stream.")
@click.option(
    "--message-size",
    type=click.IntRange(1, 8 << 20),
    default=50000,
    show_default=True,
    help="Bytes a message.",
)
@click.option(
    "--cc",
    type=click.Choice(["bbr", "udt", "cubic", "fixed"]),
    help="Congestion control of what this end sends; default as fits the peer.",
)
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="32 bytes or 64 hexadecimal digits that both ends have: all is sealed, nobody else gets in.",
)
@click.option(
    "--stats",
    is_flag=True,
    help="On a terminal a line a second: rate, RTT, loss, window, what limits. At the end all as JSON, on "
    "standard error.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write what happened last (packets, losses, RTT, rate, what limits) as qlog-like JSON.",
)
@click.option(
    "--trace-events",
    type=click.IntRange(16, 1 << 22),
    default=4096,
    show_default=True,
    help="Events that a trace keeps.",
)
@click.argument("host", required=False)
@click.argument("port", required=False, type=click.IntRange(1, 65535))
def udtcat(
    listen: int | None,
    rendezvous: bool,
    message: bool,
    message_size: int,
    cc: str | None,
    key_file: str | None,
    stats: bool,
    trace: str | None,
    trace_events: int,
    host: str | None,
    port: int | None,
) -> None:
    """Netcat over plain UDT, with any UDT peer (libudt's programs included).

    -l hears IPv4 and IPv6 on all addresses of the machine. Standard input goes to the peer, what comes goes
    to standard output. At the end of input it closes when all it sent is acknowledged, or, having sent
    nothing, when the peer closes.

    Exit status 1 also when the peer vanishes. libudt says only once that it closes; where that is lost, all
    that came is written, a line says so after 10 s, and only you can tell whether the length is right.
    """
    if host is not None and port is None:
        raise UsageError("HOST needs a PORT", hint="sector udtcat HOST PORT")
    if host is None and listen is None:
        raise UsageError("nothing to connect to", hint="give HOST PORT, or -l PORT to listen")
    if rendezvous and (host is None or listen is None):
        raise UsageError("a rendezvous needs both -l PORT and HOST PORT")
    if host is not None and listen is not None and not rendezvous:
        raise UsageError("-l with HOST PORT is a rendezvous", hint="add --rendezvous")
    from sector._udt.trace import Trace, check_place
    from sector._udt.transport import MESSAGE, STREAM, UdtOptions
    from sector.cli.udtcat import udtcat_main

    try:
        if trace is not None:
            check_place(trace)
    except OSError as bad:
        raise LocalIO(f"the trace cannot be written to {trace}: {bad.strerror}") from None
    ring = Trace(trace_events) if trace is not None else None
    options = UdtOptions(kind=MESSAGE if message else STREAM, cc=cc, key=_key(key_file), trace=ring)
    peer = None
    if host is not None and port is not None:
        literal = _literal(host)  # told now where there is none
        peer = (literal if rendezvous else host), port  # a client tries one address after the other
    udtcat_main(listen, peer, options, message_size=message_size, stats=stats, trace=trace)


def _key(path: str | None) -> bytes | None:
    from sector._udt.strings import read_key

    try:
        return read_key(path) if path is not None else None
    except OSError as error:
        raise UsageError(f"cannot read the key file {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(str(error), hint="make one: (umask 077; openssl rand -hex 32 > FILE)") from None


def _literal(host: str) -> str:
    import socket

    from sector.errors import Unreachable

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Unreachable(f"cannot find the host {host!r}: {why}") from None
    name, _, *more = found[0][4]
    return f"{name}%{more[-1]}" if more and more[-1] else str(name)  # a scope, where IPv6 has one


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PICTURE",
    help="A .png, .svg or .pdf.  [default: FILE with .png]",
)
@click.option(
    "--connection", type=click.IntRange(1), metavar="N", help="Which one of several; default the busiest."
)
@json_option
@click.pass_obj
def trace(shared: Shared, file: Path, output: Path | None, connection: int | None) -> None:
    """Draw a trace that put, get, udtcat or bench udt wrote with --trace.

    Four panels over time: rate of what was sent, arrived and was repeated; window and what was in flight;
    round trip time; packets lost. The colour behind them says what limited. Needs matplotlib.

    \b
    Examples:
      sector trace put.qlog
      sector trace cell.qlog -o cell.svg
    """
    from sector.bench import trace_picture

    document = trace_picture.load(file)
    traces = document["traces"]
    at = connection - 1 if connection is not None else trace_picture.busiest(document)
    if at >= len(traces):
        raise UsageError(f"the trace has {len(traces)} connections, not {connection}")
    found = trace_picture.curves(traces[at])
    target = output or file.with_suffix(".png")
    name = f"{document.get('title') or file.name}, connection {at + 1} of {len(traces)}"
    trace_picture.draw(found, target, name)
    if shared.json:
        facts = {"picture": str(target), "connection": at + 1, "connections": len(traces)}
        print_json(facts | {"events": len(traces[at]["events"]), "seconds": round(found.end, 6)})
    else:
        events = len(traces[at]["events"])
        click.echo(f"{target}: {events} events in {found.end:.3g} s, connection {at + 1} of {len(traces)}")


BENCHES = {
    "udt": ("sector.bench.udt", "Bulk throughput: loopback, links, hosts."),
    "gmp": ("sector.bench.gmp", "Round trips of 1 KB messages."),
    "terasort": ("sector.bench.terasort", "Sort records of 100 bytes on a cluster."),
}


class _Benches(click.Group):
    """Imports a bench when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BENCHES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in BENCHES:
            return None
        command: click.Command = getattr(importlib.import_module(BENCHES[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in BENCHES.items()])


@click.command(cls=_Benches)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure transport, messaging and sorting; --json prints one document with machine and settings.

    \b
    Examples:
      sector bench udt
      sector bench gmp --json
    """
    if getattr(ctx.obj, "json", False):  # given before the command's name
        ctx.default_map = {name: {"as_json": True} for name in BENCHES}
