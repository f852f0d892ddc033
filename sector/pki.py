"""The cluster's own certificates: a private CA and one certificate per node (spec/security.md, Identities).

Identity of a node = the URI ``sector://CLUSTER/ROLE/ID`` in its certificate; names and addresses of hosts
do not count. Keys are on curve P-256. Time is an argument.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from twisted.logger import Logger

from sector.config import ID_PATTERN, Config
from sector.errors import BadConfig, NotAllowed, UsageError

log = Logger()

ROLES = ("security", "master", "slave")
CA_DAYS = 3650
NODE_DAYS = 90
RENEW_DAYS = 30
LOOK_S = 60.0
WARN_S = 86400.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a certificate speaks for."""

    cluster: str
    role: str
    id: str

    @property
    def principal(self) -> str:
        """Name in rules and logs: "slave:s1"."""
        return f"{self.role}:{self.id}"

    @property
    def uri(self) -> str:
        """The form in the certificate."""
        return f"sector://{self.cluster}/{self.role}/{self.id}"


def parse_identity(uri: str) -> Identity:
    """The identity in a URI. Raises `NotAllowed` for any other form."""
    scheme, _, rest = uri.partition("://")
    parts = rest.split("/")
    if scheme != "sector" or len(parts) != 3 or parts[1] not in ROLES:
        raise NotAllowed("the certificate names no node of a cluster")
    if not all(ID_PATTERN.fullmatch(part) for part in parts):
        raise NotAllowed("the certificate names no node of a cluster")
    return Identity(*parts)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 over the DER form, as hex: what `ca_sha256` pins."""
    return certificate.fingerprint(SHA256()).hex()


def cluster_mark(ca: x509.Certificate) -> str:
    """What tells a cluster from all others, whatever they are called: SHA-256 of its CA's public key, hex."""
    public = ca.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(public).hexdigest()


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(cluster: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64]),
        ]
    )


def _start(subject: x509.Name, now: datetime, days: float) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def make_ca(cluster: str, now: datetime) -> tuple[bytes, bytes]:
    """A new CA for `cluster`: (certificate, private key) in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(cluster, f"Sector CA of {cluster}")
    certificate = (
        _start(subject, now, CA_DAYS)
        .issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), _private_pem(key)


def make_node(
    ca_pem: bytes, ca_key_pem: bytes, identity: Identity, now: datetime, days: float = NODE_DAYS
) -> tuple[bytes, bytes]:
    """A certificate and key (PEM) for a node, valid `days` days (at most 90)."""
    if days > NODE_DAYS:
        raise ValueError("a node's certificate is valid for at most 90 days")
    ca = load_certificate(ca_pem, "ca.pem")
    ca_key = load_pem_private_key(ca_key_pem, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _start(_name(identity.cluster, f"{identity.role} {identity.id}"), now, days)
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), _private_pem(key)


def load_certificate(pem: bytes, where: str) -> x509.Certificate:
    """The certificate in PEM text. Raises `BadConfig` naming `where`."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise BadConfig(f"{where}: holds no certificate in PEM form") from None


def identity_of(certificate: x509.Certificate) -> Identity:
    """The node a certificate speaks for. Raises `NotAllowed`."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        uris = []
    if len(uris) != 1:
        raise NotAllowed("the certificate names no node of a cluster")
    return parse_identity(uris[0])


def check_certificate(leaf: x509.Certificate, ca: x509.Certificate, now: datetime) -> Identity:
    """Who `leaf` speaks for, after its signature by `ca` and both periods are checked.

    Raises `NotAllowed` saying what is wrong."""
    for name, certificate in (("certificate", leaf), ("CA certificate", ca)):
        if now < certificate.not_valid_before_utc:
            raise NotAllowed(f"the {name} is not valid yet", hint="check the clock of both machines")
        if now > certificate.not_valid_after_utc:
            raise NotAllowed(f"the {name} has expired", hint="renew it: sector init DIR --renew")
    try:
        leaf.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        raise NotAllowed("the certificate is not from this cluster's CA") from None
    return identity_of(leaf)


def days_left(certificate: x509.Certificate, now: datetime) -> float:
    """Days until a certificate ends; negative when it is over."""
    return (certificate.not_valid_after_utc - now) / timedelta(days=1)


def utc(seconds: float) -> datetime:
    """Seconds since 1970 as a datetime."""
    return datetime.fromtimestamp(seconds, UTC)


# whom to trust, who we are ------------------------------------------------------------------------
@dataclass(frozen=True)
class Trust:
    """The cluster's CA, by its certificate or by the SHA-256 of it (hex), or both."""

    ca: x509.Certificate | None = None
    ca_sha256: str = ""

    def __post_init__(self) -> None:
        if self.ca is None and not self.ca_sha256:
            raise BadConfig("no CA is given", hint="give --ca FILE or --ca-sha256 HEX")
        if self.ca is not None and self.ca_sha256 and fingerprint(self.ca) != self.ca_sha256.lower():
            raise BadConfig("the CA file does not have the pinned SHA-256", hint="get ca.pem again")

    @classmethod
    def load(cls, ca_file: str | Path | None = None, ca_sha256: str = "") -> Trust:
        """From a PEM file and/or a pin. Raises `BadConfig`."""
        ca = load_certificate(_read(Path(ca_file)), str(ca_file)) if ca_file else None
        return cls(ca, check_pin(ca_sha256) if ca_sha256 else "")

    def is_ca(self, certificate: x509.Certificate) -> bool:
        """Whether this is the CA we trust."""
        return fingerprint(certificate) == (fingerprint(self.ca) if self.ca else self.ca_sha256)


