"""Databases of all services: a new one is made at once as its migrations would have made it, and programs
that need no migration do not load what runs them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alembic.command
import pytest
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect

import cumulus.index.schema
import sector.master.store
import sector.security.store
from cumulus.admin.doctor import findings
from cumulus.config import parse_config
from cumulus.index import in_use
from cumulus.index.api import IndexFailure
from cumulus.index.in_use import InUse, alone
from cumulus.index.registry import make_admin, make_index
from cumulus.index.revision import HEAD
from cumulus.secrets import Keyring
from sector.errors import BadConfig
from sector.master.store import SqlStore
from sector.revisions import revision_of, upgrade


def master(path: Path) -> None:
    """A master's database."""
    engine = sector.master.store.make_engine(path)
    sector.master.store.migrate(engine, path)
    engine.dispose()


def security(path: Path) -> None:
    """A security server's."""
    database = sector.security.store.Database(path)
    database.open()
    database.close()


def index(path: Path) -> None:
    """Cumulus's."""
    engine = cumulus.index.schema.sqlite_engine(path)
    cumulus.index.schema.migrate(engine, path)
    engine.dispose()


@dataclass(frozen=True)
class Kind:
    """Where the tables of a service come from."""

    module: Any
    make: Callable[[Path], None]

    @property
    def migrations(self) -> Path:
        """Their directory."""
        return Path(self.module.__file__).with_name("migrations")


KINDS = {
    "master": Kind(sector.master.store, master),
    "security": Kind(sector.security.store, security),
    "cumulus": Kind(cumulus.index.schema, index),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each service's."""
    return KINDS[request.param]


def condition(index: Any) -> str:
    """Of an index over some rows only."""
    return str(index["dialect_options"].get("sqlite_where", ""))


def shape(engine: Engine) -> dict[str, tuple[Any, ...]]:
    """All that there is of tables, in an order that does not depend on how they came about."""
    at = inspect(engine)
    return {
        table: (
            str(at.get_columns(table)),
            sorted(
                (one["name"], one["unique"], one["column_names"], condition(one))
                for one in at.get_indexes(table)
            ),
            sorted(map(str, at.get_unique_constraints(table))),
            sorted(map(str, at.get_foreign_keys(table))),
            at.get_pk_constraint(table)["constrained_columns"],
        )
        for table in at.get_table_names()
    }


def test_a_new_database_is_what_the_migrations_make(kind: Kind, tmp_path: Path) -> None:
    kind.make(tmp_path / "new.db")
    new, old = (create_engine(f"sqlite:///{tmp_path}/{name}.db") for name in ("new", "old"))
    with old.begin() as connection:
        upgrade(connection, kind.migrations)
    assert shape(new) == shape(old)
    with new.connect() as one, old.connect() as two:
        assert revision_of(one) == revision_of(two) == kind.module.HEAD
    for engine in (new, old):
        engine.dispose()


def test_the_newest_revision_is_the_one_that_is_named(kind: Kind) -> None:
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(kind.migrations))
    assert ScriptDirectory.from_config(settings).get_current_head() == kind.module.HEAD


def test_an_empty_database_whose_migrations_were_taken_back_is_made_again(kind: Kind, tmp_path: Path) -> None:
    """What alembic leaves is its own table without a line."""
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        assert revision_of(connection) is None
    kind.make(tmp_path / "x.db")
    with engine.connect() as connection:
        assert revision_of(connection) == kind.module.HEAD
    engine.dispose()


def test_an_upload_of_before_is_nobodys(tmp_path: Path) -> None:
    """It can be claimed, completed and aborted as a new one."""
    engine = create_engine(f"sqlite:///{tmp_path}/c.db")
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(KINDS["cumulus"].migrations))
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "0003")
        connection.exec_driver_sql("INSERT INTO uploads VALUES ('u', 'b', x'6b', 1, x'')")
        connection.exec_driver_sql("INSERT INTO ledger VALUES ('b', 0, 0, 0)")
    engine.dispose()
    made, _ = make_index(f"sqlite:///{tmp_path}/c.db", Keyring.create(tmp_path / "key"))
    assert made.claim_upload("u", "one", 60.0) and not made.claim_upload("u", "two", 60.0)
    assert made.drop_upload("u", None, "one")
    made.close()
    assert (tmp_path / "c.db.0003.bak").exists()


