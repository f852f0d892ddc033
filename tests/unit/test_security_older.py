"""An older copy of the security server's database is put back."""

from __future__ import annotations

import shutil
from pathlib import Path

from sector.security.core import NodeRecord, UserRecord
from sector.security.store import Database


def test_what_changes_in_an_older_database_put_back_is_news(tmp_path: Path) -> None:
    now = [1.8e9]
    database = Database(tmp_path / "security.db", lambda: now[0])
    database.open()
    database.user_add(UserRecord("mallory", "hash", ("user",), (), (), 0, 1.0), "x", 1.0)
    database.close()
    shutil.copy(tmp_path / "security.db", tmp_path / "copy.db")
    database = Database(tmp_path / "security.db", lambda: now[0])
    database.user_password("mallory", "later", "x", 1.0)
    database.node_set(NodeRecord("slave", "s1", ()), "x", 1.0)
    before = database.user("mallory")
    known = database.changes(0)[0]
    assert database.changes(known) == (known, {}, [])
    database.close()
    shutil.copy(tmp_path / "copy.db", tmp_path / "security.db")
    database, now[0] = Database(tmp_path / "security.db", lambda: now[0]), now[0] + 60
    again, found, _ = database.changes(known)
    assert again < known and set(found) == {"user:mallory"}  # all is told to who knows more
    database.user_password("mallory", "newest", "x", 1.0)
    serial, found, _ = database.changes(known)
    assert serial > known and before is not None and found["user:mallory"] > before.rights_epoch
    database.close()
