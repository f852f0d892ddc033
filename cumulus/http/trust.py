"""Whose certificates are believed when this server connects to others: those of a file, or the system's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from OpenSSL import crypto
from twisted.internet.ssl import Certificate, optionsForClientTLS, platformTrust, trustRootFromCertificates
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

from sector.errors import BadConfig

_BEGIN = b"-----BEGIN CERTIFICATE-----"


def read_certificates(path: Path) -> list[bytes]:
    """The certificates in a PEM file, each as PEM. Raises `BadConfig`: it cannot be read, or has none."""
    try:
        data = path.read_bytes()
    except OSError as bad:
        raise BadConfig(f"cannot read {path}: {bad.strerror}", hint="give a PEM file") from bad
    found = [_BEGIN + piece for piece in data.split(_BEGIN)[1:]]
    if not found:
        raise BadConfig(f"{path} has no certificate in PEM", hint="give a PEM file")
    return found


@implementer(IPolicyForHTTPS)
class Trust:
    """`ca_file` has the certificates of authorities (or of the servers themselves) in PEM; None: those that
    the system trusts. Raises `BadConfig`."""

    def __init__(self, ca_file: Path | None = None) -> None:
        self._root: Any = platformTrust() if ca_file is None else _root(ca_file)

    def options(self, host: str) -> Any:
        """For a connection to that name or address, which the certificate must have; for Twisted."""
        return optionsForClientTLS(host.strip("[]"), trustRoot=self._root)

    def creatorForNetloc(self, hostname: bytes, _port: int) -> Any:
        """For Twisted's agents."""
        return self.options(hostname.decode("ascii"))


def _root(path: Path) -> Any:
    try:
        return trustRootFromCertificates([Certificate.loadPEM(one) for one in read_certificates(path)])
    except crypto.Error as bad:
        raise BadConfig(f"{path} has a certificate that cannot be read", hint="give a PEM file") from bad
