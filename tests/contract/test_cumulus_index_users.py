"""What every source of users promises (`Directory`), administration of the database, secrets at rest."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import alembic.command
import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from cumulus_bench import ALICE, BOB, Bench, bucket, postgres_database
from postgres import shared
from sqlalchemy import inspect

from cumulus import secrets
from cumulus.index import schema
from cumulus.index.admin import SqlAdmin
from cumulus.index.admin_api import Quota
from cumulus.index.api import Away, Directory, IndexFailure, NameTaken, NoSuch, StillUsed
from cumulus.index.registry import make_admin, make_index
from cumulus.index.tables import metadata, tables_of
from cumulus.index.text_file import TextFile, user_id
from cumulus.model import User
from cumulus.secrets import Keyring, new_access_key, new_secret, new_user_id
from sector.errors import BadConfig, LocalIO, SectorError

SECRET = "s3cret/+With=Signs"


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "text file"])
def source(request: pytest.FixtureRequest) -> str:
    """Where users are."""
    if request.param == "postgresql":
        postgres_database()
    return str(request.param)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of the database."""
    if request.param == "postgresql":
        postgres_database()
    return str(request.param)


@pytest.fixture
def bench(kind: str, tmp_path: Path) -> Iterator[Bench]:
    """A database of its own for a test."""
    made = Bench(tmp_path, kind)
    yield made
    made.close()


@pytest.fixture
def file_bench(tmp_path: Path) -> Iterator[Bench]:
    """One in SQLite."""
    made = Bench(tmp_path)
    yield made
    made.close()


class Users:
    """A directory of two users, and a way to change it."""

    def __init__(self, directory: Directory, drop_key: Callable[[str], None]) -> None:
        self.directory = directory
        self.drop_key = drop_key


@pytest.fixture
def users(source: str, tmp_path: Path) -> Iterator[Users]:
    """alice with two keys, in group lab; bob, disabled, with a key that expires."""
    if source != "text file":
        bench = Bench(tmp_path, source)
        bench.admin.add_group("lab", 4)
        bench.admin.join("lab", "alice")
        bench.admin.add_key("alice", "AKALICE", SECRET)
        bench.admin.add_key(ALICE, "AKOTHER", "another-secret")
        bench.admin.add_key("bob", "AKBOB", "bobs-secret", expires_ns=1_893_456_000 * 10**9)
        bench.admin.set_user(User(id=BOB, name="bob", email="bob@example.org", disabled=True, weight=3))

        def drop(key: str) -> None:
            bench.admin.remove_key(key)
            bench.fresh()

        yield Users(bench.directory, drop)
        bench.close()
        return
    now = [0.0]
    path = tmp_path / "users"
    lines = [
        f"alice AKALICE {SECRET} id={ALICE} groups=lab  # two keys",
        "group=lab weight=4",
        "alice AKOTHER another-secret",
        f"bob AKBOB bobs-secret id={BOB} email=Bob@example.org disabled weight=3 expires=2030-01-01",
    ]
    write(path, "\n".join(lines))

    def cut(key: str) -> None:
        write(path, "\n".join(line for line in lines if key not in line))
        now[0] += 1

    yield Users(TextFile(path, lambda bad: pytest.fail(str(bad)), lambda: now[0]), cut)


def write(path: Path, text: str) -> None:
    """A file for its owner."""
    path.touch(mode=0o600)
    path.write_text(text)


def test_credential_has_the_secret_and_the_user(users: Users) -> None:
    """All that authorization needs in one answer."""
    found = users.directory.credential("AKALICE")
    assert found is not None and found.secret == SECRET
    assert (found.user.id, found.user.name, found.user.groups) == (ALICE, "alice", ("lab",))
    assert found.user.group_weights == (4,)
    other = users.directory.credential("AKOTHER")
    assert other is not None and other.user == found.user and other.secret == "another-secret"
    bob = users.directory.credential("AKBOB")
    assert bob is not None and bob.user.disabled and bob.user.weight == 3
    assert bob.expires_ns == 1_893_456_000 * 10**9
    assert users.directory.credential("NONE") is None
    assert SECRET not in repr(found) and SECRET not in str(found)


