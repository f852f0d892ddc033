"""The HTTP floor of Cumulus for clients that wait: with a connection that they would keep when the service
ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from http_floor import Stream, floor, request

from cumulus.rest.call import Download, Reply


# the end --------------------------------------------------------------------------------------------------
def test_the_end_does_not_wait_for_kept_connections_whose_download_is_over(tmp_path: Path) -> None:
    """The head had gone before the end began, and so could not say that the connection closes."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(40 << 20))
    with floor() as running:
        running.gateway.replies["/large"] = lambda call: Reply(200, [], Download(Stream(path), 0, 40 << 20))
        wire = running.connect().send(request("/large"))
        assert "connection" not in wire.head()[1]
        over = threading.Event()
        running.call(lambda: running.site.drain(60.0).addBoth(lambda _done: over.set()))
        assert wire.rest() == path.read_bytes()
        assert over.wait(10)
        wire.close()
