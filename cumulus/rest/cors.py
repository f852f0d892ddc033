"""Requests of web pages from elsewhere: the preflight, and what replies carry for the browser."""

from __future__ import annotations

from cumulus.auth import cors as rules
from cumulus.model import Bucket
from cumulus.rest.call import Call, Reply
from cumulus.rest.request import Request
from cumulus.rest.target import SERVER


def _rules(bucket: Bucket | None) -> tuple[rules.CorsRule, ...]:
    return () if bucket is None or bucket.cors is None else rules.parse_cors(bucket.cors)


def preflight(request: Request) -> Reply:
    """Whether a page may send the request that it announces; nobody has to sign that question. Load balancers
    ask of the server as such, to see whether it is alive."""
    if request.call.target == SERVER:
        return Reply(200, [("Allow", ", ".join((*rules.METHODS, "OPTIONS")))])
    name = request.target.bucket
    bucket = request.site.bucket(name) if name else None
    asked = request.header("access-control-request-headers")
    method = request.header("access-control-request-method")
    return Reply(200, list(rules.preflight(_rules(bucket), request.header("origin"), method, asked)))


def reply_headers(request: Request) -> list[tuple[str, str]]:
    """What a browser needs to hand the reply to a page."""
    return headers_of(request.loaded, request.call)


def headers_of(bucket: Bucket | None, call: Call) -> list[tuple[str, str]]:
    """The same of a request for that bucket of which nothing else may be known."""
    origin = call.headers.get("origin")
    if not origin or call.method == "OPTIONS":
        return []
    return list(rules.reply_headers(_rules(bucket), origin, call.method))
