"""`sector node preflight`: are this machine and its network fit for Sector, and what to do if not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import click

from sector.cli import render
from sector.cli.main import Shared, json_option
from sector.cli.preflight_local import FAILED, OK, WARNING, Check
from sector.config import Config, Role, load_client, load_config, parse_address, parse_toml
from sector.errors import BadConfig, UsageError
from sector.model import Address

ROLES: tuple[Role, ...] = ("slave", "master", "security")


def role_of(path: Path) -> Role:
    """Whose settings a file holds: that role's section is in it, or its `[peers]` say so."""
    try:
        raw = parse_toml(path.read_text(encoding="utf-8"), str(path))
    except OSError as bad:
        raise BadConfig(f"{path}: cannot be read: {bad.strerror}") from None
    except UnicodeDecodeError as bad:
        raise BadConfig(f"{path}: not valid TOML: {bad}") from None
    for role in ROLES:
        if role in raw:
            return role
    peers = raw.get("peers", {})
    known = cast(dict[str, Any], peers) if isinstance(peers, dict) else {}
    return "slave" if "masters" in known else "master" if "security" in known else "security"


def all_checks(
    config: Config | None, client: Config | None, peers: list[Address], network: bool
) -> Iterator[Check]:
    """Every check, as it ends."""
    from sector.cli import preflight_local, preflight_net

    yield from preflight_local.machine_checks((config or Config()).sphere.user)
    if config is not None:
        yield from preflight_local.certificate(config)
        yield from preflight_local.disk_before(config.data_dir)
        yield from preflight_local.ports(config)
        if network:
            yield from preflight_net.node_checks(config, peers)
    elif network and client is not None:
        yield from preflight_net.client_checks(client, peers)


def show(check: Check) -> None:
    """One line, and what to do below it."""
    mark = {OK: "ok", WARNING: "warning", FAILED: "failed"}[check.state]
    click.echo(f"{mark:<8} {check.name:<13} {check.text}")
    if check.remedy:
        click.echo(f"{'':<8} {'':<13} -> {check.remedy}")


@click.command(short_help="Check this machine and its network before it joins.")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings of the service that is to run here; without it: as for a user's machine.",
)
@click.option(
    "--peer",
    "peers",
    metavar="HOST:PORT",
    multiple=True,
    help="Also try UDP to this message port (master 7002, slave 7010); repeatable.",
)
@click.option("--no-network", is_flag=True, help="Look at this machine only.")
@json_option
@click.pass_obj
def preflight(shared: Shared, config_file: Path | None, peers: tuple[str, ...], no_network: bool) -> int:
    """Check this machine and its network before it joins, and say what to do.

    Software, kernel, open files, UDP buffers and offload, speed of AES, network cards, sandbox; with --config
    also certificate, data directory (room, features, speed of fsync), ports, TLS to the master, clock, UDP
    both ways, and the size of packets that get through. Each is ok, a warning, or failed. It joins nothing
    and changes nothing. Status 1 if something failed.

    \b
    Examples:
      sector node preflight --config slave1.toml
      sector node preflight --peer 10.0.0.7:7010
      sector node preflight --config slave1.toml --json | jq '.checks[] | select(.state != "ok")'
    """
    try:
        others = [parse_address(text, 7010) for text in peers]
    except BadConfig as bad:
        raise UsageError(bad.message, hint=bad.hint) from None
    config = load_config(config_file, role_of(config_file)) if config_file is not None else None
    found = []
    for check in all_checks(config, None if config else load_client(), others, not no_network):
        found.append(check)
        if not shared.json:
            show(check)
    count = {state: sum(check.state == state for check in found) for state in (OK, WARNING, FAILED)}
    if shared.json:
        render.print_json(
            {
                "ok": not count[FAILED],
                "failed": count[FAILED],
                "warnings": count[WARNING],
                "checks": [asdict(check) for check in found],
            }
        )
    else:
        click.echo(f"{count[OK]} ok, {count[WARNING]} warnings, {count[FAILED]} failed")
    return 1 if count[FAILED] else 0
