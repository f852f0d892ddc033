"""OpenSSL contexts for the two sides of a TLS connection of the cluster: TLS 1.3, our CA, no resumption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IOpenSSLServerConnectionCreator
from zope.interface import implementer

from sector.pki import Credentials, Trust

_PROBLEMS = {
    9: "is not valid yet",
    10: "has expired",
    18: "is not from this cluster's CA",
    19: "is not from this cluster's CA",
    20: "is not from this cluster's CA",
    21: "is not from this cluster's CA",
    7: "has a wrong signature",
}


def _context(mine: Credentials | None, ca: x509.Certificate | None, *, server: bool) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD if server else SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    if mine is not None:
        context.use_certificate(mine.certificate)
        context.use_privatekey(mine.key)
        context.add_extra_chain_cert(mine.ca)
        context.check_privatekey()
    if ca is not None:
        store = context.get_cert_store()
        assert store is not None
        store.add_cert(X509.from_cryptography(ca))
    return context


@implementer(IOpenSSLServerConnectionCreator)
class ServerTls:
    """Server side: `need_cert` refuses peers without a certificate of our CA during the handshake;
    `renewed()` gives another certificate when there is one."""

    def __init__(
        self,
        mine: Credentials,
        trust: Trust,
        *,
        need_cert: bool,
        renewed: Callable[[], Credentials | None] = lambda: None,
    ) -> None:
        self._trust = trust
        self._need_cert = need_cert
        self._renewed = renewed
        self._use(mine)

    def _use(self, mine: Credentials) -> None:
        self._context = _context(mine, self._trust.ca or mine.ca, server=True)
        mode = SSL.VERIFY_PEER | (SSL.VERIFY_FAIL_IF_NO_PEER_CERT if self._need_cert else 0)
        self._context.set_verify(mode, lambda conn, cert, errnum, depth, good: bool(good))

    def serverConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        other = self._renewed()
        if other is not None:
            self._use(other)
        return SSL.Connection(self._context, None)


@implementer(IOpenSSLClientConnectionCreator)
class ClientTls:
    """Client side of one connection; `problem` says why the server's certificate was refused."""

    def __init__(self, mine: Credentials | None, trust: Trust) -> None:
        self.problem = ""
        self._trust = trust
        self._context = _context(mine, trust.ca, server=False)
        self._context.set_verify(SSL.VERIFY_PEER, self._verify)

    def _verify(self, _conn: Any, certificate: Any, errnum: int, _depth: int, good: int) -> bool:
        # 19 = the chain ends in a CA that is in no store: right if it is the one pinned by hash
        if errnum == 19 and self._trust.is_ca(certificate.to_cryptography()):
            return True
        if not good:
            self.problem = _PROBLEMS.get(errnum, "was refused")
        return bool(good)

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:
        return SSL.Connection(self._context, None)
