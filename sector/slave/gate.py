"""Many may pass at once, or one alone: keeps reports and publishes of a slave from overtaking each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from twisted.internet.defer import Deferred


class Gate:
    """`shared()` sections run side by side; an `alone()` section waits for them and holds new ones back."""

    def __init__(self) -> None:
        self._inside = 0
        self._alone = False
        self._waiting: list[Deferred[None]] = []

    def _open(self) -> None:
        waiting, self._waiting = self._waiting, []
        for passer in waiting:
            if not passer.called:
                passer.callback(None)

    async def _wait(self) -> None:
        turn: Deferred[None] = Deferred()
        self._waiting.append(turn)
        await turn

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Pass together with others."""
        while self._alone:
            await self._wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._open()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Pass when nobody is inside; nobody else enters meanwhile."""
        while self._alone:
            await self._wait()
        self._alone = True
        try:
            while self._inside:
                await self._wait()
            yield
        finally:
            self._alone = False
            self._open()