def test_users_are_found_by_id_name_and_address(users: Users) -> None:
    """Addresses in any case."""
    directory = users.directory
    alice = directory.user("alice")
    assert alice is not None and directory.user(ALICE) == alice
    bob = directory.by_email(" BOB@Example.ORG")
    assert bob is not None and bob.id == BOB
    assert directory.user("carol") is None and directory.by_email("x@y") is None
    assert directory.by_email("") is None
    assert directory.members("lab") == [ALICE] and directory.members("none") is None


def test_removed_key_is_refused(users: Users) -> None:
    """Within a second; the others stay."""
    assert users.directory.credential("AKOTHER") is not None
    users.drop_key("AKOTHER")
    assert users.directory.credential("AKOTHER") is None
    assert users.directory.credential("AKALICE") is not None


# the text file ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("alice AK", "line 1: a name, an access key and a secret are needed"),
        ("# x\n\nal/ice AKX longsecret", "line 3: 'al/ice' is no name"),
        ("alice A$ longsecret", "line 1: the access key is not valid"),
        ("alice AKX short", "line 1: the secret is shorter"),
        ("alice AKX longsecret\nbob AKX longsecret", "line 2: the access key AKX stands on two lines"),
        ("alice AKX longsecret colour=red", "line 1: colour is not known here"),
        ("alice AKX longsecret groups=", "line 1: groups is not known here"),
        ("alice AKX longsecret groups=,", "line 1: groups=, is not valid"),
        ("alice AKX longsecret weight=0", "line 1: weight=0 is not valid"),
        ("group=lab", "line 1: is not understood"),
        ("group= weight=2", "line 1: is not understood"),
        ("group=lab weight=2 admin", "line 1: is not understood"),
        ("group=lab weight=x", "line 1: weight=x is not valid"),
        ("group=lab weight=2\ngroup=lab weight=3", "line 2: group lab stands on two lines"),
        ("alice AKX longsecret id=12", "line 1: id=12 is not valid"),
        ("alice AKX longsecret expires=soon", "line 1: expires=soon is not valid"),
        ("alice AKX longsecret expires=9999-12-31", "line 1: expires=9999-12-31 is not valid"),
        ("alice AKX longsecret\nalice AKY longsecret admin", "line 2: options of alice"),
        (f"alice AKX longsecret id={user_id('bob')}\nbob AKY longsecret", "line 2: alice has the same id"),
        (
            "alice AKX longsecret email=a@x.org\nbob AKY longsecret email=A@x.org",
            "line 2: alice has the same e-mail address",
        ),
    ],
)
def test_errors_name_the_line_and_what_to_do(tmp_path: Path, text: str, says: str) -> None:
    """And never the secret."""
    write(tmp_path / "users", text)
    with pytest.raises(BadConfig) as bad:
        TextFile(tmp_path / "users", lambda _: None)
    assert says in bad.value.message and bad.value.hint
    assert "longsecret" not in bad.value.message + bad.value.hint


def test_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """As are a missing one and one that is no text."""
    path = tmp_path / "users"
    write(path, "alice AKX longsecret")
    path.chmod(0o640)
    with pytest.raises(BadConfig, match="others can read it") as bad:
        TextFile(path, lambda _: None)
    assert bad.value.hint == f"chmod 600 {path}"
    path.chmod(0o600)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadConfig, match="not UTF-8"):
        TextFile(path, lambda _: None)
    with pytest.raises(LocalIO, match="No such file"):
        TextFile(tmp_path / "none", lambda _: None)


