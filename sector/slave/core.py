"""Rules of a slave's transfers: epochs, one-use tickets, limits, what a publish answer means. Pure.

Callers give `now` in seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from sector import errors

START_S = 60.0
"""Seconds a ticket waits for its other end at most (spec/security.md)."""


@dataclass(frozen=True, slots=True)
class Open:
    """A transfer under way. `kind` is "read", "write", "replica" (a copy comes in) or "copy" (it leaves)."""

    ticket_id: bytes
    kind: str
    path: str
    size: int
    since: float


class SlaveCore:
    """Which commands and tickets a slave accepts."""

    def __init__(self, slave_id: str, limit: int, start_s: float = START_S) -> None:
        """At most `limit` transfers at once; a ticket waits `start_s` for its other end."""
        self.start_s = start_s
        self.slave_id = slave_id
        self.epoch = 0
        self.open: dict[bytes, Open] = {}
        self.moved_bytes = 0
        self.finished = 0
        self.failed = 0
        self._limit = limit
        self._used: dict[bytes, float] = {}

    def command(self, epoch: int) -> None:
        """A command of a master with this epoch. Raises Conflict for one that a newer leader replaced."""
        if epoch < self.epoch:
            raise errors.Conflict(
                f"slave {self.slave_id} refuses a command of epoch {epoch}; it has seen epoch {self.epoch}",
                hint="another master leads now",
            )
        self.epoch = epoch

    def joined(self, epoch: int) -> None:
        """A master admitted this slave over TLS and told its epoch; a rebuilt one may begin anew."""
        self.epoch = epoch

    def begin(self, ticket_id: bytes, kind: str, path: str, size: int, now: float) -> Open:
        """A new transfer. Raises Conflict (this ticket came before), Busy (at the limit; or a copy of a path
        of which one comes in already: two of the same version would share one record)."""
        while self._used:  # in order of their time: one look at the oldest, not at all of them
            oldest = next(iter(self._used))
            if self._used[oldest] >= now:
                break
            del self._used[oldest]
        if ticket_id in self.open or ticket_id in self._used:
            raise errors.Conflict("this ticket was used before")
        if len(self.open) >= self._limit:
            raise errors.Busy(f"slave {self.slave_id} has {self._limit} transfers under way, its limit")
        if kind == "replica" and any(t.kind == kind and t.path == path for t in self.open.values()):
            raise errors.Busy(f"slave {self.slave_id} receives {path} already")
        transfer = Open(ticket_id, kind, path, size, now)
        self.open[ticket_id] = transfer
        return transfer

    def end(self, transfer: Open, now: float, moved: int, good: bool) -> None:
        """A transfer ended; its ticket stays refused for twice its time to start."""
        if self.open.pop(transfer.ticket_id, None) is None:
            return
        self._used[transfer.ticket_id] = now + 2 * START_S
        self.moved_bytes += moved
        if good:
            self.finished += 1
        else:
            self.failed += 1

    def busy_with(self, path: str) -> bool:
        """Whether content of `path` comes in right now."""
        return any(t.path == path and t.kind in ("write", "replica") for t in self.open.values())

    def counters(self) -> dict[str, int]:
        """For `sector status`."""
        return {
            "transfers": len(self.open),
            "transfers_done": self.finished,
            "transfers_failed": self.failed,
            "bytes_moved": self.moved_bytes,
        }

    def check_invariants(self) -> None:
        """Raises AssertionError if the state is impossible."""
        assert len(self.open) <= self._limit
        assert not self.open.keys() & self._used.keys()
        assert all(key == transfer.ticket_id for key, transfer in self.open.items())


_FINAL = (
    errors.LeaseLost,
    errors.Conflict,
    errors.Denied,
    errors.SessionExpired,
    errors.Exists,
    errors.NotFound,
    errors.IsDirectory,
    errors.NotDirectory,
    errors.NoSpace,
    errors.BadPath,
    errors.Damaged,
)


def is_final(error: errors.SectorError) -> bool:
    """Whether a refused Publish is the master's last word. Anything else (no answer, busy, rebuilding) is
    asked again while the lease lasts: the master says `lease_lost` when it is over (design section 12)."""
    return isinstance(error, _FINAL)


def retry_delay(attempt: int, jitter: float, *, first_s: float = 0.25, most_s: float = 5.0) -> float:
    """Seconds before attempt number `attempt` + 1; doubles up to `most_s`; `jitter` is in 0..1."""
    base = min(most_s, first_s * float(2 ** min(attempt, 20)))
    return base * (0.5 + 0.5 * jitter)
