"""Commands for a cluster: init, up, down, status, login, and the services themselves."""

from __future__ import annotations

import os
import select
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from sector._udt.traffic import shown as shown_traffic
from sector.cli import cluster_run, ends, render
from sector.cli.cluster_dir import ADMIN, DEFAULT_PORT_BASE, ClusterDir, ports_of
from sector.cli.cluster_run import Process, Readiness
from sector.cli.main import Shared, json_option, shared_options
from sector.cli.tls_once import log_in, read_password
from sector.config import Config, Role, SphereSection, client_path, expanded, load_config, parse_address
from sector.errors import NotFound, SectorError, UsageError
from sector.model import Address
from sector.pki import Trust
from sector.sphere.tasks import why_root
from sector.wire.admin import Status, StatusInfo

# counters of `status` for people; --json has all
SHOWN = ("sessions", "leases", "tasks", "copies_running", "copies_waiting", "assoc", "half_open")
DEFAULT_DIR = "~/.local/share/sector/up"
dir_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    default=DEFAULT_DIR,
    show_default=True,
    help="Directory of the cluster.",
)
config_option = click.option(
    "--config", "config_file", metavar="FILE", required=True, help="Settings (TOML) of this service."
)
log_option = click.option(
    "--log-format",
    type=click.Choice(["human", "json"]),
    help="Form of log lines; by default human on a terminal, else JSON.",
)


# init -------------------------------------------------------------------------------------------------
@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--cluster", metavar="NAME", default="sector", show_default=True, help="Name of the cluster.")
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen at."
)
@click.option(
    "--port-base", metavar="N", type=click.IntRange(1, 65000), default=DEFAULT_PORT_BASE, show_default=True
)
@click.option("--slaves", metavar="N", type=click.IntRange(1, 256), default=1, show_default=True)
@click.option("--renew", is_flag=True, help="Only renew certificates that end within 30 days.")
@json_option
@click.pass_obj
def init(
    shared: Shared, directory: str, cluster: str, host: str, port_base: int, slaves: int, renew: bool
) -> None:
    """Write certificates and settings of a new cluster into DIR.

    DIR then holds the private CA, settings, certificate and key of each node, topology.toml,
    replication.toml, and an administrator "admin" with a generated password in admin.password.

    \b
    Examples:
      sector init ./cluster
      sector init ./cluster --slaves 4 --host 10.0.0.1
      sector init ./cluster --renew
    """
    place = ClusterDir(directory)
    if renew:
        renewed = place.renew()
        if shared.json:
            render.print_json({"dir": str(place.path), "renewed": renewed})
        else:
            click.echo(f"renewed: {', '.join(renewed) or 'nothing ends within 30 days'}")
        return
    files = place.init(cluster=cluster, host=host, port_base=port_base, slaves=slaves)
    if shared.json:
        result = {"dir": str(place.path), "files": files, "user": ADMIN}
        render.print_json({**result, "password_file": str(place.password_file)})
        return
    click.echo(f"cluster {cluster} is in {place.path}: {len(files)} files")
    click.echo(f"user {ADMIN}, password in {place.password_file}")
    click.echo(f"start it here: sector up --dir {shlex.quote(directory)}")


