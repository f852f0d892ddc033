"""Administration: client to master over GMP; the master forwards user and rights changes to the security
server over TLS with the same messages, naming who asks. Numbers 0x0100-0x01ff."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sector.model import U64, Address, Name, Path, Right, Text, Version
from sector.wire.base import Message, Ok, Request, request
from sector.wire.login import Password
from sector.wire.slave import ScrubState

By = Annotated[str, Meta(max_length=256)]
"""Who asks, as a master tells the security server."""


class UserInfo(msgspec.Struct, frozen=True, array_like=True):
    name: Name
    roles: list[Name]
    rights: list[Right]
    addresses: list[Name]
    created: float


class Users(Message, frozen=True, array_like=True):
    """`more` = ask again with after = last name."""

    users: Annotated[list[UserInfo], Meta(max_length=100000)]
    more: bool = False


@request(0x0101, reply=Users, safe=True)
class UserList(Request, frozen=True, array_like=True):
    """Users in order of name, behind `after`. Needs the admin role. Errors: denied."""

    by: By = ""
    after: Annotated[str, Meta(max_length=128)] = ""


@request(0x0102)
class UserAdd(Request, frozen=True, array_like=True):
    """Errors: denied, exists."""

    SECRET = ("password",)
    name: Name
    password: Password
    roles: Annotated[list[Name], Meta(max_length=16)] = []
    by: By = ""


@request(0x0103)
class UserRemove(Request, frozen=True, array_like=True):
    """Ends the user's sessions within 5 s. Errors: denied, not_found."""

    name: Name
    by: By = ""


@request(0x0104)
class UserPasswd(Request, frozen=True, array_like=True):
    """Admin, or the user himself with `old`. Ends the user's sessions. Errors: denied, not_found."""

    SECRET = ("password", "old")
    name: Name
    password: Password
    old: Password = ""
    by: By = ""


@request(0x0105)
class Grant(Request, frozen=True, array_like=True):
    """Set the right of a user on a directory and below (replaces the one on that path)."""

    right: Right
    by: By = ""


@request(0x0106)
class Revoke(Request, frozen=True, array_like=True):
    """Take the user's right on exactly this directory. Errors: denied, not_found."""

    user: Name
    path: Path
    by: By = ""


@request(0x0107)
class AclChange(Request, frozen=True, array_like=True):
    """Allow-list of nodes: role "slave" or "master"; add or remove a node name."""

    role: Name
    name: Name
    add: bool
    addresses: Annotated[list[Name], Meta(max_length=256)] = []
    by: By = ""


@request(0x0109)
class UserRoles(Request, frozen=True, array_like=True):
    """Set the roles of a user ("user" is always one); his sessions, and those he has for others, end within
    5 s. Errors: denied, not_found, conflict (the only administrator)."""

    name: Name
    roles: Annotated[list[Name], Meta(max_length=16)] = []
    by: By = ""


@request(0x010A)
class UserAddresses(Request, frozen=True, array_like=True):
    """Change the addresses that a user may come from: rules "CIDR" (allows) and "!CIDR" (denies) to `add` and
    to `remove`; of a range only the last rule counts. When something changes his sessions, and those he has
    for others, end within 5 s. Errors: denied, not_found (the user, or a rule to remove), usage."""

    name: Name
    add: Annotated[list[Name], Meta(max_length=256)] = []
    remove: Annotated[list[Name], Meta(max_length=256)] = []
    by: By = ""


class AclEntry(msgspec.Struct, frozen=True, array_like=True):
    role: Name
    name: Name
    addresses: list[Name]


class Acl(Message, frozen=True, array_like=True):
    """`more` = ask again with after = last name."""

    entries: list[AclEntry]
    more: bool = False


@request(0x0108, reply=Acl, safe=True)
class AclList(Request, frozen=True, array_like=True):
    """An allow-list in order of name, behind `after`. Needs the admin role. Errors: denied."""

    role: Name
    by: By = ""
    after: Annotated[str, Meta(max_length=128)] = ""


class NodeInfo(msgspec.Struct, frozen=True, array_like=True):
    """`state`: "up", "suspect", "lost"; `topology` "/site/rack"; `traffic` what its transfers moved since it
    started and move now, `scrub` how the reading again of its replicas stands, both at most a few seconds old
    (docs/guide/operations.md). Slaves of one host with the same `disk` share its room."""

    id: Name
    host: Name
    topology: Text
    state: Name
    pid: int
    data_dir: Text
    used_bytes: U64
    free_bytes: U64
    files: U64
    gmp: Address
    udt: Address
    spes: int
    traffic: Annotated[dict[Name, int], Meta(max_length=64)] = {}
    scrub: ScrubState = ScrubState()
    disk: Annotated[str, Meta(max_length=64)] = ""


class Nodes(Message, frozen=True, array_like=True):
    nodes: Annotated[list[NodeInfo], Meta(max_length=65536)]


@request(0x0120, reply=Nodes, safe=True)
class NodeList(Request, frozen=True, array_like=True):
    """All slaves the master knows."""


class StatusInfo(Message, frozen=True, array_like=True):
    """`counters`: associations, connections, half_open, sessions, tasks, ... (design section 9)."""

    master_id: Name
    version: Name
    state: Name
    uptime_s: float
    files: U64
    bytes: U64
    slaves_up: int
    slaves_known: int
    under_replicated: U64
    counters: dict[str, int]
    nodes: dict[str, dict[str, int]] = {}


@request(0x0121, reply=StatusInfo, safe=True)
class Status(Request, frozen=True, array_like=True):
    """State of the cluster; `nodes` has the same counters of each slave."""


class BadReplica(Message, frozen=True, array_like=True):
    """A replica that a scrub found bad. `repair`: "record" (its content was good, only its record was written
    anew), "repaired" (there are as many good copies as wanted), "waiting" (there are fewer), "lost" (there is
    none; what was bad is in the attic of its slave), "gone" (the file was removed or replaced meanwhile)."""

    path: Path
    version: Version
    why: Text
    at: float
    repair: Name


class NodeScrubbed(Message, frozen=True, array_like=True):
    """One slave; `error` why it did not answer, "" if it did."""

    id: Name
    state: ScrubState
    error: Text = ""
    bad: Annotated[list[BadReplica], Meta(max_length=1000)] = []


class NodeScrubs(Message, frozen=True, array_like=True):
    nodes: Annotated[list[NodeScrubbed], Meta(max_length=65536)]


@request(0x0122, reply=NodeScrubs, safe=True)
class NodeScrub(Request, frozen=True, array_like=True):
    """Have slaves (none named = all that are known) read their replicas again (`start`), or tell how that
    stands, `found` with what was bad. Needs the admin role. Errors: denied, not_found (no such slave)."""

    nodes: Annotated[list[Name], Meta(max_length=4096)] = []
    start: bool = False
    found: bool = False


__all__ = ["Ok"]
