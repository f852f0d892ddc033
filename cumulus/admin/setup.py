"""`cumulus init`: settings, the key that protects secrets, the database, the first administrator."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from cumulus.admin.keys import Told, as_option, secret_to_option, tell_key
from cumulus.admin.options import Shared, shared_options
from cumulus.admin.values import check_name
from cumulus.checked import check_host
from cumulus.config import FILE, Config, commented, load_config, parse_config
from cumulus.index.api import IndexFailure
from cumulus.index.registry import database_lacks, is_postgres, sqlite_path
from cumulus.model import Credential, User
from cumulus.opening import database_options, open_admin
from cumulus.secrets import Keyring, new_access_key, new_secret, new_user_id
from sector.config import write_private
from sector.errors import Exists, LocalIO, UsageError


@click.command("init")
@click.argument("directory", metavar="DIR")
@click.option("--host", default=None, help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port of S3.  [default: 8888]")
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Port of the page.  [default: 8889]",
)
@click.option("--admin", "name", default="admin", show_default=True, help="Name of the administrator.")
@click.option("--database", "url", metavar="URL", help="postgresql://USER@HOST:PORT/NAME instead of a file.")
@click.option("--password-file", metavar="FILE", help="PostgreSQL: the password, mode 0600.")
@click.option("--new-database", is_flag=True, help="DIR stays, only its lost database is made anew, empty.")
@secret_to_option
@as_option
@shared_options
@click.pass_obj
def init(
    shared: Shared,
    directory: str,
    host: str | None,
    port: int | None,
    admin_port: int | None,
    name: str,
    url: str | None,
    password_file: str | None,
    new_database: bool,
    secret_to: str | None,
    form: str | None,
) -> None:
    """Make a new Cumulus in DIR: cumulus.toml with all options, secret.key, the database, and an
    administrator whose secret key is printed once. With --new-database DIR keeps its settings, secret.key and
    files; only a database that is lost is made anew.

    \b
    Examples:
      cumulus init /srv/cumulus
      cumulus init /srv/cumulus --host 0.0.0.0 --secret-to admin.secret
      cumulus init second --port 9888 --admin-port 9889
      cumulus init /srv/cumulus --new-database
      cumulus init my-s3 --as s3cmd --secret-to s3cfg
      cumulus init /etc/cumulus --database postgresql://cumulus@db1/cumulus --password-file /etc/cumulus/db
    """
    where = Path(directory).absolute()
    file = where / FILE
    told = Told(secret_to, form)
    if new_database:
        shared.take_directory(directory)
        if (host, port, admin_port, url, password_file) != (None,) * 5:
            raise UsageError("--new-database leaves the settings as they are", hint=f"change {file}")
        _anew(shared, load_config(file), name, told)
        return
    if directory:
        _check_place(where)
    if os.path.lexists(file):
        raise Exists(f"{file}: is there already", hint="choose another directory, or change the file")
    server = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    page = {} if admin_port is None else {"port": admin_port}
    text = commented({"server": server, "admin": page, **_database(url, password_file)})
    config = parse_config(text, str(file))
    shared.take_directory(directory)
    check_name(name)
    if host is not None:
        check_host(host)
    told.check(config)
    fields = {"dir": str(where), "config": str(file), "host": config.server.host, "port": config.server.port}
    with _all_or_nothing(config, told):
        if os.path.lexists(file):  # made by another command a moment ago
            raise Exists(f"{file}: is there already", hint="choose another directory, or change the file")
        if not config.secret_key.exists():
            Keyring.create(config.secret_key)
        with _administrator(config, name) as made:
            try:
                write_private(file, text.encode(), 0o644)
            except OSError as bad:
                raise LocalIO(
                    f"{file}: {bad.strerror}", hint="see that the directory can be written"
                ) from None
            text = f"{where} is made; start it with: cumulus serve {shlex.quote(directory)}"
            tell_key(shared, config, made, told, text, name=name, id=made.user.id, **fields)


@contextmanager
def _all_or_nothing(config: Config, told: Told) -> Iterator[None]:
    """The directory, for one command at a time; if what is done inside fails, all is as before. Raises
    `LocalIO`, `Exists` while another command makes a Cumulus there."""
    folder = Path(config.path).parent
    folders = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    try:
        _make(folder)
    except LocalIO:
        _remove(folders)
        raise
    with _alone(folder), _restored(config, told, folders):
        yield


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as bad:
        raise LocalIO(f"{folder}: {bad.strerror}", hint="name a directory of yours") from None
    try:
        with suppress(OSError):  # a file system without locks of directories
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "wait for it, or choose another directory"
                raise Exists(f"{folder}: another command is making a Cumulus there", hint=hint) from None
        yield
    finally:
        os.close(fd)


@contextmanager
def _restored(config: Config, told: Told, folders: list[Path]) -> Iterator[None]:
    """Files and `folders` that are made inside go away again if that fails."""
    files = [Path(config.path), config.secret_key]
    files += [config.file(config.log.audit)] if config.log.audit else []
    files += [Path(told.secret_to)] if told.secret_to else []
    new = [file for file in files if not os.path.lexists(file)]
    database = None if is_postgres(config.database_url) else sqlite_path(config.database_url)
    if database is not None and os.path.lexists(database):
        database = None
    kept = _beside(database)
    try:
        yield
    except BaseException:
        if database is not None:
            new += [database, *(_beside(database) - kept)]
        for file in new:
            with suppress(OSError):
                file.unlink()
        _remove(folders)
        raise


def _remove(folders: list[Path]) -> None:
    for one in folders:
        with suppress(OSError):  # something else is in it
            one.rmdir()


def _beside(database: Path | None) -> set[Path]:
    """SQLite's other files of a database, and ours."""
    if database is None or not database.parent.is_dir():
        return set()
    return {one for one in database.parent.iterdir() if one.name.startswith(f"{database.name}-")}


