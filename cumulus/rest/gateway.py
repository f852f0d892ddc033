"""A request head in, a reply or a sink for its body out: target, signature, table, rights, handler.

Everything that fails on the way becomes an S3 error document here, and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, cast

from cumulus.auth import hop, times
from cumulus.auth.body import BodyRule
from cumulus.auth.verify import Authenticated, authenticate
from cumulus.errors import S3Error
from cumulus.index.api import Directory, Index, IndexFailure
from cumulus.model import Identity
from cumulus.ops.near import NearSite, NotNow
from cumulus.ops.site import Site
from cumulus.redirect import Balancer
from cumulus.rest import again, cors, policies, redirects, small, table, target
from cumulus.rest.call import Call, Joint, Reply, Sink
from cumulus.rest.hops import Hops
from cumulus.rest.lifted import lifted, with_headers
from cumulus.rest.refusals import reply, to_s3
from cumulus.rest.request import Operation, Request, RestSettings
from cumulus.storage.api import FileStore

_READING: Final = ("GET", "HEAD")  # no handler of these takes a body


def make_gateway(
    settings: RestSettings,
    store: FileStore,
    index: Index,
    directory: Directory,
    clock: Callable[[], int] = time.time_ns,
    balancer: Balancer | None = None,
    hops: Hops | None = None,
) -> S3Gateway:
    """The S3 service over these collaborators; `clock` gives nanoseconds since 1970. With a `balancer`
    requests are sent on to other servers; with `hops` other servers may pass requests on to this one."""
    site = Site(store, index, directory, clock, region=settings.region, opaque_etags=settings.opaque_etags)
    return S3Gateway(settings, site, balancer, hops)


class S3Gateway:
    """`cumulus.rest.call.Gateway` for S3. `site` is what background work (`cumulus.ops.jobs`) shares."""

    def __init__(
        self,
        settings: RestSettings,
        site: Site,
        balancer: Balancer | None = None,
        hops: Hops | None = None,
    ) -> None:
        self.settings = settings
        self.site = site
        self.balancer = balancer
        self.hops = hops
        self._auth = settings.auth
        self._near = NearSite(site, policies.quick)
        self._together = site.store.capabilities.together and site.index.together
        self._users = site.store.capabilities.users

    def close(self) -> None:
        """End its threads."""
        self.site.close()

    def start(self, call: Call) -> Reply | Sink:
        """Authenticate, authorize, route, do. Never raises: failures are S3 error Replies."""
        request: Request | None = None
        try:
            request = self._request(call, self.site)
            answer = self._answer(request)
        except Exception as error:
            return self.refuse(call, request, error)
        return self._wrapped(request, answer)

    def _wrapped(self, request: Request, answer: Reply | Sink) -> Reply | Sink:
        if isinstance(answer, Sink):
            return _Guarded(self, request, answer)
        return self.finish(request, answer)

    def start_now(
        self, call: Call, body: memoryview | None = None
    ) -> Reply | Joint | Callable[[], Reply | Sink]:
        """As `start`, without waiting (`cumulus.rest.call.Gateway`): reading, and small bodies."""
        passed_on = self.hops is not None and hop.HEADER in call.headers
        apart = self.balancer is not None or passed_on or self._users
        if apart or (body is None and call.method not in _READING):
            return partial(self.start, call)
        request: Request | None = None
        try:
            request = self._request(call, self._near)
            answer = self._answer(request) if body is None else self._joint(request, body)
        except NotNow:
            if request is None:
                return partial(self.start, call)
            request.site, request.loaded = self.site, None
            return partial(self._go_on, request)
        except Exception as error:
            if request is None and "origin" in call.headers:  # the bucket's rules may have to be read
                return partial(self.refuse, call, None, error)
            return self.refuse(call, request, error)
        return self.finish(request, answer) if isinstance(answer, Reply) else cast(Joint, answer)

    def _joint(self, request: Request, body: memoryview) -> Joint:
        """Raises `NotNow` for what is done by itself, `S3Error`."""
        make = request.operation.joint
        if make is None or not self._together:
            raise NotNow(request.operation.name)
        self._admit(request)
        joint = make(request, body)
        request.site = self.site
        return joint

    def _go_on(self, request: Request) -> Reply | Sink:
        """What `start_now` has authenticated and admitted."""
        try:
            return self._wrapped(request, self._answer(request))
        except Exception as error:
            return self.refuse(request.call, request, error)

    def finish_all(self, joints: Sequence[Joint]) -> list[Reply]:
        """Small objects are published together (`cumulus.rest.call.Gateway`)."""
        return small.finish_all(self, cast(Sequence[small.SmallPut], joints))

    def _request(self, call: Call, site: Site) -> Request:
        if self.hops is not None:
            self.hops.accept(call, self.site.clock() // times.SECOND)
        where = target.parse(call.target, call.headers.get("host"), self.settings.domain, call.method)
        call.notes.update(bucket=where.bucket, key=where.key)
        more = lifted(call, where.query)
        full = with_headers(call, more)
        operation = table.PREFLIGHT if call.method == "OPTIONS" else table.select(full, where)
        call.notes["operation"] = operation.name
        # version 2 signs them as headers, version 4 as parameters
        auth = self._authenticated(call if "X-Amz-Signature" in where.query else full, site, operation)
        if call.seat is not None:
            call.seat.admit(auth.identity.user)
        if auth.identity.user is not None:
            call.notes.update(user=auth.identity.user.name, key_id=auth.identity.access_key)
        return Request(site, self.settings, full, operation, where, auth, lifted=tuple(more))

    def _authenticated(self, call: Call, site: Site, operation: Operation) -> Authenticated:
        """Who asks. A preflight is nobody's: a browser sends it to the URL of the request that it announces,
        which may be signed for that request's method."""
        if operation is table.PREFLIGHT:
            return Authenticated(Identity(peer=call.peer), BodyRule())
        return authenticate(call, site.directory, self._auth, site.clock())

    def _answer(self, request: Request) -> Reply | Sink:
        operation = request.operation
        self._admit(request)
        if operation.handler is None:
            raise S3Error("NotImplemented", f"{operation.name} is not implemented.")
        if self._users and request.site is self.site:
            request.site = self._acting(request)
        return operation.handler(request)

    def _acting(self, request: Request) -> Site:
        """The site as the one who asks may use storage; for somebody anonymous, as the bucket's owner may."""
        user = request.identity.user
        if user is None and request.loaded is not None:
            user = self.site.directory.user(request.loaded.owner)
        return self.site.acting(user.name if user is not None else "")

    def _admit(self, request: Request) -> None:
        """Load its bucket, and see whether it may be done here and by who asks."""
        operation = request.operation
        if self.balancer is not None and operation is not table.PREFLIGHT:
            redirects.send_on(request, self.balancer)
        if operation.level != "service" and not table.makes_bucket(operation):
            request.loaded = request.site.bucket(request.target.bucket)
            expected = request.header("x-amz-expected-bucket-owner")
            if expected and expected != request.loaded.owner:
                raise S3Error("AccessDenied")
        if operation.action:
            request.authorize(operation.action)

    def finish(self, request: Request, answer: Reply) -> Reply:
        """What every reply to this request carries besides."""
        answer.headers.extend(cors.reply_headers(request))
        return answer

    def refuse(self, call: Call, request: Request | None, error: BaseException) -> Reply:
        """The error document for an exception."""
        answer = reply(to_s3(error, call.id), call, call.target.partition("?")[0])
        answer.headers.extend(self._region(call, request, answer.status))
        if request is not None:
            return self.finish(request, answer)
        answer.headers.extend(self._cors(call))
        return answer

    def _region(self, call: Call, request: Request | None, status: int) -> list[tuple[str, str]]:
        """HeadBucket tells where a bucket is whoever asks: clients find out its region so, unsigned."""
        notes = call.notes
        if call.method != "HEAD" or status != 403 or not notes.get("bucket") or notes.get("key"):
            return []
        loaded = None if request is None else request.loaded
        own = self.settings.region
        return [("x-amz-bucket-region", own if loaded is None else loaded.region or own)]

    def _cors(self, call: Call) -> list[tuple[str, str]]:
        """For the page that has sent a request with a wrong signature, say: without these its browser hides
        the refusal from it."""
        name = call.notes.get("bucket")
        if not name or "origin" not in call.headers:
            return []
        try:
            return cors.headers_of(self.site.index.bucket(name), call)
        except (IndexFailure, S3Error):
            return []


