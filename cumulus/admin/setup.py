"""`cumulus init`: settings, the key that protects secrets, the database, the first administrator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cumulus.admin.keys import Told, as_option, secret_to_option, tell_key
from cumulus.admin.options import Shared, shared_options
from cumulus.admin.values import check_name
from cumulus.config import FILE, Config, commented, load_config, parse_config
from cumulus.index.registry import database_lacks, is_postgres
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
    if new_database:
        if (host, port, admin_port, url, password_file) != (None,) * 5:
            raise UsageError("--new-database leaves the settings as they are", hint=f"change {file}")
        _anew(shared, load_config(file), name, Told(secret_to, form))
        return
    if file.exists():
        raise Exists(f"{file}: is there already", hint="choose another directory, or change the file")
    server = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    page = {} if admin_port is None else {"port": admin_port}
    text = commented({"server": server, "admin": page, **_database(url, password_file)})
    config = parse_config(text, str(file))
    check_name(name)
    _directory(where)
    key_file = config.secret_key
    if not key_file.exists():
        Keyring.create(key_file)
    made = _administrator(config, name)
    try:
        write_private(file, text.encode(), 0o644)
    except OSError as bad:
        raise LocalIO(f"{file}: {bad.strerror}") from None
    fields = {"dir": str(where), "config": str(file), "host": config.server.host, "port": config.server.port}
    text = f"{where} is made; start it with: cumulus serve {directory}"
    tell_key(shared, config, made, Told(secret_to, form), text, name=name, id=made.user.id, **fields)


def _administrator(config: Config, name: str) -> Credential:
    """The first user of a database, which is made with him."""
    admin = open_admin(config, new=True)
    try:
        user = User(id=new_user_id(), name=name, admin=True)
        admin.add_user(user)
        return admin.add_key(user.id, new_access_key(), new_secret())
    finally:
        admin.close()


def _anew(shared: Shared, config: Config, name: str, told: Told) -> None:
    where, lacking = database_lacks(config.database_url, database_options(config))
    hint = "move it away, or restore it from your backup"
    if config.several_servers:
        hint = "createdb makes an empty one; give its name in [database] url, or restore your backup"
    if not lacking:
        raise Exists(f"{where}: is there already", hint=hint)
    check_name(name)
    text = f"{where} is made, without buckets; add them again: cumulus bucket add NAME --owner U"
    if config.auth.source == "file":
        open_admin(config, new=True).close()
        shared.changed(text, database=where)
        return
    if not config.secret_key.exists():
        Keyring.create(config.secret_key)
    made = _administrator(config, name)
    tell_key(shared, config, made, told, text, name=name, id=made.user.id, database=where)


def _database(url: str | None, password_file: str | None) -> dict[str, dict[str, Any]]:
    """The settings of another database than a file in DIR."""
    if url is None:
        if password_file is not None:
            raise UsageError("--password-file belongs to --database")
        return {}
    database = {"url": url}
    if password_file is not None:
        database["password_file"] = str(Path(password_file).absolute())
    source = {"auth": {"source": "postgresql"}} if is_postgres(url) else {}
    return {"database": database, **source}


def _directory(where: Path) -> None:
    try:
        where.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as bad:
        raise LocalIO(f"{where}: {bad.strerror}") from None
    if not os.access(where, os.W_OK | os.X_OK):
        raise LocalIO(f"{where}: is not writable")
