"""Requests to S3 written by hand, signed or not, and their answers: for what no client would send."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Any

from cumulus.auth import sigv4
from cumulus.auth.sigv4 import ChunkSigner, Scope

REGION = "us-east-1"


@dataclass(frozen=True)
class Ask:
    """A request. `target` is the path with the query as on the wire; `sign` False sends it without a
    signature; `payload` is what x-amz-content-sha256 says, "" = the body's hash; `skew_s` moves the clock it
    is signed by; `raw` is sent as it is, instead of everything else; `cut` ends the body after so many bytes;
    `change` replaces text in the head after it was signed."""

    method: str = "GET"
    target: str = "/box"
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    sign: bool = True
    payload: str = ""
    key: str = ""
    secret: str = ""
    region: str = REGION
    skew_s: float = 0.0
    raw: bytes = b""
    cut: int | None = None
    change: tuple[str, str] = ("", "")
    chunks: Any = None  # called with the signer of the request's chunks, gives the body


@dataclass(frozen=True)
class Answer:
    """What came: status 0 = the connection ended without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """Of the error document."""
        found = re.search(rb"<Code>(\w+)</Code>", self.body)
        return found[1].decode() if found else ""


class Raw:
    """Writes requests to one server with one key."""

    def __init__(self, port: int, key: str, secret: str) -> None:
        self.port = port
        self.key = key
        self.secret = secret

    def head(self, ask: Ask) -> tuple[bytes, bytes]:
        """Head and body on the wire."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + ask.skew_s))
        headers = {"host": f"127.0.0.1:{self.port}"}
        body = ask.body
        if ask.sign:
            headers |= {"x-amz-date": stamp, "x-amz-content-sha256": ask.payload or _hash(body)}
        headers |= {name.lower(): value for name, value in ask.headers.items()}
        if ask.sign:
            signature, signer = self._sign(ask, headers, stamp)
            headers["authorization"] = signature
            body = ask.chunks(signer) if ask.chunks is not None else body
        if (body or ask.method in ("PUT", "POST")) and "transfer-encoding" not in headers:
            headers.setdefault("content-length", str(len(body)))
        lines = [
            f"{ask.method} {ask.target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        text = "\r\n".join([*lines, "", ""])
        if ask.change[0]:
            text = text.replace(*ask.change, 1)
        return text.encode("latin-1"), body

    def _sign(self, ask: Ask, headers: dict[str, str], stamp: str) -> tuple[str, ChunkSigner]:
        scope = Scope(stamp[:8], ask.region)
        path, _, query = ask.target.partition("?")
        pairs = sorted((name, value) for name, value in headers.items() if name != "transfer-encoding")
        request = sigv4.canonical_request(
            ask.method,
            sigv4.canonical_path(path),
            sigv4.canonical_query(sigv4.split_query(query)),
            pairs,
            headers["x-amz-content-sha256"],
        )
        key = sigv4.signing_key(ask.secret or self.secret, scope)
        signature = sigv4.sign(key, sigv4.string_to_sign(stamp, scope, request))
        names = ";".join(name for name, _ in pairs)
        credential = f"{ask.key or self.key}/{scope}"
        text = f"{sigv4.ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}"
        return text, ChunkSigner(key, stamp, scope, signature)

    def send(self, ask: Ask) -> Answer:
        """One request on a connection of its own, and what is answered."""
        head, body = (ask.raw, b"") if ask.raw else self.head(ask)
        with socket.create_connection(("127.0.0.1", self.port), 60) as wire:
            try:
                wire.sendall(head)
                wire.sendall(body if ask.cut is None else body[: ask.cut])
                if ask.cut is not None:
                    wire.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has answered before the end, and closed
            return _read(wire, ask.method)

    def get(self, target: str, **more: Any) -> Answer:
        """A signed GET."""
        return self.send(replace(Ask(target=target), **more))


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(wire: socket.socket, method: str) -> Answer:
    data = b""
    try:
        while True:
            head, end, rest = data.partition(b"\r\n\r\n")
            if end:
                answer = _parse(head, rest)
                wanted = 0 if method == "HEAD" else int(answer.headers.get("content-length", "0"))
                if answer.status != 100 and len(rest) >= wanted:
                    return replace(answer, body=rest[:wanted])
                if answer.status == 100:
                    data = rest
                    continue
            more = wire.recv(1 << 16)
            if not more:
                return Answer(0, {}, data)
            data += more
    except ConnectionError:
        return Answer(0, {}, data)


def _parse(head: bytes, rest: bytes) -> Answer:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return Answer(int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, rest)
