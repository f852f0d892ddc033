"""TLS of the S3 port and of the admin port: certificate and key from PEM files, read again on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer

from sector.errors import BadConfig


def _context(cert: Path, key: Path, section: str) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    for path in (cert, key):
        try:
            path.read_bytes()
        except OSError as bad:
            raise BadConfig(
                f"cannot read {path}: {bad.strerror}", hint=f"[{section}] cert and key are PEM files"
            ) from bad
    try:
        context.use_certificate_chain_file(str(cert))
        context.use_privatekey_file(str(key))
        context.check_privatekey()
    except SSL.Error as bad:
        raise BadConfig(
            f"{cert} and {key} are not a certificate chain and its key in PEM",
            hint="the server's certificate comes first in the chain; the key has no password",
        ) from bad
    return context


@implementer(IOpenSSLServerConnectionCreator)
class TlsFiles:
    """Makes the server's side of connections from those files. Raises `BadConfig` when they cannot be used;
    `reload` then keeps what was."""

    def __init__(self, cert: Path, key: Path, section: str = "tls") -> None:
        """`section` of the settings names them."""
        self._files = cert, key, section
        self._context = _context(cert, key, section)

    def reload(self) -> None:
        """Use the files as they are now for new connections. Raises `BadConfig`."""
        self._context = _context(*self._files)

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
