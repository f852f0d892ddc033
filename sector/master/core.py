"""The master's background mind: event, now -> effects. Slaves come and go, files need copies, rounds run.

Pure: the service feeds events and carries the effects out; their results come back as events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sector.master.membership import LOST, Changed, Load, Membership, Node, Times
from sector.master.replication import CopyRules, CopyTask, DropCopy, Limits, Replicator, is_small
from sector.master.values import FileState

PAGE = 500
REST = 4.0
"""A round over all files is followed by a rest of so many times what it took, unless something happens. The
time in which it waits for a full queue counts for nothing (0282)."""


# events -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SlaveJoined:
    """A slave came (again), with a new key and instance."""

    node: Node


@dataclass(frozen=True, slots=True)
class SlaveBeat:
    """A heartbeat of a known slave."""

    node: str
    load: Load


@dataclass(frozen=True, slots=True)
class ReportEnded:
    """A slave's full report is in the database; `early` = it began before the one that was asked for."""

    node: str
    early: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went on."""


@dataclass(frozen=True, slots=True)
class Look:
    """Replicas of these paths may be too few or too many."""

    paths: Sequence[str]
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """The answer to `LoadFiles`."""

    asked: Sequence[str]
    files: Sequence[FileState]


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """`LoadFiles` failed; the paths stay queued."""

    asked: Sequence[str]


@dataclass(frozen=True, slots=True)
class PageSeen:
    """The answer to `ScanPage`; `next` "" = the end."""

    files: Sequence[FileState]
    next: str


@dataclass(frozen=True, slots=True)
class CopyEnded:
    """A copy task ended; `error` "" = the replica is there; `kept` = the target has a part of it."""

    task: bytes
    error: str = ""
    blame_target: bool = True
    kept: bool = False


@dataclass(frozen=True, slots=True)
class DropStored:
    """The order to drop a replica is in the database (or failed to get there)."""

    path: str
    node: str


Event = (
    SlaveJoined
    | SlaveBeat
    | ReportEnded
    | Tick
    | Look
    | Loaded
    | NotLoaded
    | PageSeen
    | CopyEnded
    | DropStored
)


# effects ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LoadFiles:
    """Read these files with their replicas."""

    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class ScanPage:
    """Read up to PAGE files after a path."""

    after: str


@dataclass(frozen=True, slots=True)
class StartCopy:
    """Introduce source and target to each other and have the source send."""

    task: CopyTask


@dataclass(frozen=True, slots=True)
class StoreDrop:
    """Take the replica out of the namespace and queue its removal on the slave."""

    drop: DropCopy


@dataclass(frozen=True, slots=True)
class SlaveChanged:
    """For the log and the audit."""

    change: Changed


@dataclass(frozen=True, slots=True)
class Errands:
    """The slave may have renames, deletions or mirror parts to catch up with."""

    node: str


@dataclass(frozen=True, slots=True)
class CopyLost:
    """A copy took too long or lost an end."""

    task: CopyTask


Effect = LoadFiles | ScanPage | StartCopy | StoreDrop | SlaveChanged | Errands | CopyLost


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits of the parts; a round over all files begins every `check_s`."""

    times: Times = Times()
    limits: Limits = Limits()
    check_s: float = 10.0


