"""Room in quotas that is held by the processes of several servers at once: rows in PostgreSQL that belong to
a holder, which is a process.

A holder's row says until when it lives, by the database's clock, and is renewed while there are reservations.
What a dead process has held is free when its time is over. A process that could not renew in time (the
database was away, or it stood still) reserves all it holds again as a new holder; what does not fit any more
is lost, and `confirm` says so before anything is published.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
import psycopg

from cumulus.index.api import Away, IndexFailure, NoSuch, OverQuota, Reservation
from cumulus.index.combine import Combiner
from cumulus.index.postgres_pool import Connection, Pool, failure

LIFE_S: Final = 10.0
_TURNS: Final = 5  # renewals in the life of a holder
_OVER: Final = "CU001"  # the state that `cumulus_reserve` gives when the holder's time is over
_RESERVE: Final = "SELECT * FROM cumulus_reserve($1::bigint, $2::json, $3::bigint)"
_encoder = msgspec.json.Encoder()


class _Request(msgspec.Struct, frozen=True):
    """What `cumulus_reserve` takes; `id` is that of a reservation that grows, or 0."""

    id: int
    bucket: str
    bytes: int
    objects: int
    scopes: msgspec.Raw


class Leases:
    """The reservations of this process. `scopes` gives what a bucket is charged to, as `cumulus_sums` takes
    it; `name_of` is how people call a scope's name. `clock` is for the grace of soft limits (ns). Safe for
    all threads."""

    def __init__(
        self,
        pool: Pool,
        scopes: Callable[[str], bytes],
        name_of: Callable[[str, str], str],
        clock: Callable[[], int] = time.time_ns,
        life_s: float = LIFE_S,
    ) -> None:
        self._pool = pool
        self._scopes = scopes
        self._name_of = name_of
        self._clock = clock
        self.life_s = life_s
        self._holder = 0
        self._until = 0.0  # monotonic time until which the holder lives at least
        self._doubtful = False  # its rows may not be those of `_live`
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._live: dict[int, Reservation] = {}
        self._lost: dict[int, OverQuota | NoSuch] = {}
        self._unreleased: set[int] = set()
        self._combiner: Combiner[_Request, int | None] = Combiner(self._reserve_all)

    def __len__(self) -> int:
        return len(self._live)

    @property
    def batches(self) -> int:
        """Transactions that reserved something, so far."""
        return self._combiner.batches

    def _request(self, id: int, bucket: str, size: int, objects: int) -> _Request:
        return _Request(id, bucket, size, objects, msgspec.Raw(self._scopes(bucket)))

    def hold(self, reservation: Reservation) -> None:
        """Hold what the reservation says, from now on; its id stays 0 where no quota is set. Raises
        `OverQuota`, `Away`."""
        asked = self._request(0, reservation.bucket, reservation.bytes, reservation.objects)
        made = self._combiner.do(asked)
        if made:
            with self._lock:
                reservation.id = made
                self._live[made] = reservation

    def grow(self, reservation: Reservation, size: int) -> None:
        """Hold more; without effect when it has ended. Raises `OverQuota`, `Away`."""
        self.confirm(reservation)
        if reservation.id not in self._live:
            return
        if self._combiner.do(self._request(reservation.id, reservation.bucket, size, 0)):
            reservation.bytes += size
        elif reservation.id in self._live:  # its row went in this moment
            self._renew(anew=True)
            self.grow(reservation, size)

    def confirm(self, reservation: Reservation) -> None:
        """It is still held, for some seconds at least. Raises `OverQuota` when it is lost, `NoSuch` where its
        bucket has gone, `Away`."""
        sure = not self._doubtful and time.monotonic() <= self._until - self.life_s / 2
        if reservation.id in self._live and not sure:
            self._renew()
        lost = self._lost.get(reservation.id)
        if lost is not None:
            raise lost

    def settled(self, reservation: Reservation, id: int) -> None:
        """The row `id` went in a transaction that is durable; meanwhile it may have got another one."""
        with self._lock:
            mine = self._live.pop(reservation.id, None)
            self._lost.pop(reservation.id, None)
            if mine is not None and reservation.id != id:
                self._unreleased.add(reservation.id)

    def release(self, reservation: Reservation) -> None:
        """Give back; later when the database is away now."""
        with self._lock:
            mine = self._live.pop(reservation.id, None)
            self._lost.pop(reservation.id, None)
            if mine is not None:
                self._unreleased.add(reservation.id)
        if mine is not None:
            try:
                self._release_all()
            except Away:
                return

    def _release_all(self) -> None:
        with self._lock:
            ids = list(self._unreleased)
        if ids:
            with self._pool.run() as run:
                run("DELETE FROM reservations WHERE id = ANY (?::bigint[])", (ids,))
            with self._lock:
                self._unreleased.difference_update(ids)

    # in the database
    def _reserve_all(self, requests: list[_Request]) -> list[int | BaseException | None]:
        for _ in range(3):
            if self._doubtful or not self._holder:
                self._renew(anew=True)
            holder = self._holder
            with self._pool.connection() as connection:
                try:
                    return self._ask(connection, holder, requests)
                except Away:
                    self._doubtful = True  # it may have been done before the connection broke
                except _TimeIsOver:
                    pass
            if not self._doubtful:
                self._renew(stale=holder)
        raise Away(f"{self._pool.target.where}: reservations run out before they can be used")

    def _renew(self, *, anew: bool = False, stale: int = 0) -> None:
        """Make the holder live on, or become a new one. Raises `Away`."""
        with self._renewing:
            if stale and stale != self._holder:
                return  # another thread has done it
            began = time.monotonic()
            if not (anew or stale or self._doubtful) and self._extend():
                self._until = began + self.life_s
                return
            former, self._doubtful = self._holder, True
            with self._pool.transaction() as run:
                made = run(
                    "INSERT INTO holders (expires) "
                    "VALUES (clock_timestamp() + ?::float8 * interval '1 second') RETURNING id",
                    (self.life_s,),
                ).fetchone()[0]
                run("DELETE FROM holders WHERE id = ?::bigint", (former,))
            self._holder = made
            try:
                self._hold_again()
            except _TimeIsOver:  # it all took longer than a holder lives; the next one tries again
                raise Away(f"{self._pool.target.where}: too slow to hold what is reserved") from None
            self._until, self._doubtful = began + self.life_s, False

    def _extend(self) -> bool:
        with self._pool.run() as run:
            done = run(
                "UPDATE holders SET expires = clock_timestamp() + ?::float8 * interval '1 second' "
                "WHERE id = ?::bigint AND expires > clock_timestamp()",
                (self.life_s, self._holder),
            )
            return bool(done.rowcount)

    def _hold_again(self) -> None:
        """All reservations under the new holder, the oldest first."""
        with self._lock:
            all_live = sorted(self._live.items())
        live: list[tuple[int, Reservation]] = []
        requests: list[_Request] = []
        for id, one in all_live:
            try:
                requests.append(self._request(0, one.bucket, one.bytes, one.objects))
                live.append((id, one))
            except NoSuch as gone:  # what is put into it ends by that, and nothing else
                with self._lock:
                    if self._live.pop(id, None) is not None:
                        self._lost[id] = gone
        if not live:
            return
        with self._pool.connection() as connection:
            made = self._ask(connection, self._holder, requests)
        with self._lock:
            for (id, one), result in zip(live, made, strict=True):
                if self._live.pop(id, None) is None:
                    if isinstance(result, int) and result:
                        self._unreleased.add(result)  # it ended meanwhile
                elif isinstance(result, OverQuota):
                    self._lost[id] = result
                elif isinstance(result, int):
                    one.id = result
                    if result:
                        self._live[result] = one

    def _ask(
        self, connection: Connection, holder: int, requests: list[_Request]
    ) -> list[int | BaseException | None]:
        """The id of each request (None: there is no such reservation), or its refusal. Raises `_TimeIsOver`,
        `Away`."""
        values = (holder, _encoder.encode(requests).decode(), self._clock())
        try:
            found = connection.execute(_RESERVE, values).fetchall()
        except psycopg.Error as bad:
            if bad.sqlstate == _OVER:
                raise _TimeIsOver from None
            raise failure(bad, self._pool.target.where) from None
        return [
            made if scope is None else OverQuota(scope, self._name_of(scope, name), what, used, pending, most)
            for made, scope, name, what, used, pending, most in found
        ]

    # upkeep
    def turn(self) -> None:
        """What is to be done `_TURNS` times in a holder's life. Raises `Away`."""
        self._release_all()
        if self._live or self._doubtful:
            self._renew()
        with self._pool.run() as run:
            run("DELETE FROM holders WHERE expires < clock_timestamp() - interval '1 minute'")

    @property
    def every_s(self) -> float:
        """How often `turn` is due."""
        return self.life_s / _TURNS

    def close(self) -> None:
        """Give all back, if the database is there."""
        holder, self._holder = self._holder, 0
        if holder:
            try:
                with self._pool.run() as run:
                    run("DELETE FROM holders WHERE id = ?::bigint", (holder,))
            except IndexFailure:
                return


class _TimeIsOver(Exception):
    """The holder has no time left."""
