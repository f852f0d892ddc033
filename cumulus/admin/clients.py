"""A new key as the settings file of an S3 client, so that it can be used at once."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from cumulus.config import Config
from cumulus.model import Credential


def endpoint(config: Config) -> tuple[str, bool]:
    """("HOST:PORT" under which clients reach the service, whether by TLS)."""
    server = config.server
    everywhere = server.host in ("0.0.0.0", "::")
    host = server.domain or (socket.getfqdn() if everywhere else server.host)
    return f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}", bool(config.tls.cert)


def url(config: Config) -> str:
    """Where clients reach the service."""
    where, secure = endpoint(config)
    return f"{'https' if secure else 'http'}://{where}"


def _s3cmd(config: Config, key: Credential) -> str:
    where, secure = endpoint(config)
    bucket = f"%(bucket)s.{where}" if config.server.domain else where
    return (
        "[default]\n"
        f"access_key = {key.access_key}\nsecret_key = {key.secret}\n"
        f"host_base = {where}\nhost_bucket = {bucket}\n"
        f"bucket_location = {config.server.region}\nuse_https = {secure}\n"
    )


def _aws(config: Config, key: Credential) -> str:
    return (
        "[default]\n"
        f"aws_access_key_id = {key.access_key}\naws_secret_access_key = {key.secret}\n"
        f"region = {config.server.region}\nendpoint_url = {url(config)}\n"
        "s3 =\n  signature_version = s3v4\n"  # else it signs URLs in advance by version 2
    )


def _rclone(config: Config, key: Credential) -> str:
    return (
        "[cumulus]\ntype = s3\nprovider = Other\n"
        f"access_key_id = {key.access_key}\nsecret_access_key = {key.secret}\n"
        f"region = {config.server.region}\nendpoint = {url(config)}\n"
        f"force_path_style = {str(not config.server.domain).lower()}\n"
        "list_url_encode = true\n"  # else names with control characters have it ask again for a minute
    )


def _env(config: Config, key: Credential) -> str:
    return (
        f"export AWS_ACCESS_KEY_ID={key.access_key}\nexport AWS_SECRET_ACCESS_KEY='{key.secret}'\n"
        f"export AWS_DEFAULT_REGION={config.server.region}\nexport AWS_ENDPOINT_URL={url(config)}\n"
    )


FORMS: Final[dict[str, Callable[[Config, Credential], str]]] = {
    "s3cmd": _s3cmd,
    "aws": _aws,
    "rclone": _rclone,
    "env": _env,
}
