"""One request from its head to the end of its reply: what runs in threads, what comes back, what a broken
connection undoes.

A small body is waited for and handled in one hop to a thread; for a large one the gateway is asked first,
and then buffers go to its sink one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.logger import Logger

from cumulus.errors import S3Error
from cumulus.http.access_log import Record, stamp
from cumulus.http.alive import END, Signs, may_last, takes_long
from cumulus.http.body import Intake
from cumulus.http.download import BlockSending, FileSending, Sending, whole_thd
from cumulus.http.head import Head
from cumulus.http.pace import IN, OUT, Transfer
from cumulus.http.pool import Failed
from cumulus.http.refuse import refusal, slow_down
from cumulus.http.reply import Opened, Ready
from cumulus.http.settings import BODILESS, DRAINED, FIRST_BUFFER, SMALL_BODY, SMALL_DOWNLOAD, STRETCH
from cumulus.http.transport import S3Server
from cumulus.proxies import behind
from cumulus.rest.call import Call, Download, Joint, Reply, Sink
from cumulus.storage.api import StorageError

if TYPE_CHECKING:
    from cumulus.http.channel import S3Channel

log = Logger()
Result = TypeVar("Result")

GONE = 499  # in the log: the client went before the reply was sent
REFUSED = 300  # statuses from this on


class S3Request:
    """What one request needs until it is answered. Begins with `head_complete`."""

    def __init__(self, channel: S3Channel, head: Head) -> None:
        site = channel.site
        self.channel = channel
        self.site = site
        self.head = head
        peer, secure = channel.peer, channel.secure
        if channel.is_proxy:
            peer, secure = behind(peer, secure, head.headers.get, site.settings.proxies)
        self.call = Call(
            id=site.next_id(),
            method=head.method,
            target=head.target,
            headers=head.headers,
            peer=peer,
            secure=secure,
            at_ns=time.time_ns(),
            length=head.length if "content-length" in head.headers else None,
            chunked=head.length is None,
            seat=channel.seat,
        )
        self.intake: Intake | None = None
        self.replied = False  # wholly given to the connection
        self._whole = False
        self._body_done = False
        self._expects = False
        self._continued = False
        self._sink: Sink | None = None
        self._busy = False
        self._answering = False
        self._lost = False
        self._last_word: Reply | None = None
        self._sending: Sending | None = None
        self._seat = channel.seat
        self._limited: Reply | None = None  # what a limit of the address says instead of an answer
        self._upload: Transfer | None = None
        self._status = 0
        self._bytes_out = 0
        self._began = channel.head_began
        self._began_at = time.time()
        self._body_at = self._began
        self._turn_s = 0.0
        self._logged = False
        self._window = [0.0, 0]  # of the body: seconds waited, bytes at its start
        self._signs = Signs() if may_last(head) else None
        self._pool = site.long_pool if takes_long(head) else site.pool

    # the head -------------------------------------------------------------------------------------------
    def head_complete(self) -> None:
        """Begin the work on a large body; a small one is waited for."""
        self.site.begun(self)
        self._knock()
        self._begin()

    def _begin(self) -> None:
        length = self.head.length
        self._expects = self.call.headers.get("expect").lower() == "100-continue" and self.head.continues
        if length == 0:
            return
        self._whole = not self._expects and length is not None and length <= SMALL_BODY
        first = length if self._whole and length else FIRST_BUFFER
        self.intake = Intake(self, length, first, self.site.buffers)
        if self._limited is not None:
            self._answer_early(Ready(self._limited))
        elif self._whole:
            self.intake.open()
        elif not self._pool.submit(self._start_thd, self._started, changes=True):
            self.site.metrics.plain["refused_total"] += 1
            self._answer_early(Ready(self._slow_down()))

    def _knock(self) -> None:
        if self._seat is not None:
            try:
                self._seat.knock()
            except S3Error as limit:
                self.call.notes["error"] = limit.code
                self._limited = refusal(limit, self.call.id)

    def request_received(self) -> None:
        """All of the request is there."""
        self._body_at = self.site.now()
        if self.intake is None:
            self._body_done = True
            self._handle_whole(memoryview(b""))

    def _handle_whole(self, body: memoryview) -> None:
        if self._limited is not None:
            self._answer(Ready(self._limited))
            return
        pause = self.site.pacer.came(self._seat, len(body))
        if pause > 0:
            self.site.reactor.callLater(pause, self._submit_whole, body)
        else:
            self._submit_whole(body)

    def _submit_whole(self, body: memoryview) -> None:
        if self._lost:
            return
        found = self._now(body if self.call.method == "PUT" else None)
        if isinstance(found, Ready):
            self._answer(found)
            return
        if isinstance(found, Joint):
            taken = self.site.batches.submit(found, self._all_done)
        else:
            work, changes = partial(self._whole_thd, body, found), self.call.method not in ("GET", "HEAD")
            taken = self._pool.submit(work, self._answered, changes=changes)
        if not taken:
            if isinstance(found, Opened):
                found.download.stream.close()
            self.site.metrics.plain["refused_total"] += 1
            self._answer(Ready(self._slow_down()))

    def _slow_down(self) -> Reply:
        self.call.notes["error"] = "SlowDown"
        return slow_down(self.call.id)

    def _now(self, body: memoryview | None) -> Ready | Joint | Callable[[], Reply | Sink]:
        """The answer if nothing has to be waited for, else what a thread is to do, alone or with others."""
        try:
            found = self.site.gateway.start_now(self.call, body)
            if not isinstance(found, Reply):
                return found
            sent = found.body
            if not isinstance(sent, Download) or self.call.method == "HEAD" or sent.length > SMALL_DOWNLOAD:
                return self._ready_thd(found)
            return self._sent_now(found, sent)
        except Exception:
            return Ready(self._failed_thd())

    def _sent_now(self, reply: Reply, sent: Download) -> Ready | Opened:
        """What is in memory is read here, and the stream closed; the rest is for a thread."""
        try:
            data = sent.stream.read_now(sent.offset, sent.length) if sent.length else b""
        except Exception:
            sent.stream.close()
            raise
        if data is None:
            return Opened(reply, sent)
        sent.stream.close()
        return Ready(reply, data)

    # in threads -----------------------------------------------------------------------------------------
    def _whole_thd(self, body: memoryview, start: Callable[[], Reply | Sink]) -> Ready:
        def work() -> Reply:
            result = start()
            if isinstance(result, Reply):
                return result
            return self._write_and_finish_thd(result, body)

        return self._ready_thd(self._guarded_thd(work))

    def _write_and_finish_thd(self, sink: Sink, body: memoryview) -> Reply:
        try:
            refused = sink.write(body) if body else None
            return refused or sink.finish()
        except Exception:
            sink.abort()
            raise

    def _start_thd(self) -> Ready | Sink:
        result: Reply | Sink
        try:
            result = self.site.gateway.start(self.call)
        except Exception:
            result = self._failed_thd()
        return self._ready_thd(result) if isinstance(result, Reply) else result

    def _write_thd(self, sink: Sink, data: memoryview, last: bool) -> Ready | None:
        def work() -> Reply | None:
            if last:
                return self._write_and_finish_thd(sink, data)
            try:
                return sink.write(data)
            except Exception:
                sink.abort()
                raise

        reply = self._guarded_thd(work)
        return None if reply is None else self._ready_thd(reply)

    def _receive_thd(self, sink: Sink, fd: int, room: memoryview, moment_s: float) -> Ready | int:
        def work() -> Reply | int:
            try:
                return sink.receive(fd, room, moment_s)
            except Exception:
                sink.abort()
                raise

        came = self._guarded_thd(work)
        return came if isinstance(came, int) else self._ready_thd(came)

    def _guarded_thd(self, work: Callable[[], Result]) -> Result | Reply:
        try:
            return work()
        except Exception:
            return self._failed_thd()

    def _failed_thd(self) -> Reply:
        """The floors below answer with errors, so this is one of ours."""
        log.failure("request {id} failed", id=self.call.id)
        self.call.notes["error"] = "InternalError"
        return refusal(S3Error("InternalError"), self.call.id)

    def _ready_thd(self, reply: Reply) -> Ready:
        body = reply.body
        if not isinstance(body, Download):
            return Ready(reply, length=reply.length)
        if self.call.method == "HEAD" or not body.length:
            body.stream.close()
            return Ready(reply, length=body.length if reply.length is None else reply.length)
        if body.length > SMALL_DOWNLOAD:
            where = None if self.channel.secure else body.stream.sendable()
            return Ready(reply, download=body, where=where, length=body.length)
        try:
            data, true = whole_thd(body)
        except StorageError as bad:
            log.warn("request {id}: {why}", id=self.call.id, why=str(bad))
            true = False
        if true:
            return Ready(reply, data)
        self.call.notes["error"] = "ServiceUnavailable"
        return self._ready_thd(refusal(S3Error("ServiceUnavailable"), self.call.id))

    # back in the reactor --------------------------------------------------------------------------------
    def _answered(self, outcome: Ready | Failed) -> None:
        self._answer(outcome if isinstance(outcome, Ready) else self._broken(outcome))

    def _all_done(self, outcome: Reply | Failed) -> None:
        self._answer(Ready(outcome) if isinstance(outcome, Reply) else self._broken(outcome))

    def _broken(self, failed: Failed) -> Ready:
        log.error("request {id} failed: {why!r}", id=self.call.id, why=failed.error)
        self.call.notes["error"] = "InternalError"
        return Ready(refusal(S3Error("InternalError"), self.call.id))

    def _started(self, outcome: Ready | Sink | Failed) -> None:
        if isinstance(outcome, Sink):
            self._sink = outcome
            if self._lost:
                self._abort_sink()
            elif self._last_word is not None:
                self._abort_sink()
                self._answer_early(Ready(self._last_word))
            else:
                self._take_body()
            return
        self._answer_early(outcome if isinstance(outcome, Ready) else self._broken(outcome))

    def _take_body(self) -> None:
        assert self.intake is not None
        self._continue()
        if self.intake.direct:
            self.channel.set_taker(self.intake)
        self._upload = Transfer(self.site.pacer, IN, self._seat, self.channel.flows)
        self.intake.most = self._upload.buffer
        pause = self._upload.took(0)
        if pause > 0:
            self._upload.after(pause, self._open)
        else:
            self.intake.open()

    def _continue(self) -> None:
        if self._expects:
            self._continued = True
            self.channel.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _word_for_nothing(self, reply: Reply) -> None:
        """Of an empty body that was asked about: boto3 keeps an answer without 100 Continue for its next
        upload over the connection, so what was done has one, and a refusal ends the connection."""
        if self.intake is not None or not self._expects or self._continued:
            return
        if reply.status < REFUSED and not (self._signs is not None and self._signs.begun):
            self._continue()
        else:
            reply.close = True

    def _open(self) -> None:
        if self.intake is not None and not self._lost and not self._answering:
            self.intake.open()

    def _end_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.end()

    def body_buffer(self, data: memoryview, last: bool) -> None:
        """The intake has a full buffer, or the end."""
        if self._whole:
            self._handle_whole(data)
            return
        assert self._sink is not None and self._upload is not None
        self._busy = True
        pause = self._upload.took(len(data))
        if last:
            self._end_upload()
        work: Callable[[], Ready | None] = partial(self._write_thd, self._sink, data, last)
        if not last and pause == 0 and self.channel.lends:
            work = self._stretch(self._sink) or work
        self._pool.must(work, partial(self._written, pause), changes=True)

    def _stretch(self, sink: Sink) -> Callable[[], Ready | None] | None:
        """What writes the buffer and goes on without this thread, if that may be now."""
        assert self.intake is not None and self._upload is not None
        stretch = self.intake.lend(self._upload.stretch(STRETCH), self.channel.waiting())
        if stretch is None:
            return None
        receive = partial(self._receive_thd, sink) if sink.receives else None
        fd = self.channel.lend_socket()
        return partial(stretch.run_thd, fd, lambda data: self._write_thd(sink, data, False), receive)

    def _written(self, pause: float, outcome: Ready | Failed | None) -> None:
        self._busy = False
        lent = self.intake.give_back() if self.intake is not None and not self._lost else None
        if lent is not None and lent.written and self._upload is not None:
            pause = max(pause, self._upload.took(lent.written))
        if outcome is not None:
            self._sink = None
            ready = outcome if isinstance(outcome, Ready) else self._broken(outcome)
            if lent is not None and (lent.torn or isinstance(outcome, Failed)):
                ready.reply.close = True  # where the next request begins is not known
            self._answer_early(ready)
        elif self._lost:
            self._abort_sink()
        elif self._last_word is not None:
            self._abort_sink()
            self._answer_early(Ready(self._last_word))
        elif pause > 0 and self._upload is not None:
            self._upload.after(pause, self._free)
        else:
            self._free()

    def _free(self) -> None:
        if self.intake is not None and not self._lost and not self._answering:
            self.intake.free()

    def body_over(self, rest: bytes) -> None:
        """The intake has seen the body's end."""
        self._body_done = True
        self.channel.set_taker(None)
        self.channel.body_over(rest)
        self._end_if_done()

    def body_pause(self, paused: bool) -> None:
        """The intake has no room, or has again."""
        self.channel.pause_reading(paused)

    def body_data(self, data: bytes) -> None:
        """Bytes that came through the protocol. Raises `MalformedChunk`."""
        assert self.intake is not None
        self.intake.feed(data)

    # what goes wrong with a body ------------------------------------------------------------------------
    def body_too_slow(self, waited_s: float, window_s: float, least: float) -> bool:
        """`waited_s` more have passed while the body was waited for; whether it came too slowly over
        `window_s`."""
        intake = self.intake
        if intake is None or intake.over or intake.paused or self._last_word is not None:
            return False
        if not self._whole and self._sink is None and not self._answering:
            return False
        self._window[0] += waited_s
        if self._window[0] < window_s:
            return False
        slow = intake.received - self._window[1] < least * self._window[0]
        self._window = [0.0, intake.received]
        return slow

    def refuse_body(self, error: S3Error) -> None:
        """The body is malformed or too slow: say so, forget what was written, end the connection."""
        if self._answering:
            self.channel.abort()
            return
        self.call.notes["error"] = error.code
        self._last_word = refusal(error, self.call.id, close=True)
        self.channel.pause_reading(True)
        waiting_for_start = self._sink is None and not self._whole
        if not self._busy and not waiting_for_start:
            self._abort_sink()
            self._answer_early(Ready(self._last_word))

    def _abort_sink(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            self.site.pool.must(sink.abort, self._aborted, changes=True)

    def _aborted(self, outcome: Any) -> None:
        if isinstance(outcome, Failed):
            log.error("an upload could not be undone: {why}", why=str(outcome.error))

    # the reply ------------------------------------------------------------------------------------------
    def show_life(self, now: float) -> None:
        """To be called about once a second: who waits for long for some answers is told that they come."""
        signs = self._signs
        if signs is None or not self._body_done or self._answering or self.replied:
            return
        if signs.due(self._body_at, now, self.site.settings.silence_s):
            close = not self.channel.persistent
            self.channel.write(signs.sign(self.site.heads, self.call.id, now, close=close))

    def _answer_early(self, ready: Ready) -> None:
        """Answer, though the body may not have been read: a little of it is, else the connection ends."""
        intake = self.intake
        if self._last_word is not None and ready.reply is not self._last_word:
            self._drop(ready)
            ready = Ready(self._last_word)
        if intake is not None and not intake.over and not self._lost:
            left = intake.left
            self.channel.set_taker(None)
            unwanted = self._expects and not self._continued
            if unwanted or left is None or left > DRAINED:
                ready.reply.close = True
            if not ready.reply.close and self.channel.persistent:
                intake.discard()
        self._answer(ready)

    def _drop(self, ready: Ready) -> None:
        """This reply is not sent."""
        if ready.download is not None:
            self.site.pool.must(ready.download.stream.close, self._aborted)

    def _answer(self, ready: Ready) -> None:
        if self._lost:
            self._drop(ready)
            return
        self._answering = True
        self._end_upload()
        begun = self._signs is not None and self._signs.begun
        if not begun and not self.site.held.take(self.channel, len(ready.data)):
            self.site.metrics.plain["refused_total"] += 1
            close, ready = ready.reply.close, Ready(self._slow_down())
            ready.reply.close = ready.reply.close or close
        channel, reply = self.channel, ready.reply
        self._word_for_nothing(reply)
        close = reply.close or not channel.persistent or self.site.stopping
        if close:
            channel.persistent = False
        self._status = reply.status
        now = self.site.now()
        self._turn_s = now - (self._body_at if self._body_done else now)
        head = b"" if begun else self.site.heads.head(reply, self.call.id, ready.length, close=close)
        owed = 0.0 if self._seat is None else self._seat.rest()
        if ready.download is not None:
            channel.write(head)
            self._send_download(ready, ready.download)
            return
        data = b"" if self.call.method == "HEAD" or reply.status in BODILESS else ready.data
        if self._signs is not None and begun:
            data = self._signs.piece(data) + END
        pause = max(owed, self.site.pacer.took(self._seat, len(data)))
        if pause > 0:
            self.site.reactor.callLater(pause, self._give, head, data)
        else:
            self._give(head, data)

    def _give(self, head: bytes, data: bytes) -> None:
        if self._lost:
            return
        self._bytes_out = len(data)
        self.channel.write_whole(head + data)
        self._all_given()

    def _send_download(self, ready: Ready, download: Download) -> None:
        channel, site = self.channel, self.site
        transport, where = channel.transport, ready.where
        transfer = Transfer(site.pacer, OUT, self._seat, channel.flows)
        if where is not None and isinstance(transport, S3Server):
            self._sending = FileSending(download, site.pool, transfer, transport, where, self._sent)
        else:
            self._sending = BlockSending(download, site.pool, transfer, channel, self._sent)
        self._sending.start()

    def _sent(self, whole: bool) -> None:
        assert self._sending is not None
        self._bytes_out = self._sending.given
        self._sending = None
        if whole:
            self._all_given()
        else:
            self.call.notes.setdefault("error", "Changed")
            self._account()
            self.replied = True
            self.channel.cut()

    def _all_given(self) -> None:
        self.replied = True
        self._account()
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self.replied or self._lost:
            return
        if self._body_done:
            if self.intake is not None:
                self.intake.recycle()
            self.channel.request_done()
        elif not self.channel.persistent:
            self.channel.linger()

    def connection_lost(self) -> None:
        """The client is gone, or we have ended the connection."""
        self._lost = True
        self._end_upload()
        if self.intake is not None:
            self.intake.discard()
        if self._sending is not None:
            self._bytes_out = self._sending.given
            self._sending.stop()
            self._sending = None
        if not self._busy:
            self._abort_sink()
        if not self.replied:
            self._status = GONE
            self.call.notes.setdefault("error", "ClientDisconnected")
            self.site.metrics.plain["broken_total"] += 1
            self._account()

    def _account(self) -> None:
        if self._logged:
            return
        self._logged = True
        call, notes = self.call, self.call.notes
        seconds = self.site.now() - self._began
        received = self.intake.received if self.intake else 0
        operation, user, sent = notes.get("operation", ""), notes.get("user", ""), self._bytes_out
        self.site.ended(self, operation, self._status, seconds, received, sent, user)
        self.site.access_log.add(
            Record(
                time=stamp(self._began_at),
                id=call.id,
                peer=call.peer,
                method=call.method[:32],
                status=self._status,
                bytes_in=received,
                bytes_out=self._bytes_out,
                total_ms=round(seconds * 1000, 3),
                turn_ms=round(self._turn_s * 1000, 3),
                user=notes.get("user", ""),
                key_id=notes.get("key_id", ""),
                bucket=notes.get("bucket", ""),
                key=notes.get("key", ""),
                operation=notes.get("operation", ""),
                error=notes.get("error", ""),
                agent=call.headers.get("user-agent")[:200],
            )
        )
