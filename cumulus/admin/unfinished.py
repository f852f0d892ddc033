"""Changes of many things that fail on the way: what was done before is told and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from cumulus.index.api import IndexFailure
from cumulus.storage.api import StorageError
from sector.errors import SectorError

if TYPE_CHECKING:
    from cumulus.admin.options import Shared


class Unfinished(SectorError):
    """Something failed after a part was done. `done` says what."""

    code: ClassVar[str] = "unfinished"
    default_hint: ClassVar[str] = "the same once more goes on from there"

    def __init__(self, cause: Exception, done: str) -> None:
        super().__init__(f"{cause}; done before: {done}")
        self.cause = cause
        self.done = done

    @property
    def record(self) -> str:
        """What the audit log gets."""
        return f"{self.done}; then it failed: {self.cause}"


@contextmanager
def part_done(done: Callable[[], str]) -> Iterator[None]:
    """What fails inside is raised as `Unfinished` when `done()` says that something was done."""
    try:
        yield
    except (IndexFailure, StorageError, SectorError) as bad:
        cause, inner = (bad.cause, bad.done) if isinstance(bad, Unfinished) else (bad, "")
        what = "; ".join(one for one in (done(), inner) if one)
        if not what:
            raise
        raise Unfinished(cause, what) from bad


@contextmanager
def recorded(shared: Shared) -> Iterator[None]:
    """What a command did before something failed goes into the audit log all the same."""
    try:
        yield
    except Unfinished as bad:
        shared.audit(shared.config(), bad.record)
        raise
