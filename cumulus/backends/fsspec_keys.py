"""Which server of SFTP is the right one: fsspec's driver takes every key that it is shown."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

from cumulus.storage.api import Unavailable

KNOWN: Final = "~/.ssh/known_hosts"


def options(driver: str, path: str = "") -> dict[str, Any]:
    """For the driver of SFTP, a module: only servers of the file `path` ("": the account's) are talked to.
    Raises `ValueError` for a driver that cannot be told."""
    if not hasattr(importlib.import_module(driver), "HOST_KEY_POLICIES"):
        raise ValueError("the SFTP driver of this fsspec checks no keys of servers: pip install -U fsspec")
    ssh: Any = importlib.import_module("paramiko")
    check = _Known(ssh, os.path.expanduser(path or KNOWN))
    policy = type("KnownOnly", (ssh.MissingHostKeyPolicy,), {"missing_host_key": check.missing_host_key})
    return {"host_key_policy": policy()}


class _Known:
    """Servers of a file of OpenSSH's, which is read at each connection."""

    def __init__(self, ssh: Any, path: str) -> None:
        self._ssh = ssh
        self._path = path

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Called with each server's key, before anything is told it. Raises `Unavailable`."""
        try:
            known = self._ssh.HostKeys(self._path).check(hostname, key)
        except FileNotFoundError:
            known = False
        except OSError as error:  # else it would look like the server's own answer
            raise Unavailable(f"the keys of servers cannot be read: {error}") from error
        if not known:
            bare, _, port = hostname.strip("[").partition("]:")
            scan = f"ssh-keyscan -p {port} {bare}" if port else f"ssh-keyscan {bare}"
            raise Unavailable(
                f"{hostname} shows a {key.get_name()} key that is not in {self._path}: if its administrator "
                f"says that it is the right one, {scan} >> {self._path}"
            )
