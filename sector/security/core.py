"""What the security server decides: names, roles, address rules, directory rights, allow-lists, back-off,
and the chain of the audit log. Pure: records and `now` in, verdicts and new records out.

Source: spec/security.md, Identities, TLS channels, Sessions, Files.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from typing import Literal

import msgspec

from sector.errors import BadConfig, Conflict, NotFound, UsageError
from sector.model import Right, check_path
from sector.rights import both, rights_on

SERVICE = "service"
ROLES = ("user", "admin", SERVICE)
USER_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_RIGHTS = 256
MAX_RIGHTS_BYTES = 16384
MAX_RULES = 64


@dataclass(frozen=True, slots=True)
class UserRecord:
    """One user. `rights_epoch` rises with every change that must end his sessions; `created` seconds
    since 1970; `addresses` rules as `address_allowed` reads them."""

    name: str
    password_hash: str = field(repr=False)
    roles: tuple[str, ...]
    rights: tuple[Right, ...]
    addresses: tuple[str, ...]
    rights_epoch: int
    created: float


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One line of an allow-list; `addresses` CIDR rules, () = from anywhere."""

    role: str
    name: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One line of the audit log with its place in the chain; `hash` 32 bytes."""

    seq: int
    at: float
    who: str
    what: str
    detail: str
    hash: bytes


# names and values -----------------------------------------------------------------------------------
def check_user_name(name: str) -> str:
    """`name` if it may be a user's. Raises `UsageError`."""
    if not USER_NAME.fullmatch(name):
        raise UsageError(
            f"user name {name[:80]!r} is not allowed",
            hint="use a-z, 0-9, _, . and -, at most 64 characters, beginning with a letter, digit or _",
        )
    return name


def check_password(password: str) -> str:
    """`password` if it may be one. Raises `UsageError`."""
    if not password:
        raise UsageError("the password is empty", hint="choose a longer one")
    return password


