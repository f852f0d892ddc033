"""Wire messages over a GMP endpoint: call(peer, request) -> reply, serve(request class, handler).

Errors travel as {code, message, hint} under GMP status -100 and come out as the same `SectorError` class
on the caller's side; core statuses become `TimedOut`, `Unreachable`, `Busy`, `Protocol`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from sector import errors
from sector.gmp import api as gmp_api
from sector.gmp.api import Gmp, GmpError, IncomingCall, Peer
from sector.gmp.group import GroupResult, Wait
from sector.wire.base import Message, Request, decode, encode

log = Logger()
Q = TypeVar("Q", bound=Request)


class WireError(Message, frozen=True, array_like=True):
    """The body of an error answer."""

    code: Annotated[str, Meta(max_length=64)]
    message: Annotated[str, Meta(max_length=65536)]
    hint: Annotated[str, Meta(max_length=1024)] = ""


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request: authenticated principal ("user:NAME#SESSION", "master:ID", "slave:ID", ...),
    its peer, the instance, the time left, and how to report progress (percent)."""

    principal: str
    peer: Peer
    instance: int
    budget_s: float
    progress: Callable[[int], None]


Handler = Callable[[Any, Caller], "Awaitable[Message] | Message"]


def to_wire_error(error: errors.SectorError) -> bytes:
    """The error body that `from_gmp_error` turns back into the same exception."""
    return encode(WireError(error.code, error.message[:65000], error.hint[:1000]))


def from_gmp_error(error: GmpError, peer: Peer, request: Request) -> errors.SectorError:
    """The SectorError for a failed call."""
    where = f"{peer.host}:{peer.port}"
    name = type(request).__name__
    match error.status:
        case gmp_api.STATUS_APPLICATION:
            try:
                body = decode(WireError, error.payload)
            except errors.Protocol as bad:
                return bad
            return errors.from_wire(body.code, body.message, body.hint)
        case gmp_api.STATUS_TIMEOUT:
            return errors.TimedOut(f"{where} did not answer {name} in time")
        case gmp_api.STATUS_PEER_LOST:
            return errors.Unreachable(f"{where} does not answer ({name})")
        case gmp_api.STATUS_PEER_RESTARTED:
            return errors.Unreachable(f"{where} restarted during {name}", hint="try again")
        case gmp_api.STATUS_BUSY:
            return errors.Busy(f"{where} is busy ({name})")
        case gmp_api.STATUS_CANCELLED:
            return errors.Cancelled(f"{name} to {where} was cancelled")
        case gmp_api.STATUS_DENIED:
            return errors.Denied(f"{where} refuses {name} from this peer")
        case gmp_api.STATUS_NO_METHOD:
            return errors.Protocol(f"{where} does not know {name}; versions may differ")
        case _:
            return errors.SectorError(f"{where} failed at {name}: {error}", hint="see its log")


class RpcNode:
    """Typed requests over one GMP endpoint."""

    def __init__(self, gmp: Gmp) -> None:
        self.gmp = gmp
        self._served: dict[int, tuple[type[Request], Handler]] = {}

    def call(
        self,
        peer: Peer,
        request: Request,
        *,
        deadline_s: float = 60.0,
        control: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> Deferred[Any]:
        """Send `request`; the Deferred fires with its REPLY type or errbacks with a SectorError."""
        cls = type(request)
        answer = self.gmp.call(
            peer,
            cls.NUMBER,
            encode(request),
            deadline_s=deadline_s,
            control=control,
            idempotent=cls.SAFE,
            on_progress=on_progress,
        )

        def good(body: bytes) -> Message:
            return decode(cls.REPLY, body)

        def bad(failure: Any) -> Any:
            failure.trap(GmpError)
            raise from_gmp_error(failure.value, peer, request)

        return answer.addCallbacks(good, bad)

    def group_call(
        self,
        peers: Sequence[Peer],
        request: Request,
        *,
        wait: Wait = "all",
        deadline_s: float = 60.0,
        control: bool = False,
        cancel_rest: bool = False,
    ) -> GroupResult:
        """The same request to many peers; results are of its REPLY type, errors SectorErrors."""
        cls = type(request)
        return self.gmp.group_call(
            peers,
            cls.NUMBER,
            encode(request),
            wait=wait,
            deadline_s=deadline_s,
            control=control,
            idempotent=cls.SAFE,
            cancel_rest=cancel_rest,
            convert=lambda peer, body: decode(cls.REPLY, body),
            convert_error=lambda peer, error: from_gmp_error(error, peer, request),
        )

    def serve(self, cls: type[Q], handler: Callable[[Q, Caller], Awaitable[Message] | Message]) -> None:
        """Answer requests of `cls`. The handler may be async; a SectorError it raises goes to the caller;
        any other exception is logged here and answered as an internal error."""

        self._served[cls.NUMBER] = cls, cast(Handler, handler)

        def incoming(call: IncomingCall) -> Any:
            caller = Caller(call.principal, call.peer, call.instance, call.budget_s, call.progress)
            try:
                reply = self._run(cls.NUMBER, call.payload, caller)
                return (
                    encode(reply) if isinstance(reply, msgspec.Struct) else ensureDeferred(self._wait(reply))
                )
            except errors.SectorError as error:
                raise _refusal(error) from None

        self.gmp.register(cls.NUMBER, incoming)

    def _run(self, number: int, body: bytes, caller: Caller) -> Awaitable[Message] | Message:
        cls, handler = self._served[number]
        return handler(decode(cls, body), caller)

    async def answer(self, number: int, body: bytes, caller: Caller) -> bytes:
        """The encoded reply to a request that came inside another one, from `caller`. Raises SectorError,
        Protocol for a request that is not served."""
        if number not in self._served:
            raise errors.Protocol(f"there is no request {number:#x} here; versions may differ")
        reply = self._run(number, body, caller)
        return encode(reply if isinstance(reply, msgspec.Struct) else await reply)

    async def _wait(self, reply: Awaitable[Message]) -> bytes:
        try:
            return encode(await reply)
        except errors.SectorError as error:
            raise _refusal(error) from None


def _refusal(error: errors.SectorError) -> GmpError:
    return GmpError(gmp_api.STATUS_APPLICATION, to_wire_error(error), error.message)
