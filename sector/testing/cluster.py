"""A whole cluster in one process and in simulated time: master, slaves, clients over in-memory networks.

Everything but TLS, UDP and threads is the real code, with real files below a directory that you give:

>>> with SimCluster(tmp_path, slaves=3) as sim:                      # doctest: +SKIP
...     cloud = sim.client("alice")
...     sim.wait(cloud.write("/a", b"hello"))
...     sim.kill_slave("s1")
...     assert sim.wait(cloud.read("/a")) == b"hello"
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from sector import errors
from sector.client.cloud import CloudClient
from sector.client.session import ClientSession
from sector.config import ClientSection, Config, DataSection, Listen, MasterSection, SlaveSection
from sector.gmp.memory import MemoryGmp, MemoryHub
from sector.master.admission import Admission
from sector.master.replication import CopyRule, CopyRules
from sector.master.service import MasterService
from sector.master.sessions import Sessions
from sector.master.store import SqlStore
from sector.model import Address, Right
from sector.slave.pool import Inline
from sector.slave.service import Slave, make_slave
from sector.testing.data import SimDataNet, SimDataPort
from sector.wire.login import Join, Joined, Session, Verified

T = TypeVar("T")
EPOCH = 1_700_000_000.0
HOST = "127.0.0.1"


class Mortal(Inline):
    """A disk pool in simulated time. It stops working when its slave is killed: what runs then never comes
    back."""

    def __init__(self, clock: Clock, rng: random.Random, disk_s: float) -> None:
        self.dead = False
        self._clock = clock
        self._rng = rng
        self._disk_s = disk_s

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> Deferred[T]:
        if self.dead:
            return Deferred()
        if not self._disk_s:
            return super().run(function, *args, **kwargs)
        done: Deferred[T] = Deferred()

        def work() -> None:
            if self.dead:
                return
            result = Inline.run(self, function, *args, **kwargs)
            self._clock.callLater(self._rng.random() * self._disk_s, tell, result)

        def tell(result: Deferred[T]) -> None:
            if not done.called and not self.dead:
                result.addBoth(done.callback)
            else:
                result.addErrback(lambda _: None)  # nobody waits for it

        self._clock.callLater(self._rng.random() * self._disk_s, work)
        return done


class SimSlave:
    """One slave of a `SimCluster`; `service` is None while it is down."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.service: Slave | None = None
        self.gmp: MemoryGmp | None = None
        self.data: SimDataPort | None = None
        self.pool: Mortal | None = None

    def native(self, path: str) -> Path:
        """The native file of a cloud path."""
        return self.root / "files" / path.lstrip("/")


class SimDoor:
    """Login and resume without TLS: what the master's login service does once the password is checked."""

    def __init__(self, sim: SimCluster, roles: tuple[str, ...]) -> None:
        self._sim = sim
        self._roles = roles

    def _admit(self) -> MasterService:
        sim = self._sim
        service = sim.up()
        wait = (
            sim.admission.admit(sim.clock.seconds(), sim.rng.random(), HOST)
            if sim.admission is not None
            else 0.0
        )
        if wait > 0:
            raise errors.Busy("many clients log in at once", hint=f"try again in {wait:.1f} s")
        return service

    async def login(self, user: str, password: str) -> Session:
        sim, service = self._sim, self._admit()
        verified = Verified(user, list(self._roles), sim.rights_of(user), 1)
        row, secret = service.hub.sessions.create(verified, HOST + "/32")
        await service.hub.store.session_add(row)
        service.hub.gmp.add_key(service.hub.sessions.gmp_key(row))
        return self._granted(service, row, secret)

    async def resume(self, session_id: bytes, secret: bytes) -> Session:
        service = self._admit()
        row = service.hub.sessions.get(session_id)
        if row is None:
            raise errors.SessionExpired("the session has ended")
        service.hub.gmp.add_key(service.hub.sessions.gmp_key(row))
        return self._granted(service, row, b"")

    async def tunnel(self, session_id: bytes, secret: bytes, gmp: Any, blocked: Any, lost: Any) -> Any:
        raise errors.Unreachable("nothing blocks messages in a simulated cluster")

    async def look(self) -> None:
        self._sim.up()

    def _granted(self, service: MasterService, row: Any, secret: bytes) -> Session:
        host, port = service.hub.gmp.address
        return Session(
            row.id,
            secret,
            row.user,
            row.expires,
            service.hub.sessions.master_id,
            Address(host, port),
            row.key_id,
            list(row.roles),
            list(row.rights),
        )