def test_bad_change_of_the_file_leaves_what_was_read(tmp_path: Path) -> None:
    """And is told once; a good one counts again."""
    now, told = [0.0], list[SectorError]()
    path = tmp_path / "users"
    write(path, "alice AKX longsecret")
    directory = TextFile(path, told.append, lambda: now[0])
    write(path, "alice")
    for _ in range(3):
        now[0] += 1
        assert directory.credential("AKX") is not None
    assert [one.message for one in told] == [f"{path}: line 1: a name, an access key and a secret are needed"]
    path.unlink()
    now[0] += 1
    assert directory.credential("AKX") is not None and len(told) == 2
    write(path, "carol AKC longsecret")
    now[0] += 1
    assert directory.credential("AKX") is None and directory.credential("AKC") is not None


def test_file_that_was_emptied_leaves_the_users(tmp_path: Path) -> None:
    """`generate > users` empties it before the first line is written: all clients would be strangers until
    then. One that begins without users may get some; the last one who is taken away is refused."""
    now, told = [0.0], list[SectorError]()
    path = tmp_path / "users"
    write(path, "# none yet\n")
    directory = TextFile(path, told.append, lambda: now[0])
    for text in ("alice AKX longsecret\n", "", "\n \n"):
        write(path, text)
        now[0] += 1
        assert directory.credential("AKX") is not None
    assert [one.message for one in told] == [f"{path}: is empty"] * 2
    assert "rename" in told[0].hint
    write(path, "bob AKB longsecret\n")
    now[0] += 1
    assert [one.name for one in directory.users()] == ["bob"]
    write(path, "# nobody\n")
    now[0] += 1
    assert directory.credential("AKB") is None


# administration ---------------------------------------------------------------------------------------
def test_names_ids_and_addresses_are_given_once(bench: Bench) -> None:
    """A name may not be another's id either."""
    admin = bench.admin
    for user in (
        User(id=new_user_id(), name="alice"),
        User(id=ALICE, name="new"),
        User(id=new_user_id(), name=BOB),
        User(id=new_user_id(), name="new", email="BOB@example.org"),
    ):
        with pytest.raises(NameTaken):
            admin.add_user(user)
    with pytest.raises(NameTaken):
        admin.set_user(User(id=ALICE, name="bob"))
    with pytest.raises(NoSuch):
        admin.set_user(User(id="c" * 64, name="carol"))
    with pytest.raises(NoSuch):
        admin.add_user(User(id="c" * 64, name="carol", groups=("none",)))
    assert [one.name for one in admin.users()] == ["alice", "bob"]


def test_user_keeps_buckets_under_a_new_name(bench: Bench) -> None:
    """The id is what counts."""
    bench.admin.set_quota(Quota(scope="user", name="alice", hard_bytes=5))
    bench.admin.set_user(User(id=ALICE, name="alicia", display="Alicia"))
    assert bench.admin.user("alicia").display == "Alicia"
    assert bench.index.usage("user", "alicia").hard_bytes == 5
    assert bench.admin.quotas() == [Quota(scope="user", name="alicia", hard_bytes=5)]


def test_two_who_change_the_same_user_keep_what_the_other_did(bench: Bench) -> None:
    """Each changes a field of what both read before."""
    admin = bench.admin
    read = admin.user("alice")
    admin.set_user(msgspec.structs.replace(read, display="Alicia", weight=3), ["display", "weight"])
    admin.set_user(msgspec.structs.replace(read, email="a@example.org"), ["email"])
    now = admin.user("alice")
    assert (now.display, now.weight, now.email) == ("Alicia", 3, "a@example.org")


def test_user_with_buckets_does_not_go(bench: Bench) -> None:
    """Without them he goes with keys, memberships and quota."""
    admin = bench.admin
    with pytest.raises(StillUsed, match="alice owns 1 bucket, for example b"):
        admin.remove_user("alice")
    admin.add_key("bob", "AKB", SECRET)
    admin.add_group("lab")
    admin.join("lab", "bob")
    admin.join("lab", "bob")
    admin.set_quota(Quota(scope="user", name="bob", hard_objects=1))
    assert [one.members for one in admin.groups()] == [["bob"]]
    admin.remove_user("bob")
    assert admin.keys() == [] and admin.quotas() == [] and [one.members for one in admin.groups()] == [[]]
    with pytest.raises(NoSuch):
        admin.remove_user("bob")