class MasterCore:
    """Membership, replication and rounds. `paused` = no copies are started (rebuild)."""

    def __init__(
        self, settings: CoreSettings, rules: CopyRules, new_id: Callable[[], bytes], now: float
    ) -> None:
        self.settings = settings
        self.members = Membership(settings.times)
        self.replicator = Replicator(rules, settings.limits, self.members, new_id, now)
        self.paused = False
        self._round_at = now + settings.check_s
        self._began = now
        self._took = 0.0
        self._again = False
        self._scanning: str | None = None
        self._full_at: str | None = None
        """The last path that a full queue took of a round, which goes on behind it."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """State and effects after one event. `now` monotonic seconds."""
        effects: list[Effect] = []
        match event:
            case SlaveJoined(node):
                self._changed(self.members.join(node), effects)
            case SlaveBeat(node, load):
                change = self.members.heartbeat(node, load, now)
                if change is not None:
                    self._changed(change, effects)
                if change is not None or self.members.get(node).beats == 1:
                    effects.append(Errands(node))  # before its first beat it may not have its key yet
            case ReportEnded(node, early):
                found = self.members.get(node)
                found.reported, found.want_report = not early, early
                self._again = True
            case Tick():
                self._tick(now, effects)
            case Look(paths, urgent):
                for path in paths:
                    self.replicator.want(path, urgent)
            case Loaded(asked, files):
                if not self._act(asked, files, now, effects):
                    return effects
            case NotLoaded(asked):
                self.replicator.not_loaded(asked, now)
                return effects
            case PageSeen(files, following):
                self._seen(files, following, now, effects)
            case CopyEnded(task, error, blame, kept):
                if error:
                    self.replicator.failed(task, now, blame_target=blame, kept=kept)
                else:
                    self.replicator.done(task)
            case DropStored(path, node):
                self.replicator.dropped(path, node)
                effects.append(Errands(node))
        self._load(now, effects)
        return effects

    def new_rules(self, rules: CopyRules) -> None:
        """Other numbers of copies; a round over all files follows."""
        self.replicator.rules = rules
        self._again = True

    def forget(self, node_id: str) -> None:
        """The slave may not serve any more: as if it were lost, and not listed."""
        if self.members.nodes.pop(node_id, None) is not None:
            self._again = True
            self.replicator.members_changed()

    def _changed(self, change: Changed, effects: list[Effect]) -> None:
        effects.append(SlaveChanged(change))
        if change.state == LOST or change.before != "suspect":
            self._again = True
            self.replicator.members_changed()

    def _tick(self, now: float, effects: list[Effect]) -> None:
        for change in self.members.tick(now):
            self._changed(change, effects)
        effects.extend(CopyLost(task) for task in self.replicator.overdue(now))
        if self._scanning is not None or self.paused:
            return
        if self._again or (self._full_at is None and now >= self._round_at):
            self._again = False
            self._took = 0.0
            self._round_at = now + self.settings.check_s
            self._scan("", now, effects)
        elif self._full_at is not None and self.replicator.drained():
            self._scan(self._full_at, now, effects)

    def _scan(self, after: str, now: float, effects: list[Effect]) -> None:
        self._scanning, self._full_at, self._began = after, None, now
        effects.append(ScanPage(after))

    def _seen(self, files: Sequence[FileState], following: str, now: float, effects: list[Effect]) -> None:
        seen = self._scanning or ""
        for file in files:
            path, small = file.entry.path, is_small(file.entry.size)
            if self.replicator.needs_look(file, now) and not self.replicator.want(path, small=small):
                self._full_at = seen
                break
            seen = path
        if following and self._full_at is None:
            self._scanning = following
            effects.append(ScanPage(following))
            return
        self._scanning = None
        self._took += now - self._began
        if self._full_at is None:
            self._round_at = max(self._round_at, now + REST * self._took)

    def _act(
        self, asked: Sequence[str], files: Sequence[FileState], now: float, effects: list[Effect]
    ) -> bool:
        """Whether the queue got shorter, or more of it known, so that it is worth to look at the next paths
        at once."""
        before = self._unknown()
        for action in self.replicator.plan(asked, files, now):
            effects.append(StartCopy(action) if isinstance(action, CopyTask) else StoreDrop(action))
        return self._unknown() < before

    def _unknown(self) -> int:
        lines = (self.replicator.queue, self.replicator.urgent)
        return sum(len(line) + line.count(None) for line in lines)

    def _load(self, now: float, effects: list[Effect]) -> None:
        if self.paused or not self.members.up():
            return
        due = self.replicator.due(now)
        if due:
            effects.append(LoadFiles(due))

    def counters(self) -> dict[str, int]:
        """For `sector status`."""
        return {
            "copies_running": len(self.replicator.tasks),
            "copies_waiting": len(self.replicator.queue) + len(self.replicator.urgent),
            "copies_done": self.replicator.copied,
            "copies_failed": self.replicator.failures,
        }

    def check_invariants(self) -> None:
        """Raises AssertionError if the state is impossible."""
        self.members.check_invariants()
        self.replicator.check_invariants()
