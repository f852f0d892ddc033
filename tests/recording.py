"""Recordings of what a service does to its disk (csrc/shim/recorder.c), and the trees that a crash may leave.

A disk keeps what was synced. Of what was not, each file and each directory keeps what it likes: nothing, all,
a beginning, any part in any order. `Disk.state` gives one such tree for one moment of a recording; `Tree`
puts it on a real file system, under inodes that are the files' own, since records of Cumulus name them.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "csrc/build/librecorder.so"
_RECORD = struct.Struct("<IIQQQQQqIIII")
OLD_NS = 10**18  # mtime of what nobody gave one
SECTOR = 512  # bytes that reach a disk together


class Kind(IntEnum):
    """As in recorder.h."""

    CREATE = 1
    MKDIR = 2
    WRITE = 3
    TRUNCATE = 4
    SET_XATTR = 5
    REMOVE_XATTR = 6
    TIMES = 7
    RENAME = 8
    LINK = 9
    UNLINK = 10
    RMDIR = 11
    FSYNC = 12
    FDATASYNC = 13
    SYNC_ALL = 14
    ANSWER = 15
    STRANGE = 16


DATA = (Kind.WRITE, Kind.TRUNCATE)
INODE = (*DATA, Kind.SET_XATTR, Kind.REMOVE_XATTR, Kind.TIMES)
SYNCS = (Kind.FSYNC, Kind.FDATASYNC, Kind.SYNC_ALL)


class Event(NamedTuple):
    """One call. It lies between `begin` and `end`; see recorder.h."""

    kind: Kind
    begin: int
    end: int
    inode: int
    directory: int
    directory2: int
    offset: int
    pid: int
    name: str
    name2: str
    data: bytes

    @property
    def request(self) -> str:
        """Of an answer: its request id."""
        for line in self.data.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"x-amz-request-id":
                return value.strip().decode()
        return ""


def read_events(path: Path) -> list[Event]:
    """A log's records in the order of their ends."""
    data = path.read_bytes()
    found, at = [], 8
    while at < len(data):
        length, kind, begin, end, inode, directory, directory2, offset, pid, *sizes = _RECORD.unpack_from(
            data, at
        )
        texts, place = [], at + _RECORD.size
        for size in sizes:
            texts.append(data[place : place + size])
            place += size
        name, name2 = os.fsdecode(texts[0]), os.fsdecode(texts[1])
        found.append(
            Event(Kind(kind), begin, end, inode, directory, directory2, offset, pid, name, name2, texts[2])
        )
        at += length
    assert at == len(data), "the last record is cut off"
    return sorted(found, key=lambda event: event.end)


@dataclass
class Inode:
    """What is on disk of one file or directory."""

    body: bytes = b""
    xattrs: dict[str, bytes] = field(default_factory=dict)
    mtime_ns: int = OLD_NS


@dataclass
class State:
    """A tree: path below the root -> inode number, or None for a directory; and what the inodes hold."""

    names: dict[str, int | None]
    inodes: dict[int, Inode]
    marks: dict[str, dict[str, bytes]]  # attributes of directories by path

    def files(self) -> Iterator[tuple[str, Inode]]:
        """Each name of a file with what it holds."""
        for path, inode in self.names.items():
            if inode is not None:
                yield path, self.inodes[inode]


