"""A whole S3 service in this process, without sockets: requests are signed as clients sign them, go through
the gateway, and come back as values. `World.boto` is a real boto3 client over that."""

from __future__ import annotations

import io
import itertools
import time
from typing import Any
from urllib.parse import quote, urlencode

import boto3
import botocore.config
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.credentials import Credentials
from s3_wire import Answer

from cumulus.http.settings import SMALL_BODY
from cumulus.index.api import Directory, Index
from cumulus.index.registry import make_index
from cumulus.model import Credential, User
from cumulus.ops.bin import Bin
from cumulus.rest.call import Call, Download, Headers, Joint, Reply, Sink
from cumulus.rest.gateway import S3Gateway, make_gateway
from cumulus.rest.request import RestSettings
from cumulus.storage.api import FileStore

HOST = "s3.test"
SECOND = 1_000_000_000


class People(Directory):
    """Users alice, bob, carol (group "lab") and the admin root; the key of each is the name in capitals."""

    def __init__(self) -> None:
        self.users = {
            name: User(
                id=f"{number:064x}",
                name=name,
                display=name.title(),
                email=f"{name}@example.org",
                groups=("lab",) if name == "carol" else (),
                admin=name == "root",
            )
            for number, name in enumerate(("alice", "bob", "carol", "root"), 1)
        }

    def credential(self, access_key: str) -> Credential | None:
        user = self.users.get(access_key.lower())
        return user and Credential(access_key=access_key, secret=f"secret of {user.name}", user=user)

    def credential_now(self, access_key: str) -> Credential | None:
        return self.credential(access_key)

    def user(self, id_or_name: str) -> User | None:
        return next((u for u in self.users.values() if id_or_name in (u.id, u.name)), None)

    def members(self, group: str) -> list[str] | None:
        found = [user.id for user in self.users.values() if group in user.groups]
        return found or None

    def by_email(self, email: str) -> User | None:
        return next((u for u in self.users.values() if u.email == email), None)


