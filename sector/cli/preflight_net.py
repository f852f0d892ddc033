"""What `sector node preflight` looks at beyond this machine: TLS to the master, its clock, UDP both ways, the
size of packets that get through. Source: docs/guide/firewalls.md."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from sector._udt import probe
from sector.cli.preflight_local import FAILED, OK, WARNING, Check, bind, runs_already
from sector.cli.tls_once import run_once
from sector.config import Config, parse_address
from sector.errors import SectorError
from sector.model import Address
from sector.pki import Credentials, Trust, load_node
from sector.tls import open_tls
from sector.wire.login import Preflight, Seen

CLOCK_WARN_S, CLOCK_FAIL_S = 2.0, 60.0
KNOCK_S = 2.0
PEERS = 16


@dataclass(slots=True)
class Talk:
    """What a server said over TLS: `error` why it did not; `offset_s` of its clock, `seen` of a master."""

    where: Address
    error: SectorError | None = None
    seen: Seen | None = None
    offset_s: float = 0.0
    rtt_s: float = 0.0


def talk(
    where: Address, trust: Trust, mine: Credentials | None, role: str, request: Preflight | None
) -> Talk:
    """Connect to a server over TLS, check it, and ask it."""
    told = Talk(where)

    async def work(reactor: Any) -> None:
        caller = await open_tls(reactor, where.host, where.port, trust, mine, role, 5.0)
        try:
            if request is not None:
                before, begin = time.time(), time.monotonic()
                told.seen = await caller.call(request)
                told.rtt_s = time.monotonic() - begin
                told.offset_s = before + told.rtt_s / 2 - told.seen.now
        finally:
            caller.close()

    try:
        run_once(work)
    except SectorError as bad:
        told.error = bad
    return told


def node_checks(config: Config, peers: list[Address]) -> Iterator[Check]:
    """For a service with these settings: its servers, and `peers` beside those that the master names."""
    try:
        mine, trust = load_node(config, config.role)
    except SectorError:
        return  # the check of the certificate has told
    if config.role == "master":
        yield _tls("security", talk(config.security_peer, trust, mine, "security", None))
    if config.role != "slave":
        yield from udp_checks(peers, {})
        return
    with ExitStack() as stack:
        doors = _doors(config, stack)
        asked = Preflight(config.slave.id, list(doors))
        found = [talk(where, trust, mine, "master", asked) for where in config.master_peers]
        for told in found:
            yield _tls("master", told)
        seen = [(told, told.seen) for told in found if told.seen is not None]
        if not seen:
            yield Check(
                "udp", WARNING, "not tested: no master answers over TLS", "make the master reachable first"
            )
            yield from udp_checks(peers, doors)
            return
        first, master = seen[0]
        yield _clock(first)
        yield _address(config, master)
        yield from _knocks(config, master, doors)
        others = [one for one in master.slaves if str(one) != f"{config.advertised_host}:{config.listen.gmp}"]
        yield from udp_checks([one.gmp for _, one in seen] + others[:PEERS] + peers, doors)


def client_checks(config: Config, peers: list[Address]) -> Iterator[Check]:
    """For a user of this machine: his master."""
    client = config.client
    if client.masters and (client.ca or client.ca_sha256):
        trust = Trust.load(config.file(client.ca) if client.ca else None, client.ca_sha256)
        for text in client.masters:
            yield _tls("master", talk(parse_address(text, 7001), trust, None, "master", None))
        if client.gmp:
            peers = [parse_address(client.gmp), *peers]
    yield from udp_checks(peers, {})


def _doors(config: Config, stack: ExitStack) -> dict[int, socket.socket]:
    found = {}
    for number in (config.listen.gmp, config.listen.udt):
        if not number:
            continue
        try:
            sock = stack.enter_context(bind(config.listen.host, "udp", number))
        except OSError:
            continue  # the check of the ports has told
        probe.whole(sock)
        found[number] = sock
    return found


def _tls(what: str, told: Talk) -> Check:
    if told.error is None:
        return Check(f"tls_{what}", OK, f"{what} at {told.where} answers")
    cure = told.error.hint or f"is it running? does the firewall let TCP {told.where.port} through?"
    return Check(f"tls_{what}", FAILED, told.error.message, cure)


def _clock(told: Talk) -> Check:
    off, sure = abs(told.offset_s), told.rtt_s / 2
    text = f"{off:.3f} s {'ahead of' if told.offset_s > 0 else 'behind'} the master (± {sure:.3f} s)"
    if off - sure < CLOCK_WARN_S:
        return Check("clock", OK, text)
    state = FAILED if off > CLOCK_FAIL_S else WARNING
    return Check("clock", state, text, "start chrony or systemd-timesyncd: timedatectl set-ntp true")


def _address(config: Config, master: Seen) -> Check:
    mine = config.advertised_host
    try:
        known = {str(info[4][0]) for info in socket.getaddrinfo(mine, None)}
    except OSError:
        cure = "write an address in [listen] advertise, or make the name known"
        return Check("address", FAILED, f"{mine} is not known on this machine", cure)
    if master.address in known:
        return Check("address", OK, f"the master sees this node at {master.address}, as it says")
    text = f"the master sees this node at {master.address}, but it tells others {mine}"
    cure = "right only if others reach it there (NAT); see [listen] advertise"
    return Check("address", WARNING, text, cure)


def _knocks(config: Config, master: Seen, doors: dict[int, socket.socket]) -> Iterator[Check]:
    """Whether what the master sends by itself arrives: most firewalls let answers through, but not this."""
    end = time.monotonic() + KNOCK_S
    names = {config.listen.gmp: "messages", config.listen.udt: "data"}
    for number, sock in doors.items():
        came = probe.heard(sock, max(0.05, end - time.monotonic()))
        if came is not None:
            text = f"what {came[0]}:{came[1]} sends to UDP {number} ({names[number]}) arrives"
            yield Check("udp_in", OK, text)
        else:
            text = f"nothing of the master comes in at {master.address}, UDP {number} ({names[number]})"
            cure = f"ask for UDP {number} from the master, the slaves and the clients to this machine"
            yield Check("udp_in", FAILED, text, cure)
    if not doors and runs_already(config):
        yield Check("udp_in", WARNING, "not tested: this node runs already", "stop it to test its ports")


def udp_checks(peers: list[Address], doors: dict[int, socket.socket]) -> Iterator[Check]:
    """UDP to the message ports of others and back, and how large packets may be."""
    for peer in dict.fromkeys(peers):
        try:
            found = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_DGRAM)[0]
        except OSError as bad:
            yield Check("udp", FAILED, f"{peer}: {bad.strerror}", "check the name")
            continue
        where = (str(found[4][0]), peer.port)
        with probe.udp_socket(where[0]) as own:
            fits = next(iter(doors.values()), own)
            yield from _udp(peer, where, fits if fits.family == own.family else own)


def _udp(peer: Address, where: tuple[str, int], sock: socket.socket) -> Iterator[Check]:
    answer = probe.ask(sock, where)
    if not answer.came:
        why = f" ({answer.why})" if answer.why else ""
        cure = f"is it running? ask the network people for UDP {peer.port}, both ways"
        yield Check("udp", FAILED, f"{peer} gives no answer over UDP{why}", cure)
        return
    yield Check("udp", OK, f"{peer} answers in {answer.rtt_s * 1e3:.3g} ms")
    over = 48 if ":" in where[0] else 28
    most = 1480 - 48 if over == 48 else 1472
    size = probe.largest(sock, where, most)
    if size >= most:
        yield Check("path_mtu", OK, f"packets of {size + over} bytes reach {peer}")
    else:
        text = f"only packets up to {size + over} bytes reach {peer}" if size else f"no packet of {peer} fits"
        cure = "a tunnel on the way? give it an MTU of 1500 inside, or let ICMP type 3 code 4 through"
        yield Check("path_mtu", WARNING, text, cure)
