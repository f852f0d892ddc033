"""An index in PostgreSQL: what is wrong with a database in one line, passwords, how its tables are made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import alembic.command
import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from cumulus_bench import ALICE, Bench, bucket, postgres_database, run_all
from postgres import PASSWORD, Postgres, shared
from sqlalchemy import inspect, text

from cumulus.index import schema
from cumulus.index.api import Away, Directory, Index, IndexFailure
from cumulus.index.postgres_pool import Target
from cumulus.index.registry import make_index
from cumulus.index.revision import HEAD, PROGRAM
from cumulus.index.tables import metadata, tables_of
from sector.errors import BadConfig, LocalIO
from sector.ports import free_ports


@pytest.fixture(scope="module")
def server() -> Postgres:
    """The server of these tests."""
    postgres_database()
    return shared()


@pytest.fixture
def bench(server: Postgres, tmp_path: Path) -> Iterator[Bench]:
    """An empty database."""
    made = Bench(tmp_path, "postgresql")
    yield made
    made.close()


def secret(path: Path, value: str) -> str:
    """A file of a password."""
    path.touch(0o600)
    path.write_text(value + "\n")
    return str(path)


def test_a_password_comes_from_its_file_and_is_never_told(server: Postgres, tmp_path: Path) -> None:
    """Nor from the URL."""
    right = secret(tmp_path / "right", PASSWORD)
    target = Target(server.url("postgres"), right)
    target.connect().close()
    assert PASSWORD not in repr(target)
    wrong = Target(server.url("postgres"), secret(tmp_path / "wrong", "wrong-password"))
    with pytest.raises(Away, match='password authentication failed for user "cumulus"') as bad:
        wrong.connect()
    assert "wrong-password" not in str(bad.value) and "\n" not in str(bad.value)
    with pytest.raises(BadConfig, match="has a password in it") as refused:
        Target("postgresql://cumulus:hidden-word@127.0.0.1/x")
    assert "hidden-word" not in refused.value.message + refused.value.hint
    (tmp_path / "right").chmod(0o640)
    with pytest.raises(BadConfig, match="others can read it"):
        Target(server.url("postgres"), right)
    with pytest.raises(LocalIO, match="No such file"):
        Target(server.url("postgres"), str(tmp_path / "none"))
    (tmp_path / "wrong").write_bytes(b"\xff")
    with pytest.raises(LocalIO, match="not UTF-8"):
        Target(server.url("postgres"), str(tmp_path / "wrong"))


def test_a_database_that_cannot_be_used_is_told_in_one_line(
    server: Postgres, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, of a wrong encoding or version, made by a newer program, nobody there."""

    def wrong(url: str) -> str:
        with pytest.raises(IndexFailure) as bad:
            make_index(url, bench.keyring)
        assert "\n" not in str(bad.value)
        return str(bad.value)

    assert 'database "nowhere" does not exist' in wrong(server.local("nowhere"))
    (nobody,) = free_ports(1)
    assert f"port {nobody} failed" in wrong(f"postgresql://cumulus@127.0.0.1:{nobody}/x")
    server.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    assert "has the encoding LATIN1, and UTF8 is needed" in wrong(server.local("latin"))
    server.execute("DROP DATABASE latin")
    with pytest.raises(BadConfig, match="names no database"):
        make_index("postgresql://x?colour=red", bench.keyring)
    with pytest.raises(BadConfig, match="need a file of keys"):
        make_index(bench.url)
    shared().execute("UPDATE alembic_version SET version_num = '9999'", bench.database)
    try:
        assert "written by another version" in wrong(bench.url)
    finally:
        shared().execute(f"UPDATE alembic_version SET version_num = '{HEAD}'", bench.database)
    monkeypatch.setattr("cumulus.index.postgres_pool.OLDEST", 990000)
    assert "and 99 or later is needed" in wrong(bench.url)


def test_commits_are_waited_for_whatever_the_database_says(bench: Bench) -> None:
    """Unless the settings say otherwise."""
    shared().execute(f"ALTER DATABASE {bench.database} SET synchronous_commit = off", bench.database)
    try:
        for sync, wanted in ((True, "on"), (False, "off")):
            with Target(bench.url, sync=sync).connect() as connection:
                assert connection.execute("SHOW synchronous_commit").fetchone() == (wanted,)
    finally:
        shared().execute(f"ALTER DATABASE {bench.database} RESET synchronous_commit", bench.database)