def check_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """Known roles, in fixed order; "user" is always one. Raises `UsageError`."""
    wanted = set(roles) | {"user"}
    unknown = wanted - set(ROLES)
    if unknown:
        raise UsageError(f"unknown role {sorted(unknown)[0]!r}", hint=f"roles are {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in wanted)


def check_rules(rules: Iterable[str]) -> tuple[str, ...]:
    """Address rules in canonical form: "CIDR" allows, "!CIDR" denies. Raises `UsageError`."""
    found = []
    for rule in rules:
        deny = "!" if rule.startswith("!") else ""
        try:
            found.append(deny + str(ip_network(rule.removeprefix("!"), strict=False)))
        except ValueError:
            raise UsageError(
                f"{rule!r} is not an address range", hint="write an address or CIDR, such as 10.1.0.0/16"
            ) from None
    if len(found) > MAX_RULES:
        raise UsageError(f"more than {MAX_RULES} address rules")
    return tuple(found)


def with_rules(user: UserRecord, add: Iterable[str], remove: Iterable[str]) -> UserRecord:
    """`user` with address rules taken away and added; an added rule replaces the opposite one of its range.
    Raises `NotFound` for one to remove that is not there, `UsageError`."""
    rules = list(user.addresses)
    for rule in check_rules(remove):
        if rule not in rules:
            raise NotFound(
                f"user {user.name} has no rule {rule}", hint="sector user list shows the addresses"
            )
        rules.remove(rule)
    for rule in check_rules(add):
        rules = [one for one in rules if one.removeprefix("!") != rule.removeprefix("!")] + [rule]
    return replace(user, addresses=check_rules(rules))


def address_allowed(rules: Iterable[str], address: str) -> bool:
    """Whether a peer at `address` (IP literal of its socket) may come: the rule with the longest prefix
    that holds it decides; with none, it may if there is no allowing rule at all."""
    here = ip_address(address)
    best, verdict, only_listed = -1, False, False
    for rule in rules:
        network = ip_network(rule.removeprefix("!"))
        allows = not rule.startswith("!")
        only_listed = only_listed or allows
        # of two rules for the same range the denying one counts
        if here in network and (network.prefixlen > best or (network.prefixlen == best and not allows)):
            best, verdict = network.prefixlen, allows
    return verdict if best >= 0 else not only_listed


def same_password(checked: UserRecord, now: UserRecord) -> bool:
    """Whether a password that is right for one record of a user is right for a later one. Another hash alone
    is the same password under other costs; another epoch alone is a right that was taken."""
    return checked.password_hash == now.password_hash or checked.rights_epoch == now.rights_epoch


# directory rights -----------------------------------------------------------------------------------
def with_right(user: UserRecord, right: Right) -> tuple[UserRecord, bool]:
    """`user` with `right` in place of the one on the same path, and whether that takes something away
    (then his sessions must end). Raises `BadPath`, `UsageError` at the limit."""
    path = check_path(right.path)
    new = Right(user.name, path, right.what)
    before = {old.path: old for old in user.rights}
    takes = not set(rights_on(user.rights, path)) <= set(right.what)
    before[path] = new
    rights = tuple(sorted(before.values(), key=lambda r: r.path))
    return replace(user, rights=check_size(rights, user.name)), takes


def check_size(rights: tuple[Right, ...], of: str) -> tuple[Right, ...]:
    """`rights`, if a message can carry them. Raises `UsageError`."""
    if len(rights) > MAX_RIGHTS or sum(len(right.path.encode()) for right in rights) > MAX_RIGHTS_BYTES:
        raise UsageError(f"user {of} has too many directory rights", hint="grant on a directory above")
    return rights


def without_right(user: UserRecord, path: str) -> UserRecord:
    """`user` without the right on exactly `path`. Raises `NotFound`."""
    path = check_path(path)
    rights = tuple(right for right in user.rights if right.path != path)
    if len(rights) == len(user.rights):
        raise NotFound(f"user {user.name} has no right on {path}", hint="sector user list shows the rights")
    return replace(user, rights=rights)


def check_last_admin(user: UserRecord, admins: int) -> None:
    """Refuse to remove the only administrator. Raises `Conflict`."""
    if "admin" in user.roles and admins <= 1:
        raise Conflict(f"{user.name} is the only administrator", hint="add another one first")


def check_admin_comes(user: UserRecord, admins: int) -> None:
    """Refuse rules by which the only administrator could come from no machine, not even the master's own.
    Raises `Conflict`."""
    if admins <= 1 and not address_allowed(user.addresses, "127.0.0.1"):
        raise Conflict(
            f"{user.name} is the only administrator and could come from no master's own machine any more",
            hint=f"first: sector user allow {user.name} 127.0.0.1",
        )


# acting for others ----------------------------------------------------------------------------------
def acting_rights(service: UserRecord, user: UserRecord) -> tuple[Right, ...]:
    """What `service` may do for `user`: what both may. Raises `UsageError` for more than a message holds."""
    return check_size(both(user.rights, service.rights, user.name), f"{user.name} by {service.name}")


def acting_problem(
    service: UserRecord | None, user: UserRecord | None, names: tuple[str, str], address: str
) -> str:
    """Why the account `service` at `address` may not act for `user`, "" when it may; `names` of both, as they
    were asked for."""
    if service is None or SERVICE not in service.roles:
        return f"user {names[0]} has not the role {SERVICE}"
    if user is None:
        return f"there is no user {names[1]}"
    for one in (service, user):
        if not address_allowed(one.addresses, address):
            return f"user {one.name} may not come from {address}"
    return ""


class Few:
    """Says of lines that repeat whether to write one: `most` a minute of each subject, and one more that no
    more are written. Bounded: at most `subjects` are told apart in a minute, the rest count as one."""

    def __init__(self, most: int = 30, subjects: int = 1000) -> None:
        self._most = most
        self._subjects = subjects
        self._since = float("-inf")
        self._counts: dict[str, int] = {}

    def next(self, subject: str, now: float) -> Literal["write", "last", "no"]:
        """For one line at `now` (monotonic seconds)."""
        if now - self._since > 60:
            self._counts.clear()
            self._since = now
        if subject not in self._counts and len(self._counts) >= self._subjects:
            subject = ""
        count = self._counts[subject] = self._counts.get(subject, 0) + 1
        return "write" if count <= self._most else "last" if count == self._most + 1 else "no"


# nodes ----------------------------------------------------------------------------------------------
def check_node(role: str, name: str) -> None:
    """Whether an allow-list may hold this. Raises `UsageError`."""
    if role not in ("master", "slave"):
        raise UsageError(f"there is no allow-list for {role!r}", hint="lists are slave and master")
    if not NODE_NAME.fullmatch(name):
        raise UsageError(f"node name {name[:80]!r} is not allowed", hint="use letters, digits, . _ and -")


def node_verdict(entry: NodeRecord | None, role: str, name: str, address: str) -> str:
    """ "" when the node may come, else why not."""
    if entry is None:
        return f"{role} {name} is not on the allow-list"
    if not address_allowed(entry.addresses, address):
        return f"{role} {name} may not come from {address}"
    return ""


# back-off -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BackoffRule:
    """After `free` failures wait `first_s`, doubling up to `most_s`; forgotten after `forget_s`."""

    free: int
    first_s: float
    most_s: float
    forget_s: float = 900.0


class Backoff:
    """How long a name or an address must wait after failed logins. Bounded: the oldest is forgotten."""

    def __init__(self, rule: BackoffRule, most: int = 10_000) -> None:
        self._rule = rule
        self._most = most
        self._table: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def wait_s(self, key: str, now: float) -> float:
        """Seconds until `key` may try again, 0 = now."""
        failures, last = self._table.get(key, (0, 0.0))
        if now - last > self._rule.forget_s or failures <= self._rule.free:
            return 0.0
        delay = min(self._rule.most_s, self._rule.first_s * 2.0 ** min(failures - self._rule.free - 1, 30))
        return max(0.0, last + delay - now)

    def failed(self, key: str, now: float) -> None:
        """One more failure of `key`."""
        failures, last = self._table.pop(key, (0, 0.0))
        if now - last > self._rule.forget_s:
            failures = 0
        self._table[key] = (failures + 1, now)
        while len(self._table) > self._most:
            self._table.popitem(last=False)

    def worked(self, key: str) -> None:
        """`key` logged in: forget its failures."""
        self._table.pop(key, None)


# audit log ------------------------------------------------------------------------------------------
GENESIS = bytes(32)


def audit_hash(previous: bytes, seq: int, at: float, who: str, what: str, detail: str) -> bytes:
    """SHA-256 over the hash of the line before and all fields of this one."""
    return hashlib.sha256(previous + msgspec.msgpack.encode((seq, at, who, what, detail))).digest()


def verify_chain(records: Iterable[AuditRecord], previous: bytes = GENESIS, seq: int = 0) -> int | None:
    """The number of the first line that was changed, removed, inserted or moved; None when all is well.
    `previous` and `seq` belong to the line before the first."""
    for record in records:
        seq += 1
        expected = audit_hash(previous, seq, record.at, record.who, record.what, record.detail)
        if record.seq != seq or record.hash != expected:
            return seq
        previous = record.hash
    return None


def check_cluster_name(name: str) -> str:
    """`name` if it may name a cluster. Raises `BadConfig`."""
    if not NODE_NAME.fullmatch(name):
        raise BadConfig(f"cluster name {name!r} is not allowed", hint="use letters, digits, . _ and -")
    return name