def check_pin(text: str) -> str:
    """A SHA-256 as 64 lower hexadecimal digits, from what people have (colons, as openssl prints them).
    Raises `UsageError`."""
    digits = text.strip().replace(":", "").lower()
    if re.fullmatch("[0-9a-f]{64}", digits) is None:
        raise UsageError(
            f"{text!r} is not the SHA-256 of a certificate: that has 64 hexadecimal digits",
            hint="openssl x509 -in ca.pem -noout -fingerprint -sha256 prints it",
        )
    return digits


@dataclass(frozen=True)
class Credentials:
    """Certificate and key of this node."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    ca: x509.Certificate

    @classmethod
    def load(cls, ca: str | Path, cert: str | Path, key: str | Path) -> Credentials:
        """From PEM files. Raises `BadConfig` when one is unreadable or they do not belong together."""
        authority = load_certificate(_read(Path(ca)), str(ca))
        certificate = load_certificate(_read(Path(cert)), str(cert))
        try:
            private = load_pem_private_key(_read(Path(key)), None)
        except (ValueError, TypeError):
            raise BadConfig(f"{key}: holds no private key in PEM form") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise BadConfig(f"{key}: is not a key on an elliptic curve")
        if private.public_key() != certificate.public_key():
            raise BadConfig(f"{key}: does not belong to {cert}")
        return cls(certificate, private, authority)

    @property
    def identity(self) -> Identity:
        """The node this certificate speaks for."""
        return identity_of(self.certificate)


def load_node(config: Config, role: str) -> tuple[Credentials, Trust]:
    """Certificate, key and CA of a service from its settings; checked for CA, period, role and id.

    Raises `BadConfig` with one line that names the file."""
    cert_file = config.file(config.tls.cert)
    mine = Credentials.load(config.file(config.tls.ca), cert_file, config.file(config.tls.key))
    trust = Trust(mine.ca, config.tls.ca_sha256.lower())
    try:
        identity = check_certificate(mine.certificate, mine.ca, datetime.now(UTC))
    except NotAllowed as bad:
        raise BadConfig(f"{cert_file}: {bad.message}", hint=bad.hint) from None
    if identity.role != role or identity.id != config.node_id:
        wanted = f"{role}:{config.node_id}"
        raise BadConfig(
            f"{cert_file}: is for {identity.principal}, not for {wanted}",
            hint=f"check id in [{role}] and cert in [tls]",
        )
    left = days_left(mine.certificate, datetime.now(UTC))
    if left < RENEW_DAYS:
        log.warn("certificate {file} ends in {days} days", file=str(cert_file), days=round(left))
    return mine, trust


class NodeFiles:
    """Certificate, key and CA of a service, which uses new ones without a restart: it may run for longer than
    they last. `seconds()` is a monotonic clock."""

    def __init__(self, config: Config, role: str, seconds: Callable[[], float]) -> None:
        """Raises `BadConfig`."""
        self._config = config
        self._role = role
        self._seconds = seconds
        self.mine, self.trust = load_node(config, role)
        self._stamps = self._look()
        self._looked = self._loaded = seconds()

    def _look(self) -> list[tuple[int, int]]:
        tls = self._config.tls
        found = []
        for name in (tls.cert, tls.key):
            try:
                info = os.stat(self._config.file(name))
                found.append((info.st_ino, info.st_mtime_ns))
            except OSError:
                found.append((0, 0))
        return found

    def renewed(self) -> Credentials | None:
        """Another certificate, if the files have one since the last call; looked for once a minute. Files
        that cannot be used (half of them copied) are told of, and what was good is used on. Each day the
        files are read again in any case, which warns when the certificate will end soon."""
        now = self._seconds()
        if now - self._looked < LOOK_S:
            return None
        self._looked = now
        stamps = self._look()
        if stamps == self._stamps and now - self._loaded < WARN_S:
            return None
        try:
            mine, self.trust = load_node(self._config, self._role)
        except BadConfig as bad:
            log.warn("the certificate is not renewed: {why}", why=bad.message)
            return None
        self._stamps, self._loaded = stamps, now
        before, self.mine = self.mine, mine
        if mine.certificate == before.certificate:
            return None
        end = mine.certificate.not_valid_after_utc
        log.info("a new certificate is in use, until {end}", end=end.isoformat())
        return mine


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as bad:
        raise BadConfig(f"{path}: cannot be read: {bad.strerror}") from None
