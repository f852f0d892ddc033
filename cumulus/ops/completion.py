"""The claim on an upload while it becomes an object: nobody else completes or ends it meanwhile, so its parts
hold their room in the quotas until the object does.

The claim is in the index and has an end, so that the upload of a server that died is free again soon; a
thread renews it. Who completes asks before the object is published whether it still holds.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from types import TracebackType
from typing import Final

from cumulus.errors import S3Error
from cumulus.index.api import IndexFailure, NoSuch, Upload
from cumulus.ops.site import Site

LIFE_S: Final = 20.0  # who tries again after a server's death is refused for so long
RENEW_S: Final = 4.0
SPARE_S: Final = 8.0  # that is left when the object is published
PATIENCE_S: Final = 5.0  # for which another completion of the same upload is waited for
PAUSE_S: Final = 0.05


class Completion:
    """Context manager. Entering raises `S3Error` OperationAborted while others complete the upload, and
    `NoSuch` when it has ended."""

    def __init__(self, site: Site, upload: Upload) -> None:
        self._index = site.index
        self._upload = upload.id
        self.claimant = uuid.uuid4().hex
        self._until = 0.0
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="cumulus-completion", daemon=True)

    def __enter__(self) -> Completion:
        end = time.monotonic() + PATIENCE_S
        while not self._claim():
            if time.monotonic() >= end:
                raise refusal()
            self._over.wait(PAUSE_S)
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._keeper.join()
        if error is not None:
            with contextlib.suppress(IndexFailure):  # it has ended, or its claim ends by itself
                self._index.claim_upload(self._upload, self.claimant, 0.0)

    def _claim(self) -> bool:
        began = time.monotonic()
        done = self._index.claim_upload(self._upload, self.claimant, LIFE_S)
        if done:
            self._until = began + LIFE_S
        return done

    def _keep(self) -> None:
        while not self._over.wait(RENEW_S):
            with contextlib.suppress(IndexFailure):
                if not self._claim():
                    return

    def confirm(self) -> None:
        """Nobody else ends the upload for some time. Raises `S3Error` OperationAborted."""
        if time.monotonic() + SPARE_S <= self._until:
            return
        with contextlib.suppress(NoSuch):
            if self._claim():
                return
        raise refusal()


def refusal() -> S3Error:
    """To who must not touch the upload now."""
    return S3Error("OperationAborted", "The upload is being completed. Please try again in a minute.")