class SimCluster:
    """Master, slaves "s1".."sN" and clients. Time passes only in `advance` and `wait`."""

    def __init__(
        self,
        root: Path,
        slaves: int = 3,
        *,
        copies: int = 3,
        seed: int = 1,
        bytes_per_s: float = 100e6,
        disk_s: float = 0.0,
        scrub_days: float = 14.0,
    ) -> None:
        """`copies` = wanted replicas of each file; `bytes_per_s` = rate of one transfer; each disk operation
        of a slave takes up to `disk_s` seconds before and after it happens; all replicas are read again
        within `scrub_days`."""
        self.root = root
        self.clock = Clock()
        self.wall_ahead = 0.0  # by how much the wall clock was set since, seconds
        self.hub = MemoryHub(self.clock)
        self.net = SimDataNet(self.clock, bytes_per_s)
        self.rng = random.Random(seed)
        self.disk_s = disk_s
        self.scrub_days = scrub_days
        self.rules = CopyRules(CopyRule(minimum=copies))
        self.rights: dict[str, list[Right]] = {}
        self.admission: Admission | None = None  # what rules how many log in at once, if anything
        self.master: MasterService | None = None
        self.clients: list[CloudClient] = []
        self.slaves = {name: SimSlave(name, root / name) for name in (f"s{i + 1}" for i in range(slaves))}
        self._cluster_key = self.rng.randbytes(32)

    def __enter__(self) -> SimCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wall(self) -> float:
        """Simulated seconds since 1970."""
        return EPOCH + self.clock.seconds() + self.wall_ahead

    # ----------------------------------------------------------------------------------------- time
    def advance(self, seconds: float, step: float = 0.02) -> None:
        """Let time pass."""
        end = self.clock.seconds() + seconds
        while self.clock.seconds() < end:
            self.clock.advance(min(step, end - self.clock.seconds()))

    def until(self, condition: Callable[[], Any], limit_s: float = 120.0) -> None:
        """Let time pass until `condition()` is true; AssertionError after `limit_s`."""
        end = self.clock.seconds() + limit_s
        while not condition():
            assert self.clock.seconds() < end, f"did not happen within {limit_s} simulated seconds"
            self.clock.advance(0.005)

    def wait(self, work: Deferred[T] | Coroutine[Any, Any, T], limit_s: float = 600.0) -> T:
        """Let time pass until `work` is done; its result, or its exception raised."""
        outcome: list[Any] = []
        deferred = work if isinstance(work, Deferred) else ensureDeferred(work)
        deferred.addBoth(outcome.append)
        self.until(lambda: outcome, limit_s)
        if isinstance(outcome[0], Failure):
            outcome[0].raiseException()
        result: T = outcome[0]
        return result

    # ------------------------------------------------------------------------------- start and stop
    def start(self) -> None:
        """Start the master and all slaves; returns when all have joined."""
        self.start_master()
        for name in self.slaves:
            self.start_slave(name)
        self.until(lambda: all(s.service and s.service.ready.called for s in self.slaves.values()))

    def stop(self) -> None:
        """Stop clients, slaves, master, in this order."""
        for client in self.clients:
            self.wait(client.close())
        for slave in self.slaves.values():
            if slave.service is not None:
                self.wait(slave.service.stopService())
                slave.service = None
        if self.master is not None:
            self.wait(self.master.stopService())
            self.wait(self.master.hub.gmp.stop())
            self.master = None

    def up(self) -> MasterService:
        """The running master. Raises Unreachable."""
        if self.master is None:
            raise errors.Unreachable("connection to the master refused")
        return self.master

    def start_master(self, *, rebuild: bool = False, rebuild_wait_s: float = 30.0) -> None:
        """Start the master, on the same port and database each time."""
        config = Config(
            listen=Listen(host=HOST, gmp=7002),
            data=DataSection(dir="master"),
            master=MasterSection(id="m1", replication=""),
            path=str(self.root / "master.toml"),
            role="master",
        )
        gmp = self.hub.endpoint(HOST, 7002)
        store = SqlStore(self.root / "master" / "master.db")
        store.open()
        sessions = Sessions("m1", self._cluster_key, self.wall, self.rng.randbytes)
        rows = self.wait(store.session_all())
        sessions.load(rows)
        for row in sessions.rows():
            gmp.add_key(sessions.gmp_key(row))
        self.master = MasterService(
            config,
            self.clock,
            gmp,
            store,
            sessions,
            wall=self.wall,
            rules=self.rules,
            rebuild=rebuild,
            rebuild_wait_s=rebuild_wait_s,
            allow_list=self._allow_list,
        )
        self.master.startService()
        self.wait(self.master.ready)

    async def _allow_list(self) -> list[str]:
        return list(self.slaves)

    def kill_master(self) -> None:
        """The master is gone without a word; its database stays as it is."""
        master, self.master = self.up(), None
        self.wait(master.hub.gmp.stop())
        self.wait(master.stopService())

    def start_slave(self, name: str) -> None:
        """Start a slave on its directory."""
        slave = self.slaves[name]
        slave.gmp = self.hub.endpoint(HOST)
        slave.data = self.net.port(HOST)
        slave.pool = Mortal(self.clock, random.Random(self.rng.random()), self.disk_s)
        config = Config(
            listen=Listen(host=HOST),
            data=DataSection(dir=name),
            slave=SlaveSection(id=name, reserve_mib=0, scrub_days=self.scrub_days),
            path=str(self.root / f"{name}.toml"),
            role="slave",
        )
        slave.service = make_slave(
            config,
            self.clock,
            slave.gmp,
            slave.data,
            None,
            join=self._join,
            pool=slave.pool,
            now=self.wall,
            rng=random.Random(self.rng.random()),
        )
        slave.service.startService()

    async def _join(self, join: Join) -> Joined:
        return await self.up().on_join(join, HOST)

    def kill_slave(self, name: str) -> None:
        """The slave is gone without a word: messages vanish, transfers stall, nothing is written any more."""
        slave = self.slaves[name]
        assert slave.service is not None and slave.gmp is not None
        assert slave.data is not None and slave.pool is not None
        slave.pool.dead = True
        self.net.broken.add(slave.data.address[1])
        self.hub.endpoints.pop(slave.gmp.address, None)
        slave.service.disk.close_thd()
        ended: Any = slave.service.stopService()
        ended.addErrback(lambda _: None)
        slave.service = None

    def stop_slave(self, name: str) -> None:
        """A clean stop."""
        slave = self.slaves[name]
        assert slave.service is not None
        self.wait(slave.service.stopService())
        slave.service = None

    # -------------------------------------------------------------------------------------- clients
    def rights_of(self, user: str) -> list[Right]:
        """Directory rights of a user: all of them, unless `rights` says otherwise."""
        return self.rights.get(user, [Right(user, "/", "rwx")])

    def client(self, user: str = "alice", *, roles: tuple[str, ...] = ()) -> CloudClient:
        """A new connection of `user`, logged in."""
        section = ClientSection(masters=[f"{HOST}:7001"], user=user)
        session = ClientSession(
            self.clock,
            self.hub.endpoint(HOST),
            SimDoor(self, roles),
            section,
            password="any",
            rng=random.Random(self.rng.random()),
        )
        self.wait(session.open())
        client = CloudClient(session, self.net.port(HOST), _run_now)
        self.clients.append(client)
        return client

    def serving(self, path: str) -> list[str]:
        """Slaves that have a native file for the path."""
        return [slave.name for slave in self.slaves.values() if slave.native(path).is_file()]


def _run_now(function: Callable[..., Any], *args: Any) -> Deferred[Any]:
    try:
        return succeed(function(*args))
    except Exception:
        failed: Deferred[Any] = Deferred()
        failed.errback(Failure())
        return failed


def write_random(path: str | os.PathLike[str], size: int, seed: int = 1) -> bytes:
    """Write `size` reproducible bytes to a local file; returns them."""
    content = random.Random(seed).randbytes(size)
    Path(path).write_bytes(content)
    return content
