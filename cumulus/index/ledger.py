"""The quota ledger in the memory of the writing process: what is used, what is reserved, what may be.

Used bytes and objects of each bucket are in the database and change in the transaction that changes the rows;
what a user holds is the sum over his buckets, what a group holds the sum over its members. Sums are kept here
for a moment and follow each commit. Reservations are here only: they end with the process, as the uploads
do that they were made for.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from cumulus.index.api import OverQuota, Reservation, Usage

Scope = Literal["user", "group", "bucket"]
MOST: Final = 10_000  # buckets whose sums are kept
_NS: Final = 10**9


@dataclass(slots=True)
class Limits:
    """0 = no limit."""

    hard_bytes: int = 0
    hard_objects: int = 0
    soft_bytes: int = 0
    soft_objects: int = 0
    grace_s: int = 0
    over_soft_since_ns: int = 0

    def any(self) -> bool:
        """Whether there is one."""
        return bool(self.hard_bytes or self.hard_objects or self.soft_bytes or self.soft_objects)

    def over_soft(self, size: int, objects: int) -> bool:
        """Whether that is more than a soft limit allows."""
        return bool(
            (self.soft_bytes and size > self.soft_bytes)
            or (self.soft_objects and objects > self.soft_objects)
        )


@dataclass(slots=True)
class Charge:
    """The sums of one bucket, user (`key` is his id, `name` his name) or group. `held` are bytes of parts of
    uploads in progress."""

    scope: Scope
    key: str
    name: str
    used: int = 0
    objects: int = 0
    held: int = 0
    reserved: int = 0
    reserved_objects: int = 0
    limits: Limits = field(default_factory=Limits)

    def check(self, size: int, objects: int, now_ns: int) -> None:
        """Raises `OverQuota` when that much more does not fit."""
        limits = self.limits
        late = limits.over_soft_since_ns > 0 and now_ns - limits.over_soft_since_ns > limits.grace_s * _NS
        pending = self.held + self.reserved
        if size:
            self._check("bytes", self.used, pending, size, limits.hard_bytes)
            if late:
                self._check("bytes", self.used, pending, size, limits.soft_bytes)
        if objects:
            self._check("objects", self.objects, self.reserved_objects, objects, limits.hard_objects)
            if late:
                self._check("objects", self.objects, self.reserved_objects, objects, limits.soft_objects)

    def _check(
        self, what: Literal["bytes", "objects"], used: int, pending: int, more: int, limit: int
    ) -> None:
        if limit and used + pending + more > limit:
            raise OverQuota(self.scope, self.name, what, used, pending, limit)

    def usage(self) -> Usage:
        """As the floors above see it; parts of uploads in progress count as reserved."""
        limits = self.limits
        return Usage(
            scope=self.scope,
            name=self.name,
            bytes=self.used,
            objects=self.objects,
            reserved_bytes=self.held + self.reserved,
            reserved_objects=self.reserved_objects,
            hard_bytes=limits.hard_bytes,
            hard_objects=limits.hard_objects,
            soft_bytes=limits.soft_bytes,
            soft_objects=limits.soft_objects,
            grace_s=limits.grace_s,
            over_soft_since_ns=limits.over_soft_since_ns,
        )


@dataclass(slots=True)
class _Held:
    charges: tuple[tuple[Scope, str], ...]
    bytes: int
    objects: int


class Ledger:
    """Safe for all threads. `loaded` and `committed` are called by the thread that writes, between
    transactions, so that no commit is missed or counted twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._charges: dict[tuple[Scope, str], Charge] = {}
        self._buckets: dict[str, tuple[float, tuple[Charge, ...]]] = {}
        self._held: dict[int, _Held] = {}
        self._ids = itertools.count(1)

    def known(self, bucket: str, since: float) -> bool:
        """Whether sums of the bucket were loaded after `since` (monotonic seconds)."""
        entry = self._buckets.get(bucket)
        return entry is not None and entry[0] >= since

    def loaded(self, bucket: str, at: float, charges: Sequence[Charge]) -> tuple[Charge, ...]:
        """Take in sums and limits as the database has them. Returns the charges with what is reserved."""
        with self._lock:
            if len(self._buckets) >= MOST:
                self._buckets.clear()
                self._charges.clear()
            kept = tuple(self._merge(charge) for charge in charges)
            self._buckets[bucket] = (at, kept)
            return kept

    def _merge(self, new: Charge) -> Charge:
        key = (new.scope, new.key)
        old = self._charges.get(key)
        if old is None:
            held = [one for one in self._held.values() if key in one.charges]
            new.reserved = sum(one.bytes for one in held)
            new.reserved_objects = sum(one.objects for one in held)
            self._charges[key] = new
            return new
        old.name, old.limits = new.name, new.limits
        old.used, old.objects, old.held = new.used, new.objects, new.held
        return old

    def reserve(self, bucket: str, size: int, objects: int, now_ns: int) -> Reservation | None:
        """Hold room; None when the bucket's sums are not known. Raises `OverQuota`."""
        with self._lock:
            entry = self._buckets.get(bucket)
            if entry is None:
                return None
            for charge in entry[1]:
                charge.check(size, objects, now_ns)
            keys = tuple((charge.scope, charge.key) for charge in entry[1])
            made = next(self._ids)
            self._held[made] = _Held(keys, size, objects)
            for charge in entry[1]:
                charge.reserved += size
                charge.reserved_objects += objects
            limited = any(charge.limits.any() for charge in entry[1])
            return Reservation(id=made, bucket=bucket, bytes=size, objects=objects, limited=limited)

    def grow(self, id: int, size: int, now_ns: int) -> bool:
        """Hold more; False when there is no such reservation (any more). Raises `OverQuota`."""
        with self._lock:
            held = self._held.get(id)
            if held is None:
                return False
            charges = [self._charges[key] for key in held.charges if key in self._charges]
            for charge in charges:
                charge.check(size, 0, now_ns)
            held.bytes += size
            for charge in charges:
                charge.reserved += size
            return True

    def release(self, id: int) -> None:
        """Give back; without effect when it was given back."""
        with self._lock:
            self._release(id)

    def _release(self, id: int) -> None:
        held = self._held.pop(id, None)
        if held is None:
            return
        for key in held.charges:
            charge = self._charges.get(key)
            if charge is not None:
                charge.reserved -= held.bytes
                charge.reserved_objects -= held.objects

    def committed(self, deltas: dict[str, list[int]], settled: Sequence[int]) -> None:
        """A transaction is durable: its sums are used now, its reservations are given back, at once."""
        with self._lock:
            for bucket, (size, objects, held) in deltas.items():
                entry = self._buckets.get(bucket)
                if entry is None:
                    self._buckets.clear()  # whose sums these are is not known here: all are loaded anew
                    continue
                for charge in entry[1]:
                    charge.used += size
                    charge.objects += objects
                    charge.held += held
            for id in settled:
                self._release(id)

    def forget(self, bucket: str | None = None) -> None:
        """Load the bucket's sums (None: all) anew when they are needed next."""
        with self._lock:
            if bucket is None:
                self._buckets.clear()
            else:
                self._buckets.pop(bucket, None)

    def reserved(self, scope: Scope, key: str) -> tuple[int, int]:
        """(bytes, objects) that are reserved in one charge."""
        with self._lock:
            found = [one for one in self._held.values() if (scope, key) in one.charges]
            return sum(one.bytes for one in found), sum(one.objects for one in found)

    def __len__(self) -> int:
        return len(self._held)
