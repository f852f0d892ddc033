"""Small objects that are published together, and names that are removed together: a record in the journal
for each, one sync for all of them.

As `publish` has it for one: drafts written -> locks, conditions, stamps -> journal synced -> renames. Gates,
then locks are taken in the order of their numbers, so that two who do this never wait for one another.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar, cast

from cumulus.backends.posix import bodies, paths, sidecar
from cumulus.backends.posix.bodies import Draft
from cumulus.backends.posix.errors import translated
from cumulus.backends.posix.freeing import Held
from cumulus.backends.posix.journal import Generation
from cumulus.backends.posix.locks import Stripe
from cumulus.backends.posix.meta import token_of
from cumulus.backends.posix.paths import Directory, Root
from cumulus.backends.posix.publish import Publisher, next_stamp
from cumulus.backends.posix.records import PUT, REMOVAL, Change
from cumulus.storage.api import Entry, Missing, StorageError, Token, Whole, check_token


class One:
    """A small object on its way; `outcome` in the end."""

    __slots__ = ("change", "draft", "name", "old", "outcome", "parent", "root", "segments", "stripe", "whole")

    def __init__(self, root: Root, whole: Whole, segments: Sequence[str], stripe: Stripe) -> None:
        self.root = root
        self.name = whole.name
        self.whole = whole
        self.segments = segments
        self.stripe = stripe
        self.draft: Draft | None = None
        self.parent: Directory | None = None
        self.old: os.stat_result | None = None
        self.change: Change | None = None
        self.outcome: Entry | StorageError | None = None

    def result(self) -> Entry | StorageError:
        """In the end."""
        return self.outcome or StorageError(f"{self.whole.name!r} was not published")

    def end(self) -> None:
        """Give back what it holds; what has no name is removed."""
        if self.parent is not None:
            self.parent.close()
        if self.draft is not None:
            if isinstance(self.outcome, Entry):
                self.draft.close()
            else:
                self.draft.drop()


class Gone:
    """A name on its way out; in the end `outcome` is the stamp of its removal, or why it stays."""

    __slots__ = ("change", "name", "old", "outcome", "parent", "root", "segments", "stripe", "token")

    def __init__(self, root: Root, name: str, token: Token, segments: Sequence[str], stripe: Stripe) -> None:
        self.root = root
        self.name = name
        self.token = token
        self.segments = segments
        self.stripe = stripe
        self.parent: Directory | None = None
        self.old: os.stat_result | None = None
        self.change: Change | None = None
        self.outcome: int | StorageError | None = None

    def result(self) -> int | StorageError:
        """In the end."""
        return StorageError(f"{self.name!r} was not removed") if self.outcome is None else self.outcome


T = TypeVar("T", One, Gone)


class BatchPublisher(Publisher):
    """A publisher, and remover, of many at a time, too."""

    def one(self, root: Root, whole: Whole) -> One:
        """Raises `BadName`."""
        segments = paths.split(whole.name)
        return One(root, whole, segments, self._locks.of(root.bucket, whole.name))

    def publish_all(self, ones: Sequence[One]) -> None:
        """Set the outcome of each; their names differ. Raises nothing that is one object's fault."""
        try:
            for one in ones:
                self._step(one, self._write)
            self._publish_written([one for one in ones if one.outcome is None])
        finally:
            for one in ones:
                one.end()
        for one in ones:
            if not isinstance(one.outcome, Entry):  # directories made for nothing
                paths.prune(one.root, one.segments, self._files)

    def _step(self, one: T, work: Callable[[T], None]) -> None:
        try:
            with translated(f"{one.root.bucket}/{one.name}"):
                work(one)
        except StorageError as bad:
            one.outcome = bad

    def _write(self, one: One) -> None:
        one.draft = Draft(one.root, self._files)
        one.draft.write(one.whole.body)

    def _publish_written(self, ones: Sequence[One]) -> None:
        with self._freeing.after() as held, ExitStack() as locks:
            try:
                with translated("locks"):
                    for gate in sorted({one.root.gate for one in ones}, key=lambda gate: gate.number):
                        locks.enter_context(gate)
                    for stripe in sorted({one.stripe for one in ones}, key=lambda stripe: stripe.number):
                        locks.enter_context(stripe)
            except StorageError as bad:
                for one in ones:
                    one.outcome = bad
                return
            for one in ones:
                self._step(one, self._prepare)
            ready = [one for one in ones if one.outcome is None]
            if ready:
                self._record(ready, held, self._finish)

    def _prepare(self, one: One) -> None:
        root, whole, draft = one.root, one.whole, one.draft
        assert draft is not None
        root.check()
        parent = one.parent = paths.make_parent(root, one.segments, self._files)
        old = one.old = bodies.look_for_write(parent, one.segments[-1], whole.name)
        self.own(draft, old, whole.meta)
        stamp = draft.stamp(whole.name, next_stamp(old, one.stripe), whole.meta, sync=False)
        before = token_of(old) if old else b""
        body = cast(bytes, whole.body)  # only encoded
        one.change = Change(PUT, root.bucket, whole.name, stamp, draft.inode, before, whole.meta, body)

    def _record(self, ones: Sequence[T], held: Held, finish: Callable[[T, Generation, Held], None]) -> None:
        """Their changes into the journal with one sync; then `finish` each."""
        try:
            generation = self._journal.add_all([(one.change, one.root) for one in ones if one.change])
        except StorageError as bad:
            for one in ones:
                one.outcome = bad
            return
        left = len(ones)
        try:
            for one in ones:
                left -= 1
                self._step(one, lambda one: finish(one, generation, held))
        finally:
            if left:
                self._journal.done(generation, left)

    def _finish(self, one: One, generation: Generation, held: Held) -> None:
        assert one.draft is not None and one.parent is not None and one.change is not None
        held.hold(one.parent.fd, one.segments[-1], one.old)
        try:
            self._place(one.root, one.segments, one.draft, one.parent)
        except BaseException:
            self._void(one.change, one.root, generation)
            raise
        self._journal.done(generation)
        one.outcome = self._published(one.root, one.whole.name, one.draft, one.old)

    # removal

    def gone(self, root: Root, name: str, token: Token) -> Gone:
        """Raises `BadName`."""
        return Gone(root, name, token, paths.split(name), self._locks.of(root.bucket, name))

    def remove_all(self, root: Root, ones: Sequence[Gone]) -> None:
        """Set the outcome of each; their names differ. Raises nothing that is one name's fault."""
        with self._freeing.after() as held, ExitStack() as locks:
            try:
                with translated("locks"):
                    for stripe in sorted({one.stripe for one in ones}, key=lambda stripe: stripe.number):
                        locks.enter_context(stripe)
            except StorageError as bad:
                for one in ones:
                    one.outcome = bad
                return
            try:
                for one in ones:
                    self._step(one, self._look)
                if ready := [one for one in ones if one.outcome is None]:
                    self._record(ready, held, self._unlink)
                left = {tuple(one.segments[:-1]): one.segments for one in ready}
                for segments in left.values():  # each directory once
                    paths.prune(root, segments, self._files)
            finally:
                for one in ones:
                    if one.parent is not None:
                        one.parent.close()

    def _look(self, one: Gone) -> None:
        root = one.root
        parent = one.parent = paths.open_parent(root, one.segments)
        old = one.old = bodies.look(parent, one.segments[-1])
        if old is None or not stat.S_ISREG(old.st_mode):
            raise Missing(f"no {one.name!r} in bucket {root.bucket!r}")
        there = token_of(old)
        check_token(one.name, there, one.token)
        stamp = next_stamp(old, one.stripe)
        one.stripe.raise_floor(stamp)
        one.change = Change(REMOVAL, root.bucket, one.name, stamp, 0, there)

    def _unlink(self, one: Gone, generation: Generation, held: Held) -> None:
        root = one.root
        assert one.parent is not None and one.change is not None and one.old is not None
        held.hold(one.parent.fd, one.segments[-1], one.old)
        try:
            self._files.unlink(one.parent.fd, one.segments[-1])
        except BaseException:
            self._void(one.change, root, generation)
            raise
        self._journal.done(generation)
        one.outcome = one.change.stamp
        sidecar.drop(root, one.name, one.old.st_ino, self._files)
