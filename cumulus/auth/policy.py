"""Bucket policies: JSON as it comes, checked; and what a policy says about a request. Pure.

Nothing that is not understood is accepted, so that a policy never allows or denies less than it reads. Our
additions to S3's principals: user names and groups, arn:aws:iam:::user/NAME, arn:aws:iam:::group/NAME; any
account number between the colons is ignored. Names count as they are when the policy is set (`bind`): rights
are those persons', also under a new name, and nobody else's who gets the name later (`shown` tells it so).
Source: IAM user guide, "IAM JSON policy elements reference"; S3 user guide, "Policies and permissions".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn

from cumulus.auth.acl import group_name
from cumulus.auth.actions import ACTIONS, has_key
from cumulus.auth.conditions import KEYS, Condition, Values, fill, light, like, make, protect, variables
from cumulus.errors import S3Error
from cumulus.index.api import Directory
from cumulus.kept import Kept
from cumulus.model import Identity

MAX_SIZE: Final = 20 * 1024
_FEW: Final = 64  # comparisons
_ARN: Final = "arn:aws:s3:::"
_VERSIONS: Final = ("2012-10-17", "2008-10-17")
_PRINCIPAL: Final = re.compile(r"arn:aws:iam::[^:]*:(user|group)/(?:[^/]*/)*([^/*]+)")
_STATEMENT: Final = frozenset(
    {
        "Sid",
        "Effect",
        "Principal",
        "NotPrincipal",
        "Action",
        "NotAction",
        "Resource",
        "NotResource",
        "Condition",
    }
)

_NOBODY: Final[Mapping[str, str]] = MappingProxyType({})

Verdict = Literal["allow", "deny", ""]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. `principals` are "*", "user:NAME", "group:NAME", "id:ID"; the flags turn their lists
    round."""

    effect: Literal["Allow", "Deny"]
    principals: tuple[str, ...]
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    sid: str = ""
    not_principals: bool = False
    not_actions: bool = False
    not_resources: bool = False

    def covers(
        self, identity: Identity, action: str, resource: str, values: Values, ids: Mapping[str, str]
    ) -> bool:
        """Whether it says something about this request."""
        return (
            any(like(pattern, action.lower()) for pattern in self.actions) is not self.not_actions
            and any(_is_meant(name, identity, ids) for name in self.principals) is not self.not_principals
            and any(_resource_fits(name, resource, values) for name in self.resources)
            is not self.not_resources
            and all(condition.holds(values) for condition in self.conditions)
        )

    @property
    def public(self) -> bool:
        """Whether it gives something to people that nobody named."""
        everybody = self.not_principals or "*" in self.principals
        return self.effect == "Allow" and everybody and not any(c.restricts for c in self.conditions)


@dataclass(frozen=True, slots=True)
class Policy:
    """A bucket's policy."""

    statements: tuple[Statement, ...]
    light: bool = False  # evaluated within about a millisecond, whatever a client sends

    def evaluate(
        self, identity: Identity, action: str, resource: str, values: Values, ids: Mapping[str, str] = _NOBODY
    ) -> Verdict:
        """ "deny" if any statement denies, else "allow" if one allows, else "". `resource` is a bucket, or a
        bucket, a slash and a key; `values` are those of `conditions.values_of`, `ids` what `bind` found; who
        is not in there is compared by name."""
        verdict: Verdict = ""
        for statement in self.statements:
            if statement.covers(identity, action, resource, values, ids):
                if statement.effect == "Deny":
                    return "deny"
                verdict = "allow"
        return verdict

    @property
    def public(self) -> bool:
        """What GetBucketPolicyStatus says."""
        return any(statement.public for statement in self.statements)


def _is_meant(name: str, identity: Identity, ids: Mapping[str, str]) -> bool:
    if name == "*":
        return True
    user = identity.user
    if user is None:
        return False
    kind, _, value = name.partition(":")
    if (id := ids.get(name)) is not None:
        if not id:  # of a group that has none: it is nobody, not all others of that kind
            return False
        return id in user.rights_of if kind == "group" else id == user.id
    return value in {"user": (user.name,), "group": user.groups, "id": (user.id,)}[kind]


def _resource_fits(pattern: str, resource: str, values: Values) -> bool:
    filled = fill(pattern, values)
    return filled is not None and like(filled, protect(resource))


def check_reach(policy: Policy, bucket: str) -> None:
    """Raises `S3Error` MalformedPolicy for an action that is done to no resource of its statement: to objects
    where only the bucket stands, or the reverse. It would allow or deny nothing. The same for a condition on
    what requests for none of the statement's actions have."""
    for number, statement in enumerate(policy.statements):
        if statement.not_actions:
            continue
        _check_keys(statement, f"Statement[{number}]")
        if statement.not_resources:
            continue
        named = {kind for pattern in statement.resources for kind in _kinds(pattern, bucket)}
        for pattern in statement.actions:
            done_to = {row.on for action, row in ACTIONS.items() if like(pattern, action.lower())}
            if named.isdisjoint(done_to):
                _refuse(f"Statement[{number}]", "Action does not apply to any resource(s) in statement")


