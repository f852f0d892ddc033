"""Messages of the TLS channels: login and resume (client to master), join (slave to master), and what a
master asks the security server (spec/security.md). Numbers 0x0001-0x00ff."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sector.model import U64, Address, Bytes16, Bytes32, Key, Name, Port, Right, Stored, Text, Time
from sector.wire.base import Message, Ok, Request, request

Password = Annotated[str, Meta(max_length=1024)]
Roles = Annotated[list[Name], Meta(max_length=16)]
Rights = Annotated[list[Right], Meta(max_length=1024)]


class Session(Message, frozen=True, array_like=True):
    """A session as the client hears it. `secret` is S (32 bytes), b"" in the answer to Resume.
    `expires` seconds since 1970; `gmp` where the master hears control messages; key_id of the GMP key
    HKDF(S, "cm" + master_id + key_id)."""

    SECRET = ("secret",)
    session_id: Bytes16
    secret: bytes
    user: Name
    expires: float
    master_id: Name
    gmp: Address
    key_id: int
    roles: Roles
    rights: Rights


@request(0x0001, reply=Session)
class Login(Request, frozen=True, array_like=True):
    """Client to master, over TLS. Errors: login_refused, busy."""

    SECRET = ("password",)
    user: Name
    password: Password
    client: Text = ""


@request(0x0002, reply=Session, safe=True)
class Resume(Request, frozen=True, array_like=True):
    """Client to master, over TLS: proof = HMAC-SHA-256(S, TLS exporter). Errors: session_expired."""

    SECRET = ("proof",)
    session_id: Bytes16
    proof: Bytes32


@request(0x0004, reply=Ok, safe=True)
class Tunnel(Request, frozen=True, array_like=True):
    """Client to master, over TLS, where UDP is blocked: after the reply the connection carries datagrams of
    the client's GMP port (docs/guide/firewalls.md). Proof as in Resume. Errors: session_expired, busy."""

    SECRET = ("proof",)
    session_id: Bytes16
    proof: Bytes32


@request(0x0006, reply=Ok, safe=True)
class SlaveTunnel(Request, frozen=True, array_like=True):
    """Slave to master, over mutual TLS, where UDP is blocked: after the reply the connection carries
    datagrams between the master and the slave's GMP port. Errors: not_allowed, not_found (has not joined)."""

    slave_id: Name


class Joined(Message, frozen=True, array_like=True):
    """What a slave needs to know: the key towards the master, where to talk, cluster settings."""

    master_id: Name
    gmp: Address
    key: Key
    epoch: U64
    heartbeat_s: float
    encrypt: bool


@request(0x0003, reply=Joined)
class Join(Request, frozen=True, array_like=True):
    """Slave to master, over mutual TLS; the id must be the one in the certificate and on the allow-list.
    Errors: not_allowed. `instance` is that of its GMP endpoint; `disk` tells its file system from others of
    the same host, "" = not known."""

    slave_id: Name
    instance: U64
    gmp: Address
    data: Address
    data_dir: Text
    pid: Stored
    version: Name
    disk: Annotated[str, Meta(max_length=64)] = ""


class Seen(Message, frozen=True, array_like=True):
    """What a master tells a slave that is about to join: `now` its clock (seconds since 1970), `address`
    the one it sees the slave at, `gmp` where it hears messages, `slaves` where others do (64 at most)."""

    master_id: Name
    now: float
    address: Name
    gmp: Address
    slaves: Annotated[list[Address], Meta(max_length=64)] = []


@request(0x0005, reply=Seen, safe=True)
class Preflight(Request, frozen=True, array_like=True):
    """Slave to master, over mutual TLS, before it joins; nothing about it is kept. The master also sends a
    GMP datagram to each of `ports` at the address that the connection came from, so that the slave learns
    whether UDP reaches it (docs/guide/firewalls.md). Errors: not_allowed, busy."""

    slave_id: Name
    ports: Annotated[list[Port], Meta(max_length=2)] = []


@request(0x0007, reply=Session)
class ActFor(Request, frozen=True, array_like=True):
    """Client to master, over TLS: a session for another user, asked for under the session of an account with
    the role service (proof as in Resume). It has no role but "user", and of the user's directory rights those
    that the account has too. Errors: session_expired, denied, busy."""

    SECRET = ("proof",)
    session_id: Bytes16
    proof: Bytes32
    user: Name


@request(0x0008, reply=Ok, safe=True)
class Logout(Request, frozen=True, array_like=True):
    """Client to master, over TLS: end this session now. Proof as in Resume. Errors: session_expired."""

    SECRET = ("proof",)
    session_id: Bytes16
    proof: Bytes32


class Verified(Message, frozen=True, array_like=True):
    """Answer of the security server: rights only, never keys."""

    user: Name
    roles: Roles
    rights: Rights
    rights_epoch: U64


@request(0x0011, reply=Verified)
class Verify(Request, frozen=True, array_like=True):
    """Master to security server: check name, password, address (literal, of the TLS peer).
    Errors: login_refused, busy."""

    SECRET = ("password",)
    user: Name
    password: Password
    address: Name


@request(0x0012, reply=Verified, safe=True)
class RightsOf(Request, frozen=True, array_like=True):
    """Master to security server: current rights of a user. Errors: not_found."""

    user: Name


class Vouched(Message, frozen=True, array_like=True):
    """`rights` of the user that the service account has too; both rights_epochs."""

    user: Name
    rights: Rights
    rights_epoch: U64
    service_epoch: U64


@request(0x0016, reply=Vouched)
class Vouch(Request, frozen=True, array_like=True):
    """Master to security server: may the account `service`, which connected from `address`, act for `user`?
    Each answer is in the audit log, except when the session is there already (`again`, after a change of
    rights). Errors: denied."""

    service: Name
    user: Name
    address: Name
    again: bool = False


class NodeVerdict(Message, frozen=True, array_like=True):
    allowed: bool
    why: Text = ""


@request(0x0013, reply=NodeVerdict, safe=True)
class NodeAllowed(Request, frozen=True, array_like=True):
    """Master to security server: is this slave on the allow-list (name and address)?"""

    role: Name
    name: Name
    address: Name


class Epochs(Message, frozen=True, array_like=True):
    """Users whose rights changed: name -> rights_epoch; a removed user has epoch 0. `serial` grows with
    every change; ask again with it until it stays. `rights` all directory rights of the users named;
    `nodes` "slave:NAME" or "master:NAME" -> 0 when it was taken from its allow-list."""

    serial: U64
    changed: dict[str, int]
    rights: Annotated[list[Right], Meta(max_length=65536)] = []
    nodes: dict[str, int] = {}


@request(0x0014, reply=Epochs, safe=True)
class WatchRights(Request, frozen=True, array_like=True):
    """Master to security server, every 2 s: what changed since `serial` (0 = tell the whole list)."""

    serial: U64


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """One line for the audit log; `at` seconds since 1970."""

    at: Time
    who: Name
    what: Name
    detail: Text


@request(0x0015, reply=Ok)
class Audit(Request, frozen=True, array_like=True):
    """Master to security server: append to the hash-chained audit log."""

    entries: Annotated[list[AuditEntry], Meta(max_length=1000)]