class World:
    """A gateway over a store; `now` moves only when a test says so. `directory`: users."""

    def __init__(
        self,
        store: FileStore,
        index: Index | None = None,
        directory: Directory | None = None,
        **settings: Any,
    ) -> None:
        self.people = People()
        self.store = store
        self.skew_ns = 0
        self._time = time.time_ns
        self.index = index or make_index("sqlite://", directory=self.people)[0]
        options: dict[str, Any] = {"min_part": 1, **settings}
        self.settings = RestSettings(**options)
        users = directory or self.people
        self.gateway: S3Gateway = make_gateway(self.settings, store, self.index, users, self.clock)
        self.site.bin = Bin(lambda: time.monotonic() + self.skew_ns / SECOND)
        self._ids = itertools.count(1)
        self.at_once = 0  # requests that needed no thread
        self.together = 0  # that were done as one of many

    def clock(self) -> int:
        """The service's time."""
        return self._time() + self.skew_ns

    @property
    def site(self) -> Any:
        """What the operations work with."""
        return self.gateway.site

    def close(self) -> None:
        """End threads and the index."""
        self.gateway.close()
        self.index.close()
        self.store.close()

    # requests
    def signed(
        self, user: str, method: str, target: str, body: bytes, headers: dict[str, str]
    ) -> list[tuple[str, str]]:
        """All headers of a request, signed by botocore unless `user` is ""."""
        host = headers.get("Host", HOST)
        request = AWSRequest(method=method, url=f"http://{host}{target}", data=body, headers=dict(headers))
        if user:
            credentials = Credentials(user.upper(), f"secret of {user}")
            _Signer(credentials, headers.get("x-amz-content-sha256", "")).add_auth(request)
        pairs = [(name, value) for name, value in request.headers.items()]
        if not any(name.lower() == "host" for name, _ in pairs):
            pairs.append(("Host", host))
        return pairs

    def open(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        user: str = "alice",
        query: str | dict[str, Any] = "",
        headers: dict[str, str] | None = None,
        raw: bool = False,
        whole: bool = False,
    ) -> tuple[Call, Reply | Sink]:
        """Start a request: the head goes in, and what the gateway says comes out. `whole`: the body came with
        the head."""
        text = query if isinstance(query, str) else urlencode(query, quote_via=quote)
        target = (path if raw else quote(path, safe="/~")) + (f"?{text}" if text else "")
        pairs = self.signed(user, method, target, body, headers or {})
        length = len(body) if body or method in ("PUT", "POST") else None
        call = Call(
            id=f"R{next(self._ids)}",
            method=method,
            target=target,
            headers=Headers(pairs),
            peer="192.0.2.1",
            secure=False,
            at_ns=self.clock(),
            length=length,
        )
        return call, self.start(call, memoryview(body) if whole else None)

    def start(self, call: Call, body: memoryview | None = None) -> Reply | Sink:
        """As the HTTP floor does it: what needs no waiting at once, the rest in what would be a thread; a
        small body that came whole with others."""
        if call.method != "PUT" or len(body or b"") > SMALL_BODY:
            body = None
        if body is None and (call.length is not None or call.chunked):
            return self.gateway.start(call)
        answer = self.gateway.start_now(call, body)
        self.at_once += isinstance(answer, Reply)
        if isinstance(answer, Joint):
            self.together += 1
            return self.gateway.finish_all([answer])[0]
        return answer if isinstance(answer, Reply) else answer()

    def ask(self, method: str, path: str, body: bytes = b"", **options: Any) -> Answer:
        """A whole request: body in pieces of 64 KiB, the reply's body read to its end."""
        call, answer = self.open(method, path, body, whole=True, **options)
        return self.read(call, self.feed(answer, body))

    def feed(self, answer: Reply | Sink, body: bytes, piece: int = 65536) -> Reply:
        """Give a sink its body."""
        if isinstance(answer, Reply):
            return answer
        for offset in range(0, len(body), piece):
            refusal = answer.write(memoryview(body)[offset : offset + piece])
            if refusal is not None:
                return refusal
        return answer.finish()

    def read(self, call: Call, reply: Reply) -> Answer:
        """The reply with its body as bytes."""
        body = reply.body
        if isinstance(body, Download):
            try:
                now = body.stream.read_now(body.offset, body.length)
                body_bytes = body.stream.read_at(body.offset, body.length) if now is None else now
                assert body.stream.unchanged()
            finally:
                body.stream.close()
        else:
            body_bytes = body
        headers = {name.lower(): value for name, value in reply.headers}
        length = len(body_bytes) if reply.length is None else reply.length
        headers["content-length"] = str(length)
        return Answer(reply.status, headers, body_bytes, call.notes)

    # a real client
    def boto(self, user: str = "alice", **config: Any) -> Any:
        """A boto3 client whose requests go through the gateway instead of a socket."""
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{HOST}",
            region_name="us-east-1",
            aws_access_key_id=user.upper(),
            aws_secret_access_key=f"secret of {user}",
            config=botocore.config.Config(
                s3={"addressing_style": "path"}, retries={"max_attempts": 0}, **config
            ),
        )
        client.meta.events.register("before-send.s3", self._send)
        return client

    def _send(self, request: Any, **_: Any) -> AWSResponse:
        body = request.body or b""
        data = body if isinstance(body, bytes) else body.read()
        pairs = [
            (name, value.decode() if isinstance(value, bytes) else value)
            for name, value in request.headers.items()
        ]
        if not any(name.lower() == "host" for name, _ in pairs):
            pairs.append(("Host", HOST))
        headers = Headers(pairs)
        length = headers.get("content-length")
        call = Call(
            id=f"R{next(self._ids)}",
            method=request.method,
            target=request.url.removeprefix(f"http://{HOST}") or "/",
            headers=headers,
            peer="192.0.2.1",
            secure=False,
            at_ns=self.clock(),
            length=int(length) if length else None,
            chunked=not length and bool(data),
        )
        answer = self.read(call, self.feed(self.start(call), data))
        raw = _Raw(answer.body if request.method != "HEAD" else b"")
        return AWSResponse(request.url, answer.status, answer.headers, raw)


class _Signer(S3SigV4Auth):
    """Signs a payload hash that a test gives instead of the body's."""

    def __init__(self, credentials: Credentials, payload: str) -> None:
        super().__init__(credentials, "s3", "us-east-1")
        self._payload = payload

    def payload(self, request: AWSRequest) -> str:
        return self._payload or str(super().payload(request))


class _Raw(io.BytesIO):
    """What botocore reads a body from."""

    def stream(self, amount: int = 65536, decode_content: bool = False) -> Any:
        """Pieces of the body."""
        while piece := self.read(amount):
            yield piece