def _check_keys(statement: Statement, where: str) -> None:
    actions = [
        action for action in ACTIONS if any(like(pattern, action.lower()) for pattern in statement.actions)
    ]
    for condition in statement.conditions:
        if not any(has_key(action, condition.key) for action in actions):
            _refuse(
                f"{where}.Condition.{condition.key}",
                "Conditions do not apply to combination of actions and resources in statement",
            )


def _kinds(pattern: str, bucket: str) -> set[str]:
    """What a resource can be."""
    kinds = {"object"} if "/" in pattern or "*" in pattern else set()
    return kinds | {"bucket"} if like(pattern, bucket) else kinds


# names and ids


def bind(policy: Policy, directory: Directory) -> dict[str, str]:
    """The ids of those users and groups that it names, by "user:NAME" and "group:NAME". Raises `S3Error`
    MalformedPolicy for one that there is not: somebody who comes later would have rights that nobody gave."""
    found = {}
    for name in dict.fromkeys(name for statement in policy.statements for name in statement.principals):
        kind, _, value = name.partition(":")
        if name == "*" or kind == "id":
            continue
        id = None
        if any("\ud800" <= c <= "\udfff" for c in value):
            value = "of that name: an escape in it is half of a character"
        elif kind == "group":
            id = directory.group_id(value)
        else:
            user = directory.user(value)
            id = user.id if user is not None else None
        if not id:  # a group that an older version has made may have none
            _refuse("", f"Invalid principal in policy: there is no {kind} {value[:128]}")
        found[name] = id
    return found


def shown(text: str, ids: Mapping[str, str], directory: Directory) -> str:
    """A policy as it came, but with the names that those have now whom it named; a user who has gone stands
    there with his id, a group with a name that no group can have."""
    current = {
        name: now
        for name, id in ids.items()
        if (now := _name_now(name, id, directory)) != name.partition(":")[2]
    }
    if not current:
        return text
    document = json.loads(text)

    def renamed(principal: str) -> str:
        name = _principal(principal, "")
        if (now := current.get(name)) is None:
            return principal
        gone = now == ids[name] and name.startswith("user:")
        return now if gone else principal.removesuffix(name.partition(":")[2]) + now

    for holder in _named(document):
        given = holder["AWS"]
        holder["AWS"] = renamed(given) if isinstance(given, str) else [renamed(one) for one in given]
    return json.dumps(document, ensure_ascii=False)


def _name_now(name: str, id: str, directory: Directory) -> str:
    if name.startswith("group:"):
        return group_name(id, directory)
    user = directory.user(id)
    return user.name if user is not None and user.id == id else id


def _named(document: Any) -> Iterator[dict[str, Any]]:
    """The objects of a valid document that name principals under AWS."""
    statements = document["Statement"]
    for statement in statements if isinstance(statements, list) else [statements]:
        for key in ("Principal", "NotPrincipal"):
            if isinstance(holder := statement.get(key), dict) and "AWS" in holder:
                yield holder


# reading


def _refuse(where: str, what: str) -> NoReturn:
    raise S3Error("MalformedPolicy", f"{where}: {what}" if where else what)


