"""What Python parses of things that others wrote, a function of bytes each: any input gives a value that
survives being written and read again, or the error that the parser promises. Nothing else may come out."""

from __future__ import annotations

import s3_targets
import sector_targets

TARGETS = {**sector_targets.TARGETS, **s3_targets.TARGETS}
