"""Rights belong to persons and groups, not to names: who is removed leaves none to somebody of the same name,
who is renamed keeps his own, and what is shown tells whom it means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import alembic.command
import msgspec
import pytest
from alembic.config import Config as AlembicConfig
from cumulus_bench import BOB, Bench, postgres_database
from s3_stores import STORES
from s3_world import World

from cumulus.auth.acl import granted
from cumulus.auth.conditions import RequestContext, values_of
from cumulus.auth.policy import bind, parse_policy, shown
from cumulus.errors import S3Error
from cumulus.index import schema
from cumulus.index.admin import SqlAdmin
from cumulus.index.api import NoSuch
from cumulus.index.registry import make_admin, make_index
from cumulus.index.text_file import TextFile
from cumulus.model import Acl, Bucket, Grant, Identity, User
from cumulus.secrets import Keyring

OTHER = "c" * 64
CONTEXT = RequestContext(peer="192.0.2.7", now_ns=10**18)
LAB = "urn:cumulus:group:lab"


class Service:
    """A service with the users alice, who owns bucket bkt, and bob, who is in group lab; their keys are their
    names in capitals."""

    def __init__(self, world: World) -> None:
        self.world = world
        assert world.ask("PUT", "/bkt").status == 200
        assert world.ask("PUT", "/bkt/k", b"x").status == 200

    def allow(self, principal: Any, effect: str = "Allow") -> None:
        """The owner lets that principal, and him alone, read."""
        statement = {
            "Effect": effect,
            "Principal": principal,
            "Action": "s3:GetObject",
            "Resource": "arn:aws:s3:::bkt/*",
        }
        text = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        answer = self.world.ask("PUT", "/bkt", text.encode(), query="policy")
        assert answer.status == 204, answer.body

    def named(self) -> Any:
        """The principal that the policy is shown with."""
        return json.loads(self.world.ask("GET", "/bkt", query="policy").body)["Statement"][0]["Principal"]

    def grant(self, grantee: str) -> None:
        """The same by the object's ACL."""
        answer = self.world.ask("PUT", "/bkt/k", query="acl", headers={"x-amz-grant-read": grantee})
        assert answer.status == 200, answer.body

    def acl(self) -> str:
        """The object's ACL as it is shown."""
        return self.world.ask("GET", "/bkt/k", query="acl").body.decode()

    def reads(self, user: str) -> bool:
        """Whether he may now."""
        status = self.world.ask("GET", "/bkt/k", user=user).status
        assert status in (200, 403)
        return status == 200


class Database(Service):
    """Its users are in a database."""

    def __init__(self, path: Path, kind: str) -> None:
        self.bench = Bench(path, kind)
        self.admin = self.bench.admin
        for name in ("alice", "bob"):
            self.admin.add_key(name, name.upper(), f"secret of {name}")
        self.admin.add_group("lab")
        self.admin.join("lab", "bob")
        super().__init__(World(STORES["memory"](path), self.bench.index, self.bench.directory))

    def another_bob(self, groups: tuple[str, ...] = ()) -> None:
        """He is removed, and somebody else gets his name."""
        self.admin.remove_user("bob")
        self.admin.add_user(User(id=OTHER, name="bob", groups=groups))
        self.admin.add_key("bob", "BOB", "secret of bob")
        self.bench.fresh()

    def close(self) -> None:
        """All of it."""
        self.world.gateway.close()
        self.bench.close()