def test_keys_expire_and_go(bench: Bench) -> None:
    """Several for one user."""
    admin = bench.admin
    admin.add_key("bob", "AK1", SECRET)
    bench.now_ns += 1
    admin.add_key("bob", "AK2", SECRET, expires_ns=7)
    with pytest.raises(NameTaken):
        admin.add_key("alice", "AK1", SECRET)
    admin.expire_key("AK1", 9)
    assert [(one.access_key, one.user, one.expires_ns) for one in admin.keys("bob")] == [
        ("AK1", "bob", 9),
        ("AK2", "bob", 7),
    ]
    assert admin.keys("alice") == []
    admin.remove_key("AK1")
    for call in (admin.remove_key, lambda key: admin.expire_key(key, 1)):
        with pytest.raises(NoSuch):
            call("AK1")


def test_groups_and_quotas_of_what_is_not_there(bench: Bench) -> None:
    """One error for all."""
    admin = bench.admin
    admin.add_group("lab")
    with pytest.raises(NameTaken):
        admin.add_group("lab")
    for call in (
        lambda: admin.join("none", "bob"),
        lambda: admin.join("lab", "nobody"),
        lambda: admin.leave("lab", "bob"),
        lambda: admin.remove_group("none"),
        lambda: admin.set_quota(Quota(scope="group", name="none", hard_bytes=1)),
        lambda: admin.set_quota(Quota(scope="bucket", name="none", hard_bytes=1)),
        lambda: admin.set_quota(Quota(scope="user", name="none", hard_bytes=1)),
        lambda: admin.add_key("none", "AK", SECRET),
        lambda: admin.keys("none"),
        lambda: admin.user("none"),
    ):
        with pytest.raises(NoSuch):
            call()
    admin.set_quota(Quota(scope="group", name="lab", hard_bytes=1))
    admin.set_quota(Quota(scope="group", name="lab", hard_bytes=2, soft_objects=3, grace_s=4))
    assert admin.quotas() == [Quota(scope="group", name="lab", hard_bytes=2, soft_objects=3, grace_s=4)]
    older = Quota(scope="group", name="lab", hard_bytes=9, hard_objects=9, soft_objects=9)
    admin.set_quota(older, ["hard_objects", "soft_objects"])  # the others stay as they are now
    mixed = Quota(scope="group", name="lab", hard_bytes=2, hard_objects=9, soft_objects=9, grace_s=4)
    assert admin.quotas() == [mixed]
    admin.set_quota(Quota(scope="group", name="lab"))
    assert admin.quotas() == []
    admin.remove_group("lab")
    assert admin.groups() == []


# secrets ----------------------------------------------------------------------------------------------
def test_no_secret_stands_in_the_database(kind: str, bench: Bench, tmp_path: Path) -> None:
    """Neither in the file nor in its log."""
    bench.admin.add_key("bob", "AKBOB", SECRET)
    for path in tmp_path.glob("cumulus.db*"):
        assert SECRET.encode() not in path.read_bytes()
    if kind == "postgresql":
        rows = str(shared().execute("SELECT secret, access_keys::text FROM access_keys", bench.database))
        assert "AKBOB" in rows and SECRET not in rows and SECRET.encode().hex() not in rows


