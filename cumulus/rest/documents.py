"""Parts of documents that several operations share."""

from __future__ import annotations

from urllib.parse import quote

from cumulus.auth.host import host_bucket
from cumulus.errors import S3Error
from cumulus.model import User
from cumulus.ops.site import Site
from cumulus.rest.call import Reply
from cumulus.rest.request import Request
from cumulus.xml import Writer, element


def reply(document: Writer, *headers: tuple[str, str], status: int = 200) -> Reply:
    """A document as a reply."""
    return Reply(status, [("Content-Type", "application/xml"), *headers], document.bytes())


def location(request: Request, key: str) -> str:
    """The URL of an object of this bucket, as this client reaches the bucket."""
    scheme, host = "https" if request.call.secure else "http", request.header("host")
    path = key if host_bucket(host, request.settings.domain) else f"{request.bucket.name}/{key}"
    return f"{scheme}://{host}/{quote(path)}"


def encoder(request: Request) -> str:
    """The encoding-type asked for: "url" or "". Raises `S3Error` InvalidArgument."""
    kind = request.query.get("encoding-type", "")
    if kind not in ("", "url"):
        raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request")
    return kind


def encode(text: str, kind: str) -> str:
    """A key or prefix as a listing shows it."""
    return quote(text, safe="/-_.*~") if kind == "url" else text


def owner(
    document: Writer,
    site: Site,
    id: str,
    tag: str = "Owner",
    cache: dict[str, str] | None = None,
    attributes: str = "",
) -> None:
    """An element of ID and DisplayName."""
    known = {} if cache is None else cache
    if id not in known:
        known[id] = identity(site, id)
    document.begin(tag, attributes)
    document.raw(known[id])
    document.end()


def identity(site: Site, id: str) -> str:
    """The elements ID and DisplayName of a user; the second only of one who is known."""
    user: User | None = site.directory.user(id)
    name = "" if user is None else user.display or user.name
    return element("ID", id) + (element("DisplayName", name) if name else "")


def checksums(document: Writer, values: dict[str, str]) -> None:
    """ChecksumCRC32 and so on."""
    for name, value in values.items():
        document.leaf(f"Checksum{name.upper()}", value)
