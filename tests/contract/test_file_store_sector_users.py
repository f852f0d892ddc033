"""Storage in a Sector cloud in the names of Cumulus users: the suite of all backends as one of them, and who
may do what and owns what when there are several."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_file_store
import test_file_store_names
from file_stores import get, put
from test_file_store_sector import call, lighter

from cumulus.backends.registry import make_sector
from cumulus.backends.sector_link import UserLink
from cumulus.backends.sector_store import SectorStore
from cumulus.storage.api import Forbidden, Unavailable
from sector import errors

pytestmark = pytest.mark.reactor_thread

from cluster import Cluster, running  # noqa: E402  (test_file_store_sector has made it importable)

for module in (test_file_store, test_file_store_names):
    globals().update({n: lighter(test) for n, test in vars(module).items() if n.startswith("test_")})


@pytest.fixture
def ease() -> int:
    """A quarter of the work."""
    return 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the account cumulus (rw on /s3), alice (rw on /s3), bob (rw on /s3/bobs, r on /s3/b)."""
    with running(tmp_path_factory.mktemp("cloud"), slaves=1) as started:
        password = started.dir / "password"
        password.write_text("a long password")
        for name, *options in (("cumulus", "--service"), ("alice",), ("bob",)):
            started.ok("user", "add", name, "--password-file", str(password), *options)
        for name, path, rights in (
            ("cumulus", "/s3", "rw"),
            ("alice", "/s3", "rw"),
            ("bob", "/s3/bobs", "rw"),
            ("bob", "/s3/b", "r"),
        ):
            started.ok("grant", name, path, rights)
        yield started


def service_settings(cluster: Cluster, name: str = "cumulus") -> Path:
    """A client's settings file of the account."""
    mine = (cluster.dir / "client.toml").read_text()
    kept = [line for line in mine.splitlines() if line.startswith(("[client]", "masters", "ca"))]
    path = cluster.dir / f"{name}.toml"
    path.write_text("\n".join([*kept, f'user = "{name}"', 'password_file = "password"\n']))
    return path


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[SectorStore]:
    """One connection of the account for all tests of this file; two users at once."""
    made = make_sector(str(service_settings(cluster)), 2)
    assert isinstance(made, SectorStore) and made.capabilities.users
    yield made
    made.close()


@pytest.fixture
def store(service: SectorStore) -> Iterator[SectorStore]:
    """As alice, with one empty bucket, "b"."""
    mine = service.for_user("alice")
    assert isinstance(mine._link, UserLink) and mine.for_user("bob") is mine
    mine.create_bucket("b")
    yield mine
    for _ in range(50):  # leases that are being given back
        try:
            return call(service, lambda client: client.rm("/s3", recursive=True))
        except Unavailable:
            threading.Event().wait(0.05)
    raise AssertionError("/s3 cannot be emptied")


def owner(service: SectorStore, path: str) -> str:
    """Of a path of the cloud."""
    return str(call(service, lambda client: client.stat(path)).owner)


def test_files_belong_to_who_made_them(service: SectorStore, store: SectorStore) -> None:
    """Buckets and records too; a file that is replaced keeps its owner; /s3 is the service's."""
    bob = service.for_user("bob")
    bob.create_bucket("bobs")
    put(store, "dir/a", b"hers")
    stream = bob.open_write("bobs", "x")
    stream.write(memoryview(b"his"))
    stream.commit(b"m")
    assert [owner(service, f"/s3/{path}") for path in ("b", "b/dir", "b/dir/a")] == ["alice"] * 3
    assert [owner(service, f"/s3/{path}") for path in ("bobs", "bobs/x", "bobs/.cumulus/meta")] == ["bob"] * 3
    assert owner(service, "/s3") == "cumulus"
    writer = store.open_write("bobs", "x")
    writer.write(memoryview(b"replaced by alice"))
    writer.commit(b"m")
    assert owner(service, "/s3/bobs/x") == "bob"


