"""S3 error documents of what the HTTP floor refuses by itself, before or beside the S3 floors."""

from __future__ import annotations

from xml.sax.saxutils import escape

from cumulus.errors import S3Error
from cumulus.rest.call import Reply


def refusal(error: S3Error, request_id: str, *, close: bool = False) -> Reply:
    """The reply that says it."""
    fields = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in error.fields.items())
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message>{fields}"
        f"<RequestId>{request_id}</RequestId></Error>"
    )
    headers = [("content-type", "application/xml"), *error.headers]
    return Reply(error.status, headers, body.encode(), close=close)


def slow_down(request_id: str, *, close: bool = False) -> Reply:
    """503 with the time after which to come back."""
    return refusal(S3Error("SlowDown", headers=[("retry-after", "1")]), request_id, close=close)
