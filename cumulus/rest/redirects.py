"""Requests that are sent on to another server: 307 with a URL that is signed for it."""

from __future__ import annotations

from contextlib import suppress
from typing import Final
from urllib.parse import quote

from cumulus.auth import sigv2, sigv4, times
from cumulus.auth.host import host_bucket
from cumulus.auth.presign import MARK, Presigner, marked, presign, unsigned_query
from cumulus.auth.sigv4 import Query
from cumulus.auth.verify import WEEK_S
from cumulus.errors import S3Error
from cumulus.redirect import Balancer, NoServer, Server
from cumulus.rest.call import Headers
from cumulus.rest.lifted import carried
from cumulus.rest.request import Request

LASTS_S: Final = 60


def send_on(request: Request, balancer: Balancer) -> None:
    """Return if the request is to be served here. Raises `S3Error` TemporaryRedirect, or ServiceUnavailable
    when this server only redirects and knows no server, or was named by another one or a client."""
    call, domain = request.call, request.settings.domain
    if MARK.decode() in request.query:
        if balancer.point:
            message = "This server only sends requests on; it must not be among those to which others do."
            raise S3Error("ServiceUnavailable", message, headers=[("Retry-After", "5")])
        return
    host = call.headers.get("host")
    bucket = host_bucket(host, domain)
    try:
        server = balancer.choose(host[len(bucket) + 1 :] if bucket else host, secure=call.secure)
    except NoServer:
        raise S3Error("ServiceUnavailable", headers=[("Retry-After", "1")]) from None
    if server is None:
        return
    if request.header("origin") and request.target.bucket:
        with suppress(S3Error):  # for the headers that let a web page follow
            request.loaded = request.site.bucket(request.target.bucket)
    fields = {"Bucket": request.target.bucket} if request.target.bucket else {}
    fields["Endpoint"] = server.netloc
    # the region, which is the same there, keeps boto3 from asking for it again and again
    region = [("x-amz-bucket-region", request.settings.region)] if request.target.bucket else []
    headers = [("Location", location(request, server)), ("Cache-Control", "no-store"), *region]
    raise S3Error("TemporaryRedirect", fields=fields, headers=headers)


def location(request: Request, server: Server) -> str:
    """The URL of the same request at another server, path style, signed with the user's own key for a minute
    (presigned ones for the time they have left); of an anonymous one without a signature."""
    call, auth = request.call, request.auth
    where = request.target
    keys = f"/{where.key}" if where.key else ""
    path = quote(f"/{where.bucket}{keys}", safe="/~") if where.bucket else "/"
    original = sigv4.split_query(call.target.partition("?")[2])
    version2 = auth.scheme == "v2-query"
    query = unsigned_query(original, version2=version2)
    if auth.identity.user is None:
        text = sigv4.canonical_query(marked(query))
        return f"{server.url}{_dots(path)}?{text}"
    access_key = auth.identity.access_key
    credential = request.site.directory.credential(access_key)
    if credential is None:  # it was removed in this moment
        raise S3Error("InvalidAccessKeyId")
    now_ns = request.site.clock()
    region = request.settings.region or "us-east-1"
    who = Presigner(access_key, credential.secret, region, now_ns, _left_s(request, now_ns))
    payload = request.header("x-amz-content-sha256") or request.query.get("X-Amz-Content-Sha256", "")
    query = marked(_once(request, query) if version2 else query, auth.body.signer, version2=version2)
    headers = Headers(pair for pair in call.headers.items() if pair[0] not in request.lifted)
    bound = [name for name in auth.bound if name in headers]
    text = presign(who, call.method, server.netloc, path, query, headers, payload, bound)
    return f"{server.url}{_dots(path)}?{text}"


def _once(request: Request, query: Query) -> Query:
    """Of a link of version 2: each header in it once, as it counted here, since its signature is over no
    other one; and as "" what is signed as not being there."""
    headers = request.call.headers
    names = [*request.lifted, *(name for name in sigv2.SIGNED if name not in headers)]
    rest = [pair for pair in query if not carried(pair[0].decode("latin-1"))]
    return rest + [(name.encode(), sigv4.wire(headers.get(name))) for name in names]


def _left_s(request: Request, now_ns: int) -> int:
    """Seconds that a presigned request has left, at least 1; LASTS_S for others."""
    query, now_s = request.query, now_ns // times.SECOND
    if request.auth.scheme == "v4-query":
        begins_s = times.parse_basic(query["X-Amz-Date"]) // times.SECOND
        left = begins_s + int(query["X-Amz-Expires"]) - now_s
    elif request.auth.scheme == "v2-query":
        left = int(query["Expires"]) - now_s
    else:
        return LASTS_S
    return max(1, min(left, WEEK_S))


def _dots(path: str) -> str:
    """Segments . and .. in a form that clients do not resolve; the signature is over the decoded path."""
    segments = path.split("/")
    return "/".join("%2E" * len(one) if one in (".", "..") else one for one in segments)
