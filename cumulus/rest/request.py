"""One authenticated request on its way to a handler, and what handlers ask of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from cumulus.auth.conditions import RequestContext, about, as_begun, context_of
from cumulus.auth.decide import decide
from cumulus.auth.verify import Authenticated, AuthSettings
from cumulus.errors import S3Error
from cumulus.model import Bucket, Identity, ObjectMeta
from cumulus.ops import multipart
from cumulus.ops.names import check_version
from cumulus.ops.site import Site
from cumulus.rest.call import Call, Joint, Reply, Sink
from cumulus.rest.target import Target

Level = Literal["service", "bucket", "object"]
Status = Literal["yes", "differs", "no"]
GIB: Final = 1 << 30
# what needs the right to put an object and makes none
_OF_UPLOADS: Final = ("CreateMultipartUpload", "UploadPart", "UploadPartCopy")
MAX_INTEGER: Final = (1 << 31) - 1  # a number that S3 takes
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class RestSettings:
    """`region` of this server; `domain` below which buckets are host names ("" = path style only);
    `opaque_etags` (setting etag = "opaque"); sizes in bytes."""

    region: str = "us-east-1"
    domain: str = ""
    allow_sigv2: bool = False
    opaque_etags: bool = False
    max_object: int = 5 << 40
    max_part: int = 5 * GIB
    min_part: int = 5 << 20

    @property
    def auth(self) -> AuthSettings:
        """What authentication needs of them."""
        return AuthSettings(region=self.region, allow_sigv2=self.allow_sigv2, domain=self.domain)


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the table of operations. `query` is the sub-resource that selects it, `header` a header that
    does; `action` is what has to be allowed before the handler runs ("" = the handler asks itself, since it
    needs the object for that). `joint` takes a small body that is there whole, to do it together with others.
    `status` and `note` are for docs/s3-compat.md; without a handler it is
    answered with 501."""

    name: str
    method: str
    level: Level
    handler: Callable[[Request], Reply | Sink] | None = None
    action: str = ""
    query: str = ""
    header: str = ""
    joint: Callable[[Request, memoryview], Joint] | None = None
    status: Status = "yes"
    note: str = ""


@dataclass(slots=True)
class Request:
    """`bucket` is there for every operation on an existing bucket and on objects. Of the headers in `call`
    those named in `lifted` came in its query."""

    site: Site
    settings: RestSettings
    call: Call
    operation: Operation
    target: Target
    auth: Authenticated
    loaded: Bucket | None = None
    extra: list[tuple[str, str]] = field(default_factory=list)
    lifted: tuple[str, ...] = ()

    @property
    def bucket(self) -> Bucket:
        """The bucket that the request is about."""
        if self.loaded is None:
            raise S3Error("NoSuchBucket")
        return self.loaded

    @property
    def key(self) -> str:
        """The object's key, decoded."""
        return self.target.key

    @property
    def query(self) -> dict[str, str]:
        """Query parameters, decoded."""
        return self.target.query

    @property
    def identity(self) -> Identity:
        """Who asks."""
        return self.auth.identity

    @property
    def owner(self) -> str:
        """Who owns what this request makes: who asks; what somebody anonymous puts is the bucket owner's."""
        return self.identity.id or (self.loaded.owner if self.loaded else "")

    @property
    def version(self) -> str | None:
        """versionId of the query. Raises `S3Error` InvalidArgument for what can be none."""
        version = self.query.get("versionId")
        if version is not None:
            check_version(version)
        return version

    def header(self, name: str) -> str:
        """A header's value or ""."""
        return self.call.headers.get(name)

    def authorize(
        self,
        action: str,
        meta: ObjectMeta | None = None,
        *,
        at: tuple[Bucket, str] | None = None,
        version: str | None = None,
    ) -> None:
        """Raises `S3Error` AccessDenied unless the action is allowed on this request's bucket and key, or on
        those of `at` (a copy's source, one key of many), of which `version` is the one that is meant."""
        bucket, key = at or (self.bucket, self.key)
        if bucket.policy is None:  # then nobody looks at more
            context = RequestContext(self.call.peer, self.call.secure, self.call.at_ns, key)
        else:
            query = self.query
            if at is not None:
                query = {name: value for name, value in query.items() if name != "versionId"}
                query |= {} if version is None else {"versionId": version}
            creates = self.operation.name not in _OF_UPLOADS
            context = about(context_of(self.call, query, key, creates=creates), action)
            if self.operation.query == "uploadId" and at is None and action == "s3:PutObject":
                context = as_begun(context, multipart.asked(self.site, bucket, key, query["uploadId"]))
        decide(self.identity, action, bucket, meta, context)

    def allowed(
        self,
        action: str,
        meta: ObjectMeta | None = None,
        *,
        at: tuple[Bucket, str] | None = None,
        version: str | None = None,
    ) -> bool:
        """Whether `authorize` would let it pass."""
        try:
            self.authorize(action, meta, at=at, version=version)
        except S3Error:
            return False
        return True

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A number of the query; more than `high` counts as `high`. Raises `S3Error` InvalidArgument, as S3
        with two messages."""
        text = self.query.get(name, "")
        if not text:
            return default
        number = int(text) if _INTEGER.fullmatch(text) else None
        if number is not None and low <= number <= MAX_INTEGER:
            return min(number, high)
        why = f"Provided {name} not an integer or within integer range"
        if number is not None and -MAX_INTEGER <= number < low:
            why = f"Argument {name} must be an integer between {low} and {MAX_INTEGER}"
        fields = {"ArgumentName": name, "ArgumentValue": text[:100]}
        raise S3Error("InvalidArgument", why, fields=fields)
