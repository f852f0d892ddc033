"""PutObject of a small body that came whole with its head: judged at once, then published with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from cumulus.checksums import Hasher
from cumulus.errors import S3Error
from cumulus.model import ObjectMeta
from cumulus.ops import together
from cumulus.ops.near import NotNow
from cumulus.ops.site import Site
from cumulus.ops.together import Small
from cumulus.rest import expect
from cumulus.rest.call import Call, Joint, Reply
from cumulus.rest.expect import Expected
from cumulus.rest.headers import conditions
from cumulus.rest.objects import algorithms, etag_of, new_meta, put_headers
from cumulus.rest.request import Request
from cumulus.rest.sinks import declared
from cumulus.storage.api import TOGETHER_MOST


class SmallPut(Joint):
    """One whose head has been judged: who asks may do it, and nothing else has to be looked at."""

    __slots__ = ("_body", "_expected", "_meta", "request")

    def __init__(self, request: Request, meta: ObjectMeta, expected: Expected, body: memoryview) -> None:
        self.request = request
        self._meta = meta
        self._expected = expected
        self._body = body

    def verified(self) -> Small:
        """The object, if the body is what was promised. Raises `S3Error`."""
        request, expected = self.request, self._expected
        decoder = request.auth.body.decoder(request.call.length)
        pieces = decoder.feed(self._body)
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        hasher = Hasher(algorithms(request, expected))
        hasher.update(body)
        trailers = decoder.finish(hasher.digest)
        if len(body) != declared(request):
            raise S3Error("IncompleteBody")
        checksums = expected.verify(hasher, trailers)
        meta = msgspec.structs.replace(
            self._meta,
            size=len(body),
            etag=etag_of(hasher),
            checksums=checksums,
            checksum_type="FULL_OBJECT" if checksums else "",
        )
        return Small(request.bucket, meta, body)


def small_put(request: Request, body: memoryview) -> SmallPut:
    """PutObject. Raises `NotNow` where it has to be done by itself, and `S3Error` as `put_object`."""
    size, most = declared(request), min(TOGETHER_MOST, request.settings.max_object)
    if not together.fits(request.bucket) or size is None or size > most or request.key.endswith("/"):
        raise NotNow("a PUT with more to it")
    meta = new_meta(request)
    if conditions(request.call.headers):
        raise NotNow("a condition")
    return SmallPut(request, meta, expect.read(request.call.headers), body)


class Replies(Protocol):
    """What makes replies of outcomes: the gateway."""

    site: Site

    def finish(self, request: Request, answer: Reply) -> Reply:
        """What every reply carries besides."""

    def refuse(self, call: Call, request: Request | None, error: BaseException) -> Reply:
        """The error document."""


def finish_all(gateway: Replies, puts: Sequence[SmallPut]) -> list[Reply]:
    """Verify and publish; a reply for each."""
    outcomes: list[ObjectMeta | Exception | None] = [None] * len(puts)
    smalls: list[Small] = []
    places: list[int] = []
    for place, put in enumerate(puts):
        try:
            smalls.append(put.verified())
            places.append(place)
        except Exception as error:
            outcomes[place] = error
    for place, outcome in zip(places, together.publish_all(gateway.site, smalls), strict=True):
        outcomes[place] = outcome
    return [_reply(gateway, put.request, outcome) for put, outcome in zip(puts, outcomes, strict=True)]


def _reply(gateway: Replies, request: Request, outcome: ObjectMeta | Exception | None) -> Reply:
    try:
        if isinstance(outcome, ObjectMeta):
            return gateway.finish(request, Reply(200, put_headers(request, outcome)))
    except Exception as error:
        outcome = error
    return gateway.refuse(request.call, request, outcome or S3Error("InternalError"))
