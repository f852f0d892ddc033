"""Certificates that are renewed while a service runs: files that have changed are read again by themselves,
and the log says when a certificate is about to end.

Programs that renew certificates replace two files, one after the other, and not all tell anybody. So files
count when they have been the same at two looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from cumulus.http.tls import TlsFiles
from sector.errors import SectorError

log = Logger()

LOOK_S: Final = 4.0
TELL_S: Final = 24 * 3600.0  # how often a certificate that ends is told of
SOON_S: Final = 7 * 24 * 3600.0  # what ends before that


class Renewal:
    """Looks after the files of one port, which the log calls `of`, from `start` to `stop`."""

    def __init__(
        self,
        tls: TlsFiles,
        of: str,
        reactor: Any,
        in_thread: Callable[..., Deferred[Any]] = deferToThread,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now` gives seconds since 1970."""
        self._tls = tls
        self._of = of
        self._reactor = reactor
        self._in_thread = in_thread
        self._now = now
        self._told: float | None = None  # when a certificate that ends was told of, by the reactor's clock
        self._loop = LoopingCall(self._look)
        self._loop.clock = reactor

    def start(self) -> None:
        """Begin."""
        self._loop.start(LOOK_S)

    def stop(self) -> None:
        """Look no more."""
        if self._loop.running:
            self._loop.stop()

    def read_again(self) -> None:
        """At once, as the files are now; or one line in the log."""
        try:
            self._tls.reload()
        except SectorError as bad:
            self._complain(bad.message)
        else:
            self._renewed()

    def _look(self) -> Deferred[None]:
        self._tell_dates()
        looked: Deferred[bool] = self._in_thread(self._tls.renew)  # a disk may take its time
        return looked.addCallbacks(self._looked, self._failed)

    def _looked(self, renewed: bool) -> None:
        if renewed:
            self._renewed()

    def _failed(self, failure: Failure) -> None:
        bad = failure.value
        self._complain(bad.message if isinstance(bad, SectorError) else failure.getErrorMessage())

    def _renewed(self) -> None:
        self._told = None
        log.info("the certificate of {of} was read again", of=self._of)

    def _complain(self, why: str) -> None:
        log.error("the certificate of {of} stays as it was: {why}", of=self._of, why=why)

    def _tell_dates(self) -> None:
        begins, ends = self._tls.dates
        now, at = self._now(), self._reactor.seconds()
        if begins <= now < ends - SOON_S or (self._told is not None and at - self._told < TELL_S):
            return
        self._told = at
        if now < begins:
            log.error("the certificate of {of} is not valid before {at}", of=self._of, at=_text(begins))
        elif now >= ends:
            log.error(
                "the certificate of {of} has ended on {at}: clients refuse it", of=self._of, at=_text(ends)
            )
        else:
            log.warn("the certificate of {of} ends on {at}: renew it", of=self._of, at=_text(ends))


def _text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}Z"