def test_of_two_who_upgrade_at_once_the_copy_is_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service and a command, say, after a new version was installed. Who came second copied what the first
    had upgraded already over the copy of what was before."""
    path = tmp_path / "c.db"
    engine = create_engine(f"sqlite:///{path}")
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(KINDS["cumulus"].migrations))
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "0003")
    engine.dispose()
    keyring = Keyring.create(tmp_path / "key")

    def slow(connection: Any) -> str | None:
        found = revision_of(connection)
        monkeypatch.setattr(cumulus.index.schema, "revision_of", revision_of)
        make_index(f"sqlite:///{path}", keyring)[0].close()  # meanwhile
        return found

    monkeypatch.setattr(cumulus.index.schema, "revision_of", slow)
    make_index(f"sqlite:///{path}", keyring)[0].close()
    with closing(sqlite3.connect(tmp_path / "c.db.0003.bak")) as copy:
        assert copy.execute("SELECT version_num FROM alembic_version").fetchall() == [("0003",)]
    assert (tmp_path / "c.db.0003.bak").stat().st_mode & 0o777 == 0o600


def opened(name: str, path: Path) -> Callable[[], Any]:
    """The service has its database open, until what is returned is called."""
    if name == "master":
        store = SqlStore(path)
        store.open()
        store.write(lambda tx: tx.set("one", 1))
        return store.close
    if name == "security":
        database = sector.security.store.Database(path)
        database.open()
        return database.close
    return make_index(f"sqlite:///{path}", Keyring.create(path.with_name("key")))[0].close


def older(kind: Kind, path: Path) -> None:
    """A database of the first revision."""
    engine = create_engine(f"sqlite:///{path}")
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(kind.migrations))
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, "0001")
    engine.dispose()


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """Files are readable by all unless somebody sees to it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def for_others(folder: Path) -> list[str]:
    """Files that other accounts can read."""
    return sorted(file.name for file in folder.iterdir() if file.stat().st_mode & 0o077)


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize("age", ["new", "older"])
@pytest.mark.parametrize("name", KINDS)
def test_no_other_account_can_read_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, age: str
) -> None:
    """Nor its log, nor the copy of what was before, at no time: they are not closed only afterwards."""
    folder = tmp_path / "data"
    path = folder / "x.db"
    if name == "cumulus" or age == "older":
        folder.mkdir(mode=0o700)
    if age == "older":
        older(KINDS[name], path)
        path.chmod(0o600)
        monkeypatch.setattr(sector.security.store, "HEAD", "0002")
    monkeypatch.setattr(os, "chmod", lambda *_args, **_more: None)
    close = opened(name, path)
    assert for_others(tmp_path) == for_others(folder) == []
    assert path.with_name("x.db-wal").exists() or name != "master"
    assert path.with_name("x.db.0001.bak").exists() == (age == "older")
    close()


@pytest.mark.usefixtures("usual_umask")
def test_what_an_older_master_left_open_to_others_is_closed(tmp_path: Path) -> None:
    older(KINDS["master"], tmp_path / "x.db")
    for name in ("x.db.0000.bak", "x.db.lock"):
        (tmp_path / name).write_bytes(b"")
    assert for_others(tmp_path) == ["x.db", "x.db.0000.bak", "x.db.lock"]
    close = opened("master", tmp_path / "x.db")
    assert for_others(tmp_path) == []
    close()


def version(path: Path) -> str:
    """Of the tables in a file."""
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def of_revision(path: Path, revision: str) -> None:
    """A database of Cumulus as an older version left it."""
    engine = create_engine(f"sqlite:///{path}")
    settings = AlembicConfig()
    settings.set_main_option("script_location", str(KINDS["cumulus"].migrations))
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        alembic.command.upgrade(settings, revision)
    engine.dispose()


