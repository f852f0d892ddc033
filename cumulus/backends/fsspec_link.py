"""The file system behind the fsspec store, as many threads use it at once.

Most drivers can be asked by all of them. Those of SFTP and FTP hold one conversation with a server: two
threads at once take each other's answers and wait for ever, and a connection that has ended stays so. There
each call has one of a few connections to itself, and one that has gone is made anew.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from cumulus.backends import fsspec_keys
from cumulus.backends.fsspec_record import asked
from cumulus.storage.api import Unavailable
from cumulus.storage.names import without_secret

MOST: Final = 8  # connections of a process
ANSWER_S: Final = 30.0  # for which an answer, or a turn, is waited for
AWAY_S: Final = 1.0  # a server that could not be reached is not tried again at once,
SLOW_S: Final = 2.0  # and while one attempt takes so long nobody begins another
ALONE: Final = ["fsspec.implementations.sftp", "fsspec.implementations.ftp"]  # modules of such drivers
_ANSWERS: Final = (  # errors that the server itself has told
    FileNotFoundError,
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
)
_AGAIN: Final = ("info", "ls", "cat_file", "makedirs", "open")  # twice is as good as once


def open_link(url: str, known_hosts: str = "", **options: Any) -> tuple[Any, type[AbstractFileSystem], str]:
    """What has the methods of the file system, its class, and the path in it. `known_hosts`: the file with
    keys of SFTP's servers, if not the account's. Raises `ValueError` for a URL of a kind that is unknown or
    not installed, `StorageError`."""

    def make() -> tuple[AbstractFileSystem, str]:
        found = fsspec.core.url_to_fs(url, **options)
        _settle(found[0])
        return found[0], str(found[1])

    shown = without_secret(url)
    outer = url.partition("::")[0]
    try:
        kind = fsspec.get_filesystem_class(outer.partition("://")[0] if "://" in outer else "file")
    except (ImportError, ValueError) as error:
        raise ValueError(f"{shown}: {error}") from error
    for inner in {part.partition("://")[0] for part in url.split("::")[1:]} & {"sftp", "ssh"}:
        if _is_sftp(fsspec.get_filesystem_class(inner)):
            options[inner] = {**fsspec_keys.options(ALONE[0], known_hosts), **options.get(inner, {})}
    alone = any(base.__module__ in ALONE for base in kind.__mro__)
    if alone:
        options = {"skip_instance_cache": True, **options}
    if alone and _is_sftp(kind):
        options = {"timeout": ANSWER_S, **fsspec_keys.options(ALONE[0], known_hosts), **options}
    with asked(shown):
        system, path = make()
    return (Turns(lambda: make()[0], system, path) if alone else system), type(system), path


def _is_sftp(kind: type[AbstractFileSystem]) -> bool:
    return any(base.__module__ == ALONE[0] for base in kind.__mro__)


def _settle(system: AbstractFileSystem) -> None:
    """Remember no listings: others change them. (Not every driver takes that as an option: SFTP's hands it
    on to SSH.) Wait for an answer no longer than `ANSWER_S`."""
    inner: Any = system
    while isinstance(inner, AbstractFileSystem):
        if getattr(inner, "dircache", None) is not None:
            inner.dircache.use_listings_cache = False
            inner.dircache.clear()
        inner = getattr(inner, "fs", None)
    channel = getattr(getattr(system, "ftp", None), "get_channel", None)
    if channel is not None:
        channel().settimeout(ANSWER_S)


def let_go(file: Any) -> None:
    """Close a file that is of no use; drivers that collect what they send send no more, where they can."""
    if isinstance(file, _File):
        file.let_go()
        return
    if isinstance(file, AbstractBufferedFile) and not file.closed:
        with contextlib.suppress(Exception):
            file.discard()
        file.forced = True  # all that there is was sent
    with contextlib.suppress(Exception):  # it tries once more what has failed
        file.close()


class _Talk:
    """One connection, and who has it."""

    def __init__(self, system: AbstractFileSystem | None) -> None:
        self.lock = threading.Lock()
        self.system = system
        self.round = 0


class _File:
    """A file that was opened over one of the connections, for writing."""

    def __init__(self, talk: _Talk, file: Any) -> None:
        self._talk = talk
        self._file = file

    def write(self, data: bytes) -> None:
        with self._alone():
            self._file.write(data)

    def close(self) -> None:
        with self._alone():
            self._file.close()

    def let_go(self) -> None:
        with contextlib.suppress(Unavailable), self._alone():
            let_go(self._file)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._talk.lock.acquire(timeout=ANSWER_S):
            raise Unavailable("all connections to the storage are busy")
        try:
            yield
        finally:
            self._talk.lock.release()


class Turns:
    """The methods of a file system that the store uses, each call over a connection that nobody else has
    meanwhile. What a connection that has gone was asked, and may be asked twice, is asked once more over a
    new one; all connections from before are made anew then."""

    def __init__(self, make: Callable[[], AbstractFileSystem], first: AbstractFileSystem, root: str) -> None:
        self._make = make
        self._root = root
        self._lock = threading.Lock()
        self._talks = [_Talk(first)]
        self._next = 0
        self._round = 0
        self._begun: list[float] = []  # attempts to connect, and when they began
        self._away: tuple[float, str] | None = None  # when one failed, and why

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            return self._ask(name, words, options)

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def _ask(self, name: str, words: tuple[Any, ...], options: dict[str, Any]) -> Any:
        for more in (True, False):
            talk, new = self._take(), False
            try:
                if talk.system is None or talk.round != self._round:
                    talk.system, talk.round, new = None, self._round, True
                    talk.system = self._connected()
                found = getattr(talk.system, name)(*words, **options)
                return _File(talk, found) if name == "open" else found
            except _ANSWERS:
                raise
            except Exception as error:
                if not self._has_gone(talk, error) or new or not more or name not in _AGAIN:
                    raise
            finally:
                talk.lock.release()
        raise AssertionError  # not reached

    def _connected(self) -> AbstractFileSystem:
        """A new connection. Raises also because others have just failed to make one, or seem to."""
        with self._lock:
            now = time.monotonic()
            if self._away is not None and now - self._away[0] < AWAY_S:
                raise Unavailable(f"the storage is away: {self._away[1]}")
            if self._begun and now - self._begun[0] > SLOW_S:
                raise Unavailable("the storage does not answer")
            self._begun.append(now)
        try:
            made, self._away = self._make(), None
            return made
        except Exception as error:
            self._away = time.monotonic(), str(error)
            raise
        finally:
            with self._lock:
                self._begun.remove(now)

    def _take(self) -> _Talk:
        """A connection, or room for one, that nobody has; it is the caller's until its lock is released."""
        with self._lock:
            for talk in self._talks:
                if talk.lock.acquire(blocking=False):
                    return talk
            self._next += 1
            if len(self._talks) < MOST:
                talk = _Talk(None)
                talk.lock.acquire()
                self._talks.append(talk)
                return talk
            talk = self._talks[self._next % MOST]
        if not talk.lock.acquire(timeout=ANSWER_S):
            raise Unavailable("all connections to the storage are busy")
        return talk

    def _has_gone(self, talk: _Talk, error: Exception) -> bool:
        """Whether a call has failed because its connection has ended: it and all of before are let go."""
        if talk.system is None:
            return True
        gone = isinstance(error, EOFError | ConnectionError | TimeoutError)
        if not gone:
            try:
                _greet(talk.system, self._root)
            except FileNotFoundError:
                return False
            except Exception:
                gone = True
        if gone:
            _close(talk.system)
            talk.system = None
            with self._lock:
                if talk.round == self._round:
                    self._round += 1
        return gone


def _greet(system: Any, root: str) -> None:
    """Ask for something small. Raises what there is to raise."""
    nothing = getattr(getattr(system, "ftp", None), "voidcmd", None)
    if nothing is not None:
        nothing("NOOP")
    else:
        system.info(root or "/")


def _close(system: Any) -> None:
    for name in ("client", "ftp"):
        close = getattr(getattr(system, name, None), "close", None)
        if close is not None:
            with contextlib.suppress(Exception):
                close()