def test_sealed_secret_fits_its_access_key_only(tmp_path: Path) -> None:
    """A row copied to another user's key does not open."""
    ring = Keyring.create(tmp_path / "secret.key")
    sealed = ring.seal("AKA", SECRET)
    assert ring.open("AKA", sealed) == SECRET and ring.seal("AKA", SECRET) != sealed
    for key, data in (("AKB", sealed), ("AKA", sealed[:-1]), ("AKA", b"\x02" + sealed[1:]), ("AKA", b"")):
        with pytest.raises(BadConfig, match="does not open"):
            ring.open(key, data)
    assert SECRET not in repr(ring) and (tmp_path / "secret.key").read_text().strip() not in repr(ring)
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_rotation_leaves_every_secret_readable(bench: Bench) -> None:
    """To this process, and to a server that has read only the older key; at no moment is one unreadable."""
    bench.admin.add_key("bob", "AKBOB", SECRET)
    server = Keyring(bench.keyring.path)
    bench.keyring.add_newest()
    found = bench.directory.credential("AKBOB")
    assert found is not None and found.secret == SECRET
    assert bench.admin.reseal() == 1 and bench.admin.reseal() == 0
    bench.keyring.drop_older()
    bench.fresh()
    again = bench.directory.credential("AKBOB")
    assert again is not None and again.secret == SECRET
    assert server.open("AK", bench.keyring.seal("AK", "new")) == "new"
    assert len(bench.keyring.path.read_text().split()) == 1