# functions that had another shape in 0003
FORMER = (
    "DROP FUNCTION cumulus_apply",
    "DROP FUNCTION cumulus_drop_upload",
    "CREATE FUNCTION cumulus_apply(changes json, settled bigint[], now_ns bigint) RETURNS void "
    "LANGUAGE plpgsql AS 'BEGIN END'",
    "CREATE FUNCTION cumulus_drop_upload(in_upload text, changes json, settled bigint[], now_ns bigint) "
    "RETURNS boolean LANGUAGE plpgsql AS 'BEGIN END'",
)


def migrations() -> AlembicConfig:
    """As alembic takes them."""
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(Path(schema.__file__).with_name("migrations")))
    return settings


def test_migrations_make_what_the_tables_say(server: Postgres) -> None:
    """A new database is made at once, an old one by migrations: the same, and gone after the way back."""
    made, migrated = (server.local(server.database()) for _ in range(2))
    first = schema.postgres_engine(Target(made).connect_plain)
    schema.migrate(first, where="made")
    schema.migrate(first, where="made")
    settings = migrations()
    second = schema.postgres_engine(Target(migrated).connect_plain)
    with second.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "0003")
        for former in FORMER:
            connection.execute(text(former))
        alembic.command.upgrade(settings, "head")
    functions = text("SELECT proname, md5(prosrc) FROM pg_proc WHERE proname LIKE 'cumulus%' ORDER BY 1")
    with first.connect() as one, second.connect() as two:
        for connection in (one, two):
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert one.execute(functions).all() == two.execute(functions).all()
        for table in tables_of("postgresql"):
            assert str(inspect(one).get_columns(table.name)) == str(inspect(two).get_columns(table.name))
    with second.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.downgrade(settings, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
        assert connection.execute(functions).all() == []
    first.dispose()
    second.dispose()


def at_0003(url: str) -> None:
    """Tables as the version before made them."""
    settings = migrations()
    engine = schema.postgres_engine(Target(url).connect_plain)
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "0003")
    engine.dispose()


def test_tables_are_not_upgraded_below_a_server_of_an_older_version(server: Postgres, bench: Bench) -> None:
    """It is named in one line, and serves on; when it has ended, or only our own are there, they are."""
    name = server.database()
    url = server.local(name)
    at_0003(url)
    revision = "SELECT version_num FROM alembic_version"
    with psycopg.connect(url, application_name="cumulus") as older:
        with pytest.raises(IndexFailure, match="servers of an older version use it") as bad:
            make_index(url, bench.keyring)
        assert "\n" not in str(bad.value) and "stop all of them" in str(bad.value) and name in str(bad.value)
        assert older.execute(revision).fetchone() == ("0003",)
    with psycopg.connect(url, application_name=PROGRAM):
        for one in make_index(url, bench.keyring):
            one.close()
    assert server.execute(revision, name) == [(HEAD,)]


def test_a_server_below_which_the_tables_were_upgraded_says_so(server: Postgres, bench: Bench) -> None:
    """From its next connection on, and goes on by itself when that is undone."""
    name = server.database()
    index, directory = make_index(server.local(name), bench.keyring)
    index.add_bucket(bucket("x", ALICE))
    server.execute("UPDATE alembic_version SET version_num = '9999'", name)
    cut = "SELECT pg_terminate_backend(pid, 10000) "
    cut += f"FROM pg_stat_activity WHERE application_name = '{PROGRAM}'"
    server.execute(f"{cut} AND datname = '{name}'")
    with pytest.raises(Away, match=f"tables of revision 9999, and this program knows {HEAD}"):
        index.usage("bucket", "x")
    server.execute(f"UPDATE alembic_version SET version_num = '{HEAD}'", name)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with contextlib.suppress(Away):
            assert index.usage("bucket", "x").bytes == 0
            break
    else:
        raise AssertionError("it stays away")
    index.close()
    directory.close()


def test_two_servers_may_make_the_tables_at_once(server: Postgres, bench: Bench) -> None:
    """One makes them, all use them."""
    url = server.local(server.database())
    made: list[tuple[Index, Directory]] = []
    run_all([lambda: made.append(make_index(url, bench.keyring))] * 4)
    assert len(made) == 4
    made[0][0].add_bucket(bucket("x", ALICE))
    assert all(index.bucket("x") is not None for index, _ in made)
    for one, two in made:
        one.close()
        two.close()
