"""A file that people change while a service runs: read again when it has changed, kept as it was when the new
version has an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from sector.errors import BadConfig, LocalIO, SectorError

T = TypeVar("T")


def read_text(path: Path, most: int, hint: str = "") -> str:
    """The whole file. Raises `BadConfig` (longer than `most` bytes, not UTF-8), `LocalIO`."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise BadConfig(f"{path}: is larger than {most >> 20} MiB", hint=hint)
        return data.decode()
    except OSError as bad:
        raise LocalIO(f"{path}: {bad.strerror}") from None
    except UnicodeDecodeError:
        raise BadConfig(f"{path}: is not UTF-8 text", hint="save it as UTF-8") from None


class Watched(Generic[T]):
    """What `read` makes of the file, looked at again after `look_s` seconds. If a changed file has an error,
    what was read last stays, and `complain` hears of it once for each version of the file; one that cannot be
    read now is tried again at each look."""

    def __init__(
        self,
        path: Path,
        read: Callable[[], T],
        complain: Callable[[SectorError], None],
        clock: Callable[[], float],
        look_s: float,
    ) -> None:
        """`clock` gives seconds that only grow. Raises what `read` raises."""
        self._path = path
        self._read = read
        self._complain = complain
        self._clock = clock
        self._look_s = look_s
        self._lock = threading.Lock()
        self._looked = clock()
        self._seen: tuple[int, ...] | None = self._state()
        self._complaint = ""  # why it could not be read
        self._value = read()

    def _state(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def now(self) -> T:
        """As it is, or was `look_s` seconds ago, or when the look began that another thread is having: of a
        disk that does not answer only one hears."""
        now = self._clock()
        if now - self._looked < self._look_s or not self._lock.acquire(blocking=False):
            return self._value
        try:
            if now - self._looked >= self._look_s:
                state = self._state()
                if state != self._seen:
                    self._read_again(state)
                self._looked = now
        finally:
            self._lock.release()
        return self._value

    def _read_again(self, state: tuple[int, ...]) -> None:
        before, self._complaint, self._seen = self._complaint, "", state
        try:
            self._value = self._read()
        except LocalIO as bad:  # too many open files, say, of which the file knows nothing
            self._seen, self._complaint = None, bad.message
            if bad.message != before:
                self._complain(bad)
        except SectorError as bad:
            self._complain(bad)
