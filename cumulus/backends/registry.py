"""From `--backend NAME:ARGUMENT` to a store: our backends by name, those of others by entry point.

A third party's package names a factory in the entry point group `cumulus.backends`; it is called with the
argument (a path, a URL, what it likes) and `fsync`, and returns a `FileStore`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final, Protocol, cast

from cumulus.storage.api import FileStore

if TYPE_CHECKING:
    from sector.config import Config

GROUP: Final = "cumulus.backends"


class Factory(Protocol):
    """Makes a store. Raises `StorageError`, or `ValueError` for an argument that makes no sense."""

    def __call__(self, argument: str, *, fsync: bool) -> FileStore: ...


class UnknownBackend(ValueError):
    """No backend has that name, or its package cannot be loaded; the message lists those there are."""


def _check_memory(argument: str) -> None:
    if argument and not argument.isdecimal():
        raise ValueError(f"memory:{argument}: give a number of bytes, or nothing")


def _memory(argument: str, *, fsync: bool) -> FileStore:
    from cumulus.backends.memory import MemoryStore

    _check_memory(argument)
    return MemoryStore(int(argument) if argument else None)


def _check_posix(argument: str) -> None:
    if not argument:
        raise ValueError("posix: give the directory, as in posix:/srv/cumulus")


def _posix(argument: str, *, fsync: bool) -> FileStore:
    from cumulus.backends.posix.store import PosixStore

    _check_posix(argument)
    return PosixStore(argument, fsync=fsync)


def _check_fsspec(argument: str) -> None:
    try:
        from cumulus.backends.fsspec_store import check_driver
    except ImportError as error:
        raise UnknownBackend(f"backend 'fsspec' needs the package fsspec: {error}") from error
    if not argument:
        raise ValueError("fsspec: give a URL, as in fsspec:hdfs://namenode/cumulus")
    check_driver(argument)


def _fsspec(argument: str, *, fsync: bool) -> FileStore:
    return make_fsspec(argument)


def make_fsspec(argument: str, known_hosts: str = "") -> FileStore:
    """Storage below fsspec; `known_hosts`: the file with keys of SFTP's servers, if not the account's. Raises
    `ValueError`, `StorageError`."""
    _check_fsspec(argument)
    from cumulus.backends.fsspec_store import FsspecStore

    return FsspecStore(argument, known_hosts)


def _sector(argument: str, *, fsync: bool) -> FileStore:
    return make_sector(argument)


def make_sector(argument: str, max_users: int = 0) -> FileStore:
    """Storage in the cloud of the settings file `argument`; with `max_users` it acts there for each user of
    Cumulus, so many at once. Raises `ValueError`."""
    from cumulus.backends.sector_store import SectorStore

    return SectorStore(_sector_client(argument), max_users)


def _sector_client(argument: str) -> Config:
    from sector.config import expanded, load_client
    from sector.errors import BadConfig

    if not argument:
        raise ValueError("sector: give the path of a client.toml, as in sector:/etc/cumulus/client.toml")
    try:
        path = expanded(argument)
    except BadConfig as bad:
        raise ValueError(f"sector:{bad.message}") from None
    if not path.is_file():
        raise ValueError(f"sector:{argument}: there is no such file; sector login writes one")
    try:
        return load_client(path)
    except BadConfig as bad:
        raise ValueError(f"sector:{argument}: {bad.message}") from bad


_OURS: Final[dict[str, Factory]] = {
    "fsspec": _fsspec,
    "memory": _memory,
    "posix": _posix,
    "sector": _sector,
}


_CHECKS: Final[dict[str, Callable[[str], object]]] = {
    "fsspec": _check_fsspec,
    "memory": _check_memory,
    "posix": _check_posix,
    "sector": _sector_client,
}


def _found() -> dict[str, EntryPoint]:
    """Backends of other packages; our own names cannot be taken."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _OURS}


def names() -> list[str]:
    """All backends that can be asked for."""
    return sorted([*_OURS, *_found()])


def make_store(spec: str, *, fsync: bool = True) -> FileStore:
    """The store of "NAME:ARGUMENT" or "NAME". Raises `UnknownBackend`, and what its factory raises."""
    name, _, argument = spec.partition(":")
    return _factory(name)(argument, fsync=fsync)


def check_spec(spec: str) -> None:
    """What can be said of "NAME:ARGUMENT" without making the store. Raises `ValueError`."""
    name, _, argument = spec.partition(":")
    _factory(name)
    if name in _CHECKS:
        _CHECKS[name](argument)


def _factory(name: str) -> Factory:
    if name in _OURS:
        return _OURS[name]
    point = _found().get(name)
    if point is None:
        raise UnknownBackend(f"no backend {name!r}; there are: {', '.join(names())}")
    try:
        return cast(Factory, point.load())
    except (ImportError, AttributeError) as error:
        raise UnknownBackend(f"backend {name!r} of {point.value} cannot be loaded: {error}") from error
