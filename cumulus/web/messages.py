"""What the admin page is asked and answers: values, so that all of it is tested without a socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit

BASE: Final = "/ui"
BODY_MOST: Final = 64 * 1024
FIELDS_MOST: Final = 100
_FORM: Final = "application/x-www-form-urlencoded"

HEADERS: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    # not no-referrer: with that, browsers send forms with "Origin: null"
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class BadForm(Exception):
    """The body is no form, or too large."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. `path` is below BASE, percent-decoded after it was split; `host` as in Host; `token` is the
    session's cookie."""

    method: str
    path: tuple[str, ...] = ()
    query: str = ""
    host: str = ""
    origin: str = ""
    fetch_site: str = ""
    content_type: str = ""
    token: str = field(default="", repr=False)
    peer: str = ""
    secure: bool = False
    body: bytes = field(default=b"", repr=False)

    def parameters(self) -> dict[str, str]:
        """The query's, the first of each name."""
        return _first(self.query)

    def form(self) -> dict[str, str]:
        """The fields of a form, the first of each name. Raises `BadForm`."""
        if self.content_type.partition(";")[0].strip().lower() != _FORM:
            raise BadForm("The request is no form.")
        try:
            return _first(self.body.decode())
        except UnicodeDecodeError:
            raise BadForm("The form is not UTF-8.") from None

    @property
    def https(self) -> bool:
        """Whether the browser speaks TLS, to us or to a proxy before us."""
        return self.secure or self.origin.startswith("https://")

    def same_origin(self) -> bool:
        """Whether a page of this service sent a change: browsers say so in Origin or Sec-Fetch-Site."""
        if self.origin:
            parts = urlsplit(self.origin)
            return parts.scheme in ("http", "https") and _netloc(parts.netloc, parts.scheme) == _netloc(
                self.host, parts.scheme
            )
        return self.fetch_site == "same-origin"


def _netloc(text: str, scheme: str) -> str:
    return text.lower().removesuffix(":443" if scheme == "https" else ":80")


def _first(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MOST)
    except ValueError:
        raise BadForm("The form cannot be read.") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        found.setdefault(name, value)
    return found


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply; `headers` beside HEADERS."""

    status: int
    body: bytes = field(default=b"", repr=False)
    kind: str = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    keep_s: int = 0  # how long browsers may keep it


def see_other(where: str, *headers: tuple[str, str]) -> Answer:
    """Sends the browser to a page by GET."""
    return Answer(303, b"", "text/plain; charset=utf-8", (("Location", BASE + where), *headers))


def cookie_name(host: str) -> str:
    """Cookies do not know ports: several services on one machine each have their own."""
    port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    return f"cumulus_session_{port}" if port.isascii() and port.isdecimal() else "cumulus_session"


def cookie(asked: Asked, token: str, age_s: int) -> tuple[str, str]:
    """The header that sets the session's cookie; an empty token removes it."""
    text = f"{cookie_name(asked.host)}={token}; Path={BASE}; HttpOnly; SameSite=Strict; Max-Age={age_s}"
    return "Set-Cookie", text + ("; Secure" if asked.https else "")