# up and down ------------------------------------------------------------------------------------------
class _Up:
    """One run of `sector up`."""

    def __init__(self, place: ClusterDir, slaves: int | None, port_base: int | None) -> None:
        self.place = place
        self.port_base = port_base
        self.count = slaves or len(place.slaves()) or 4
        self.fresh = not place.exists
        self.started: list[Process] = []
        self.popens: list[Any] = []

    def prepare(self) -> None:
        """Make or extend the directory and set the ports, before anything is started."""
        place = self.place
        if not place.exists:
            base = self.port_base or DEFAULT_PORT_BASE
            place.init(cluster="sector", host="127.0.0.1", port_base=base, slaves=self.count)

    def _ports(self, have: dict[str, Process]) -> None:
        """Add the slaves that are missing, and set the ports that were asked for, of all slaves in DIR: those
        that do not run now have to find the master too."""
        place = self.place
        master = load_config(place.path / "master.toml", "master")
        host, tls, gmp = master.listen.host, master.listen.tls, master.listen.gmp
        count = max(self.count, len(place.slaves()))
        base = self.port_base if self.port_base is not None else tls - 1 if gmp == tls + 1 else 0
        wanted = ports_of(base, count) if base else cluster_run.free_ports(host, count)
        moved = place.moved(wanted) if self.port_base is not None and not self.fresh else []
        if moved and have and self.port_base:
            raise UsageError(
                f"the cluster in {place.path} runs with other ports than from {base} on: {moved[0]}",
                hint="leave --port-base away, or sector down first",
            )
        place.extend(self.count, host, wanted, _join(host, tls))
        if self.port_base is not None and not have:
            place.set_ports(wanted, host)
            if moved:
                which = f"those from {base} on" if base else "other free ones"
                render.say(f"the ports are now {which}; before: {', '.join(moved[:3])}")

    def run(self) -> dict[str, object]:
        """Start what is missing and return what `up` prints. Raises what hinders it; then nothing that
        was started here goes on."""
        place = self.place
        cluster_run.let_go(place.path)
        have = {process.name: process for process in cluster_run.running(place.path)}
        self._ports(have)
        place.renew()
        slaves = place.slaves()[: self.count]
        spes = max(1, (os.cpu_count() or 1) // max(1, self.count))
        try:
            with Readiness() as ready:
                self._start("security", ["security", "--config", "security.toml"], have, ready, wait=True)
                self._start("master", ["master", "--config", "master.toml"], have, ready, wait=True)
                children = []
                for name in slaves:
                    if name not in have:
                        place.edit(name, "slave", "spes", str(spes))
                    child = self._start(name, ["slave", "--config", f"{name}.toml"], have, ready, wait=False)
                    children.extend([child] if child is not None else [])
                for child in children:
                    ready.wait(child, cluster_run.START_S)
        except BaseException:
            cluster_run.stop(self.started)
            raise
        now = {process.name: process for process in cluster_run.running(place.path)}
        cluster_run.remember(place.path, list(now.values()))
        return self._summary(now, slaves)

    def _start(
        self, name: str, arguments: list[str], have: dict[str, Process], ready: Readiness, *, wait: bool
    ) -> Any:
        if name in have:
            return None
        child = cluster_run.start(self.place.path, name, arguments, ready)
        self.popens.append(child.popen)
        began = cluster_run.start_time(child.pid)
        if began is not None:
            self.started.append(Process(name, child.pid, began))
        if wait:
            ready.wait_long(child)
        return child

    def _summary(self, now: dict[str, Process], slaves: list[str]) -> dict[str, object]:
        path = self.place.path
        master = load_config(path / "master.toml", "master")
        listed = []
        for name in slaves:
            config = load_config(path / f"{name}.toml", "slave")
            host = config.advertised_host
            listed.append(
                {
                    "id": config.slave.id,
                    "pid": now[name].pid if name in now else None,
                    "data_dir": str(config.data_dir),
                    "gmp": _join(host, config.listen.gmp),
                    "udt": _join(host, config.listen.udt),
                }
            )
        return {
            "dir": str(path),
            "master": _join(master.advertised_host, master.listen.tls),
            "user": ADMIN,
            "password_file": str(self.place.password_file),
            "cumulus": None,
            "monitor": None,
            "slaves": listed,
            "pids": {name: now[name].pid for name in ("security", "master", *slaves) if name in now},
        }


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@click.command()
@dir_option
@click.option("--slaves", metavar="N", type=click.IntRange(1, 256), help="Number of slaves.  [default: 4]")
@click.option(
    "--port-base",
    metavar="N",
    type=click.IntRange(0, 65000),
    help="First port; 0 takes free ones.  [default: 7000, or what the settings say]",
)
@click.option("--detach", is_flag=True, help="Return when all services run.")
@json_option
@click.pass_obj
def up(shared: Shared, directory: str, slaves: int | None, port_base: int | None, detach: bool) -> int:
    """Start a whole cluster on this machine: security server, master, slaves.

    Starts what is missing in DIR, waits until everything serves, and logs you in as "admin". Without
    --detach it stays in the foreground and stops the cluster on Ctrl-C.

    \b
    Examples:
      sector up
      sector up --dir ./cluster --slaves 4 --port-base 0 --detach
    """
    place = ClusterDir(directory)
    place.path.parent.mkdir(parents=True, exist_ok=True)
    run = _Up(place, slaves, port_base)
    run.prepare()
    with cluster_run.locked(place.path):
        summary = run.run()
        try:
            _log_in_as_admin(place, str(summary["master"]))
        except BaseException:
            cluster_run.stop(run.started)
            raise
    _print_up(shared, summary, detach)
    pids = summary["pids"]
    assert isinstance(pids, dict)
    return 0 if detach else _stay(place, run, pids)


def _log_in_as_admin(place: ClusterDir, master: str) -> None:
    trust = Trust.load(place.path / "ca.pem")
    password = read_password(str(place.password_file), "Password")
    log_in(parse_address(master), trust, ADMIN, password, str(place.password_file))


def _print_up(shared: Shared, summary: dict[str, object], detach: bool) -> None:
    if shared.json:
        render.print_json(summary)
        return
    click.echo(f"cluster in {summary['dir']}")
    click.echo(f"master {summary['master']}, user {summary['user']}")
    click.echo(f"password in {summary['password_file']}")
    rows = summary["slaves"]
    assert isinstance(rows, list)
    render.print_table(
        ("slave", "pid", "gmp", "udt", "files in"),
        [(r["id"], r["pid"], r["gmp"], r["udt"], f"{r['data_dir']}/files") for r in rows],
    )
    why = why_root(SphereSection().user)
    if why:
        render.say(f"functions run as root here, with all its rights: {why} (a user of your own is better)")
    here = "" if detach else "  (or Ctrl-C here)"
    click.echo(f"stop it: sector down --dir {shlex.quote(str(summary['dir']))}{here}")


def _stay(place: ClusterDir, run: _Up, pids: dict[str, int]) -> int:
    """In the foreground: tell of processes that end (those of `pids` that have ended already too); stop the
    others on Ctrl-C or when none is left."""
    fds: dict[int, Process] = {}
    try:
        for process in cluster_run.running(place.path):
            with suppress(ProcessLookupError):
                fds[os.pidfd_open(process.pid)] = process
        alive = {process.pid for process in fds.values()}
        for name, pid in pids.items():
            if pid not in alive:
                _reap(run.popens)
                render.say(f"{name} (process {pid}) has ended; see {place.path}/log")
        while fds:
            readable, _, _ = select.select(list(fds), [], [])
            for descriptor in readable:
                process = fds.pop(descriptor)
                os.close(descriptor)
                _reap(run.popens)
                render.say(f"{process.name} (process {process.pid}) has ended; see {place.path}/log")
        return 1
    except KeyboardInterrupt:
        for stopped in cluster_run.stop(list(fds.values())):
            render.say(_stopped_line(stopped))
        return ends.status()
    finally:
        _reap(run.popens)
        for descriptor in fds:
            os.close(descriptor)


def _reap(popens: list[Any]) -> None:
    for popen in popens:
        popen.poll()


def _stopped_line(stopped: dict[str, object]) -> str:
    how = "killed" if stopped["killed"] else "stopped"
    return f"{how} {stopped['name']} (process {stopped['pid']})"


@click.command()
@dir_option
@json_option
@click.pass_obj
def down(shared: Shared, directory: str) -> None:
    """Stop exactly the processes that `sector up` started in DIR; files and settings stay.

    \b
    Examples:
      sector down
      sector down --dir ./cluster --json
    """
    place = ClusterDir(directory)
    if not place.exists:
        raise NotFound(f"there is no cluster in {place.path}", hint="give its directory: --dir DIR")
    with cluster_run.locked(place.path):
        report = cluster_run.stop(cluster_run.running(place.path))
        left = cluster_run.running(place.path)
        cluster_run.remember(place.path, left)
    if shared.json:
        render.print_json({"dir": str(place.path), "stopped": report})
    else:
        for stopped in report:
            click.echo(_stopped_line(stopped))
        if not report:
            click.echo("nothing was running")
    if left:
        names = ", ".join(f"{process.name} ({process.pid})" for process in left)
        raise SectorError(f"still running: {names}", hint="run sector down again")


def _stored_password_file(master: Address, user: str) -> str:
    """The password file that client.toml itself names for this user and master, absolute; "" = none. The
    password of one cluster is never sent to another."""
    where = client_path()
    if not where.exists():
        return ""
    config = load_config(where, "client")
    known = config.client
    theirs = user == known.user and str(master) in [str(parse_address(text, 7001)) for text in known.masters]
    return str(config.file(known.password_file)) if known.password_file and theirs else ""


# login and status ---------------------------------------------------------------------------------------
@click.command()
@click.argument("master", metavar="[HOST:PORT]", required=False)
@click.option("--ca", "ca_file", metavar="FILE", help="Certificate of the cluster's CA (ca.pem).")
@click.option("--ca-sha256", metavar="HEX", help="Its SHA-256 instead of the file.")
@click.option(
    "--user", "user_name", metavar="NAME", help="User name.", envvar="SECTOR_USER", show_envvar=True
)
@click.option(
    "--password-file", metavar="FILE", help="File with the password, - = standard input; else a prompt."
)
@json_option
@click.pass_obj
def login(
    shared: Shared,
    master: str | None,
    ca_file: str | None,
    ca_sha256: str | None,
    user_name: str | None,
    password_file: str | None,
) -> None:
    """Log in at a master and keep the session in ~/.config/sector/client.toml (never the password).

    The first time the cluster's CA must be given; there is no trust on first use.

    \b
    Examples:
      sector login host:7001 --ca ca.pem --user alice
      sector login host:7001 --ca-sha256 2f1c…  --password-file pw
      sector login                                again, at the same master

    Without --password-file, `password_file` of client.toml is used if it is for this user and master.
    """
    if user_name:
        shared.user = user_name
    client = shared.client_config()
    known = client.client
    where = master or shared.master or (known.masters[0] if known.masters else "")
    if not where:
        raise UsageError("no master is given", hint="sector login HOST:PORT --ca FILE")
    address = parse_address(where, 7001)
    if not ca_file and not ca_sha256:
        ca_file = str(client.file(known.ca)) if known.ca else None
        ca_sha256 = known.ca_sha256 or None
    trust = Trust.load(ca_file, ca_sha256 or "")
    user = shared.user or known.user or os.environ.get("USER", "")
    if not user:
        raise UsageError("no user name is given", hint="use --user NAME")
    stored = _stored_password_file(address, user)
    password = read_password(password_file, f"Password of {user}", stored=stored)
    session = log_in(address, trust, user, password, stored)
    if shared.json:
        result = {"master": str(address), "user": session.user, "expires": session.expires}
        render.print_json({**result, "config": _client_file()})
    else:
        click.echo(f"logged in at {address} as {session.user}; the session is in {_client_file()}")


def _client_file() -> str:
    return str(client_path())


@click.command()
@shared_options
@click.pass_obj
def status(shared: Shared) -> None:
    """Show the state of the cluster.

    \b
    Examples:
      sector status
      sector status --json
    """
    from sector.cli.calls import call

    info: StatusInfo = call(shared, Status())
    if shared.json:
        plain = render.plain(info)
        plain["nodes"] = {name: shown_traffic(counters) for name, counters in info.nodes.items()}
        render.print_json(plain)
        return
    since = render.duration_text(info.uptime_s)
    click.echo(f"master {info.master_id} {info.version}: {info.state}, up {since}")
    click.echo(f"slaves {info.slaves_up} up of {info.slaves_known} known")
    size = render.size_text(info.bytes)
    click.echo(f"files  {info.files}, {size}; {info.under_replicated} with too few replicas")
    shown = [name for name in SHOWN if name in info.counters]
    click.echo("now    " + ", ".join(f"{info.counters[name]} {name.replace('_', ' ')}" for name in shown))
    if info.nodes:
        click.echo("scrub  " + scrub_line(info.nodes))
    for line in stuck_lines(info.nodes):
        click.echo(line)
    moving = {name: one for name, one in info.nodes.items() if one.get("transfers_now")}
    if moving:
        click.echo()
        render.print_table(TRAFFIC_HEADS, [traffic_row(*item) for item in moving.items()], range(1, 6))


def scrub_line(nodes: Mapping[str, Mapping[str, int]]) -> str:
    """How the reading again of all replicas stands, for people."""
    known = [one for one in nodes.values() if "scrub_ended" in one]
    running = [one for one in known if one["scrub_running"]]
    total = sum(one["scrub_total_bytes"] for one in running)
    done = 100 * sum(one["scrub_done_bytes"] for one in running) // max(1, total)
    ended = [one["scrub_ended"] for one in known]
    parts = ["not all replicas were read again yet"]
    if ended and all(ended):
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(min(ended)))
        parts = [f"all replicas read again, the oldest pass ended {since}"]
    if running:
        parts.append(f"{len(running)} of {len(known)} slaves read now, {done} % done")
    parts.append(f"{sum(one['scrub_bad_files'] for one in known)} bad replicas found so far")
    return ", ".join(parts)


