"""What to copy or drop next, and why (design section 5).

Pure: paths wait here to be looked at; `plan` gets the files' present state and answers with actions. Copies
in flight count as replicas to come, so that no file is copied twice; limits per cluster and per slave keep a
lost slave from becoming a storm, those of small files apart from those of large ones (0282); failures wait
with growing pauses. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from sector.config import parse_toml
from sector.errors import BadConfig
from sector.master import placement
from sector.master.membership import LOST, UP, Membership, Node
from sector.master.namespace import meta_of
from sector.master.values import FileState
from sector.master.waiting import KINDS, Kind, Waiting
from sector.model import SMALL_BYTES, SliceMeta, Version, is_below

QUEUE_LIMIT = 10_000
_LINES: dict[bool, tuple[Kind, ...]] = {True: (False,), False: (True, None)}  # that share room: large, other
MIN_COPIES = 3


# rules ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CopyRule:
    """`minimum` replicas wanted; more than `maximum` are surplus (0 = the same as minimum)."""

    path: str = "/"
    minimum: int = MIN_COPIES
    maximum: int = 0


@dataclass(frozen=True, slots=True)
class CopyRules:
    """`replication.toml`: `min`, `max` for all; `[[rule]]` with `path` (a directory or a pattern with * ? [])
    for a part. The last rule that matches counts."""

    default: CopyRule = CopyRule()
    rules: tuple[CopyRule, ...] = ()

    def of(self, path: str) -> CopyRule:
        """The rule for a path."""
        for rule in reversed(self.rules):
            if is_below(path, rule.path) or fnmatchcase(path, rule.path):
                return rule
        return self.default


def _numbers(name: str, table: dict[str, object], default: CopyRule) -> tuple[int, int]:
    values = []
    for key, fallback, low in (("min", default.minimum, 1), ("max", 0, 0)):
        value = table.get(key, fallback)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= 64:
            raise BadConfig(f"{name}: {key} = {value!r} is not a number from {low} to 64")
        values.append(value)
    minimum, maximum = values
    if maximum and maximum < minimum:
        raise BadConfig(f"{name}: max = {maximum} is less than min = {minimum}")
    return minimum, maximum


def parse_rules(text: str, name: str = "replication.toml") -> CopyRules:
    """Raises `BadConfig` with file and key."""
    raw = parse_toml(text, name)
    odd = set(raw) - {"min", "max", "rule"}
    if odd:
        raise BadConfig(f"{name}: unknown key {min(odd)}", hint="known are min, max, [[rule]]")
    default = CopyRule("/", *_numbers(name, raw, CopyRule()))
    tables = raw.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadConfig(f"{name}: rule is not a list of tables", hint="write [[rule]] above each")
    rules = []
    for table in tables:
        odd = set(table) - {"path", "min", "max"}
        path = table.get("path")
        if odd or not isinstance(path, str) or not path.startswith("/"):
            wrong = f"unknown key {min(odd)}" if odd else f"path = {path!r} is not absolute"
            raise BadConfig(f"{name}: [[rule]]: {wrong}", hint="known are path, min, max")
        rules.append(CopyRule(path.rstrip("/") or "/", *_numbers(name, table, default)))
    return CopyRules(default, tuple(rules))


# actions ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Limits:
    """`copies` at once in the cluster, `per_node` on one slave, and besides these as many of small files as
    `small_copies`, `small_per_node`; a failed path waits `retry_s`, doubling up to `retry_most_s`; a copy may
    take `start_s` plus its size at `slowest` bytes/s; before `settle_s` after the start a slave that has not
    come back yet counts as there."""

    copies: int = 4
    per_node: int = 2
    small_copies: int = 32
    small_per_node: int = 12
    retry_s: float = 1.0
    retry_most_s: float = 60.0
    start_s: float = 60.0
    slowest: float = 1e6
    settle_s: float = 10.0

    def most(self, small: bool) -> tuple[int, int]:
        """How many at once (in the cluster, on one slave)."""
        return (self.small_copies, self.small_per_node) if small else (self.copies, self.per_node)


def is_small(size: int) -> bool:
    """Whether a file of `size` bytes waits for disks and answers, not for the line."""
    return size <= SMALL_BYTES


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One replica on its way from `source` to `target`. `id` 16 bytes; `why` for the log."""

    id: bytes
    meta: SliceMeta
    source: str
    target: str
    deadline: float
    urgent: bool
    why: str

    @property
    def path(self) -> str:
        return self.meta.path

    @property
    def version(self) -> Version:
        return self.meta.version

    @property
    def small(self) -> bool:
        return is_small(self.meta.size)


