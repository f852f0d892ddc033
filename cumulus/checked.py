"""What `--check-config` tries beside reading the files that settings name: storage, addresses, directories of
logs. Nothing is made, and a service that runs with these settings is not disturbed."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cumulus.backends.registry import check_spec
from cumulus.config import Config
from cumulus.secrets import check_private
from sector.errors import BadConfig, SectorError, UsageError


def check_settings(config: Config) -> None:
    """Raises `BadConfig` with the name of the setting."""
    _storage(config)
    for section, host, port in (
        ("server", config.server.host, config.server.port),
        ("admin", config.admin.host, config.admin.port),
    ):
        with _named(config, f"[{section}] host"):
            _can_listen(host, port)
    for key, file in (("access", config.log.access), ("audit", config.log.audit)):
        if file:
            with _named(config, f"[log] {key}"):
                can_append(config.file(file))
    logs = [config.file(file).resolve() for file in (config.log.access, config.log.audit) if file]
    if len(logs) > len(set(logs)):
        raise BadConfig(f"{config.path}: [log] access and audit name the same file", hint="give each its own")
    if config.database.password_file:
        with _named(config, "[database] password_file"):
            path = config.file(config.database.password_file)
            check_private(path)
            path.read_text(encoding="utf-8")


@contextmanager
def _named(config: Config, setting: str) -> Iterator[None]:
    """What is wrong inside is told with the name of the setting."""
    try:
        yield
    except SectorError as bad:
        raise BadConfig(f"{config.path}: {setting}: {bad.message}", hint=bad.hint) from None
    except UnicodeDecodeError:
        raise BadConfig(f"{config.path}: {setting}: the file is not UTF-8 text") from None
    except OSError as bad:
        where = f"{bad.filename}: " if bad.filename else ""
        raise BadConfig(f"{config.path}: {setting}: {where}{bad.strerror or bad}") from None
    except ValueError as bad:
        raise BadConfig(f"{config.path}: {setting}: {bad}") from None


def _storage(config: Config) -> None:
    with _named(config, "[storage] backend"):
        check_spec(config.store_url)
        if config.server.workers > 1 and config.one_process:
            raise BadConfig(f"{config.storage.backend} lives in one process", hint="serve with workers = 1")
    kind, _, path = config.store_url.partition(":")
    if kind == "posix":
        with _named(config, "[storage] path" if ":" not in config.storage.backend else "[storage] backend"):
            _can_make(Path(path))


def _can_make(path: Path) -> None:
    """That a directory is there, or can be made."""
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "cannot be written", str(there))


def can_append(path: Path) -> None:
    """That a log is a file that can be written, or made in a directory that is there. Raises `OSError`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    where = path if path.exists() else path.parent
    os.stat(where)
    if where != path and not where.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(where))
    if not os.access(where, os.W_OK):
        raise PermissionError(errno.EACCES, "cannot be written", str(where))


def _can_listen(host: str, port: int) -> None:
    """That the address is one of this machine. A port in use may be that of the running service."""
    try:
        _bind(host, port)
    except OSError as bad:
        if bad.errno != errno.EADDRINUSE:
            raise OSError(bad.errno, f"cannot listen on {host} port {port}: {bad.strerror}") from None


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind((host, port))


def check_host(host: str) -> None:
    """That this machine could listen there, on whatever port. Raises `UsageError`."""
    try:
        _bind(host, 0)
    except (OSError, ValueError) as bad:
        why = bad.strerror if isinstance(bad, OSError) else str(bad)
        hint = "give a name or an address of this machine (ip addr shows them), or 0.0.0.0 for all"
        raise UsageError(f"cannot listen on {host!r}: {why}", hint=hint) from None