def stuck_lines(nodes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Slaves whose disks refuse what the master orders, for people."""
    counts = {name: one.get("errands_stuck", 0) for name, one in sorted(nodes.items())}
    told = "(the master's log names them; tried again every ten minutes)"
    return [
        f"stuck  {name} cannot remove or rename {count} files {told}"
        for name, count in counts.items()
        if count
    ]


TRAFFIC_HEADS = ("node", "transfers", "out", "in", "RTT", "lost", "limited by")


def traffic_row(name: str, counters: Mapping[str, int]) -> tuple[object, ...]:
    """A node that moves files, for people."""
    sent = counters.get("pkts_out", 0) + counters.get("pkts_again", 0)
    return (
        name,
        counters.get("transfers_now", 0),
        f"{render.size_text(counters.get('out_Bps', 0))}/s",
        f"{render.size_text(counters.get('in_Bps', 0))}/s",
        f"{counters.get('rtt_us', 0) / 1000:.3g} ms",
        f"{100 * counters.get('pkts_lost', 0) / max(1, sent):.2g} %",
        shown_traffic(counters).get("limit", "") or "-",
    )


# services -------------------------------------------------------------------------------------------------
def _settings(config_file: str, role: Role) -> Config:
    return load_config(expanded(config_file), role)


@click.command()
@config_option
@log_option
def security(config_file: str, log_format: str | None) -> None:
    """Run the security server in the foreground.

    \b
    Example:
      sector security --config security.toml
    """
    from sector.cli.services import make_security_service
    from sector.daemon import run_service

    config = _settings(config_file, "security")
    run_service(config, make_security_service(config), name="security server", log_format=log_format)


@click.command()
@config_option
@log_option
@click.option("--rebuild", is_flag=True, help="Recover all metadata from the slaves into an empty database.")
@click.option(
    "--rebuild-wait",
    metavar="S",
    type=click.FloatRange(0),
    default=300.0,
    show_default=True,
    help="Serve after so many seconds and one report; the other slaves' reports are merged when they come.",
)
def master(config_file: str, log_format: str | None, rebuild: bool, rebuild_wait: float) -> None:
    """Run a master in the foreground.

    \b
    Examples:
      sector master --config master.toml
      sector master --config master.toml --rebuild
    """
    from sector.cli.services import make_master_service
    from sector.daemon import run_service

    config = _settings(config_file, "master")
    make = make_master_service(config, rebuild, rebuild_wait)
    run_service(config, make, name=f"master {config.master.id}", log_format=log_format)


@click.command()
@config_option
@log_option
def slave(config_file: str, log_format: str | None) -> None:
    """Run a slave in the foreground.

    \b
    Example:
      sector slave --config slave1.toml
    """
    config = _settings(config_file, "slave")
    # workers start from a small process made before the reactor and the transport core exist
    from sector.sphere import spawner as spawning

    spawner = spawning.start()
    try:
        from sector.cli.services import make_slave_service
        from sector.daemon import run_service

        make = make_slave_service(config, spawner)
        run_service(config, make, name=f"slave {config.slave.id}", log_format=log_format)
    finally:
        spawner.stop()