class Recording:
    """Of what is done below `root` from now on; the root is as it should be at the beginning, and quiet.
    `place` is a directory on the same file system for the log and for second names."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root = root.resolve()
        self.log = place / "recording"
        self.aside = place / "aside"
        self.aside.mkdir()
        self.log.write_bytes(bytes(8))
        self.inodes: dict[int, Inode] = {}
        self.directories: dict[int, dict[str, int]] = {}
        self.top = self.root.stat().st_ino
        for top, folders, files in os.walk(self.root):
            own = os.stat(top).st_ino
            self.inodes[own] = Inode(xattrs=_xattrs(top))
            self.directories[own] = {name: os.stat(os.path.join(top, name)).st_ino for name in folders}
            for name in files:
                self._keep(Path(top, name), own)

    def _keep(self, path: Path, directory: int) -> None:
        status = path.stat()
        self.directories[directory][path.name] = status.st_ino
        if status.st_ino not in self.inodes:
            os.link(path, self.aside / str(status.st_ino))
            self.inodes[status.st_ino] = Inode(path.read_bytes(), _xattrs(path), status.st_mtime_ns)

    def environment(self) -> dict[str, str]:
        """For the program that is to be recorded."""
        assert LIBRARY.exists(), f"{LIBRARY} is missing: make -C csrc"
        return {
            "LD_PRELOAD": str(LIBRARY),
            "RECORD_ROOT": str(self.root),
            "RECORD_LOG": str(self.log),
            "RECORD_ASIDE": str(self.aside),
        }

    def disk(self, ignored: Sequence[Kind] = ()) -> Disk:
        """What was recorded so far; as if calls of the `ignored` kinds had not been made."""
        return Disk(self, [event for event in read_events(self.log) if event.kind not in ignored])


def _xattrs(path: str | Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")}


Choose = Callable[[Sequence[Event]], Sequence[Event]]  # of changes not synced, those that reached the disk


def nothing(_: Sequence[Event]) -> Sequence[Event]:
    """Only what was synced is there."""
    return ()


def all_of_it(events: Sequence[Event]) -> Sequence[Event]:
    """As if the process had been killed and the machine had gone on."""
    return events


def at_random(rng: random.Random) -> Choose:
    """Each file and directory by itself: nothing, all, a beginning whose last write may be torn, any part."""
    share = rng.random()

    def choose(events: Sequence[Event]) -> Sequence[Event]:
        if not events:
            return ()
        how = rng.randrange(5)
        if how == 0:
            return ()
        if how == 1:
            return events
        if how == 2:
            return [event for event in events if rng.random() < share]
        kept = list(events[: rng.randint(0, len(events))])
        if kept and how == 3 and kept[-1].kind is Kind.WRITE:
            last = kept[-1]
            size = rng.randint(0, len(last.data) // SECTOR) * SECTOR
            kept[-1] = last._replace(data=last.data[:size])
        return kept

    return choose


class Disk:
    """A recording by files and directories."""

    def __init__(self, start: Recording, events: Sequence[Event]) -> None:
        strange = [event.name for event in events if event.kind is Kind.STRANGE]
        assert not strange, f"calls that the recorder cannot follow: {strange}"
        self._start = start
        self.events = events
        self.answers = [event for event in events if event.kind is Kind.ANSWER]
        self._changes: dict[int, list[Event]] = {}
        self._entries: dict[int, list[Event]] = {}
        self._syncs: dict[int, list[Event]] = {}
        self._all: list[Event] = []
        self._made_directories = {event.inode for event in events if event.kind is Kind.MKDIR}
        for event in events:
            self._sort(event)

    def _sort(self, event: Event) -> None:
        if event.kind in INODE:
            self._changes.setdefault(event.inode, []).append(event)
        elif event.kind is Kind.SYNC_ALL:
            self._all.append(event)
        elif event.kind in SYNCS:
            self._syncs.setdefault(event.inode, []).append(event)
        elif event.kind is not Kind.ANSWER:
            for directory in {event.directory, event.directory2} - {0}:
                self._entries.setdefault(directory, []).append(event)

    def _until(self, inode: int, at: int, data: bool) -> int:
        """Changes of the inode that had ended by then are durable at the moment `at`."""
        syncs = [*self._syncs.get(inode, ()), *self._all]
        kinds = SYNCS if data else (Kind.FSYNC, Kind.SYNC_ALL)
        return max((sync.begin for sync in syncs if sync.end <= at and sync.kind in kinds), default=0)

    def _there(self, events: Sequence[Event], inode: int, at: int, choose: Choose) -> list[Event]:
        """Of the changes of one inode those that are on disk."""
        events = [event for event in events if event.begin < at]
        if not events:
            return []
        data, rest = self._until(inode, at, True), self._until(inode, at, False)
        sure = [event for event in events if event.end < (data if event.kind in DATA else rest)]
        if len(sure) == len(events):
            return sure
        known = set(map(id, sure))
        return sorted(
            [*sure, *choose([event for event in events if id(event) not in known])], key=lambda e: e.end
        )

    def contents(self, inode: int, at: int, choose: Choose) -> Inode:
        """One file or directory."""
        start = self._start.inodes.get(inode, Inode())
        found = self._there(self._changes.get(inode, ()), inode, at, choose)
        if not found:
            return start
        body, xattrs, mtime_ns = bytearray(start.body), dict(start.xattrs), start.mtime_ns
        for event in found:
            if event.kind is Kind.WRITE:
                body.extend(bytes(max(0, event.offset - len(body))))
                body[event.offset : event.offset + len(event.data)] = event.data
            elif event.kind is Kind.TRUNCATE:
                del body[event.offset :]
                body.extend(bytes(event.offset - len(body)))
            elif event.kind is Kind.SET_XATTR:
                xattrs[event.name] = event.data
            elif event.kind is Kind.REMOVE_XATTR:
                xattrs.pop(event.name, None)
            else:
                mtime_ns = event.offset
        return Inode(bytes(body), xattrs, mtime_ns)

    def entries(self, directory: int, at: int, choose: Choose) -> dict[str, int]:
        """Names in one directory."""
        found = dict(self._start.directories.get(directory, {}))
        for event in self._there(self._entries.get(directory, ()), directory, at, choose):
            if event.directory == directory and event.kind in (Kind.RENAME, Kind.UNLINK, Kind.RMDIR):
                if found.get(event.name) == event.inode:
                    del found[event.name]
            elif event.directory == directory:
                found[event.name] = event.inode
            if event.directory2 == directory:
                found[event.name2] = event.inode
        return found

    def state(self, at: int, choose: Choose) -> State:
        """A tree that a crash at that moment may leave."""
        state = State({}, {}, {})
        self._grow(state, self._start.top, "", at, choose)
        return state

    def _grow(self, state: State, directory: int, path: str, at: int, choose: Choose) -> None:
        for name, inode in self.entries(directory, at, choose).items():
            below = f"{path}/{name}" if path else name
            if inode in self._made_directories or inode in self._start.directories:
                state.names[below] = None
                state.marks[below] = self.contents(inode, at, choose).xattrs
                self._grow(state, inode, below, at, choose)
                continue
            state.names[below] = inode
            if inode not in state.inodes:
                state.inodes[inode] = self.contents(inode, at, choose)


class Tree:
    """A real directory that is made to hold one state after another."""

    def __init__(self, path: Path, aside: Path) -> None:
        self.path = path
        self._aside = aside
        self._known: dict[int, tuple[Inode, int]] = {}  # what an inode holds, and its mtime after that

    def build(self, state: State) -> None:
        """Only that is there afterwards."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        for path, inode in state.names.items():
            target = self.path / path
            if inode is None:
                target.mkdir()
                for name, value in state.marks[path].items():
                    os.setxattr(target, name, value)
            else:
                self._put(inode, state.inodes[inode])
                os.link(self._aside / str(inode), target)

    def _put(self, inode: int, wanted: Inode) -> None:
        path = self._aside / str(inode)
        known = self._known.get(inode)
        status = path.stat()
        same = known is not None and known[0].body == wanted.body and known[1] == status.st_mtime_ns
        if not same or status.st_size != len(wanted.body):
            path.write_bytes(wanted.body)
        there = _xattrs(path)
        for name in there.keys() - wanted.xattrs.keys():
            os.removexattr(path, name)
        for name, value in wanted.xattrs.items():
            if there.get(name) != value:
                os.setxattr(path, name, value)
        os.utime(path, ns=(wanted.mtime_ns, wanted.mtime_ns))
        self._known[inode] = (wanted, wanted.mtime_ns)
