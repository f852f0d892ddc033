"""What tests of signatures share: a directory of two users, requests as values, botocore as the signer."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlsplit

from botocore.auth import HmacV1Auth, HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cumulus.index.api import Directory
from cumulus.model import Credential, User
from cumulus.rest.call import Call, Headers

# of the documentation's examples
KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
ALICE = User(id="a" * 64, name="alice", groups=("physics",))
SECOND = 10**9
# 24 May 2013 00:00:00, the day of the documentation's examples
MAY = int(datetime(2013, 5, 24, tzinfo=UTC).timestamp()) * SECOND


class People(Directory):
    """Keys from a dictionary."""

    def __init__(self, *credentials: Credential) -> None:
        self.keys = {
            c.access_key: c for c in credentials or (Credential(access_key=KEY, secret=SECRET, user=ALICE),)
        }

    def credential(self, access_key: str) -> Credential | None:
        return self.keys.get(access_key)

    def user(self, id_or_name: str) -> User | None:
        return next((c.user for c in self.keys.values() if id_or_name in (c.user.id, c.user.name)), None)

    def by_email(self, email: str) -> User | None:
        return next((c.user for c in self.keys.values() if c.user.email == email), None)

    def members(self, group: str) -> list[str] | None:
        return sorted({c.user.id for c in self.keys.values() if group in c.user.groups}) or None


def call(
    method: str, target: str, headers: dict[str, str], at_ns: int = MAY, length: int | None = None
) -> Call:
    """A request as the HTTP floor hands it down."""
    return Call(
        id="1", method=method, target=target, headers=Headers(headers.items()), peer="192.0.2.1",
        secure=False, at_ns=at_ns, length=length,
    )  # fmt: skip


_SIGNERS = {"v4": S3SigV4Auth, "v4-query": S3SigV4QueryAuth, "v2": HmacV1Auth, "v2-query": HmacV1QueryAuth}


def signed(
    method: str,
    url: str,
    headers: dict[str, str] | None = None,
    *,
    how: str = "v4",
    key: str = KEY,
    secret: str = SECRET,
    region: str = "us-east-1",
    body: bytes = b"",
    expires_s: int = 600,
    payload: str = "",
) -> tuple[Call, int]:
    """A request as botocore signs it now, and that time. Path and query are sent as `url` has them;
    `payload` is what the signature says of the body, if not its hash."""
    request = AWSRequest(method=method, url=url, headers=headers or {}, data=body)
    signer = type("Signer", (_SIGNERS[how],), {"payload": lambda *_: payload} if payload else {})
    request.context["signing"] = {"region": region}
    credentials = Credentials(key, secret)
    if how in ("v4", "v4-query"):
        options = {"expires": expires_s} if how == "v4-query" else {}
        signer(credentials, "s3", region, **options).add_auth(request)
    else:
        options = {"expires": expires_s} if how == "v2-query" else {}
        signer(credentials, **options).add_auth(request)
    parts = urlsplit(request.url)
    sent = {
        name: value.decode() if isinstance(value, bytes) else value for name, value in request.headers.items()
    }
    sent.setdefault("Host", parts.netloc)
    now_ns = int(datetime.now(UTC).timestamp() * SECOND)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return call(method, target, sent, now_ns, len(body)), now_ns