def test_tables_are_not_changed_under_a_service_that_uses_them(tmp_path: Path) -> None:
    """By no command of a newer version, nor by a service; neither is there a copy. Looking at them changes
    nothing either."""
    path = tmp_path / "cumulus.db"
    of_revision(path, "0004")
    keyring = Keyring.create(tmp_path / "secret.key")
    older = [InUse(path), InUse(path)]
    for opened in (make_admin, make_index):
        with pytest.raises(IndexFailure, match="a service of an older version uses it; stop it first"):
            opened(f"sqlite:///{path}", keyring)
    config = parse_config("", str(tmp_path / "cumulus.toml"))
    for _ in range(2):
        found = {one.check: one for one in findings(config, None)}
        told = found["database"]
        assert (told.state, "version 0004" in told.text) == ("warning", True) and told.hint
        for one in older:
            one.close()
    assert version(path) == "0004" and not list(tmp_path.glob("*.bak"))
    index, directory = make_index(f"sqlite:///{path}", keyring)
    assert version(path) == HEAD and (tmp_path / "cumulus.db.0004.bak").exists()
    with pytest.raises(IndexFailure, match="stop it first"), alone(path):
        pass
    make_admin(f"sqlite:///{path}", keyring).close()
    index.close()
    directory.close()
    with alone(path):
        pass
    assert (tmp_path / "cumulus.db.lock").stat().st_mode & 0o777 == 0o600


def test_who_changes_the_tables_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By others who would do it too, and for a while by who wants to use them."""
    path = tmp_path / "cumulus.db"
    path.touch()
    done: list[bool] = []

    def change() -> None:
        with alone(path):
            done.append(True)

    with alone(path):
        other = threading.Thread(target=change)
        other.start()
        monkeypatch.setattr(in_use, "BUSY_MS", 300)
        with pytest.raises(IndexFailure, match="are being upgraded"):
            InUse(path)
        assert not done
    other.join(10)
    assert done


def test_tables_of_a_newer_program_are_not_copied(tmp_path: Path) -> None:
    """Each try to open them would leave one, over the last."""
    path = tmp_path / "cumulus.db"
    of_revision(path, "0005")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    keyring = Keyring.create(tmp_path / "secret.key")
    service = InUse(path)
    with pytest.raises(IndexFailure, match="written by another version"):
        make_admin(f"sqlite:///{path}", keyring)
    service.close()
    assert not list(tmp_path.glob("*.bak"))
    config = parse_config("", str(tmp_path / "cumulus.toml"))
    assert {one.state for one in findings(config, None) if one.check == "database"} == {"failed"}


def test_a_database_on_a_disk_without_room_for_the_lock_is_used(tmp_path: Path) -> None:
    path = tmp_path / "cumulus.db"
    path.touch()
    (tmp_path / "cumulus.db.lock").mkdir()
    InUse(path).close()
    with pytest.raises(IsADirectoryError), alone(path):
        pass


def test_a_master_refuses_the_database_of_a_newer_program_and_lets_go_of_it(tmp_path: Path) -> None:
    master(tmp_path / "m.db")
    engine = create_engine(f"sqlite:///{tmp_path}/m.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    for _ in range(2):
        with pytest.raises(BadConfig, match="written by another version"):
            sector.master.store.SqlStore(tmp_path / "m.db", None).open()


def test_services_start_without_alembic(tmp_path: Path) -> None:
    """It would take each of their processes a third of a second."""
    program = f"""
import sys
from pathlib import Path
import cumulus.service, sector.master.whole, sector.security.service
from cumulus.admin.doctor import findings
from cumulus.config import parse_config
from cumulus.index import in_use
from cumulus.index.api import IndexFailure
from cumulus.index.in_use import InUse, alone
from cumulus.index.registry import make_admin, make_index
from cumulus.index.revision import HEAD
from cumulus.secrets import Keyring
make_index("sqlite:///{tmp_path}/c.db", Keyring.create(Path("{tmp_path}/key")))
sys.exit("alembic" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
