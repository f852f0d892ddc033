"""Progress bars: on a terminal or in a notebook, otherwise nothing. `SECTOR_PROGRESS=none` draws none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sector.client.progress import Progress
from sector.errors import printable


def wanted() -> bool:
    """Whether to draw: standard error is a terminal, or this is a notebook."""
    if os.environ.get("SECTOR_PROGRESS") == "none":
        return False
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def bar(title: str, progress: Progress | bool | None = None) -> Iterator[Progress]:
    """A `Progress` for one call. One given by the caller is used and nothing drawn; True = draw, False =
    do not, None = draw where it makes sense."""
    if isinstance(progress, Progress):
        yield progress
        return
    state = Progress()
    if not (wanted() if progress is None else progress):
        yield state
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Drawing

    columns = (
        TextColumn("{task.description}", markup=False),  # a name may hold brackets
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Drawing(*columns, console=Console(stderr=True), transient=True) as drawing:
        task = drawing.add_task(title, total=None)

        def show(now: Progress) -> None:
            what = printable(os.path.basename(now.name)) or title
            if now.files_total > 1:
                what = f"{now.files_done}/{now.files_total} {what}"
            drawing.update(task, total=now.bytes_total, completed=now.bytes_done, description=what[:40])

        state.listener = show
        yield state