def test_two_rotations_at_once_lose_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two administrators, each of whom has read the file before the other one changes it."""
    second = threading.Thread(target=lambda: other.rotate())
    other = make_admin(bench.url, Keyring(bench.keyring.path))
    write_private = secrets.write_private
    bench.admin.add_key("bob", "AKBOB", SECRET)

    def slowly(path: Path, text: str, **how: bool) -> None:
        if not second.ident:
            second.start()
            second.join(1.0)
        write_private(path, text, **how)

    monkeypatch.setattr(secrets, "write_private", slowly)
    bench.admin.rotate()
    second.join(30)
    other.close()
    bench.fresh()
    assert bench.directory.check_secrets() == []
    found = bench.directory.credential("AKBOB")
    assert found is not None and found.secret == SECRET


def test_file_of_keys_with_an_error_is_refused(tmp_path: Path) -> None:
    """One line with what to do."""
    path = tmp_path / "secret.key"
    with pytest.raises(LocalIO, match="No such file"):
        Keyring(path)
    for text in ("", "zz", "ab", "é"):
        write(path, text)
        with pytest.raises(BadConfig, match="is no file of keys"):
            Keyring(path)
    with pytest.raises(BadConfig, match="is there already"):
        Keyring.create(path)
    path.chmod(0o644)
    with pytest.raises(BadConfig, match="others can read it"):
        Keyring(path)
    with pytest.raises(LocalIO):
        Keyring.create(tmp_path / "none" / "secret.key")


def test_made_names_have_the_form_that_clients_expect() -> None:
    """And do not repeat."""
    assert len({new_access_key() for _ in range(100)}) == 100
    assert len(new_access_key()) == 20 and new_access_key().isalnum() and new_access_key().isupper()
    assert len(new_secret()) == 40 and new_secret().isalnum() and len(new_user_id()) == 64


# the schema -------------------------------------------------------------------------------------------
def test_migrations_make_what_the_tables_say(tmp_path: Path) -> None:
    """A new database is made at once, an old one by migrations: the same in all columns and indexes."""
    made, migrated = tmp_path / "a.db", tmp_path / "b.db"
    engine = schema.sqlite_engine(made)
    schema.migrate(engine, made)
    other = schema.sqlite_engine(migrated)
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    with other.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "head")
    with other.connect() as connection:
        mine = {
            "include_object": lambda thing, name, kind, *_: kind != "table" or thing in tables_of("sqlite")
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=mine), metadata) == []
    for table in inspect(other).get_table_names():
        one, two = inspect(engine), inspect(other)
        assert str(one.get_columns(table)) == str(two.get_columns(table))
        assert sorted(map(str, one.get_indexes(table))) == sorted(map(str, two.get_indexes(table)))
        assert (
            one.get_pk_constraint(table)["constrained_columns"]
            == two.get_pk_constraint(table)["constrained_columns"]
        )
    with other.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.downgrade(settings, "base")
    assert inspect(other).get_table_names() == ["alembic_version"]
    engine.dispose()
    other.dispose()


def test_groups_of_an_older_database_weigh_one(tmp_path: Path) -> None:
    """It is copied, then upgraded."""
    path = tmp_path / "c.db"
    engine = schema.sqlite_engine(path)
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "0002")
        connection.exec_driver_sql("INSERT INTO groups (name, created_ns) VALUES ('lab', 1)")
    schema.migrate(engine, path)
    admin = SqlAdmin(engine, Keyring.create(tmp_path / "key"))
    assert [(one.name, one.weight) for one in admin.groups()] == [("lab", 1)]
    assert path.with_name("c.db.0002.bak").exists()
    admin.close()


def test_database_of_a_newer_program_is_refused(file_bench: Bench) -> None:
    """And not changed."""
    path = Path(file_bench.url.removeprefix("sqlite:///"))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(IndexFailure, match="written by another version"):
        make_index(file_bench.url, file_bench.keyring)


def test_database_that_cannot_be_opened(tmp_path: Path, file_bench: Bench) -> None:
    """A missing directory, a file that is no database, a URL that is none."""
    with pytest.raises(Away, match="No such file"):
        make_index(f"sqlite:///{tmp_path}/none/x.db", file_bench.keyring)
    (tmp_path / "text").write_text("no database, but long enough to look like one" * 20)
    with pytest.raises(IndexFailure, match="not a database"):
        make_index(f"sqlite:///{tmp_path}/text", file_bench.keyring)
    for url in ("mysql://x", "sqlite:///", "x"):
        with pytest.raises(BadConfig, match="names no database"):
            make_index(url, file_bench.keyring)
    with pytest.raises(BadConfig, match="need a file of keys"):
        make_index(f"sqlite:///{tmp_path}/new.db")


def test_closed_index_says_so(tmp_path: Path) -> None:
    """Reads and writes; a scratch database leaves nothing."""
    index, directory = make_index("sqlite://")
    index.add_bucket(bucket("x"))
    where = Path(index._readers._path).parent  # type: ignore[attr-defined]
    assert where.is_dir()
    index.close()
    directory.close()
    assert not where.exists()
    for call in (lambda: index.add_bucket(bucket("y")), index.buckets, lambda: index.lookup("x", "k")):
        with pytest.raises(Away, match="closed"):
            call()


def test_locked_database_is_away_and_comes_back(file_bench: Bench) -> None:
    """All that wait are told; the next ones succeed."""
    path = file_bench.url.removeprefix("sqlite:///")
    file_bench.index.add_bucket(bucket("first"))
    writer = file_bench.index._writer  # type: ignore[attr-defined]
    writer.do(lambda tx: tx.run("PRAGMA busy_timeout = 1"), reads=True)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    told: list[Exception] = []

    def add(number: int) -> None:
        try:
            file_bench.index.add_bucket(bucket(f"n{number}"))
        except Away as bad:
            told.append(bad)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.execute("ROLLBACK")
    other.close()
    assert len(told) == 4 and "locked" in str(told[0])
    add(9)
    assert [one.name for one in file_bench.index.buckets()] == ["b", "first", "n9"]


def test_opening_for_the_administrator_leaves_the_locks_of_the_others(tmp_path: Path) -> None:
    """One process has the index open, and opens the same file for its admin page; another process that reads
    and closes must not think that it is the last, and take the log away."""
    url, keys = f"sqlite:///{tmp_path}/db", Keyring.create(tmp_path / "secret.key")
    index, directory = make_index(url, keys)
    index.add_bucket(bucket("b"))
    admin = make_admin(url, keys)
    admin.add_user(User(id=new_user_id(), name="alice"))
    reads = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM users').fetchall()"
    subprocess.run([sys.executable, "-c", reads, str(tmp_path / "db")], check=True, timeout=60)
    assert (tmp_path / "db-wal").exists(), "another process removed the log of this one"
    index.close()
    directory.close()
    admin.close()
    assert (tmp_path / "db").stat().st_mode & 0o777 == 0o600