@contextmanager
def _administrator(config: Config, name: str) -> Iterator[Credential]:
    """The first user of a database, which is made with him. If what is done inside fails, he goes again."""
    with closing(open_admin(config, new=True)) as admin:
        user = User(id=new_user_id(), name=name, admin=True)
        admin.add_user(user)
        try:
            yield admin.add_key(user.id, new_access_key(), new_secret())
        except BaseException:
            with suppress(IndexFailure):
                admin.remove_user(user.id)
            raise


def _anew(shared: Shared, config: Config, name: str, told: Told) -> None:
    where, lacking = database_lacks(config.database_url, database_options(config))
    hint = "move it away, or restore it from your backup"
    if config.several_servers:
        hint = "createdb makes an empty one; give its name in [database] url, or restore your backup"
    if not lacking:
        raise Exists(f"{where}: is there already", hint=hint)
    check_name(name)
    told.check(config)
    text = f"{where} is made, without buckets; add them again: cumulus bucket add NAME --owner U"
    with _all_or_nothing(config, told):
        if config.auth.source == "file":
            open_admin(config, new=True).close()
            shared.changed(text, database=where)
            return
        if not config.secret_key.exists():
            Keyring.create(config.secret_key)
        with _administrator(config, name) as made:
            tell_key(shared, config, made, told, text, name=name, id=made.user.id, database=where)


def _database(url: str | None, password_file: str | None) -> dict[str, dict[str, Any]]:
    """The settings of another database than a file in DIR."""
    if url is None:
        if password_file is not None:
            hint = "give --database postgresql://USER@HOST:PORT/NAME with it"
            raise UsageError("--password-file belongs to --database", hint=hint)
        return {}
    database = {"url": url}
    if password_file is not None:
        database["password_file"] = str(Path(password_file).absolute())
    source = {"auth": {"source": "postgresql"}} if is_postgres(url) else {}
    return {"database": database, **source}


def _check_place(where: Path) -> None:
    """That the directory is there, or can be made. Raises `LocalIO`."""
    there = next(one for one in (where, *where.parents) if os.path.lexists(one))
    if not there.is_dir():
        what = "is a file, not a directory" if there == where else f"{there.name}: Not a directory"
        raise LocalIO(f"{where}: {what}", hint="name another directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise LocalIO(f"{there}: is not writable", hint="change owner or mode, or name another directory")


def _make(where: Path) -> None:
    try:
        where.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as bad:
        raise LocalIO(f"{where}: {bad.strerror}", hint="name a directory that you can make") from None