@pytest.fixture(scope="module", params=["sqlite", "remote", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of the database."""
    if request.param == "postgresql":
        postgres_database()
    return str(request.param)


@pytest.fixture
def database(kind: str, tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path, kind)
    yield made
    made.close()


@pytest.mark.parametrize("principal", [r"\ud800", r"arn:aws:iam:::group/l\udfffb", r"bob\u0000"])
def test_a_name_that_can_be_nobodys_is_refused(database: Database, principal: str) -> None:
    """JSON can write what is no text in UTF-8 (it was a 500), or what PostgreSQL cannot hold."""
    head = '{"Statement": {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bkt/*"'
    text = f'{head}, "Principal": {{"AWS": "{principal}"}}}}}}'
    answer = database.world.ask("PUT", "/bkt", text.encode(), query="policy")
    assert (answer.status, answer.code) == (400, "MalformedPolicy")
    assert database.world.ask("GET", "/bkt", query="policy").status == 404


@pytest.mark.parametrize("principal", ["bob", "arn:aws:iam:::user/bob", BOB])
def test_a_policy_means_the_person_who_had_the_name(database: Database, principal: str) -> None:
    """It lets him in under a new name, with which it is shown; another one who gets the name has nothing. Who
    is gone is shown with his id, and that policy can be set again."""
    database.allow({"AWS": [principal, "arn:aws:iam:::user/alice"]})
    assert database.reads("bob") and database.named()["AWS"][0] == principal
    bob = database.admin.user("bob")
    database.admin.set_user(msgspec.structs.replace(bob, name="robert"))
    database.bench.fresh()
    assert database.reads("bob")  # his key has not changed
    assert database.named()["AWS"] == [principal.replace("bob", "robert"), "arn:aws:iam:::user/alice"]
    database.admin.set_user(bob)
    database.another_bob()
    assert not database.reads("bob")
    assert database.named()["AWS"] == [BOB, "arn:aws:iam:::user/alice"]
    database.allow(database.named())
    assert not database.reads("bob")
    database.allow({"AWS": "bob"})
    assert database.reads("bob") and database.named() == {"AWS": "bob"}


def test_a_denial_stays_with_the_person(database: Database) -> None:
    """Somebody who gets the name is not denied, and who got another one is."""
    database.world.ask("PUT", "/bkt/k", query="acl", headers={"x-amz-acl": "public-read"})
    database.allow({"AWS": "bob"}, "Deny")
    bob = database.admin.user("bob")
    database.admin.set_user(msgspec.structs.replace(bob, name="robert"))
    database.bench.fresh()
    assert not database.reads("bob")
    database.admin.set_user(bob)
    database.another_bob()
    assert database.reads("bob")


def test_nobody_is_named_before_he_is_there(database: Database) -> None:
    """As in S3: who gets the name later would have rights that nobody gave him."""
    for principal in ("carol", "arn:aws:iam:::user/carol", "arn:aws:iam:::group/none"):
        body = json.dumps({"Statement": {
            "Effect": "Allow", "Principal": {"AWS": principal}, "Action": "s3:*",
            "Resource": "arn:aws:s3:::bkt/*",
        }})  # fmt: skip
        answer = database.world.ask("PUT", "/bkt", body.encode(), query="policy")
        assert (answer.status, answer.code) == (400, "MalformedPolicy")
        assert principal.rpartition("/")[2] in answer.body.decode()


def test_grants_to_a_user_do_not_pass_on(database: Database) -> None:
    """The ACL shows the id of who has gone, and no name."""
    database.grant(f'id="{BOB}"')
    assert database.reads("bob") and "<DisplayName>bob</DisplayName>" in database.acl()
    database.another_bob()
    assert not database.reads("bob")
    assert BOB in database.acl() and "<DisplayName>bob</DisplayName>" not in database.acl()


@pytest.mark.parametrize("how", ["policy", "ACL"])
def test_rights_of_a_group_do_not_pass_to_another_of_its_name(database: Database, how: str) -> None:
    """They end with it; what is shown afterwards is no group's name, and is refused if it is set again."""
    if how == "policy":
        database.allow({"AWS": "arn:aws:iam:::group/lab"})
        assert database.named() == {"AWS": "arn:aws:iam:::group/lab"}
    else:
        database.grant(f'uri="{LAB}"')
        assert f"<URI>{LAB}</URI>" in database.acl()
    assert database.reads("bob")
    database.admin.remove_group("lab")
    database.bench.fresh()
    assert not database.reads("bob")
    database.admin.add_group("lab")
    database.admin.join("lab", "bob")
    database.bench.fresh()
    assert not database.reads("bob")
    if how == "policy":
        shown = database.named()["AWS"]
        assert shown.startswith("arn:aws:iam:::group/lab#")
        again = database.world.ask("GET", "/bkt", query="policy").body
        assert database.world.ask("PUT", "/bkt", again, query="policy").code == "MalformedPolicy"
        database.allow({"AWS": "arn:aws:iam:::group/lab"})
    else:
        assert f"<URI>{LAB}#" in database.acl()
        assert database.world.ask("PUT", "/bkt/k", database.acl().encode(), query="acl").status == 400
        database.grant(f'uri="{LAB}"')
    assert database.reads("bob")


def test_nothing_of_a_person_passes_with_his_name(database: Database) -> None:
    """Membership, quota and keys end with him; what he wrote stays his."""
    database.world.ask("PUT", "/bkt", query="acl", headers={"x-amz-grant-write": f'id="{BOB}"'})
    assert database.world.ask("PUT", "/bkt/his", b"x", user="bob").status == 200
    database.admin.add_key("bob", "BOBS", "secret of bobs")
    database.another_bob()
    bob = database.admin.user("bob")
    assert (bob.groups, [one.access_key for one in database.admin.keys("bob")]) == ((), ["BOB"])
    assert database.admin.quotas() == []
    assert database.world.ask("GET", "/bkt/his", user="bob").status == 403
    with pytest.raises(NoSuch):
        database.admin.user(BOB)


def test_a_text_file_tells_persons_apart_by_their_ids(tmp_path: Path) -> None:
    """Where lines have `id=`; without, a name is always the same person."""
    path, now = tmp_path / "users", [0.0]
    path.touch(mode=0o600)
    path.write_text(f"bob BOB secret00 id={BOB}\ncarol CAROL secret00\n")
    users = TextFile(path, lambda bad: pytest.fail(str(bad)), lambda: now[0])
    text = json.dumps({"Statement": {
        "Effect": "Allow", "Principal": {"AWS": ["bob", "carol"]}, "Action": "s3:*",
        "Resource": "arn:aws:s3:::b",
    }})  # fmt: skip
    policy = parse_policy(text, "b")
    ids = bind(policy, users)

    def let_in() -> list[str]:
        found = [Identity(user=users.user(name)) for name in ("bob", "carol")]
        values = values_of(CONTEXT, Identity(), None)
        return [
            one.user.name
            for one in found
            if one.user and policy.evaluate(one, "s3:ListBucket", "b", values, ids) == "allow"
        ]

    assert let_in() == ["bob", "carol"] and shown(text, ids, users) == text
    path.write_text(f"bob BOB secret00 id={OTHER}\ncarol CAROL secret00 disabled\n")
    now[0] += 1
    assert let_in() == ["carol"]
    assert json.loads(shown(text, ids, users))["Statement"]["Principal"] == {"AWS": [BOB, "carol"]}


def test_policies_and_groups_of_an_older_database_are_bound_when_it_is_upgraded(tmp_path: Path) -> None:
    """To those who have the names then. What nobody has stays a name, and what a group's name was granted
    stays that group's."""
    path = tmp_path / "c.db"
    engine = schema.sqlite_engine(path)
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    named = ["arn:aws:iam::1:user/bob", "arn:aws:iam:::group/lab", "ghost", BOB]
    allow = {"Effect": "Allow", "Principal": {"AWS": named}, "Action": "s3:*", "Resource": "arn:aws:s3:::b"}
    old = Bucket(
        name="b", owner=BOB, created_ns=1, acl=Acl(owner=BOB), policy=json.dumps({"Statement": allow})
    )
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "0004")
        connection.exec_driver_sql("INSERT INTO groups (name, created_ns) VALUES ('lab', 1)")
        connection.exec_driver_sql(
            "INSERT INTO users (id, name, display, email, weight, disabled, admin, unix_user, created_ns) "
            f"VALUES ('{BOB}', 'bob', '', '', 1, 0, 0, '', 1)"
        )
        values = ("b", BOB, msgspec.msgpack.encode(old))
        connection.exec_driver_sql("INSERT INTO buckets (name, owner, record) VALUES (?, ?, ?)", values)
    schema.migrate(engine, path)
    with engine.begin() as connection:
        record = connection.exec_driver_sql("SELECT record FROM buckets").scalar_one()
    bound = {"user:bob": BOB, "group:lab": "lab"}
    assert msgspec.msgpack.decode(record, type=Bucket) == msgspec.structs.replace(old, principals=bound)
    admin = SqlAdmin(engine, Keyring.create(tmp_path / "key"))
    admin.join("lab", "bob")
    grant = Acl(owner=OTHER, grants=(Grant(grantee="group:lab", permission="READ"),))
    assert granted(grant, Identity(user=admin.user("bob")), "READ")
    admin.remove_group("lab")
    admin.add_group("lab")
    admin.join("lab", "bob")
    assert not granted(grant, Identity(user=admin.user("bob")), "READ")
    admin.close()


def test_a_group_without_an_id_is_nobody(tmp_path: Path) -> None:
    """As an older version makes them in newer tables: a policy that names one gave its rights to members of
    all such groups."""
    admin = make_admin(f"sqlite:///{tmp_path}/c.db", Keyring.create(tmp_path / "key"))
    admin.add_user(User(id=BOB, name="bob"))
    for name in ("lab", "ops"):
        admin.add_group(name)
    admin.join("ops", "bob")
    with admin._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE groups SET id = ''")
    admin.close()
    index, users = make_index(f"sqlite:///{tmp_path}/c.db", Keyring(tmp_path / "key"))
    allow = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam:::group/lab"}}
    statement = allow | {"Action": "s3:*", "Resource": "arn:aws:s3:::b"}
    policy = parse_policy(json.dumps({"Statement": statement}), "b")
    with pytest.raises(S3Error, match="there is no group lab"):
        bind(policy, users)
    who, values = Identity(user=users.user(BOB)), values_of(CONTEXT, Identity(), None)
    assert who.user is not None and who.user.rights_of == ("",)
    assert policy.evaluate(who, "s3:ListBucket", "b", values, {"group:lab": ""}) == ""
    assert policy.evaluate(who, "s3:ListBucket", "b", values, {"group:lab": "lab#1"}) == ""
    index.close()
    users.close()
