"""The bucket in the name of a host. Routing and signatures both read it here: where they differ, what was
signed for one bucket opens another. Pure.
"""

from __future__ import annotations

import re
from typing import Final

_PORT: Final = re.compile(r":[0-9]*\Z")


def host_bucket(host: str, domain: str) -> str:
    """The bucket, in lower case, that a header Host names below `domain`; "" for none."""
    if not domain:
        return ""
    name = _PORT.sub("", host).lower()
    suffix = "." + domain.lower()
    return name[: -len(suffix)] if name.endswith(suffix) else ""