@dataclass(frozen=True, slots=True)
class DropCopy:
    """The replica of exactly this version on `node` is to go."""

    path: str
    node: str
    version: Version
    why: str


Action = CopyTask | DropCopy


@dataclass(slots=True)
class _Wait:
    """Back-off of one path; `begun` = a slave that has a part of a copy."""

    failures: int = 0
    until: float = 0.0
    avoid: set[str] = field(default_factory=set)
    begun: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a file stands: copies `wanted` after clipping, nodes with a `good` replica."""

    wanted: int
    good: tuple[str, ...]

    @property
    def lacking(self) -> bool:
        return len(self.good) < self.wanted


class Replicator:
    """Queue, running copies, back-off."""

    def __init__(
        self, rules: CopyRules, limits: Limits, members: Membership, new_id: Callable[[], bytes], now: float
    ) -> None:
        self.rules = rules
        self.limits = limits
        self.members = members
        self.tasks: dict[bytes, CopyTask] = {}
        self.urgent = Waiting()
        self.queue = Waiting()
        self._waits: dict[str, _Wait] = {}
        self._dropping: set[tuple[str, str]] = set()
        self._loading: dict[str, Kind] = {}
        self._outdated: set[str] = set()
        """Paths of `_loading` of which more was heard since: what is read may be older than that."""
        self._new_id = new_id
        self._settled_at = now + limits.settle_s
        self.copied = 0
        self.failures = 0

    # the queue ----------------------------------------------------------------------------------------
    def want(self, path: str, urgent: bool = False, small: Kind = None) -> bool:
        """Look at a path soon; False when too many wait (a later round finds it again)."""
        self._changed(path)
        if urgent:
            wait = self._waits.pop(path, None)
            if wait is not None and wait.begun:
                self._waits[path] = _Wait(begun=wait.begun)
            self.queue.pop(path)
            if path not in self.urgent and len(self.urgent) >= QUEUE_LIMIT:
                return False
            self.urgent.put(path, small)
        elif path not in self.urgent:
            if path not in self.queue and not self._room(small) and not self._give_way(small):
                return False
            self.queue.put(path, small, path in self._waits)
        return True

    def _changed(self, path: str) -> None:
        if path in self._loading:
            self._outdated.add(path)

    def _held(self, large: bool) -> int:
        return self.queue.count(*_LINES[large])

    def _room(self, small: Kind) -> bool:
        """Whether one more may wait: large files that take long keep no small ones out."""
        return self._held(small is False) < QUEUE_LIMIT

    def _give_way(self, small: Kind) -> bool:
        """Take a path that waits after a failure out of the full queue: a later round finds it again. Else
        some thousand files that fail again and again would keep all others from their copies."""
        for path in self.queue.marked(*_LINES[small is False]):
            if path not in self._loading:
                self._calm(path)
                return self.queue.pop(path)
        return False

    def _calm(self, path: str) -> None:
        """Forget its failures."""
        self._waits.pop(path, None)
        self.queue.unmark(path)

    def drained(self) -> bool:
        """Whether the queue is at most half full, not counting what would give way."""
        return all(
            self._held(large) - self.queue.count_marked(*lines) <= QUEUE_LIMIT // 2
            for large, lines in _LINES.items()
        )

    def _worth(self, small: bool) -> int:
        """How many paths of this kind are worth a look: some more than copies could be started, and one where
        all slaves are taken, since some paths need none."""
        copies, per_node = self.limits.most(small)
        busy = Counter[str]()
        tasks = 0
        for task in self.tasks.values():
            if task.small == small:
                tasks += 1
                busy.update((task.source, task.target))
        free = [per_node - busy[node.id] for node in self.members.up()]
        pairs = min(sum(free) // 2, sum(free) - max(free, default=0)) if tasks else copies
        slots = min(copies - tasks, pairs)
        return 2 * slots + 4 if slots > 0 else int(tasks < copies)

    def due(self, now: float) -> list[str]:
        """Paths to look at now, urgent ones first; none of a kind while all its slots are taken."""
        if not self.urgent and not self.queue:
            return []
        asked = Counter(self._loading.values())
        worth: dict[Kind, int] = {small: self._worth(small) for small in (True, False)}
        worth[None] = sum(worth.values())
        room = {kind: worth[kind] - asked[kind] for kind in KINDS}
        found: list[str] = []
        for waiting in (self.urgent, self.queue):
            for kind in KINDS:
                for path in waiting.line(kind):
                    if room[kind] <= 0:
                        break
                    wait = self._waits.get(path)
                    if path not in self._loading and (wait is None or wait.until <= now):
                        found.append(path)
                        self._loading[path] = kind
                        room[kind] -= 1
        return found

    def not_loaded(self, asked: Iterable[str], now: float) -> None:
        """What `due` named could not be read: later."""
        for path in asked:
            self._loading.pop(path, None)
            self._outdated.discard(path)
            self._pause(path, now)

    def next_retry(self) -> float | None:
        """When the next path may be tried again."""
        return min(
            (w.until for p, w in self._waits.items() if p in self.queue or p in self.urgent), default=None
        )

    # judging ------------------------------------------------------------------------------------------
    def here(self, node_id: str, now: float) -> bool:
        """Whether what a slave holds counts: it is not lost, or has had no time yet to come back after a
        restart of the master."""
        node = self.members.nodes.get(node_id)
        return now < self._settled_at if node is None else node.state != LOST

    def _node(self, node_id: str) -> Node | None:
        return self.members.nodes.get(node_id)

    def standing(self, file: FileState, now: float, copies: int = 0) -> Standing:
        """Copies wanted (`copies`, else by rule and user, never more than slaves that are not lost) and
        good ones."""
        entry = file.entry
        asked = copies or max(self.rules.of(entry.path).minimum, entry.copies)
        good = tuple(
            r.node
            for r in file.replicas
            if r.version == entry.version and not r.bad and self.here(r.node, now)
        )
        return Standing(min(asked, max(1, len(self.members.alive()))), good)

    def needs_look(self, file: FileState, now: float) -> bool:
        """Whether a round over all files should queue this one: not if nothing can be done for it now."""
        standing = self.standing(file, now)
        if standing.lacking and self._possible(file, standing):
            return True
        if len(standing.good) > self._most(file) or self._useless(file, standing):
            return True
        return self._better_host(file, standing)

    def _possible(self, file: FileState, standing: Standing) -> bool:
        """Whether a copy has a source and a target."""
        if not self._sources(file, standing):
            return False
        entry, taken, slaves = file.entry, self._taken(file), self.members.candidates()
        return bool(placement.for_copy(slaves, path=entry.path, size=entry.size, holders=(), exclude=taken))

    def _sources(self, file: FileState, standing: Standing) -> list[Node]:
        """Slaves that can give a copy."""
        return [
            node
            for r in file.replicas
            if r.node in standing.good
            and not r.old_path
            and (node := self._node(r.node)) is not None
            and node.state == UP
        ]

    def _taken(self, file: FileState) -> set[str]:
        """Slaves that can take none, because of what they have."""
        return {r.node for r in file.replicas if r.bad or r.version >= file.entry.version} | set(file.doomed)

    def _most(self, file: FileState) -> int:
        rule = self.rules.of(file.entry.path)
        return max(rule.maximum or rule.minimum, file.entry.copies)

    # planning -----------------------------------------------------------------------------------------
    def plan(self, asked: Iterable[str], files: Sequence[FileState], now: float) -> list[Action]:
        """Actions for the files that `due` named; those that are gone are forgotten. Those that changed while
        they were read wait on: a copy that ended meanwhile is neither among tasks nor among replicas."""
        states = {file.entry.path: file for file in files}
        actions: list[Action] = []
        for path in asked:
            self._loading.pop(path, None)
            file = states.get(path)
            if path in self._outdated:
                self._outdated.discard(path)
            elif file is None:
                self._forget(path)
            else:
                actions.extend(self._plan_file(file, now))
        return actions

    def _forget(self, path: str) -> None:
        self.urgent.pop(path)
        self.queue.pop(path)
        self._calm(path)

    def _plan_file(self, file: FileState, now: float) -> list[Action]:
        path = file.entry.path
        standing = self.standing(file, now)
        arriving = [t for t in self.tasks.values() if t.path == path and t.version == file.entry.version]
        need = standing.wanted - len(standing.good) - len(arriving)
        if need == 0 and not arriving and self._better_host(file, standing):
            need = 1
        if need > 0:
            started = self._copies(file, standing, arriving, need, now)
            if started is not None:
                return list(started)
        drops = self._drops(file, standing, bool(arriving), now)
        self.urgent.pop(path)  # if a copy was impossible, a round asks again when it no longer is
        self.queue.pop(path)
        if not arriving:
            self._calm(path)
        return list(drops)

    def _better_host(self, file: FileState, standing: Standing) -> bool:
        """Whether two replicas share a host while another could take one: a copy more, then the surplus
        goes."""
        if not self._share(standing):
            return False
        wait = self._waits.get(file.entry.path)
        taken = {r.node for r in file.replicas} | set(file.doomed) | (wait.avoid if wait else set())
        holders = [node.place for name in standing.good if (node := self._node(name)) is not None]
        found = placement.for_copy(
            self.members.candidates(),
            path=file.entry.path,
            size=file.entry.size,
            holders=holders,
            exclude=taken,
        )
        return bool(found) and self.members.get(found[0]).place.host not in {h.host for h in holders}

    def _share(self, standing: Standing) -> bool:
        hosts = [node.place.host for name in standing.good if (node := self._node(name)) is not None]
        return len(set(hosts)) < len(hosts)

    def _running(self, small: bool) -> int:
        return sum(task.small == small for task in self.tasks.values())

    def _busy(self, node_id: str, small: bool) -> int:
        return sum(
            task.small == small and node_id in (task.source, task.target) for task in self.tasks.values()
        )

    def _free(self, node_id: str, small: bool) -> bool:
        return self._busy(node_id, small) < self.limits.most(small)[1]

    def _copies(
        self, file: FileState, standing: Standing, arriving: list[CopyTask], need: int, now: float
    ) -> list[CopyTask] | None:
        """Copies to start now; the path stays queued for the rest. None = no source or target at all."""
        entry = file.entry
        path = entry.path
        wait = self._waits.get(path)
        avoid = wait.avoid if wait else set()
        sources = self._sources(file, standing)
        taken = self._taken(file)
        taken |= {task.target for task in self.tasks.values() if task.path == path}
        taken |= {node for p, node in self._dropping if p == path}
        holders = [node.place for name in standing.good if (node := self._node(name)) is not None]
        holders += [node.place for t in arriving if (node := self._node(t.target)) is not None]
        started: list[CopyTask] = []
        urgent, small = path in self.urgent, is_small(entry.size)
        for _ in range(need):
            found = placement.for_copy(
                self.members.candidates(), path=path, size=entry.size, holders=holders, exclude=taken
            )
            if not sources or not found:
                if not started and not arriving:
                    return None
                break
            if wait is not None and wait.begun in found:
                found = [wait.begun]
            target = self._pick_target(found, avoid, {place.host for place in holders}, small)
            if target is None or self._running(small) >= self.limits.most(small)[0]:
                break
            node = self.members.get(target)
            able = placement.for_source([s.candidate() for s in sources], target=node.place, path=path)
            source = next((name for name in able if self._free(name, small)), None)
            if source is None:
                break
            deadline = now + self.limits.start_s + entry.size / self.limits.slowest
            why = f"{len(standing.good)} of {standing.wanted} copies"
            task = CopyTask(self._new_id(), meta_of(entry), source, target, deadline, urgent, why)
            self.tasks[task.id] = task
            self.members.grant(target, entry.size)
            self.members.grant(source)
            started.append(task)
            taken.add(target)
            holders.append(node.place)
        self.urgent.pop(path)
        self.queue.pop(path)
        if len(started) < need and (urgent or self._room(small)):
            # at the end: others have their turn
            (self.urgent if urgent else self.queue).put(path, small, path in self._waits)
        return started

    def _pick_target(self, found: list[str], avoid: set[str], hosts: set[str], small: bool) -> str | None:
        """The best target with a free slot; rather none now than to share a host needlessly."""
        trusted = [name for name in found if name not in avoid] or found
        shares = [self.members.get(name).place.host in hosts for name in trusted]
        best = [name for name, shared in zip(trusted, shares, strict=True) if shared == min(shares)]
        return next((name for name in best if self._free(name, small)), None)

    def _drops(self, file: FileState, standing: Standing, arriving: bool, now: float) -> list[DropCopy]:
        path = file.entry.path
        drops = [] if arriving else self._useless(file, standing) + self._surplus(file, standing, now)
        fresh = [drop for drop in drops if (path, drop.node) not in self._dropping]
        self._dropping.update((path, drop.node) for drop in fresh)
        return fresh

    def _useless(self, file: FileState, standing: Standing) -> list[DropCopy]:
        """Replicas that are damaged or of older versions and are no longer needed."""
        entry = file.entry
        path = entry.path
        drops: list[DropCopy] = []
        for row in file.replicas:
            node = self._node(row.node)
            if row.node in standing.good or node is None or node.state != UP or row.version > entry.version:
                continue
            if row.version == entry.version and standing.good:
                drops.append(DropCopy(path, row.node, row.version, "damaged"))
            elif row.version < entry.version and row.bad:
                # Of no use, and its slave gets no copy while it is there. Epoch 0 was found on a disk
                # and may be somebody's only copy: its slave's next report sends it to the attic.
                if standing.good and row.version.epoch > 0:
                    drops.append(DropCopy(path, row.node, row.version, "a damaged older version"))
            elif row.version < entry.version and not standing.lacking:
                drops.append(DropCopy(path, row.node, row.version, "an older version"))
        return drops

    def _surplus(self, file: FileState, standing: Standing, now: float) -> list[DropCopy]:
        """One replica too many, if all holders are up and have told what they hold; none that its slave knows
        by a former name: an order to drop it could not be taken back (`Errands._spare`)."""
        nodes = [self._node(name) for name in standing.good]
        sure = [n for n in nodes if n is not None and n.state == UP and n.reported]
        if len(standing.good) <= max(self._most(file), standing.wanted) or len(sure) < len(nodes):
            return []
        if now < self._settled_at or any(p == file.entry.path for p, _ in self._dropping):
            return []
        moving = {row.node for row in file.replicas if row.old_path}
        named = [n.candidate() for n in sure if n.id not in moving]
        if not named:
            return []
        name = placement.for_drop(named, path=file.entry.path)
        return [DropCopy(file.entry.path, name, file.entry.version, f"{len(sure)} copies")]

    def _pause(self, path: str, now: float, avoid: str = "", begun: str = "") -> None:
        wait = self._waits.setdefault(path, _Wait())
        pause = min(self.limits.retry_most_s, self.limits.retry_s * float(2 ** min(wait.failures, 16)))
        wait.failures += 1
        wait.until = now + pause
        wait.begun = begun
        if avoid:
            wait.avoid.add(avoid)
        self.queue.mark(path)

    # outcomes -----------------------------------------------------------------------------------------
    def done(self, task_id: bytes) -> CopyTask | None:
        """A copy is complete; its path is looked at once more."""
        task = self.tasks.pop(task_id, None)
        if task is not None:
            self.copied += 1
            self._calm(task.path)
            self.want(task.path, task.urgent, task.small)
        return task

    def failed(
        self, task_id: bytes, now: float, *, blame_target: bool = True, kept: bool = False
    ) -> CopyTask | None:
        """A copy failed: try again later, rather with another target, or with this one if it has `kept` what
        came."""
        task = self.tasks.pop(task_id, None)
        if task is not None:
            self.failures += 1
            target = task.target
            if self.want(task.path, task.urgent, task.small):
                self._pause(task.path, now, target if blame_target else "", target if kept else "")
            else:
                self._calm(task.path)
        return task

    def dropped(self, path: str, node: str) -> None:
        """The order to drop is in the database."""
        self._changed(path)
        self._dropping.discard((path, node))

    def overdue(self, now: float) -> list[CopyTask]:
        """Copies whose time is over, and those whose source or target is lost; they have failed."""
        over = [
            task
            for task in self.tasks.values()
            if task.deadline <= now or not self.here(task.source, now) or not self.here(task.target, now)
        ]
        for task in over:
            self.failed(task.id, now)
        return over

    def members_changed(self) -> None:
        """Slaves came or went: what could not be placed may be tried again."""
        for path in list(self._waits):
            if path not in self.queue and path not in self.urgent:
                self._calm(path)
            else:
                self._waits[path].until = 0.0

    def check_invariants(self) -> None:
        """Limits hold; one copy of a file per target."""
        for small in (True, False):
            copies, per_node = self.limits.most(small)
            assert self._running(small) <= copies, "too many copies at once"
            for node in self.members.nodes:
                assert self._busy(node, small) <= per_node, f"too many copies on {node}"
        pairs = [(task.path, task.target) for task in self.tasks.values()]
        assert len(pairs) == len(set(pairs)), "two copies of one file to one slave"
        assert not set(self.urgent) & set(self.queue), "a path in both queues"
        failed = {path for path in self._waits if path in self.queue}
        assert failed == set(self.queue.marked(*KINDS)), "marks of paths that have not failed"
        assert max(self._held(True), self._held(False), len(self.urgent)) <= QUEUE_LIMIT, "too many wait"
