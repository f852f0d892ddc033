"""Rights of who sends a body for long: judged anew when it is complete, before anything is published."""

from __future__ import annotations

import dataclasses
from typing import Final

from cumulus.auth import claims
from cumulus.errors import S3Error
from cumulus.rest.request import Request

AGAIN_NS: Final = 1_000_000_000  # as old as what is known of keys and buckets may be in any case


def admit_again(request: Request, action: str) -> None:
    """Judge a body that took longer than AGAIN_NS by what user, key and bucket are now; no `action`: no right
    is needed. A key may have expired meanwhile: it was good when the request began. Raises `S3Error`."""
    site, former = request.site, request.identity
    if site.clock() - request.call.at_ns <= AGAIN_NS:
        return
    if former.user is not None:
        key = claims.known(site.directory, former.access_key)
        if key.user.id != former.user.id:
            raise S3Error("InvalidAccessKeyId", fields={"AWSAccessKeyId": former.access_key})
        identity = claims.allowed(key, former.peer, request.call.at_ns)
        request.auth = dataclasses.replace(request.auth, identity=identity)
    if request.loaded is not None:
        request.loaded = site.bucket(request.loaded.name)
    if action:
        request.authorize(action)