def test_what_sector_refuses_is_forbidden(service: SectorStore, store: SectorStore) -> None:
    """bob may read alice's bucket and change nothing there; an own bucket only where he has the right."""
    bob = service.for_user("bob")
    with pytest.raises(Forbidden):
        bob.delete_bucket("b")
    entry = put(store, "a", b"hers", b"meta")
    assert get(bob, "a") == b"hers" and bob.stat("b", "a").meta == b"meta"
    with pytest.raises(Forbidden, match="user bob may not change"):
        put(bob, "a", b"his")
    with pytest.raises(Forbidden):
        bob.delete("b", "a")
    with pytest.raises(Forbidden):
        bob.set_meta("b", "a", b"his", entry.token)
    with pytest.raises(Forbidden):
        bob.create_bucket("another")
    assert store.stat("b", "a") == entry
    store.create_bucket("hers")
    with pytest.raises(Forbidden, match="user bob may not read"):
        bob.names("hers")
    # what the store holds of her records is not his to read
    put(store, "c", b"hers", b"secret meta")
    call(service, lambda client: client.mv("/s3/b", "/s3/moved"))
    with pytest.raises(Forbidden):
        bob.stat("moved", "c")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nobody", "nobody cannot act in Sector: there is no user nobody"),
        ("", "somebody unknown cannot act in Sector"),
        ("n" * 200, "that is no name of a user of Sector"),
    ],
)
def test_users_unknown_to_sector_are_refused_in_one_line(
    service: SectorStore, store: SectorStore, name: str, why: str
) -> None:
    """Soon, and for some seconds without asking again."""
    unknown = service.for_user(name)
    for _ in range(2):
        with pytest.raises(Forbidden, match=why) as told:
            unknown.stat("b", "a")
        assert "\n" not in str(told.value)
    begin = time.monotonic()
    for _ in range(20):
        with pytest.raises(Forbidden):
            unknown.create_bucket("b")
    assert time.monotonic() - begin < 5


def test_more_users_than_connections_take_turns(service: SectorStore, store: SectorStore) -> None:
    """Two at once; the sessions of those that went have ended."""
    put(store, "a", b"x")
    users = ["alice", "bob", "cumulus"]
    failed: list[BaseException] = []

    def work(user: str) -> None:
        try:
            for _ in range(5):
                assert get(service.for_user(user), "a") == b"x"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(user,)) for user in users * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    live = call(service, lambda client: client.status()).counters["sessions"]
    link = service._link
    assert not isinstance(link, UserLink) and link._users is not None and len(link._users) <= 2
    assert live <= 5  # admin's commands, the service, two users, one that is ending


def test_an_account_without_the_role_acts_for_nobody(cluster: Cluster, store: SectorStore) -> None:
    """Its own work goes on."""
    plain = make_sector(str(service_settings(cluster, "alice")), 2)
    try:
        with pytest.raises(Forbidden, match="user alice has not the role service"):
            plain.for_user("bob").stat("b", "a")
        put(store, "a", b"x")
        assert plain.stat("b", "a").size == 1
    finally:
        plain.close()


def test_an_account_that_cannot_log_in_is_unavailable(cluster: Cluster, store: SectorStore) -> None:
    """That is not the user's doing: 503, not 403."""
    path = service_settings(cluster, "carol")
    away = make_sector(str(path), 2)
    with pytest.raises(Unavailable):
        away.for_user("alice").stat("b", "a")
    away.close()


def test_a_session_that_cannot_be_ended_hinders_nothing(
    service: SectorStore, store: SectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends by itself after its time."""
    from sector.client.door import TlsDoor

    async def refuse(self: TlsDoor, session_id: bytes, secret: bytes) -> None:
        raise errors.Unreachable("connection refused")

    monkeypatch.setattr(TlsDoor, "logout", refuse)
    put(store, "a", b"x")
    for user in ("bob", "cumulus", "alice", "bob"):
        assert get(service.for_user(user), "a") == b"x"


def test_without_the_setting_there_is_one_user(cluster: Cluster) -> None:
    """The store of the account itself, for any name."""
    plain = make_sector(str(service_settings(cluster)))
    assert not plain.capabilities.users and plain.for_user("alice") is plain
    plain.close()