class _Guarded(Sink):
    """A handler's sink whose exceptions become replies; it is aborted when it has failed."""

    def __init__(self, gateway: S3Gateway, request: Request, sink: Sink) -> None:
        self._gateway, self._request, self._sink = gateway, request, sink
        self._done = False

    def write(self, data: memoryview) -> Reply | None:
        try:
            return self._sink.write(data)
        except Exception as error:
            return self._fail(error)

    @property
    def receives(self) -> bool:
        return self._sink.receives

    def receive(self, connection: int, room: memoryview, moment_s: float) -> int | Reply:
        try:
            return self._sink.receive(connection, room, moment_s)
        except Exception as error:
            return self._fail(error)

    def finish(self) -> Reply:
        try:
            again.admit_again(self._request, self._request.operation.action)
            answer = self._gateway.finish(self._request, self._sink.finish())
        except Exception as error:
            return self._fail(error)
        self._done = True
        return answer

    def _fail(self, error: Exception) -> Reply:
        self.abort()
        return self._gateway.refuse(self._request.call, self._request, error)

    def abort(self) -> None:
        if self._done:
            return
        self._done = True
        try:
            self._sink.abort()
        except Exception as error:
            to_s3(error, self._request.call.id)


def operations() -> list[Operation]:
    """The table of operations, for documents and tests."""
    return list(table.OPERATIONS)