@Kept
def parse_policy(text: str, bucket: str) -> Policy:
    """The policy of that bucket. Raises `S3Error` MalformedPolicy; the message says where. The last are
    kept."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_SIZE:
        _refuse("", f"The policy is larger than {MAX_SIZE} bytes")
    try:
        document = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = f"{error}" if isinstance(error, ValueError) else "nested too deeply"
        _refuse("", f"This policy contains invalid Json: {reason[:200]}")
    if not isinstance(document, dict):
        _refuse("", "The policy is not a JSON object")
    _known(document, frozenset({"Version", "Id", "Statement"}), "policy")
    if document.get("Version", _VERSIONS[0]) not in _VERSIONS:
        _refuse("Version", f"must be {_VERSIONS[0]} (or {_VERSIONS[1]})")
    statements = document.get("Statement")
    if isinstance(statements, dict):
        statements = [statements]
    if not isinstance(statements, list) or not statements:
        _refuse("Statement", "Missing required field")
    made = tuple(_statement(each, f"Statement[{i}]", bucket) for i, each in enumerate(statements))
    return Policy(made, _light(made))


def _light(statements: Sequence[Statement]) -> bool:
    """Few comparisons, and none that takes long."""
    conditions = [condition for one in statements for condition in one.conditions]
    resources = [resource for one in statements for resource in one.resources]
    count = len(resources) + sum(len(one.actions) + len(one.principals) for one in statements)
    count += sum(len(condition.values) for condition in conditions)
    return count <= _FEW and all(map(light, resources)) and all(condition.light for condition in conditions)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _known(document: dict[str, Any], names: frozenset[str], where: str) -> None:
    unknown = sorted(set(document) - names)
    if unknown:
        _refuse(where, f"Unknown field {unknown[0][:64]}")


def _statement(document: object, where: str, bucket: str) -> Statement:
    if not isinstance(document, dict):
        _refuse(where, "not an object")
    _known(document, _STATEMENT, where)
    effect = document.get("Effect")
    if effect not in ("Allow", "Deny"):
        _refuse(f"{where}.Effect", "must be Allow or Deny")
    sid = document.get("Sid", "")
    if not isinstance(sid, str):
        _refuse(f"{where}.Sid", "must be a string")
    principals, not_principals = _either(document, "Principal", where)
    actions, not_actions = _either(document, "Action", where)
    resources, not_resources = _either(document, "Resource", where)
    if not_principals and effect == "Allow":
        _refuse(f"{where}.NotPrincipal", "Allow with NotPrincipal is not supported")
    return Statement(
        effect,
        _principals(principals, f"{where}.Principal"),
        tuple(_action(name, f"{where}.Action") for name in _strings(actions, f"{where}.Action")),
        tuple(
            _resource(name, bucket, f"{where}.Resource") for name in _strings(resources, f"{where}.Resource")
        ),
        _conditions(document.get("Condition", {}), f"{where}.Condition"),
        sid,
        not_principals,
        not_actions,
        not_resources,
    )


def _either(document: dict[str, Any], name: str, where: str) -> tuple[object, bool]:
    """The value of NAME or NotNAME, and whether it is the latter."""
    if (name in document) is (f"Not{name}" in document):
        _refuse(
            where, f"needs {name} or Not{name}" if name not in document else f"has both {name} and Not{name}"
        )
    return (document[name], False) if name in document else (document[f"Not{name}"], True)


def _strings(value: object, where: str) -> list[str]:
    items = value if isinstance(value, list) else [value]
    texts = [item for item in items if isinstance(item, str) and item]
    if not texts or len(texts) != len(items):
        _refuse(where, "must be a string or a list of strings")
    return texts


def _principals(value: object, where: str) -> tuple[str, ...]:
    if value == "*":
        return ("*",)
    if not isinstance(value, dict) or not value:
        _refuse(where, "Invalid principal in policy")
    _known(value, frozenset({"AWS", "CanonicalUser"}), where)
    found = [_principal(name, where) for name in _strings(value["AWS"], where)] if "AWS" in value else []
    if "CanonicalUser" in value:
        found += [f"id:{name}" for name in _strings(value["CanonicalUser"], where)]
    return tuple(found)


def _principal(name: str, where: str) -> str:
    if name == "*":
        return name
    match = _PRINCIPAL.fullmatch(name)
    if match is not None:
        return f"{match[1]}:{match[2]}"
    if ":" in name or "*" in name or "?" in name:
        _refuse(where, f"Invalid principal in policy: {name[:128]}")
    return f"id:{name}" if re.fullmatch("[0-9a-f]{64}", name) else f"user:{name}"


def _action(name: str, where: str) -> str:
    """In lower case; it has to cover at least one action that there is."""
    pattern = name.lower()
    if pattern != "*" and not any(like(pattern, action.lower()) for action in ACTIONS):
        _refuse(where, f"Policy has invalid action: {name[:64]}")
    return pattern


def _resource(name: str, bucket: str, where: str) -> str:
    """Without its prefix. It has to lie in the bucket."""
    pattern = name.removeprefix(_ARN)
    inside = pattern == bucket or pattern.startswith(f"{bucket}/") or _begins_as(pattern, bucket)
    if pattern == name and name != "*":
        _refuse(
            where, f"Policy has invalid resource: {name[:128]} (needs {_ARN}{bucket} or {_ARN}{bucket}/*)"
        )
    if not inside:
        _refuse(where, f"Policy has invalid resource: {name[:128]} is not in this bucket")
    unknown = [variable for variable in variables(pattern) if variable not in KEYS]
    if unknown:
        _refuse(where, f"unknown variable {unknown[0][:64]}")
    return pattern


def _begins_as(pattern: str, bucket: str) -> bool:
    """Whether a pattern's letters before its first wildcard begin the bucket's name."""
    letters = re.split(r"[*?]", pattern, maxsplit=1)
    return len(letters) == 2 and bucket.startswith(letters[0])


def _conditions(value: object, where: str) -> tuple[Condition, ...]:
    if not isinstance(value, dict):
        _refuse(where, "must be an object")
    found = []
    for name, keys in value.items():
        if not isinstance(keys, dict) or not keys:
            _refuse(f"{where}.{name[:64]}", "must be an object of keys")
        for key, values in keys.items():
            place = f"{where}.{name[:64]}.{key[:128]}"
            items = values if isinstance(values, list) else [values]
            texts = tuple(_text(item, place) for item in items)
            if not texts:
                _refuse(place, "has no value")
            try:
                found.append(make(name, key, texts))
            except ValueError as error:
                _refuse(place, str(error))
    return tuple(found)


def _text(value: object, where: str) -> str:
    """A value as text: JSON's numbers and truths are allowed where text is meant."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) < 10**20:
        return str(value)
    _refuse(where, "must be a string, a number or a truth value")
