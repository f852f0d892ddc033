"""What Cumulus parses before it knows who sent it: request heads, bodies, documents. See targets.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from urllib.parse import quote_from_bytes

from cumulus.auth import sigv4
from cumulus.auth.body import BodyRule
from cumulus.auth.claims import AuthSettings
from cumulus.auth.cors import parse_cors
from cumulus.auth.lifecycle import parse_lifecycle
from cumulus.auth.policy import parse_policy
from cumulus.auth.post_form import FormDecoder
from cumulus.auth.post_policy import authenticate_form, parse_post_policy
from cumulus.auth.sigv4 import ChunkSigner, Scope
from cumulus.auth.verify import authenticate
from cumulus.checksums import Hasher
from cumulus.errors import S3Error
from cumulus.index.api import Directory
from cumulus.model import Credential, User
from cumulus.rest.call import Call, Headers
from cumulus.xml import Element, Writer, parse

NOW_NS = 1369353600 * 10**9
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SIGNER = ChunkSigner(b"k" * 32, "20130524T000000Z", Scope("20130524", "us-east-1"), "0" * 64)
TRAILERS = ("x-amz-checksum-crc32", "x-amz-checksum-crc32c")


class _One(Directory):
    """Any key is the one user's."""

    def credential(self, access_key: str) -> Credential | None:
        return Credential(access_key=access_key, secret=SECRET, user=User(id="a" * 64, name="alice"))

    def user(self, id_or_name: str) -> User | None:
        return None

    def by_email(self, email: str) -> User | None:
        return None

    def members(self, group: str) -> list[str] | None:
        return None


ONE = _One()
SETTINGS = AuthSettings(allow_sigv2=True, domain="s3.example.org")


def head(data: bytes) -> None:
    """Request heads: method, target and headers, a line each. The secret is in no refusal; a canonical path
    stays what it is."""
    lines = data.decode("latin-1").split("\n")
    method, _, target = lines[0].partition(" ")
    headers = Headers((name, value) for name, _, value in (line.partition(":") for line in lines[1:]))
    call = Call(id="1", method=method, target=target, headers=headers, peer="::1", secure=False, at_ns=NOW_NS)
    shown = ""
    try:
        authenticate(call, ONE, SETTINGS, NOW_NS).body.decoder(None)
    except S3Error as error:
        shown = f"{error} {error.fields}"
    assert SECRET not in shown
    path = sigv4.canonical_path(target.partition("?")[0])
    assert sigv4.canonical_path(path) == path == quote_from_bytes(path.encode(), safe="/%")
    with contextlib.suppress(S3Error):
        FormDecoder(lines[0])


def body(data: bytes) -> None:
    """Bodies in chunks, signed and not, with and without trailers, and forms; the first two bytes say which
    and in what pieces. No more comes out than went in, and the same in any pieces."""
    kind, step = (data[0], data[1] + 1) if len(data) > 1 else (0, 1)
    assert _decoded(kind, data[2:], step) == _decoded(kind, data[2:], 1 << 20)


def _decoded(kind: int, wire: bytes, step: int) -> tuple[bytes, object] | None:
    """Data and trailers or fields; None when it is refused."""
    framed = BodyRule(True, SIGNER if kind & 1 else None, None, TRAILERS[: kind >> 1 & 3])
    decoder = FormDecoder("multipart/form-data; boundary=xYzZY") if kind & 8 else framed.decoder(None)
    out = bytearray()
    try:
        for at in range(0, len(wire), step):
            for piece in decoder.feed(memoryview(wire)[at : at + step]):
                out += piece
        end = decoder.finish() if isinstance(decoder, FormDecoder) else decoder.finish(Hasher(()).digest)
    except S3Error:
        return None
    assert len(out) <= len(wire)
    return bytes(out), decoder.fields if isinstance(decoder, FormDecoder) else end


def documents(data: bytes) -> None:
    """Policies of buckets and forms, CORS, lifecycle; the first byte says which."""
    text = data[1:].decode(errors="replace")
    readers = (
        lambda: parse_policy.__wrapped__(text, "b"),
        lambda: parse_cors.__wrapped__(text),
        lambda: parse_lifecycle.__wrapped__(text),
        lambda: parse_post_policy(text),
        lambda: authenticate_form(dict(_fields(text)), ONE, SETTINGS, "::1", NOW_NS),
    )
    with contextlib.suppress(S3Error):
        readers[(data[0] if data else 0) % len(readers)]()


ROOTS = (
    "Delete", "CompleteMultipartUpload", "AccessControlPolicy", "Tagging", "VersioningConfiguration",
    "CreateBucketConfiguration", "OwnershipControls",
)  # fmt: skip


def xml(data: bytes) -> None:
    """Bodies in XML; the first byte says of what kind. What is read can be written and read again."""
    root = ROOTS[(data[0] if data else 0) % len(ROOTS)]
    try:
        found = parse(data[1:], root)
    except S3Error as error:
        if error.code != "MalformedXML":
            raise
        return
    written = Writer(root, "")
    _write(written, found)
    assert _shape(parse(written.bytes(), root)) == _shape(found)


def _write(writer: Writer, element: Element) -> None:
    if not element.children:
        writer.text(element.text)
    for child in element.children:
        writer.begin(child.tag)
        _write(writer, child)
        writer.end()


def _shape(element: Element) -> object:
    return element.tag, [_shape(child) for child in element.children] or element.text


def _fields(text: str) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, _, value in (line.partition("=") for line in text.split("\n"))]


TARGETS: dict[str, Callable[[bytes], None]] = {
    "py_s3_head": head,
    "py_s3_body": body,
    "py_s3_docs": documents,
    "py_s3_xml": xml,
}
