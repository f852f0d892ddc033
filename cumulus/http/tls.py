"""TLS of the S3 port and of the admin port: certificate and key from PEM files, read again on demand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from sector.errors import BadConfig

Pems = tuple[bytes, bytes]  # the certificate with its chain, and the key


def _pems(cert: Path, key: Path, section: str) -> Pems:
    """Raises `BadConfig`."""
    found: list[bytes] = []
    for path in (cert, key):
        try:
            found.append(path.read_bytes())
        except OSError as bad:
            raise BadConfig(
                f"cannot read {path}: {bad.strerror}", hint=f"[{section}] cert and key are PEM files"
            ) from bad
    return found[0], found[1]


@contextmanager
def _file(data: bytes) -> Iterator[str]:
    """A file in memory, which OpenSSL can be told of: what was read is what is used."""
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _context(pems: Pems, cert: Path, key: Path) -> SSL.Context:
    """Raises `BadConfig`."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    try:
        with _file(pems[0]) as chain, _file(pems[1]) as own:
            context.use_certificate_chain_file(chain)
            context.use_privatekey_file(own)
            context.check_privatekey()
    except SSL.Error as bad:
        raise BadConfig(
            f"{cert} and {key} are not a certificate chain and its key in PEM",
            hint="the server's certificate comes first in the chain; the key has no password",
        ) from bad
    return context


def _dates(chain: bytes) -> tuple[float, float]:
    """Of the first certificate, which is the server's."""
    try:
        first = x509.load_pem_x509_certificate(chain)
    except ValueError:  # OpenSSL takes more
        return 0.0, float("inf")
    return first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()


@implementer(IOpenSSLServerConnectionCreator)
class TlsFiles:
    """Makes the server's side of connections from those files. Raises `BadConfig` when they cannot be used;
    `reload` and `renew` then keep what was. `dates`: from when to when the certificate is good, in seconds
    since 1970. `pems`: what is used."""

    def __init__(self, cert: Path, key: Path, section: str = "tls", spare: Pems | None = None) -> None:
        """`section` of the settings names them. `spare` is used while they cannot be, which `renew` says."""
        self._files = cert, key, section
        self._read: list[tuple[int, ...]]
        try:
            self.reload()
        except BadConfig:
            if spare is None:
                raise
            self._use(spare)
            self._read = [()]  # so that they are looked at again

    def _use(self, pems: Pems) -> None:
        self._context, self.dates = _context(pems, *self._files[:2]), _dates(pems[0])
        self.pems = pems

    def _state(self) -> list[tuple[int, ...]]:
        """By which files are known that have been replaced or changed, also behind symbolic links."""
        found: list[tuple[int, ...]] = []
        for path in self._files[:2]:
            try:
                status = os.stat(path)
            except OSError:
                found.append(())
            else:
                found.append(
                    (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                )
        return found

    def reload(self) -> None:
        """Use the files as they are now for new connections. Raises `BadConfig`."""
        self._read = self._seen = self._state()
        self._use(_pems(*self._files))

    def renew(self) -> bool:
        """The same, where they are others than those that were read last, and were already when this was
        asked before; whether it is so. Raises `BadConfig`, once for what cannot be used."""
        before, self._seen = self._seen, self._state()
        if self._seen == self._read or self._seen != before:
            return False
        self.reload()
        return True

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        """For Twisted."""
        return SSL.Connection(self._context, None)


class TlsFactory(TLSMemoryBIOFactory):
    """TLS around a factory of servers, which may want no protocol for a connection: it is closed then, as
    without TLS. Twisted's own makes one around nothing, which fails and is never closed."""

    def __init__(self, tls: Any, factory: Any, reactor: Any) -> None:
        """`tls` makes the server's side of connections (`TlsFiles`)."""
        super().__init__(tls, False, factory, reactor)

    def buildProtocol(self, addr: Any) -> Any:
        """None: close it."""
        wrapped = self.wrappedFactory.buildProtocol(addr)
        return None if wrapped is None else self.protocol(self, wrapped)
