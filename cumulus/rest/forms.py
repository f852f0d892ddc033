"""PostObject: a browser's form uploads a file. The policy signed with the form is the request's signature."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from cumulus.auth.post_form import FormDecoder, is_form
from cumulus.auth.post_policy import PostPolicy, authenticate_form, needs_field
from cumulus.auth.verify import Authenticated
from cumulus.errors import S3Error
from cumulus.model import ObjectMeta
from cumulus.ops.conditions import NONE
from cumulus.ops.incoming import Incoming
from cumulus.ops.names import check_key, first_name
from cumulus.rest import documents, expect
from cumulus.rest.again import admit_again
from cumulus.rest.call import Headers, Reply, Sink
from cumulus.rest.headers import STORED, as_header
from cumulus.rest.objects import algorithms, new_meta, publish_body, put_headers
from cumulus.rest.request import Request
from cumulus.rest.tags import read_tags
from cumulus.xml import Writer

# fields of the form that are not about the object: those of its policy, and the hash of a body that is signed
_OF_POLICY: Final = (
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-algorithm",
    "x-amz-content-sha256",
)
_COPY: Final = "x-amz-copy-source"
# headers of the form's own request that policies of buckets ask for
_OF_REQUEST: Final = ("user-agent", "referer")
_LIKE_HEADERS: Final = frozenset({*STORED, "content-md5"})


def post_object(request: Request) -> Sink:
    """PostObject."""
    kind = request.header("content-type")
    if not is_form(kind):
        raise S3Error(
            "PreconditionFailed",
            "Bucket POST must be of the enclosure-type multipart/form-data",
            fields={"Condition": "Bucket POST must be of the enclosure-type multipart/form-data"},
        )
    return FormSink(request, FormDecoder(kind))


class FormSink(Sink):
    """Fields first: they are the head of a request of their own. Then the file streams into storage."""

    def __init__(self, request: Request, decoder: FormDecoder) -> None:
        self._outer = request
        self._decoder = decoder
        self._upload: _Upload | None = None

    def write(self, data: memoryview) -> None:
        pieces = self._decoder.feed(data)
        if self._upload is None and self._decoder.ready:
            self._upload = _Upload(self._outer, self._decoder.fields)
        if self._upload is not None:
            for piece in pieces:
                self._upload.write(piece)

    def finish(self) -> Reply:
        self._decoder.finish()
        if self._upload is None:
            raise S3Error("IncompleteBody")
        return self._upload.finish()

    def abort(self) -> None:
        if self._upload is not None:
            self._upload.incoming.abort()


class _Upload:
    """The file of a form whose fields were accepted."""

    def __init__(self, outer: Request, fields: Mapping[str, str]) -> None:
        key = fields.get("key")
        if not key:
            raise S3Error("UserKeyMustBeSpecified", needs_field("key"))
        check_key(key)
        now = outer.site.clock()
        auth, policy = authenticate_form(
            fields, outer.site.directory, outer.settings.auth, outer.call.peer, now
        )
        if outer.call.seat is not None:
            outer.call.seat.admit(auth.identity.user)
        if policy is not None:
            policy.check(fields, outer.bucket.name, now)
        self.policy: PostPolicy | None = policy
        self.fields = fields
        self.request = _inner(outer, fields, key, auth)
        self.request.authorize("s3:PutObject")
        self.meta: ObjectMeta = new_meta(self.request)
        self.expected = expect.read(self.request.call.headers)
        self.incoming = Incoming(
            outer.site,
            outer.bucket.name,
            first_name(key),
            size=None,
            limit=outer.settings.max_object,
            algorithms=algorithms(self.request, self.expected),
        )

    def write(self, piece: memoryview) -> None:
        if self.policy is not None and self.policy.largest is not None:
            self.policy.check_size(max(self.incoming.size + len(piece), self.policy.smallest or 0))
        self.incoming.write(piece)

    def finish(self) -> Reply:
        if self.policy is not None:
            self.policy.check_size(self.incoming.size)
        admit_again(self.request, "s3:PutObject")
        checksums = self.expected.verify(self.incoming.hasher, {})
        meta = publish_body(self.request, self.incoming, self.meta, checksums, NONE)
        self.incoming.close()
        return _answer(self.request, self.fields, meta)


def _inner(outer: Request, fields: Mapping[str, str], key: str, auth: Authenticated) -> Request:
    """The request that the form stands for: its fields are the headers. Raises `S3Error` InvalidArgument for
    a field that would make another request of it in the eyes of a policy: its bytes are no copy's."""
    pairs = [("host", outer.header("host"))]
    pairs += [(name, outer.header(name)) for name in _OF_REQUEST if name in outer.call.headers]
    for name, value in fields.items():
        if name.startswith(_COPY):
            why = "You can only specify a copy source header for copy requests."
            raise S3Error("InvalidArgument", why, fields={"ArgumentName": name[:64]})
        title = "x-amz-acl" if name == "acl" else name
        if title == "tagging":
            pairs.append(("x-amz-tagging", urlencode(read_tags(value.encode(), 10), quote_via=quote)))
        elif title in _LIKE_HEADERS or (title.startswith("x-amz-") and title not in _OF_POLICY):
            pairs.append(as_header(title, value))
    call = dataclasses.replace(outer.call, headers=Headers(pairs))
    call.notes.update(key=key)
    request = dataclasses.replace(
        outer, call=call, target=dataclasses.replace(outer.target, key=key), auth=auth
    )
    user = request.identity.user
    if user is not None:
        call.notes.update(user=user.name, key_id=request.identity.access_key)
    return request


def _answer(request: Request, fields: Mapping[str, str], meta: ObjectMeta) -> Reply:
    """A redirect, or the status that the form asks for."""
    headers = put_headers(request, meta)
    bucket, etag = request.bucket.name, f'"{meta.etag}"'
    to = fields.get("success_action_redirect") or fields.get("redirect", "")
    if to and urlsplit(to).scheme in ("http", "https") and to.isprintable() and to.isascii():
        page, hash_mark, fragment = to.partition("#")
        mark = "&" if urlsplit(page).query else "?"
        query = urlencode({"bucket": bucket, "key": meta.key, "etag": etag}, quote_via=quote)
        return Reply(303, [*headers, ("Location", f"{page}{mark}{query}{hash_mark}{fragment}")])
    location = documents.location(request, meta.key)
    headers.append(("Location", location))
    status = fields.get("success_action_status", "204")
    if status != "201":
        return Reply(200 if status == "200" else 204, headers)
    document = Writer("PostResponse", namespace="")
    document.leaves(("Location", location), ("Bucket", bucket), ("Key", meta.key), ("ETag", etag))
    return documents.reply(document, *headers, status=201)
