"""Requests of web pages from elsewhere: the preflight, and what replies carry for the browser."""

from __future__ import annotations

from cumulus.errors import S3Error
from cumulus.rest.call import Reply
from cumulus.rest.request import Request


def preflight(request: Request) -> Reply:
    """Whether a page may send the request that it announces."""
    raise S3Error("AccessDenied", "CORSResponse: CORS is not enabled for this bucket.")


def reply_headers(request: Request) -> list[tuple[str, str]]:
    """What a browser needs to hand the reply to a page."""
    return []
